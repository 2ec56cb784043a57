//! `cargo xtask test`: everything the tests need, then all of them, then how many ran and which could not.
//!
//! A test that lacks something writes its name and the reason to a file and returns; the harness counts it as passed, and
//! here it is taken out again. The last line is the same for people and for programs: `N passed, N failed, N skipped`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::results::{self, Results};
use crate::{cufile, sim, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Further arguments of `cargo test`, which runs the whole workspace unless they name a package
    #[arg(last = true)]
    cargo: Vec<OsString>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let needs = Needs::prepare()?;
    let prepared = start.elapsed();

    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    if !arguments.cargo.iter().any(|argument| names_a_package(&argument.to_string_lossy())) {
        cargo.arg("--workspace");
    }
    cargo.args(&arguments.cargo);
    run_and_count(&mut cargo, &needs, start, prepared)
}

/// Runs the tests of `cargo`, and says which of them could not run and how many did what: that is the last line. Ends the
/// process where one failed.
pub(crate) fn run_and_count(
    cargo: &mut Command,
    needs: &Needs,
    start: Instant,
    prepared: Duration,
) -> Result<()> {
    let mut count = Count::default();
    count.run(cargo, needs)?;
    count.finish(start, prepared);
    Ok(())
}

/// What came of the tests of one run of cargo, or of several.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) results: Results,
    /// Whether a run did not end well. A program that does not compile, or dies, has no line of its own.
    failed: bool,
    /// Tests that wrote down why they could not run, and count as passed in `results`.
    not_run: Vec<(String, String)>,
    /// Tests that were not started, and why.
    pub(crate) left_out: Vec<(String, String)>,
}

impl Count {
    /// Runs the tests of `cargo`.
    pub(crate) fn run(&mut self, cargo: &mut Command, needs: &Needs) -> Result<()> {
        needs.give(cargo);
        let results = &mut self.results;
        let status = results::stream(cargo, |line| {
            println!("{line}");
            results.read(line);
        })?;
        self.failed |= !status.success();
        self.not_run.extend(needs.not_run()?);
        Ok(())
    }

    /// Says what did not run, and in the last line how many did what. Ends the process where one failed.
    pub(crate) fn finish(self, start: Instant, prepared: Duration) {
        let passed = self.results.passed.saturating_sub(self.not_run.len() as u64);
        let failed = if self.failed { self.results.failed.max(1) } else { self.results.failed };
        let skipped: Vec<_> =
            self.not_run.into_iter().chain(self.results.ignored).chain(self.left_out).collect();
        println!();
        for (test, reason) in &skipped {
            println!("could not run: {test}: {reason}");
        }
        println!(
            "{} in {} (of which {} to fetch and build what the tests need)",
            if failed == 0 { "All that ran passed" } else { "NOT ALL PASSED" },
            in_seconds(start.elapsed()),
            in_seconds(prepared),
        );
        println!("{passed} passed, {failed} failed, {} skipped", skipped.len());
        if failed > 0 {
            // Everything has been said, and the counts are to be the last line.
            std::process::exit(1);
        }
    }
}

fn names_a_package(argument: &str) -> bool {
    argument.starts_with("-p") || argument == "--package" || argument.starts_with("--package=")
}

/// A duration for people.
pub(crate) fn in_seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// What the tests find through their environment.
#[derive(Clone)]
pub(crate) struct Needs {
    /// The environment of the simulated driver, as NAME=VALUE lines.
    simulator: PathBuf,
    /// The simulated libcufile.
    cufile_simulator: PathBuf,
    /// NVIDIA's libraries.
    cufile: PathBuf,
    /// The tests that could not run.
    not_run: PathBuf,
}

impl Needs {
    /// Fetches NVIDIA's libraries and builds the simulated ones.
    ///
    /// # Errors
    /// Where the driver cannot be built; and with `GDS_REQUIRE_CUFILE=1`, where the libraries cannot be fetched.
    pub(crate) fn prepare() -> Result<Self> {
        fetch_cufile()?;
        let target = std::path::absolute(workspace::target())?;
        Self::of(&sim::build(sim::CuFile::Nvidia)?, sim::build_cufile()?, &target.join("tests"))
    }

    /// Of these simulators; what the tests leave goes into `folder`.
    pub(crate) fn of(
        environment: &sim::Environment,
        cufile_simulator: PathBuf,
        folder: &Path,
    ) -> Result<Self> {
        let target = std::path::absolute(workspace::target())?;
        fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
        let needs = Self {
            simulator: folder.join("simulator.env"),
            cufile_simulator,
            cufile: target.join("cufile"),
            not_run: folder.join(format!("not-run-{}.txt", std::process::id())),
        };
        fs::write(&needs.simulator, environment.lines())
            .with_context(|| format!("could not write {}", needs.simulator.display()))?;
        Ok(needs)
    }

    /// The same for other tests at the same time, whose account of what could not run is theirs: `name` tells them apart.
    pub(crate) fn apart(&self, name: &str) -> Self {
        let not_run = self.not_run.with_extension(format!("{name}.txt"));
        Self { not_run, ..self.clone() }
    }

    /// Puts it into the environment of `command`.
    pub(crate) fn give(&self, command: &mut Command) {
        command.env("GDS_SIM_ENV_FILE", &self.simulator);
        command.env("GDS_SIM_CUFILE", &self.cufile_simulator);
        command.env("GDS_CUFILE_DIR", &self.cufile);
        command.env("GDS_TESTS_NOT_RUN", &self.not_run);
    }

    /// The tests that could not run so far, each with its reasons. Forgets them.
    pub(crate) fn not_run(&self) -> Result<Vec<(String, String)>> {
        if !self.not_run.is_file() {
            return Ok(Vec::new());
        }
        let text = fs::read_to_string(&self.not_run)
            .with_context(|| format!("could not read {}", self.not_run.display()))?;
        fs::remove_file(&self.not_run)
            .with_context(|| format!("could not remove {}", self.not_run.display()))?;
        Ok(by_test(&text))
    }
}

/// NVIDIA's libraries, which may be missing unless `GDS_REQUIRE_CUFILE` is 1.
pub(crate) fn fetch_cufile() -> Result<()> {
    if let Err(error) = cufile::fetch() {
        if std::env::var_os("GDS_REQUIRE_CUFILE").is_some_and(|value| value == "1") {
            return Err(error);
        }
        eprintln!("tests of NVIDIA's libcufile cannot run: {error:#}");
    }
    Ok(())
}

/// One entry per test of lines "test: reason"; a test may lack several things.
fn by_test(lines: &str) -> Vec<(String, String)> {
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines.lines() {
        let (test, reason) = line.split_once(": ").unwrap_or((line, "for no reason given"));
        let reasons = tests.entry(test).or_default();
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    tests.into_iter().map(|(test, reasons)| (test.to_owned(), reasons.join("; "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_lacks_two_things_counts_once() {
        let lines = "a::x: no strace\nb::y: no tmpfs\na::x: no network: none\na::x: no strace\n";
        assert_eq!(
            by_test(lines),
            [("a::x", "no strace; no network: none"), ("b::y", "no tmpfs")]
                .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        );
    }

    #[test]
    fn a_package_may_be_named_in_three_ways() {
        assert!(["-pgds", "-p", "--package", "--package=gds"].into_iter().all(names_a_package));
        assert!(!["--test", "--release", "gds"].into_iter().any(names_a_package));
    }
}
