//! `cargo xtask valgrind`: small loads and saves of `gds` under memcheck, on the simulated GPU.
//!
//! For what no sanitizer of ours reaches: NVIDIA's libcufile is not instrumented, and here every one of its reads and writes is
//! checked as ours are. rustix is built on libc for it: its own way to the kernel's auxiliary vector finds the vector of the
//! process, which under valgrind describes another program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::sanitize::could_not_run;
use crate::sim::{self, CuFile};
use crate::test::{fetch_cufile, in_seconds};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// What is run: its name, the libcufile it finds, and the arguments of `gds`, where MODEL is a checkpoint and OUT a file to be.
const RUNS: [(&str, CuFile, &str); 9] = [
    ("direct, io_uring", CuFile::None, "load MODEL --device cuda:0 --backend direct --digest"),
    ("direct, threads", CuFile::None, "load MODEL --device cuda:0 --backend direct --engine threads"),
    ("buffered", CuFile::None, "load MODEL --device cuda:0 --backend buffered"),
    ("mmap", CuFile::None, "load MODEL --device cuda:0 --backend mmap"),
    ("host memory", CuFile::None, "load MODEL --device cpu --backend direct"),
    ("gds-compat, NVIDIA's library", CuFile::Nvidia, "load MODEL --device cuda:0 --backend gds-compat"),
    ("gds, simulated library", CuFile::Sim, "load MODEL --device cuda:0 --backend gds"),
    ("save, direct", CuFile::None, "save MODEL OUT --device cuda:0"),
    ("save, gds", CuFile::Sim, "save MODEL OUT --device cuda:0 --backend gds"),
];

/// The status that memcheck ends with where it found anything.
const FOUND: &str = "99";

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        could_not_run("valgrind", "it is not installed");
        return Ok(());
    }
    fetch_cufile()?;
    let target = workspace::target_absolute()?.join("valgrind");
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--quiet", "--package", "gds", "--target-dir"]);
    cargo.arg(&target).env("RUSTFLAGS", "--cfg rustix_use_libc").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    workspace::check(&mut cargo)?;
    let gds = target.join("debug/gds");
    let model = target.join("model");
    workspace::check(
        Command::new(&gds).args(["synth", "--force", "--size", "12MiB", "--shards", "2"]).arg(&model),
    )?;

    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, cufile, arguments) in RUNS {
        let began = Instant::now();
        let environment = sim::build(cufile)?;
        if matches!(cufile, CuFile::Nvidia) && !environment.lines().contains("GDS_CUFILE_LIBRARY") {
            println!("could not run: {name}: NVIDIA's library has not been fetched");
            skipped += 1;
            continue;
        }
        let well = memcheck(environment.command("valgrind"), &gds, arguments, &model, &target)?;
        println!("{:<30} {:>8}  {}", name, in_seconds(began.elapsed()), if well { "ok" } else { "FAILED" });
        *(if well { &mut passed } else { &mut failed }) += 1;
    }
    println!("in {}", in_seconds(start.elapsed()));
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ensure!(failed == 0, "valgrind found something, or a run failed");
    Ok(())
}

/// Whether a run ended well and memcheck found nothing in it.
fn memcheck(mut valgrind: Command, gds: &Path, arguments: &str, model: &Path, target: &Path) -> Result<bool> {
    let suppressions: PathBuf = workspace::root().join("xtask/valgrind.supp");
    valgrind.args(["--quiet", "--leak-check=full", "--show-leak-kinds=definite"]);
    valgrind.args(["--errors-for-leak-kinds=definite", "--num-callers=30"]);
    valgrind.arg(format!("--error-exitcode={FOUND}"));
    valgrind.arg(format!("--suppressions={}", suppressions.display())).arg(gds);
    for argument in arguments.split(' ') {
        match argument {
            "MODEL" => valgrind.arg(model),
            "OUT" => valgrind.arg(target.join("saved.safetensors")),
            other => valgrind.arg(other),
        };
    }
    // The simulated library as on a machine with GPUDirect Storage; NVIDIA's does not read that.
    valgrind.env("CUFILE_SIM_MODE", "real").env("CUFILE_LOGFILE_PATH", "/dev/null").stdout(Stdio::null());
    let output = valgrind.output().context("could not start valgrind")?;
    // Of calls newer than itself, which it refuses, it says so at each use: loads ask another way then.
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| !line.starts_with("--")).for_each(|line| eprintln!("{line}"));
    Ok(output.status.success())
}
