//! `gds load`: a checkpoint into device memory, timed.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use cuda_staging::{Device, DeviceSelector};
use gds_loader::bench::CacheState;
use gds_loader::manifest::Manifest;
use gds_loader::{Backend, Engine, EngineReport, LoadReport, Loader, Stages};
use serde::Serialize;

use super::describe;
use super::output::{Output, facts};
use super::progress::{Progress, ProgressMode};
use super::sizes;
use super::verify::Mode;

/// Load a checkpoint into device memory and report how it went
///
/// The time runs from the call to the last byte being visible; opening, parsing, allocating and pinning are in it. With --repeat the
/// report is that of the median run (the faster of the two in the middle), and the seconds of all runs are listed in their order.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder, a model.safetensors.index.json or a Hugging Face snapshot
    path: PathBuf,
    /// Where to: auto (the first CUDA device, else the CPU), cpu, cuda:N or a GPU's UUID
    #[arg(long, default_value = "auto")]
    device: DeviceSelector,
    /// By which path: auto, gds, gds-compat, direct, buffered or mmap; any but auto serves or fails
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Who keeps direct reads in flight: auto, io-uring or threads
    #[arg(long, default_value = "auto")]
    engine: Engine,
    /// Only tensors whose name matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    tensors: Vec<String>,
    /// Drop the files from the page cache before each run, and say how much of them stayed
    #[arg(long)]
    cold: bool,
    /// Load so many times, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Add the SHA-256 of every tensor's bytes as read back from the device (not timed)
    #[arg(long)]
    digest: bool,
    /// Hold what is loaded against this manifest; anything that differs fails the load
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Which bytes to hold against the manifest: host, as they arrive there (with gds: as on the device); device, as read back
    #[arg(long, value_enum, default_value_t, value_name = "WHICH", requires = "manifest")]
    manifest_mode: Mode,
    /// Reading threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Direct reads in flight for each reading thread, instead of as many as turn out to be fast
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    depth: Option<u16>,
    /// Pinned slots in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,
    /// Bytes of a slot (for example 4MiB)
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    slot_size: Option<u64>,
    /// Bytes of a read, at most a slot's
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    read_size: Option<u64>,
    /// Files that other processes load too: auto (read them through the page cache, so that the storage reads them once for
    /// all) or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    share: Share,
    /// Leave in the page cache what was brought there
    #[arg(long)]
    keep_pages: bool,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Whether files that other processes load too are shared with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Share {
    /// Where they fit into memory.
    #[default]
    Auto,
    /// Each process reads them by itself.
    Never,
}

const JSON: &str = "\
JSON fields (bytes, seconds; GB = 10^9 bytes; null where the machine does not say):
  path, device {kind, index, name}, files, tensors, bytes, seconds, gb_per_s, cpu_s (user and system),
  paths {gds, gds-compat, direct, buffered, mmap}: bytes by each,
  fallbacks [{file, offset, from, to, reason}],
  choices [{path, why, files, file}]: paths chosen for files or parts of them, and the first file,
  stages {parse_s, open_s, allocate_s, pin_s, touch_s, read_s, copy_s, copy_hidden}: the last is the share
  of the copying time during which a read was in flight too,
  cache {resident_before, resident_after}: shares of the files in the page cache,
  engine {name, depth, workers, read_size, reason, registered, registered_files}: who read, and why not io_uring,
  copies (to the device), peak_pinned_bytes, tensors_not_indexed,
  verified {tensors, bytes, proven, seconds} with --manifest: proven is slots (the bytes as they
  arrived in host memory) or device (as read back),
  digests {tensor: SHA-256} with --digest, runs [seconds] with --repeat";

/// The JSON object: the report of one run, and the seconds of all.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    report: &'a LoadReport,
    /// Seconds of every run, in their order; with `--repeat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<f64>>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let device = Device::open(&arguments.device)?;
    let manifest = arguments.manifest.as_ref().map(Manifest::read).transpose()?.map(Arc::new);
    let mut reports: Vec<LoadReport> = Vec::new();
    for run in 1..=arguments.repeat {
        let what = match arguments.repeat {
            1 => "loading".to_owned(),
            runs => format!("loading {run}/{runs}"),
        };
        let progress = Arc::new(Progress::start(arguments.progress, what, 0));
        let mut loader = loader(arguments, &device, Arc::clone(&progress))?;
        if let Some(manifest) = &manifest {
            loader = loader.manifest(Arc::clone(manifest), arguments.manifest_mode.into());
        }
        let model = loader.load(&arguments.path)?;
        drop(loader);
        drop(progress);
        let mut report = model.report().clone();
        if arguments.digest {
            report.digests = Some(model.digests()?);
            if let Some(first) = reports.first() {
                check_equal(first, &report, run)?;
            }
        }
        reports.push(report);
        // The model's memory is freed here, before the next run allocates its own.
    }

    let runs =
        (arguments.repeat > 1).then(|| reports.iter().map(|report| report.seconds).collect::<Vec<f64>>());
    let report = median(&reports).context("no run was made")?;
    let mut out = Output::new();
    if arguments.json {
        out.json(&Summary { report, runs })?;
    } else {
        print(&mut out, report, runs.as_deref(), arguments.cold)?;
    }
    out.finish()
}

fn loader(arguments: &Arguments, device: &Device, progress: Arc<Progress>) -> anyhow::Result<Loader> {
    let mut loader = Loader::new()
        .device(device.clone())
        .backend(arguments.backend)
        .engine(arguments.engine)
        .cold(arguments.cold)
        .share(arguments.share == Share::Auto)
        .keep_pages(arguments.keep_pages)
        .tensors(&arguments.tensors)?
        .on_progress(move |state| progress.set(state.bytes_done, state.bytes_total));
    if let Some(threads) = arguments.threads {
        loader = loader.threads(threads.into());
    }
    if let Some(depth) = arguments.depth {
        loader = loader.depth(depth.into());
    }
    if let Some(slots) = arguments.slots {
        loader = loader.slots(slots.into());
    }
    if let Some(bytes) = arguments.slot_size {
        loader = loader.slot_size(bytes);
    }
    if let Some(bytes) = arguments.read_size {
        loader = loader.read_size(bytes);
    }
    Ok(loader)
}

/// The same files give the same bytes each time; if not, none of the runs is to be trusted.
fn check_equal(first: &LoadReport, this: &LoadReport, run: u16) -> anyhow::Result<()> {
    let (Some(first), Some(this)) = (&first.digests, &this.digests) else { return Ok(()) };
    match first.iter().find(|(name, digest)| this.get(*name) != Some(digest)) {
        None => Ok(()),
        Some((name, _)) => {
            bail!(
                "tensor {name:?} has other bytes after run {run} than after the first; both read the same files"
            )
        }
    }
}

/// The run in the middle by its seconds; of two in the middle the faster.
fn median(reports: &[LoadReport]) -> Option<&LoadReport> {
    let mut order: Vec<&LoadReport> = reports.iter().collect();
    order.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

fn print(out: &mut Output, report: &LoadReport, runs: Option<&[f64]>, cold: bool) -> anyhow::Result<()> {
    let mut time = format!(
        "{} s, {} GB/s",
        sizes::seconds(report.seconds),
        sizes::gb_per_s(report.bytes, report.seconds)
    );
    if let Some(runs) = runs {
        let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = runs.iter().copied().fold(0.0, f64::max);
        let (count, least, most) = (runs.len(), sizes::seconds(least), sizes::seconds(most));
        time += &format!(" (median of {count} runs, {least} to {most} s)");
    }
    let mut cache = describe::cache(&report.cache);
    if cold && CacheState::before(&report.cache) != CacheState::Cold {
        cache += "; --cold could not drop all of it";
    }
    let mut rows = vec![
        ("Checkpoint", report.path.display().to_string()),
        ("Device", describe::device(&report.device)),
        ("Tensors", tensors(report)),
        ("Size", sizes::bytes(report.bytes)),
        ("Time", time),
        ("Path", describe::paths(&report.paths)),
        ("Page cache", cache),
        ("Stages", stages(&report.stages)),
    ];
    rows.extend(report.engine.iter().map(|report| ("Engine", engine(report))));
    if report.peak_pinned_bytes > 0 {
        rows.push(("Pinned memory", sizes::bytes(report.peak_pinned_bytes)));
    }
    rows.extend(report.gds.iter().map(|gds| ("GPUDirect", describe::gds(gds))));
    rows.extend(describe::choices(report).into_iter().map(|line| ("Why", line)));
    rows.extend(report.verified.iter().map(|verified| ("Verified", describe::verified(verified))));
    rows.extend(describe::fallbacks(&report.fallbacks).into_iter().map(|line| ("Fallback", line)));
    out.table(&facts(rows))?;
    if let Some(digests) = &report.digests {
        out.gap()?;
        // As sha256sum prints them, so that its users' tools can compare them.
        for (name, digest) in digests {
            out.line(format_args!("{digest}  {name}"))?;
        }
    }
    Ok(())
}

fn tensors(report: &LoadReport) -> String {
    let (tensors, files) = (report.tensors as u64, report.files as u64);
    let mut text = format!("{} from {}", sizes::count(tensors), sizes::plural(files, "file"));
    if report.tensors_not_indexed > 0 {
        text += &format!("; {} more that the index does not give to their file", report.tensors_not_indexed);
    }
    text
}

fn engine(report: &EngineReport) -> String {
    let (workers, depth) = (report.workers as u64, report.depth as u64);
    let mut text = match report.name {
        Engine::IoUring => {
            format!("io_uring: {} by {}", sizes::plural(depth, "read"), sizes::plural(workers, "thread"))
        }
        _ => sizes::plural(workers, "thread"),
    };
    text += &format!(", {} each", sizes::bytes(report.read_size));
    if let Some(reason) = &report.reason {
        text += &format!(" (no io_uring: {reason})");
    }
    text
}

fn stages(stages: &Stages) -> String {
    let mut text = [
        ("parse", stages.parse_s),
        ("open", stages.open_s),
        ("allocate", stages.allocate_s),
        ("pin", stages.pin_s),
        ("touch ahead", stages.touch_s),
        ("read", stages.read_s),
        ("copy", stages.copy_s),
    ]
    .into_iter()
    .filter(|(_, seconds)| *seconds > 0.0)
    .map(|(name, seconds)| format!("{name} {}", sizes::duration(seconds)))
    .collect::<Vec<_>>()
    .join(", ");
    if let Some(hidden) = stages.copy_hidden {
        text += &format!(" ({} of it while reading)", sizes::percent(hidden));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn every_option_of_the_design_is_taken() {
        let line = "load model --device cuda:1 --backend eager --tensors a* --tensors b* --cold --repeat 3 --digest --threads 2 --engine threads --depth 3 \
                    --share never --keep-pages --slots 4 --slot-size 4MiB --read-size 1MiB --progress never --json";
        let Only { arguments } = Only::try_parse_from(line.split_whitespace()).unwrap();
        assert_eq!(arguments.device, DeviceSelector::Cuda(1));
        assert_eq!(arguments.backend, Backend::Only(gds_loader::PathKind::Buffered));
        assert_eq!(arguments.tensors, ["a*", "b*"]);
        assert_eq!((arguments.engine, arguments.depth), (Engine::Threads, Some(3)));
        assert_eq!((arguments.slot_size, arguments.read_size), (Some(4 << 20), Some(1 << 20)));
    }
}
