//! The files of `tests/mutants`: a fault each, with the tests that must notice it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

/// A fault and the tests that must notice it.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) tests: Vec<Test>,
    /// Whether a test that hangs has noticed it.
    pub(super) may_hang: bool,
}

/// A test, by the program it is in and its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    pub(super) program: Program,
    pub(super) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    pub(super) package: String,
    /// "lib", "bin", "models" (the library's with the feature `loom`), or an integration test.
    pub(super) target: String,
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{} {}", self.program.package, self.program.target, self.name)
    }
}

impl Mutant {
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let header = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
        let mut mutant = Self { name, path: path.to_owned(), tests: Vec::new(), may_hang: false };
        for line in header {
            if let Some(test) = line.strip_prefix("test:") {
                mutant.tests.push(Test::parse(test.trim())?);
            } else if line == "hang" {
                mutant.may_hang = true;
            }
        }
        ensure!(!mutant.tests.is_empty(), "no line \"# test: PACKAGE::TARGET NAME\"");
        Ok(mutant)
    }
}

impl Test {
    fn parse(text: &str) -> Result<Self> {
        let parts =
            text.split_once(' ').and_then(|(program, name)| Some((program.split_once("::")?, name.trim())));
        let Some(((package, target), name)) = parts else {
            bail!("{text:?} is not PACKAGE::TARGET NAME");
        };
        let program = Program { package: package.to_owned(), target: target.to_owned() };
        Ok(Self { program, name: name.to_owned() })
    }
}

/// The mutants in `folder`, or those of these names, in an order that changes one crate after the other.
pub(super) fn read_all(folder: &Path, names: &[String]) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("patch")) {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        let mutant = Mutant::parse(&path, &text).with_context(|| path.display().to_string())?;
        if names.is_empty() || names.contains(&mutant.name) {
            let changed = text.lines().find(|line| line.starts_with("+++ ")).unwrap_or_default().to_owned();
            mutants.push((changed, mutant));
        }
    }
    mutants.sort_by(|(changed, mutant), (other, than)| (changed, &mutant.name).cmp(&(other, &than.name)));
    let mutants: Vec<_> = mutants.into_iter().map(|(_, mutant)| mutant).collect();
    if let Some(name) = names.iter().find(|name| mutants.iter().all(|mutant| mutant.name != **name)) {
        bail!("there is no mutant {name:?} in {}", folder.display());
    }
    Ok(mutants)
}

impl Program {
    /// Whether it is a program of its own beside the package.
    pub(super) fn is_integration(&self) -> bool {
        !matches!(self.target.as_str(), "lib" | "bin")
    }

    /// The arguments that select it.
    pub(super) fn selection(&self) -> Vec<&str> {
        let mut arguments = vec!["--package", &self.package];
        match self.target.as_str() {
            "lib" => arguments.push("--lib"),
            "bin" => arguments.push("--bins"),
            "models" => arguments.extend(["--lib", "--features", "loom"]),
            test => arguments.extend(["--test", test]),
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_tests() {
        let text = "# It forgets.\n# hang\n# test: gds::conformance a::b\n# test: cuda-staging::lib c\n--- a/x\n# test: no::no no\n";
        let mutant = Mutant::parse(Path::new("x/forgets.patch"), text).unwrap();
        assert_eq!(mutant.name, "forgets");
        assert!(mutant.may_hang);
        assert_eq!(mutant.tests[0].to_string(), "gds::conformance a::b");
        assert_eq!(mutant.tests[1].program.selection(), ["--package", "cuda-staging", "--lib"]);
        assert_eq!(mutant.tests.len(), 2);
    }

    #[test]
    fn a_mutant_without_a_test_is_refused() {
        assert!(Mutant::parse(Path::new("x.patch"), "# It forgets.\n--- a/x\n").is_err());
        assert!(Mutant::parse(Path::new("x.patch"), "# test: gds name\n").is_err());
    }
}
