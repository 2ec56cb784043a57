//! What test programs say about themselves: the lines of Rust's test harness, read while they pass by.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

/// The outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Not run, with the reason if one was given.
    Ignored(String),
}

/// What one or more test programs said.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Tests by name; of programs that have tests of the same name, the last.
    pub(crate) tests: BTreeMap<String, Outcome>,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: Vec<(String, String)>,
}

impl Results {
    /// Takes in a line of output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count_before(counts, " passed");
            self.failed += count_before(counts, " failed");
        } else if let Some((name, outcome)) = test_line(line) {
            if let Outcome::Ignored(reason) = &outcome {
                self.ignored.push((name.to_owned(), reason.clone()));
            }
            self.tests.insert(name.to_owned(), outcome);
        }
    }
}

/// The number that stands before `what`, 0 where there is none.
fn count_before(text: &str, what: &str) -> u64 {
    let before = text.split(what).next().filter(|before| before.len() < text.len());
    before.and_then(|before| before.rsplit([' ', '.']).next()?.parse().ok()).unwrap_or(0)
}

/// A line such as "test name ... ok".
fn test_line(line: &str) -> Option<(&str, Outcome)> {
    let (name, said) = line.strip_prefix("test ")?.split_once(" ... ")?;
    // Tests that must panic are marked behind their name.
    let name = name.split(" - should panic").next().unwrap_or(name);
    let outcome = match said.split(',').next().unwrap_or(said).trim() {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => {
            let reason = said.split_once(',').map_or("ignored", |(_, reason)| reason.trim());
            Outcome::Ignored(reason.to_owned())
        }
        _ => return None,
    };
    Some((name, outcome))
}

/// Runs `command` and gives each line of its standard output to `on_line`, as it comes.
pub(crate) fn stream(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("could not start {command:?}"))?;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            line.clear();
        }
    }
    child.wait().with_context(|| format!("could not wait for {command:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_is_understood() {
        let mut results = Results::default();
        for line in [
            "running 4 tests",
            "test a::b ... ok",
            "test panics - should panic ... ok",
            "test c ... FAILED",
            "test d ... ignored, needs a GPU",
            "test src/lib.rs - x (line 3) - compile ... ok",
            "test talks about ... nothing",
            "test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.23s",
        ] {
            results.read(line);
        }
        assert_eq!((results.passed, results.failed), (43, 1));
        assert_eq!(results.ignored, [("d".to_owned(), "needs a GPU".to_owned())]);
        assert_eq!(results.tests["a::b"], Outcome::Passed);
        assert_eq!(results.tests["panics"], Outcome::Passed);
        assert_eq!(results.tests["c"], Outcome::Failed);
        assert_eq!(results.tests.len(), 5);
    }
}
