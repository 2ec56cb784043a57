//! Running the `gds` binary and reading what it says.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: a failure here is the test's failure")]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use test_support::{Finished, process, simulator};

/// The binary, not yet run.
pub(crate) fn gds() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gds"));
    // The defaults are tested, not whatever the tester's shell says.
    command.env_remove("NO_COLOR").env_remove("RUST_BACKTRACE");
    let heed_signals = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: what is done between fork and exec is one such call.
    unsafe { command.pre_exec(heed_signals) };
    command
}

/// What a finished run said.
pub(crate) struct Run(Finished);

impl Run {
    pub(crate) fn code(&self) -> Option<i32> {
        self.0.code()
    }

    pub(crate) fn stdout(&self) -> &str {
        &self.0.stdout
    }

    pub(crate) fn stderr(&self) -> &str {
        &self.0.stderr
    }

    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Run {
        Run(self.0.success())
    }

    /// The one JSON object of standard output.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let run = self.ok();
        let value: serde_json::Value = serde_json::from_str(run.stdout()).unwrap();
        assert!(value.is_object(), "{value}");
        value
    }

    /// Asserts a failure that says these words on standard error, and nothing on standard output.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, saying: &[&str]) {
        assert_eq!(self.code(), Some(code), "{}", self.0);
        assert!(self.stdout().is_empty(), "{}", self.stdout());
        for words in saying {
            assert!(self.stderr().contains(words), "{words:?} is not in: {}", self.stderr());
        }
        assert!(!self.stderr().contains("panicked"), "{}", self.stderr());
    }
}

/// Runs `gds` with these arguments: the words of `line` and then `paths`.
#[track_caller]
pub(crate) fn run(line: &str, paths: &[&Path]) -> Run {
    run_with(&[], line, paths)
}

/// The same, with these variables in its environment.
#[track_caller]
pub(crate) fn run_with(settings: &[(&str, &str)], line: &str, paths: &[&Path]) -> Run {
    let mut command = gds();
    command.envs(settings.iter().copied()).args(line.split_whitespace()).args(paths);
    Run(process::run(&mut command, process::LIMIT))
}

/// The same on the simulated driver, with `settings` in its environment.
#[track_caller]
pub(crate) fn run_simulated(settings: &[(&str, &str)], line: &str, paths: &[&Path]) -> Run {
    let mut command = gds();
    simulator::prepare(&mut command);
    command.envs(settings.iter().copied()).args(line.split_whitespace()).args(paths);
    Run(process::run(&mut command, process::LIMIT))
}

/// A synthetic checkpoint in `folder`.
#[track_caller]
pub(crate) fn synth(folder: &Path, options: &str) -> serde_json::Value {
    run(&format!("synth --json {options}"), &[folder]).json()
}

/// A file in which every tensor claims as many bytes as `lens` says: its data is one hole. An error where the file system has no
/// such files.
pub(crate) fn claim(path: &Path, prefix: &str, lens: &[u64]) -> std::io::Result<()> {
    let mut end = 0;
    let entries = lens.iter().enumerate().map(|(index, len)| {
        end += len;
        let begin = end - len;
        format!(r#""{prefix}{index}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#)
    });
    let text = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let head = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    std::fs::write(path, &head)?;
    std::fs::OpenOptions::new().write(true).open(path)?.set_len(head.len() as u64 + lens.iter().sum::<u64>())
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
