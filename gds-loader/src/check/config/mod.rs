//! cufile.json: which file is in force, what it says, what of that is surprising, and a better one.

mod comments;
mod rules;
mod suggest;

use serde_json::Value;

use super::finding::Finding;
use super::probes::Probes;
use crate::facts::Root;

pub(super) use suggest::suggest;

/// The variable that names another file than the system's.
const VARIABLE: &str = "CUFILE_ENV_PATH_JSON";
/// The system's file.
const SYSTEM: &str = "/etc/cufile.json";

/// The configuration in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    /// The file, where there is one or one is asked for.
    path: Option<String>,
    from_variable: bool,
    /// Its contents; null where there are none.
    settings: Value,
    /// Why the file could not be used.
    error: Option<String>,
}

impl Config {
    /// The configuration that libcufile would read.
    pub(super) fn of(root: &Root, probes: &Probes) -> Self {
        let variable = probes.variable(VARIABLE);
        let path = variable.unwrap_or(SYSTEM).to_owned();
        let from_variable = variable.is_some();
        let Some(text) = root.read(&path) else {
            return if from_variable {
                let error = Some("it does not exist or cannot be read".to_owned());
                Self { path: Some(path), from_variable, error, ..Self::default() }
            } else {
                Self::default()
            };
        };
        match serde_json::from_str(&comments::strip(&text)) {
            Ok(settings) => Self { path: Some(path), from_variable, settings, error: None },
            Err(error) => Self {
                path: Some(path),
                from_variable,
                settings: Value::Null,
                error: Some(error.to_string()),
            },
        }
    }

    /// The setting at `key`, whose parts are joined by dots.
    fn get(&self, key: &str) -> Option<&Value> {
        key.split('.').try_fold(&self.settings, |value, part| value.get(part))
    }

    pub(super) fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The numbers of a list.
    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        self.get(key)?.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect())
    }

    /// The words of a list; none where it is not there.
    pub(super) fn words(&self, key: &str) -> Vec<&str> {
        let list = self.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Whether cuFile is told to use the kernel's PCI peer-to-peer DMA for NVMe drives. Newer releases have a setting
    /// for each kind of storage.
    pub(super) fn p2pdma(&self) -> bool {
        ["properties.use_pci_p2pdma", "block.nvme.use_pci_p2pdma"]
            .iter()
            .any(|key| self.bool(key) == Some(true))
    }

    pub(super) fn findings(&self, probes: &Probes) -> Vec<Finding> {
        let mut findings = vec![self.file()];
        findings.extend(rules::findings(self, probes));
        findings
    }

    fn file(&self) -> Finding {
        const ID: &str = "config.file";
        let Some(path) = &self.path else {
            return Finding::info(ID, format!("there is no {SYSTEM}; libcufile uses its defaults"));
        };
        let source = if self.from_variable { format!(" ({VARIABLE})") } else { String::new() };
        match &self.error {
            None => Finding::ok(ID, format!("{path} is in force{source}")),
            Some(error) => Finding::warning(ID, format!("{path}{source} cannot be used: {error}"))
                .why("libcufile then refuses to open (5033, 5034) or runs with its defaults, by its version")
                .advice("correct it, or name another file in CUFILE_ENV_PATH_JSON; `gds check --suggest-config` prints one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str, environment: &[(&str, &str)]) -> Config {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/cufile.json"), text).unwrap();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::of(&Root::at(folder.path()), &Probes { environment, ..Probes::default() })
    }

    #[test]
    fn nvidias_file_is_json_with_comments() {
        let config = config(
            r#"{
                // NOTE : a comment with "quotes" and { braces
                "logging": { /* "dir": "/home/x", */ "level": "ERROR" },
                "properties": { "allow_compat_mode": true, "posix_pool_slab_size_kb" : [ 4, 1024, 16384 ], },
                "denylist": { "drivers": [ ], "mounts": [ "/mnt//x" ] },
            }"#,
            &[],
        );
        assert_eq!(config.error, None);
        assert_eq!(config.bool("properties.allow_compat_mode"), Some(true));
        assert_eq!(config.numbers("properties.posix_pool_slab_size_kb"), Some(vec![4, 1024, 16384]));
        assert_eq!(config.words("denylist.mounts"), ["/mnt//x"]);
        assert_eq!(config.text("logging.dir"), None);
        assert!(config.words("denylist.nothing").is_empty());
    }

    #[test]
    fn a_broken_file_and_a_missing_one() {
        let broken = config("{ \"properties\": { ", &[]);
        assert!(broken.error.is_some() && broken.get("properties").is_none());
        let missing = config("{}", &[(VARIABLE, "/nowhere.json")]);
        assert_eq!(missing.path.as_deref(), Some("/nowhere.json"));
        assert!(missing.error.is_some());
        assert!(config("{}", &[(VARIABLE, "")]).error.is_none());
    }
}
