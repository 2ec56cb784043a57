//! `cargo xtask loom`: the models of what runs at the same time, in every order of events within their bounds.
//!
//! They are the crates' own code with loom's locks and counters in place of the standard library's (the feature `loom`), and a
//! modelled driver: see `cuda-staging/src/models` and `gds-loader/src/pipeline/models.rs`.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::test::in_seconds;
use crate::{results, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only models whose name has this in it
    filter: Option<String>,
}

/// The packages that have models.
const PACKAGES: [&str; 2] = ["cuda-staging", "gds-loader"];

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast", "--lib"]);
    for package in PACKAGES {
        cargo.args(["--package", package, "--features", &format!("{package}/loom")]);
    }
    cargo.args(["--", "models::", "--show-output"]).args(arguments.filter);
    let mut results = results::Results::default();
    let status = results::stream(&mut cargo, |line| {
        println!("{line}");
        results.read(line);
    })?;
    ensure!(results.passed > 0 || !status.success(), "no model has such a name");
    println!("in {}", in_seconds(start.elapsed()));
    println!("{} passed, {} failed, 0 skipped", results.passed, results.failed);
    ensure!(status.success(), "{cargo:?} ended with {status}");
    Ok(())
}
