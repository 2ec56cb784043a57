//! The settings, read from the environment once per process.
//!
//! An invalid setting is an error with the variable's name in it, never a default: a test that believes it runs with a fault
//! or in a mode and does not would prove nothing.

use std::env;
use std::path::PathBuf;

use cufile_sys::FUNCTIONS;

use crate::faults::{self, Fault};

/// What opening the driver amounts to (`CUFILE_SIM_MODE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// No nvidia-fs: bytes bounce through the host; where that is not allowed the driver does not open.
    Compat,
    /// GPUDirect Storage: bytes go straight into device memory.
    Real,
    /// Opens and registers as if it were real; bytes bounce.
    Lying,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Compat => "compat",
            Self::Real => "real",
            Self::Lying => "lying",
        }
    }
}

/// A version of cuFile: major, minor.
pub(crate) type Version = (u16, u16);

/// The version this library has all functions of.
const NEWEST: Version = (1, 20);

/// What `CUFILE_SIM_*` say.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `CUFILE_SIM_MODE`, compat.
    pub(crate) mode: Mode,
    /// `CUFILE_SIM_VERSION`, 1.20; younger functions are absent.
    pub(crate) version: Version,
    /// Functions that are absent besides (`CUFILE_SIM_WITHOUT`).
    pub(crate) without: Vec<String>,
    /// Faults to inject (`CUFILE_SIM_SCRIPT`).
    pub(crate) script: Vec<Fault>,
    /// Where the report goes at exit (`CUFILE_SIM_REPORT`).
    pub(crate) report: Option<PathBuf>,
    /// `CUFILE_FORCE_COMPAT_MODE`, a variable of cuFile itself.
    pub(crate) force_compat: bool,
}

impl Settings {
    /// Reads the process's environment.
    pub(crate) fn from_environment() -> Result<Self, String> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        // As with most variables, one that is set to nothing counts as not set.
        let value = |name: &str| lookup(name).filter(|text| !text.trim().is_empty());
        let wrong =
            |name: &str, text: &str, expected: &str| Err(format!("{name}={text}: expected {expected}"));

        let mode = match value("CUFILE_SIM_MODE").as_deref() {
            None | Some("compat") => Mode::Compat,
            Some("real") => Mode::Real,
            Some("lying") => Mode::Lying,
            Some(text) => return wrong("CUFILE_SIM_MODE", text, "compat, real or lying"),
        };
        let version = match value("CUFILE_SIM_VERSION") {
            None => NEWEST,
            Some(text) => match version(&text) {
                Some(version) => version,
                None => return wrong("CUFILE_SIM_VERSION", &text, "a version from 1.0 to 1.20"),
            },
        };
        let mut without = Vec::new();
        for name in value("CUFILE_SIM_WITHOUT").unwrap_or_default().split(',').map(str::trim) {
            if FUNCTIONS.iter().any(|function| function.name == name) {
                without.push(name.to_owned());
            } else if !name.is_empty() {
                return wrong("CUFILE_SIM_WITHOUT", name, "names of cuFile's functions, comma separated");
            }
        }
        let script = value("CUFILE_SIM_SCRIPT").unwrap_or_default();
        let script = faults::parse(&script).map_err(|reason| format!("CUFILE_SIM_SCRIPT: {reason}"))?;
        let forced = value("CUFILE_FORCE_COMPAT_MODE");
        Ok(Self {
            mode,
            version,
            without,
            script,
            report: value("CUFILE_SIM_REPORT").map(PathBuf::from),
            force_compat: forced.is_some_and(|text| text.eq_ignore_ascii_case("true") || text == "1"),
        })
    }

    /// As `cuFileGetVersion` tells it: 1.20 is 1200.
    pub(crate) fn version_number(&self) -> i32 {
        i32::from(self.version.0) * 1000 + i32::from(self.version.1) * 10
    }

    /// The functions that the dynamic linker must not find.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &'static str> {
        let absent = |name: &str| self.without.iter().any(|without| without == name);
        FUNCTIONS.iter().filter(move |f| f.since.cufile > self.version || absent(f.name)).map(|f| f.name)
    }
}

fn version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    let version = (major.parse().ok()?, minor.parse().ok()?);
    ((1, 0)..=NEWEST).contains(&version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn defaults_are_nvidias_newest_in_compat_mode() {
        let settings = read(&[("CUFILE_SIM_MODE", "")]).unwrap();
        assert_eq!((settings.mode, settings.version_number()), (Mode::Compat, 1200));
        assert_eq!(settings.absent().count(), 0);
    }

    #[test]
    fn an_older_version_lacks_the_younger_functions() {
        let settings = read(&[("CUFILE_SIM_VERSION", "1.14"), ("CUFILE_SIM_WITHOUT", "cuFileRead")]).unwrap();
        let absent: Vec<_> = settings.absent().collect();
        assert!(absent.contains(&"cuFileGetStatsL3") && absent.contains(&"cuFileReadv"), "{absent:?}");
        assert!(absent.contains(&"cuFileRead") && !absent.contains(&"cuFileGetParameterBool"), "{absent:?}");
    }

    #[test]
    fn an_invalid_setting_is_an_error_that_names_it() {
        for (name, value) in [
            ("CUFILE_SIM_MODE", "Real"),
            ("CUFILE_SIM_VERSION", "1.21"),
            ("CUFILE_SIM_VERSION", "1"),
            ("CUFILE_SIM_WITHOUT", "cuFileNothing"),
            ("CUFILE_SIM_SCRIPT", "read"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
