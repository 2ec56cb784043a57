//! `cargo xtask fuzz`: the targets of `fuzz/`, each for some time, beginning with the inputs that earlier runs have kept.
//!
//! The layout is cargo-fuzz's, and so are the compiler's flags, but nothing has to be installed besides a nightly toolchain. Limits on
//! memory make an allocation that nobody has checked a finding, as is an input that takes too long.

mod corpus;
mod target;

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::sanitize::nightly_host;
use crate::test::in_seconds;
use crate::workspace;
use target::{Outcome, Target};

/// The targets, in the order they are begun.
const TARGETS: [&str; 6] = ["plan", "header", "arguments", "index", "save", "manifest"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The targets to run: header, index, manifest, plan, arguments, save; all where none is named
    targets: Vec<String>,
    /// Seconds for each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many run side by side, instead of one a core
    #[arg(long)]
    jobs: Option<usize>,
    /// Keep what was found: pack the fewest inputs that reach as much into fuzz/corpus
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    if let Some(unknown) = arguments.targets.iter().find(|name| !TARGETS.contains(&name.as_str())) {
        bail!("there is no target {unknown:?}; there are {}", TARGETS.join(", "));
    }
    let wanted =
        |name: &&str| arguments.targets.is_empty() || arguments.targets.iter().any(|other| other == name);
    let names: Vec<&str> = TARGETS.into_iter().filter(wanted).collect();
    let Some(host) = nightly_host() else {
        println!("could not run: fuzzing: there is no nightly toolchain (rustup toolchain install nightly)");
        println!("0 passed, 0 failed, {} skipped", names.len());
        return Ok(());
    };
    let programs = target::build(&host)?;
    println!("built in {}", in_seconds(start.elapsed()));

    let place = target::Places::new()?;
    let waiting = Mutex::new(names.iter().rev().map(|name| Target::new(name, &programs)).collect::<Vec<_>>());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores).clamp(1, names.len());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.pop());
    let work = || -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        while let Some(target) = next() {
            let outcome = target.run(arguments.seconds, &place)?;
            println!("{outcome}");
            if arguments.keep && !outcome.found {
                target.keep(&place)?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    };
    let mut outcomes = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let finished = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            outcomes.extend(finished.context("fuzzing")?);
        }
        Ok(())
    })?;
    drop(place);

    let not_run: Vec<&String> = outcomes.iter().flat_map(|outcome| &outcome.not_run).collect();
    not_run.iter().for_each(|line| println!("{line}"));
    let failed = outcomes.iter().filter(|outcome| outcome.found).count();
    println!(
        "{} in {}",
        if failed == 0 { "Nothing was found" } else { "SOMETHING WAS FOUND" },
        in_seconds(start.elapsed())
    );
    println!("{} passed, {failed} failed, {} skipped", outcomes.len() - failed, not_run.len());
    if failed > 0 {
        // Everything has been said, and the counts are to be the last line.
        std::process::exit(1);
    }
    Ok(())
}

/// The folder of the targets.
fn folder() -> std::path::PathBuf {
    workspace::root().join("fuzz")
}
