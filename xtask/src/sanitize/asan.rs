//! `cargo xtask asan`: the tests of cuFile under AddressSanitizer, or with `--all` every package's.
//!
//! NVIDIA's libcufile is what it is; what it leaks is not counted. With `--all`, the tests that the sanitizer does not bear as they are
//! run apart or not at all: `apart`.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Instant;

use anyhow::Result;

use super::{Instrumented, apart, could_not_run, nightly_host};
use crate::test::{Count, fetch_cufile};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Every test of every package but the chores', instead of those of cuFile
    #[arg(long)]
    all: bool,
    /// Further arguments of `cargo test`, which then select the tests; those that are run apart with `--all` fail here
    #[arg(last = true, conflicts_with = "all")]
    cargo: Vec<OsString>,
}

/// The tests: those of the safe API and of what NVIDIA's samples show.
const TESTS: [&str; 6] = ["--package", "gds-loader", "--test", "cufile_*", "--test", "samples_*"];

/// Every package's tests. Not those in documentation, which the flags do not reach; not the benchmarks.
const ALL: [&str; 8] =
    ["--workspace", "--exclude", "xtask", "--exclude", "gpu-check", "--lib", "--bins", "--tests"];

/// `gds_asan` brings the test that must be caught.
const RUSTFLAGS: &str = "-Zsanitizer=address -Clink-arg=-rdynamic --cfg gds_asan";

/// Leaks that are none of ours: NVIDIA's library keeps some of its memory for ever. By the library's name, since nothing on a
/// plain machine turns addresses into names of functions.
const SUPPRESSED: &str = "leak:libcufile.so.0\n";

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let Some(host) = nightly_host() else {
        could_not_run("AddressSanitizer", "there is no nightly toolchain (rustup toolchain install nightly)");
        return Ok(());
    };
    fetch_cufile()?;
    let instrumented = Instrumented {
        toolchain: "nightly",
        host,
        target: workspace::target_absolute()?.join("asan"),
        rustflags: RUSTFLAGS,
        environment: Vec::new(),
        arguments: Vec::new(),
    };
    let needs = instrumented.simulators()?;
    let suppressions = instrumented.file("leaks.txt", SUPPRESSED)?;

    let cargo = |options: &str| {
        let mut cargo = instrumented.cargo("test");
        cargo.arg("--no-fail-fast");
        // Unwinding by frame pointers does not get through NVIDIA's library, and then nothing says that a leak is its own.
        // A symbolizer would not start: it is given the instrumented driver, too.
        cargo.env("ASAN_OPTIONS", format!("fast_unwind_on_malloc=0:symbolize=0{options}"));
        cargo.env("LSAN_OPTIONS", format!("print_suppressions=0:suppressions={}", suppressions.display()));
        cargo
    };
    let prepared = start.elapsed();
    let mut count = Count::default();
    match (arguments.cargo.as_slice(), arguments.all) {
        ([], false) => count.run(cargo("").args(TESTS), &needs)?,
        ([], true) => {
            let mut lessons = instrumented.cargo("build");
            workspace::check(lessons.args(["--quiet", "--package", "gds", "--examples"]))?;
            let listed = cargo("").args(ALL).args(["--", "--list"]).stderr(Stdio::inherit()).output()?;
            apart::check(&String::from_utf8_lossy(&listed.stdout))?;
            count.run(cargo("").args(ALL).args(apart::of_the_rest()), &needs)?;
            count.run(cargo(apart::OPTIONS).args(ALL).args(apart::of_run_apart()), &needs)?;
            apart::account(&mut count);
        }
        (given, _) => count.run(cargo("").args(given), &needs)?,
    }
    count.finish(start, prepared);
    Ok(())
}
