//! `cargo xtask mutants`: every known fault, planted in a copy of the project, must turn the test named in it red.
//!
//! A mutant is a file `tests/mutants/NAME.patch`: lines of a header, then a unified diff.
//!
//! ```text
//! # What is wrong with it, in a line or more.
//! # test: PACKAGE::TARGET NAME      the test that must fail, TARGET being "lib" or an integration test's name
//! # hang                            only where the fault is one that makes the test wait for ever
//! ```
//!
//! There is one copy and one build folder for all, so that a mutant costs one incremental build of what it touches. Every
//! named test must first pass on the copy as it is: a test that fails anyway proves nothing.

mod bench;
mod patch;

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::test::in_seconds;
use crate::workspace;
use bench::{Bench, Verdict};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these mutants: file names without ".patch"
    names: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let mutants = patch::read_all(&workspace::root().join("tests/mutants"), &arguments.names)?;
    let bench = Bench::set_up()?;
    bench.check_unmutated(&mutants)?;
    println!("\nevery named test passes unmutated, after {}\n", in_seconds(start.elapsed()));

    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let (mut missed, mut not_tried) = (Vec::new(), 0);
    for mutant in &mutants {
        let began = Instant::now();
        let verdict = bench.try_mutant(mutant)?;
        let tests = mutant.tests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        println!("{:width$}  {:>7}  {verdict:<9}  {tests}", mutant.name, in_seconds(began.elapsed()));
        match verdict {
            Verdict::Caught => {}
            Verdict::Missed(why) => {
                println!("{:width$}  {why}", "");
                missed.push(mutant.name.as_str());
            }
            Verdict::NotTried(why) => {
                println!("{:width$}  {why}", "");
                not_tried += 1;
            }
        }
    }
    println!(
        "\n{} mutants, {} missed, {not_tried} not tried, in {}",
        mutants.len(),
        missed.len(),
        in_seconds(start.elapsed())
    );
    ensure!(missed.is_empty(), "not caught: {}", missed.join(", "));
    Ok(())
}
