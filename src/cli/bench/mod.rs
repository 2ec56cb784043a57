//! `gds bench`: paths against each other, on the same files and device, in the same rounds.

mod paths;
mod plot;
mod raw;
mod report;
mod rounds;
mod sweep;
mod table;
mod worker;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cuda_staging::DeviceSelector;
use gds_loader::bench::Asked;
use gds_loader::{Engine, PathKind};

use super::exit::Usage;
use super::progress::ProgressMode;
use super::sizes;
use worker::Settings;

/// Compare every path this machine has, cold and warm, with medians, spreads and what the hardware allows
///
/// Each path loads in a process of its own. Every round has every case once, in a shuffled order; ratios are taken within a round. A
/// load counts as cold only where the page cache was looked at just before and held at most 1% of the files, as warm where it held at
/// least 99%. The limits (direct reads of the same files into memory that is used again, copies within memory, copies from pinned
/// memory to the GPU) are measured in the same rounds. docs/benchmarking.md says how to read the figures.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder, a model.safetensors.index.json or a Hugging Face snapshot; with --raw any file or folder
    path: PathBuf,
    /// Where to: auto (the first CUDA device, else the CPU), cpu, cuda:N or a GPU's UUID
    #[arg(long, default_value = "auto")]
    device: DeviceSelector,
    /// Only this path: gds, gds-compat, direct, buffered or mmap; may be given several times
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    backend: Vec<PathKind>,
    /// Who keeps direct reads in flight: io-uring or threads; without it both are compared, and --sweep and --raw choose
    #[arg(long)]
    engine: Option<Engine>,
    /// What the page cache is to hold when a load begins [default: both, with --sweep and --raw cold]
    #[arg(long, value_enum, value_name = "WHAT")]
    cache: Option<CacheChoice>,
    /// Rounds, after one to warm up. Figures to publish need 9 or more
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Shuffles the order; the same seed gives the same order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Reading threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Reads in flight by each thread, by io_uring
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    depth: Option<u16>,
    /// Pinned slots in all
    #[arg(long, value_name = "N", conflicts_with = "raw", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,
    /// Bytes of a slot (for example 4MiB)
    #[arg(long, value_name = "SIZE", conflicts_with = "raw", value_parser = sizes::parse_size)]
    slot_size: Option<u64>,
    /// Bytes of a read, at most a slot's
    #[arg(long, value_name = "SIZE", conflicts_with = "raw", value_parser = sizes::parse_size)]
    read_size: Option<u64>,
    /// Draw the result as SVG; what is there already is replaced only if it is an SVG
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "raw"])]
    plot: Option<PathBuf>,
    /// Try values of one setting: NAME=A,B,C or NAME=A..B (doubling), NAME being read-size, slot-size, depth or threads; may be
    /// given several times, or once as `all`. One path: --backend, else direct
    #[arg(long, value_name = "NAME=VALUES", conflicts_with = "raw")]
    sweep: Vec<sweep::Choice>,
    /// Try every combination of the values, instead of one setting after the other
    #[arg(long, requires = "sweep")]
    full: bool,
    /// Read any files in blocks, as gdsio and fio do: no headers, no tensors
    #[arg(long)]
    raw: bool,
    /// Bytes of a read [default: 1MiB]
    #[arg(long, value_name = "SIZE", requires = "raw", value_parser = sizes::parse_size)]
    block_size: Option<u64>,
    /// In which order blocks are read [default: sequential]
    #[arg(long, value_enum, value_name = "ORDER", requires = "raw")]
    pattern: Option<raw::Order>,
    /// Read for so long, going round if need be; without it, everything is read once
    #[arg(long, value_name = "N", requires = "raw", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `--cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheChoice {
    /// Nothing of the files
    Cold,
    /// All of them
    Warm,
    /// Each in turn
    Both,
}

impl CacheChoice {
    fn asked(self) -> &'static [Asked] {
        match self {
            Self::Cold => &[Asked::Cold],
            Self::Warm => &[Asked::Warm],
            Self::Both => &[Asked::Cold, Asked::Warm],
        }
    }
}

const JSON: &str = "\
JSON fields (bytes, seconds; GB = 10^9 bytes; null where the machine does not say). A summary is {count, median, min, max,
lower_quartile, upper_quartile, max_over_min}:
  version, machine {kernel, cpu, cores, cpu_cache, virtual_machine, memory, memory_limit, page_cache, gpu, driver, cufile,
  storage {file_system, source, device}}, subject {path, files, tensors, bytes, device}, settings, rounds, seed, seconds,
  rows [{label, path, engine, asked, measure, state, left_out, seconds, gb_per_s, cpu_s_per_gb, pin_s: summaries,
  limit {limit, share: summary}, above_memory, start {device_s, cufile_s, first}, failure,
  rounds [{round, proven, seconds, gb_per_s, cpu_s, cache {resident_before, resident_after}, open_s, pin_s, read_s, copy_s,
  copy_hidden, copies, pinned_bytes, fallbacks, engine, gds}]}]: state is cold or warm only where that was measured,
  limits [{limit: storage, memory or link; how, gb_per_s: summary, failure, rounds}],
  gds_against_host [{asked, gds, host, speed: summary, gds_cpu_s_per_gb, host_cpu_s_per_gb, proof}], gds_absent: why not,
  overlap [{label, asked, serial, read_alone, copy_alone, pipelined, over_longer, gain: summaries}], overlap_absent: why not,
  copies {pieces, tensors: {copies, bytes, seconds}, price}, unavailable [{what, reason}]
With --sweep: version, machine, subject, rounds, seed, seconds, lane, asked, tried [{settings, seconds, gb_per_s, against_default:
  summaries, unproven, failure}], best {settings, against_default: summary of fresh rounds, better}
With --raw: version, machine, path, result {path, engine, device, block_size, threads, depth, pattern, files, file_bytes, bytes,
  operations, seconds, gb_per_s, operations_per_s, latency {mean_us, p50_us, p99_us, max_us}, cpu_s, pinned_bytes, cache, gds}";

/// What a process of the benchmark is told.
#[derive(Args, Debug)]
pub(crate) struct WorkerArguments {
    #[arg(long)]
    device: DeviceSelector,
    path: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.raw {
        return raw::run(arguments);
    }
    if !arguments.sweep.is_empty() {
        return sweep::run(arguments);
    }
    paths::run(arguments)
}

/// One of the processes that load.
pub(crate) fn serve(arguments: &WorkerArguments) -> anyhow::Result<()> {
    worker::serve(arguments)
}

impl Arguments {
    fn settings(&self) -> Settings {
        Settings {
            threads: self.threads.map(usize::from),
            slots: self.slots.map(usize::from),
            slot_size: self.slot_size,
            read_size: self.read_size,
            depth: self.depth.map(usize::from),
        }
    }

    /// The one path of a sweep or a raw benchmark.
    fn only_path(&self) -> anyhow::Result<PathKind> {
        match self.backend.as_slice() {
            [] => Ok(PathKind::Direct),
            [path] => Ok(*path),
            _ => Err(Usage("--sweep and --raw take one --backend".into()).into()),
        }
    }
}

fn parse_path(name: &str) -> Result<PathKind, String> {
    name.parse().map_err(|()| {
        let names = PathKind::ALL.map(PathKind::as_str).join(", ");
        format!("{name:?} is none of {names}")
    })
}
