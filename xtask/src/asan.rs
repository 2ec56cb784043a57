//! `cargo xtask asan`: the tests of cuFile under AddressSanitizer, or with `--all` every package's, in a build folder of their own.
//!
//! The simulators are instrumented as well, since memory that is freed too early is written by them and not by the tests; an
//! uninstrumented library's late store goes unseen. They bring no runtime of the sanitizer: they use that of the program they
//! are loaded into, which `-rdynamic` lets them find. NVIDIA's libcufile is what it is; what it leaks is not counted.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::test::{Needs, fetch_cufile, run_and_count};
use crate::{sim, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Every test of every package but the chores', instead of those of cuFile
    #[arg(long)]
    all: bool,
    /// Further arguments of `cargo test`, which then select the tests
    #[arg(last = true)]
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
        println!(
            "could not run: AddressSanitizer: there is no nightly toolchain (rustup toolchain install nightly)"
        );
        println!("0 passed, 0 failed, 1 skipped");
        return Ok(());
    };
    fetch_cufile()?;
    let target = std::path::absolute(workspace::target())?.join("asan");
    let needs = build_simulators(&target, &host)?;
    let suppressions = target.join("leaks.txt");
    fs::write(&suppressions, SUPPRESSED)
        .with_context(|| format!("could not write {}", suppressions.display()))?;

    let mut cargo = nightly(&target, &host, "test");
    cargo.arg("--no-fail-fast");
    match (arguments.cargo.as_slice(), arguments.all) {
        ([], false) => cargo.args(TESTS),
        ([], true) => cargo.args(ALL),
        (given, _) => cargo.args(given),
    };
    // Unwinding by frame pointers does not get through NVIDIA's library, and then nothing says that a leak is its own.
    // A symbolizer would not start: it is given the instrumented driver, too.
    cargo.env("ASAN_OPTIONS", "fast_unwind_on_malloc=0:symbolize=0");
    cargo.env("LSAN_OPTIONS", format!("print_suppressions=0:suppressions={}", suppressions.display()));
    run_and_count(&mut cargo, &needs, start, start.elapsed())
}

/// The machine that the nightly compiler makes programs for, if there is one.
pub(crate) fn nightly_host() -> Option<String> {
    let run = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output().ok()?;
    let text = String::from_utf8(run.stdout).ok().filter(|_| run.status.success())?;
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

/// The nightly cargo, for instrumented programs. A target is named so that build scripts and macros are not.
fn nightly(target: &Path, host: &str, task: &str) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.current_dir(workspace::root()).args(["run", "nightly", "cargo", task, "--target", host]);
    cargo.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", RUSTFLAGS);
    cargo
}

fn build_simulators(target: &Path, host: &str) -> Result<Needs> {
    let mut cargo = nightly(target, host, "build");
    workspace::check(cargo.args(["--quiet", "--package", "cuda-sim", "--package", "cufile-sim"]))?;
    let built = |name: &str| -> PathBuf { target.join(host).join("debug").join(name) };
    let environment = sim::place(&built("libcuda_sim.so"), &target.join("sim"), None)?;
    let cufile = sim::place_cufile(&built("libcufile_sim.so"), &target.join("sim-cufile"))?;
    Needs::of(&environment, cufile, &target.join("tests"))
}
