//! `cargo xtask tsan`: the tests of what runs at the same time under ThreadSanitizer, std and simulators included.
//!
//! rustix is built on libc for it: of system calls made directly the sanitizer sees nothing, and memory that was unmapped by one thread
//! and mapped anew by another looks shared.
//!
//! std must be built with it too: as it comes, its locks look like no locks and everything behind them like a race. So its source
//! is needed, of the very compiler: rustup's component `rust-src`, or the folder that `GDS_RUST_SRC` names, for example from
//! Debian's package `rust-src` of that version (`apt-get download`, then `dpkg -x`; the folder is `usr/src/rustc-VERSION`). With
//! `RUSTC_BOOTSTRAP=1` the stable compiler does, so that no nightly's source need be found.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Instrumented, compiler, could_not_run};
use crate::test::{fetch_cufile, run_and_count};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Arguments of `cargo test`, instead of those that select the tests of what runs at the same time
    #[arg(last = true)]
    cargo: Vec<std::ffi::OsString>,
}

const TOOLCHAIN: &str = "stable";

const TESTS: [&str; 4] = ["--package", "cuda-staging", "--package", "gds-loader"];

/// What is none of ours: NVIDIA's library and what it uses are not instrumented, so that what their locks order is not seen.
const SUPPRESSED: &str = "\
called_from_lib:libcufile.so.0
race:libcufile.so.0
race:libnuma.so.1
mutex:libcufile.so.0
mutex:libstdc++.so.6
";

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let Some(source) = source_of_std() else {
        could_not_run(
            "ThreadSanitizer",
            "there is no source of std (rustup component add rust-src, or GDS_RUST_SRC=FOLDER)",
        );
        return Ok(());
    };
    let release = compiler(TOOLCHAIN, "release").unwrap_or_default();
    if let Ok(version) = fs::read_to_string(source.join("src/version")) {
        ensure!(
            version.trim() == release,
            "{} is the source of Rust {}; expected that of the compiler, {release}",
            source.display(),
            version.trim()
        );
    }
    fetch_cufile()?;
    let instrumented = Instrumented {
        toolchain: TOOLCHAIN,
        host: compiler(TOOLCHAIN, "host").unwrap_or_default(),
        target: workspace::target_absolute()?.join("tsan"),
        rustflags: "-Zsanitizer=thread -Clink-arg=-rdynamic --cfg rustix_use_libc",
        environment: vec![
            ("RUSTC_BOOTSTRAP", "1".into()),
            ("__CARGO_TESTS_ONLY_SRC_ROOT", source.join("library").into()),
            // Without any optimisation instrumented code takes several times as long.
            ("CARGO_PROFILE_DEV_OPT_LEVEL", "1".into()),
        ],
        arguments: vec!["-Zbuild-std"],
    };
    let needs = instrumented.simulators()?;
    let suppressions = instrumented.file("races.txt", SUPPRESSED)?;

    let mut cargo = instrumented.cargo("test");
    cargo.arg("--no-fail-fast");
    if arguments.cargo.is_empty() {
        cargo.args(TESTS).arg("--tests");
    }
    cargo.args(arguments.cargo);
    cargo.env("TSAN_OPTIONS", format!("die_after_fork=0:suppressions={}", suppressions.display()));
    run_and_count(&mut cargo, &needs, start, start.elapsed())
}

/// The folder above std's `library`.
fn source_of_std() -> Option<PathBuf> {
    let given = std::env::var_os("GDS_RUST_SRC").map(PathBuf::from);
    let component = || {
        let mut rustc = std::process::Command::new("rustup");
        let output = rustc.args(["run", TOOLCHAIN, "rustc", "--print", "sysroot"]).output().ok()?;
        let sysroot = String::from_utf8(output.stdout).ok()?;
        Some(PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust"))
    };
    given.or_else(component).filter(|folder| folder.join("library/Cargo.lock").is_file())
}
