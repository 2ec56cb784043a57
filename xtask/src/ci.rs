//! `cargo xtask ci`: everything a change must pass, one named and timed step after the other, up to the first failure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::test::in_seconds;
use crate::{bindgen, results, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

type Step = fn(&mut Ci) -> Result<()>;

/// The steps, the cheap ones first.
const STEPS: [(&str, Step); 6] = [
    ("formatting", |_| workspace::check(workspace::cargo().args(["fmt", "--all", "--check"]))),
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
    ("tests", Ci::test),
    ("mutants", |_| workspace::check(workspace::cargo().args(["xtask", "mutants"]))),
];

/// What the steps leave for the end.
#[derive(Default)]
struct Ci {
    /// The last line of the tests: how many passed, failed and could not run.
    counts: Option<String>,
}

impl Ci {
    /// The command that README names, as a process of its own.
    fn test(&mut self) -> Result<()> {
        let mut command = workspace::cargo();
        let status = results::stream(command.args(["xtask", "test"]), |line| {
            println!("{line}");
            if line.ends_with(" skipped") {
                self.counts = Some(line.to_owned());
            }
        })?;
        anyhow::ensure!(status.success(), "{command:?} ended with {status}");
        Ok(())
    }
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
    if let Some(counts) = &ci.counts {
        println!("{counts}");
    }
    if outcome.is_err() {
        // Everything has been said, and the counts are to be the last line.
        std::process::exit(1);
    }
    Ok(())
}
