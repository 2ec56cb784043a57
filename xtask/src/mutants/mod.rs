//! `cargo xtask mutants`: every known fault, planted in a copy of the project, must turn the test named in it red.
//!
//! A mutant is a file `tests/mutants/NAME.patch`: lines of a header, then a unified diff.
//!
//! ```text
//! # What is wrong with it, in a line or more.
//! # test: PACKAGE::TARGET NAME      the test that must fail, TARGET being "lib", "models" or an integration test's name
//! # hang                            only where the fault is one that makes the test wait for ever
//! ```
//!
//! A copy has one build folder for all, so that a mutant costs one incremental build of what it touches; there are two copies where
//! there are cores for them, since much of a build keeps only one busy. Every named test must pass on a copy as it is: a test that
//! fails anyway proves nothing. The first copy does that while the others begin.
//!
//! A test that passes in spite of its mutant once has missed it. It is asked twice more all the same, which costs no build, so that the
//! report tells a test that rests on chance from one that sees nothing.

mod bench;
mod patch;

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use crate::test::in_seconds;
use crate::workspace;
use bench::{Bench, Verdict};
use patch::Mutant;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these mutants: file names without ".patch"
    names: Vec<String>,
    /// How many are tried side by side; by default 2, and 1 on a single core
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: Option<u8>,
    /// How often each test is asked, to find those that notice a fault only by chance
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let mutants = patch::read_all(&workspace::root().join("tests/mutants"), &arguments.names)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.map_or(cores.min(2), usize::from);
    let benches = Bench::set_up(jobs.min(mutants.len().max(1)), arguments.times)?;
    let trial = Trial {
        width: mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0),
        rest: Mutex::new(mutants.iter()),
        count: Mutex::default(),
    };
    let on = |index: usize, bench: &Bench| {
        if index == 0 {
            bench.check_unmutated(&mutants).inspect_err(|_| trial.give_up())?;
            println!("every named test passes unmutated, after {}", in_seconds(start.elapsed()));
        }
        trial.carry_out(bench)
    };
    thread::scope(|scope| {
        let on = &on;
        let threads: Vec<_> =
            benches.iter().enumerate().map(|(index, bench)| scope.spawn(move || on(index, bench))).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        ended.collect::<Result<()>>()
    })?;
    let count = trial.count.into_inner();
    let Count { missed, not_tried } = count.map_err(|_| anyhow!("a thread panicked"))?;
    for (name, why) in &missed {
        println!("\nMISSED {name}: {why}");
    }
    println!(
        "\n{} mutants, {} missed, {not_tried} not tried, in {}",
        mutants.len(),
        missed.len(),
        in_seconds(start.elapsed())
    );
    let names: Vec<_> = missed.iter().map(|(name, _)| *name).collect();
    ensure!(names.is_empty(), "not caught: {}", names.join(", "));
    Ok(())
}

/// What is left to try, and what came of the rest.
struct Trial<'m> {
    rest: Mutex<std::slice::Iter<'m, Mutant>>,
    count: Mutex<Count<'m>>,
    /// Of the longest name.
    width: usize,
}

#[derive(Default)]
struct Count<'m> {
    /// With why: said at the end, where it is found.
    missed: Vec<(&'m str, String)>,
    not_tried: usize,
}

impl<'m> Trial<'m> {
    /// Tries mutants until none is left. A failure ends the others' too, after the mutant they are at.
    fn carry_out(&self, bench: &Bench) -> Result<()> {
        while let Some(mutant) = self.next()? {
            let began = Instant::now();
            let verdict = bench.try_mutant(mutant).inspect_err(|_| self.give_up())?;
            self.report(mutant, verdict, began)?;
        }
        Ok(())
    }

    fn next(&self) -> Result<Option<&'m Mutant>> {
        Ok(self.rest.lock().map_err(|_| anyhow!("a thread panicked"))?.next())
    }

    fn give_up(&self) {
        if let Ok(mut rest) = self.rest.lock() {
            *rest = [].iter();
        }
    }

    fn report(&self, mutant: &'m Mutant, verdict: Verdict, began: Instant) -> Result<()> {
        let mut count = self.count.lock().map_err(|_| anyhow!("a thread panicked"))?;
        let (name, width) = (&mutant.name, self.width);
        let tests = mutant.tests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        println!("{name:width$}  {:>7}  {verdict:<9}  {tests}", in_seconds(began.elapsed()));
        match verdict {
            Verdict::Caught => {}
            Verdict::Missed(why) => count.missed.push((name, why)),
            Verdict::NotTried(why) => {
                println!("{:width$}  {why}", "");
                count.not_tried += 1;
            }
        }
        Ok(())
    }
}
