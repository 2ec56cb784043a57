//! `cargo xtask ci`: everything a change must pass, one named and timed step after the other, up to the first failure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::test::in_seconds;
use crate::{bindgen, results, unsafes, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

type Step = fn(&mut Ci) -> Result<()>;

/// The steps, the cheap ones first.
const STEPS: [(&str, Step); 12] = [
    ("formatting", |_| workspace::check(workspace::cargo().args(["fmt", "--all", "--check"]))),
    ("unsafe", |_| unsafes::run(unsafes::Arguments {})),
    ("dependencies", |ci| ci.count("deny")),
    ("lints", |_| {
        let mut cargo = workspace::cargo();
        cargo.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        workspace::check(&mut cargo)
    }),
    ("documentation", |_| {
        let mut cargo = workspace::cargo();
        cargo.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
        workspace::check(cargo.env("RUSTDOCFLAGS", "-Dwarnings"))
    }),
    ("bindings", |_| bindgen::run(bindgen::Arguments { check: true })),
    ("tests", |ci| ci.count("test")),
    ("gpu rehearsal", |_| {
        // With the profile of the tests, which has most of it built. The simulated libcufile serves what NVIDIA's refuses here.
        for cufile in ["nvidia", "sim"] {
            let mut rehearsal = workspace::cargo();
            rehearsal.args(["xtask", "gpu-check", "--profile", "dev", "--cufile", cufile, "--"]);
            rehearsal.args(["--size", "64MiB", "--deadline", "240", "--repeat", "1"]);
            workspace::check(&mut rehearsal)?;
        }
        Ok(())
    }),
    ("models", |ci| ci.count("loom")),
    ("sanitizer", |ci| ci.count("asan")),
    ("fuzzing", |ci| ci.count("fuzz")),
    ("mutants", |_| workspace::check(workspace::cargo().args(["xtask", "mutants"]))),
];

/// What the steps leave for the end.
#[derive(Default)]
struct Ci {
    /// How many tests passed, failed and could not run.
    counts: Option<[u64; 3]>,
}

impl Ci {
    /// Runs tests by a command of ours, as a process of its own, and adds its counts to those so far.
    fn count(&mut self, task: &str) -> Result<()> {
        let mut command = workspace::cargo();
        let mut counts = None;
        let status = results::stream(command.args(["xtask", task]), |line| {
            println!("{line}");
            counts = counted(line).or(counts);
        })?;
        if let Some(counts) = counts {
            let before = self.counts.unwrap_or_default();
            self.counts = Some([0, 1, 2].map(|index| before[index] + counts[index]));
        }
        anyhow::ensure!(status.success(), "{command:?} ended with {status}");
        Ok(())
    }
}

/// The numbers of a line "N passed, N failed, N skipped".
fn counted(line: &str) -> Option<[u64; 3]> {
    let (passed, rest) = line.split_once(" passed, ")?;
    let (failed, skipped) = rest.strip_suffix(" skipped")?.split_once(" failed, ")?;
    Some([passed.parse().ok()?, failed.parse().ok()?, skipped.parse().ok()?])
}

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let mut ci = Ci::default();
    let mut done: Vec<(&str, Duration)> = Vec::new();
    let mut outcome = Ok(());
    for (name, step) in STEPS {
        println!("== {name}");
        let began = Instant::now();
        outcome = step(&mut ci).with_context(|| format!("CI step {name:?} failed"));
        done.push((name, began.elapsed()));
        if outcome.is_err() {
            break;
        }
    }
    if let Err(error) = &outcome {
        eprintln!("{error:#}");
    }
    println!("\n== summary");
    for (index, (name, elapsed)) in done.iter().enumerate() {
        let verdict = if outcome.is_err() && index + 1 == done.len() { "FAILED" } else { "passed" };
        println!("{name:<14} {verdict}  {:>8}", in_seconds(*elapsed));
    }
    for (name, _) in &STEPS[done.len()..] {
        println!("{name:<14} not reached");
    }
    println!("{:<14} {:>16}", "together", in_seconds(start.elapsed()));
    if let Some([passed, failed, skipped]) = ci.counts {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    if outcome.is_err() {
        // Everything has been said, and the counts are to be the last line.
        std::process::exit(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_last_line_of_a_task() {
        assert_eq!(counted("812 passed, 0 failed, 3 skipped"), Some([812, 0, 3]));
        assert_eq!(counted("test result: ok. 3 passed; 1 failed; 0 ignored"), None);
        assert_eq!(counted("All that ran passed in 1.0 s"), None);
    }
}
