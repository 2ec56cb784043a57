//! Running the `gds` binary and reading what it says.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: a failure here is the test's failure")]

use std::path::Path;
use std::process::{Command, Output};

/// The binary, not yet run.
pub(crate) fn gds() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gds"));
    // The defaults are tested, not whatever the tester's shell says.
    command.env_remove("NO_COLOR").env_remove("RUST_BACKTRACE");
    command
}

/// What a finished run said.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Run {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// The one JSON object of standard output.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let run = self.ok();
        let value: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert!(value.is_object(), "{value}");
        value
    }

    /// Asserts a failure that says one thing on standard error, and nothing on standard output.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, saying: &[&str]) -> Run {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert!(self.stdout.is_empty(), "{}", self.stdout);
        for words in saying {
            assert!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs `gds` with these arguments, the words of `line` and then `paths`.
#[track_caller]
pub(crate) fn run(line: &str, paths: &[&Path]) -> Run {
    gds().args(line.split_whitespace()).args(paths).output().unwrap().into()
}

/// A synthetic checkpoint in `folder`.
#[track_caller]
pub(crate) fn synth(folder: &Path, options: &str) -> serde_json::Value {
    run(&format!("synth --json {options}"), &[folder]).json()
}

/// The names of an object's fields, sorted.
#[track_caller]
pub(crate) fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The names in a folder, sorted.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
