//! `cargo xtask sweep`: every call fails, at each of its uses and with each code, and what came of it is printed.
//!
//! The same tests run in CI, there with a part of the uses and codes.

use std::time::Instant;

use anyhow::Result;

use crate::test::{Needs, run_and_count};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// The tests: of system calls, of the driver's and of cuFile's.
const TESTS: [&str; 3] = ["syscall_sweep", "sweep", "gds_sweep"];

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let needs = Needs::prepare()?;
    let prepared = start.elapsed();
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast", "--package", "gds"]);
    TESTS.iter().for_each(|test| {
        cargo.args(["--test", test]);
    });
    // One after the other: each runs on all cores by itself, or is of one worker.
    cargo.args(["--", "--show-output", "--test-threads=1"]).env("GDS_TESTS_LONG", "1");
    run_and_count(&mut cargo, &needs, start, prepared)
}
