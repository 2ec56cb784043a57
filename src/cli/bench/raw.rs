//! `gds bench --raw`: any files in blocks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use cuda_staging::Device;
use gds_loader::bench::{self, Machine, Pattern, RawOptions, RawReport};
use serde::Serialize;

use super::rounds::shares;
use super::{Arguments, CacheChoice, table};
use crate::cli::describe;
use crate::cli::output::{Output, facts, path_as_text};
use crate::cli::sizes;
use crate::cli::version;

/// `--pattern`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// As they lie in the files
    Sequential,
    /// Shuffled, each once before any a second time
    Random,
}

/// The block size where nobody says otherwise: gdsio's own in its examples.
const BLOCK_SIZE: u64 = 1 << 20;
const THREADS: usize = 4;
const DEPTH: usize = 4;

/// The JSON object.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    #[serde(serialize_with = "path_as_text")]
    path: PathBuf,
    result: RawReport,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let device = Device::open(&arguments.device)?;
    let mut files = Vec::new();
    gather(&arguments.path, &mut files)?;
    files.sort();
    let mut options = RawOptions::new(device.clone());
    options.path = arguments.only_path()?;
    options.block_size = arguments.block_size.unwrap_or(BLOCK_SIZE);
    options.threads = arguments.threads.map_or(THREADS, usize::from);
    options.depth = arguments.depth.map_or(DEPTH, usize::from);
    options.engine = arguments.engine.unwrap_or_default();
    options.pattern = match arguments.pattern {
        Some(Order::Random) => Pattern::Random { seed: arguments.seed },
        Some(Order::Sequential) | None => Pattern::Sequential,
    };
    options.time = arguments.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    options.cold = match arguments.cache {
        Some(CacheChoice::Warm) => false,
        Some(CacheChoice::Cold) | None => true,
        Some(CacheChoice::Both) => {
            return Err(crate::cli::exit::Usage("--raw reads once: --cache cold or warm".into()).into());
        }
    };
    if !options.cold {
        crate::cli::page_cache::fill(files.iter().map(PathBuf::as_path))?;
    }
    let machine = Machine::of(files.first().map_or(&*arguments.path, PathBuf::as_path), &device);
    let result = bench::read(&files, &options)?;
    let report = Report { version: version(), machine, path: arguments.path.clone(), result };
    let mut out = Output::new();
    if arguments.json {
        out.json(&report)?;
    } else {
        out.table(&facts(describe(&report)))?;
    }
    out.finish()
}

/// The files at `path`, which is one or a folder of any depth. Links are not followed, so that none is read twice.
fn gather(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let context = || format!("looking at {}", path.display());
    let kind = fs::metadata(path).with_context(context)?;
    if kind.is_file() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    if !kind.is_dir() {
        bail!("{} is neither a file nor a folder", path.display());
    }
    for entry in fs::read_dir(path).with_context(context)? {
        let entry = entry.with_context(context)?;
        let kind = entry.file_type().with_context(context)?;
        if kind.is_dir() {
            gather(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn describe(report: &Report) -> Vec<(&'static str, String)> {
    let result = &report.result;
    let what = format!(
        "{}: {} in {}",
        report.path.display(),
        sizes::bytes(result.file_bytes),
        sizes::plural(result.files as u64, "file")
    );
    let order = match result.pattern {
        Pattern::Sequential => "in order".to_owned(),
        Pattern::Random { seed } => format!("in random order (seed {seed})"),
    };
    let mut by = format!("{} by {}", result.path, result.engine);
    if let Some(reason) = &result.engine_reason {
        by += &format!(" (io_uring: {reason})");
    }
    let how = format!(
        "{by}, {} with {} in flight each, blocks of {} bytes {order}",
        sizes::plural(result.threads as u64, "thread"),
        result.depth,
        sizes::count(result.block_size)
    );
    let gib_per_s = result.bytes as f64 / result.seconds.max(1e-9) / f64::from(1 << 30);
    let latency = &result.latency;
    let mut rows = vec![
        ("Files", what),
        ("Device", describe::device(&result.device)),
        ("Machine", table::machine(&report.machine)),
        ("Storage", table::storage(&report.machine.storage)),
        ("Read", how),
        (
            "Throughput",
            format!(
                "{gib_per_s:.3} GiB/s, {:.3} GB/s: {} in {} s",
                result.gb_per_s,
                sizes::bytes(result.bytes),
                sizes::seconds(result.seconds)
            ),
        ),
        (
            "Operations",
            format!("{}, {:.0} a second", sizes::count(result.operations), result.operations_per_s),
        ),
        (
            "Latency",
            format!(
                "average {:.1} µs, half within {:.1} µs, 99% within {:.1} µs, longest {:.1} µs",
                latency.mean_us, latency.p50_us, latency.p99_us, latency.max_us
            ),
        ),
        ("CPU", format!("{:.3} s/GB", result.cpu_s / (result.bytes as f64 / 1e9).max(1e-9))),
        ("Page cache", shares(&result.cache)),
    ];
    if result.pinned_bytes > 0 {
        rows.push(("Pinned memory", sizes::bytes(result.pinned_bytes)));
    }
    rows.extend(result.gds.iter().map(|gds| ("GPUDirect", describe::gds(gds))));
    rows
}
