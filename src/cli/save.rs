//! `gds save`: a checkpoint into device memory, and from there to files.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use cuda_staging::{Device, DeviceSelector};
use gds_loader::{Backend, Durability, Loader, SaveReport, SaveStages, Saver};

use super::describe;
use super::output::{Output, facts};
use super::progress::{Progress, ProgressMode};
use super::sizes;

/// Load a checkpoint into device memory and save it from there, durably
///
/// DST is a .safetensors file; a folder, or anything with --shard-size, is a set of shards with their index. What was there is
/// replaced at once, when all of the new one is written and synced, and not before. The time is the save's alone.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder, a model.safetensors.index.json or a Hugging Face snapshot
    source: PathBuf,
    /// A file to be, or a folder
    destination: PathBuf,
    /// Save shards of at most so many bytes (for example 5GB); a larger tensor has one of its own
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    shard_size: Option<u64>,
    /// By which path to write: auto, gds, direct or buffered; any but auto serves or fails
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// What to wait for
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    durability: Wait,
    /// Where the tensors are in between: auto (the first CUDA device, else the CPU), cpu, cuda:N or a GPU's UUID
    #[arg(long, default_value = "auto")]
    device: DeviceSelector,
    /// Writing threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Pinned slots in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,
    /// Bytes of a slot and of a write (for example 4MiB)
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    slot_size: Option<u64>,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `--durability`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// Until bytes and names are on the disk
    #[default]
    Full,
    /// For nothing: a power cut may leave neither the old nor the new one (for caches)
    None,
}

impl From<Wait> for Durability {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Full => Self::Full,
            Wait::None => Self::None,
        }
    }
}

const JSON: &str = "\
JSON fields (bytes, seconds; GB = 10^9 bytes):
  path, device {kind, index, name}, files, tensors, bytes, seconds, gb_per_s,
  paths {gds, gds-compat, direct, buffered, mmap}: bytes of tensors by each,
  fallbacks [{file, offset, from, to, reason}],
  stages {plan_s, open_s, pin_s, fetch_s, write_s, fetch_hidden, sync_s, commit_s}: fetch_hidden is
  the share of the time copying from the device during which a write was in flight too,
  longest_stall_s: of one write, short_writes, peak_pinned_bytes,
  synced {durability, files, files_synced, folder_synced, seconds, removed, left}";

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let saver = saver(arguments);
    // Before anything is loaded.
    saver.check(&arguments.destination)?;
    let device = Device::open(&arguments.device)?;
    let progress = Arc::new(Progress::start(arguments.progress, "loading", 0));
    let shown = Arc::clone(&progress);
    let loader =
        Loader::new().device(device).on_progress(move |state| shown.set(state.bytes_done, state.bytes_total));
    let model = loader.load(&arguments.source)?;
    drop((loader, progress));

    let progress = Arc::new(Progress::start(arguments.progress, "saving", model.report().bytes));
    let shown = Arc::clone(&progress);
    let saver = saver.on_progress(move |state| shown.set(state.bytes_done, state.bytes_total));
    let report = saver.save_model(&model, &arguments.destination)?;
    drop((saver, progress));
    let mut out = Output::new();
    if arguments.json {
        out.json(&report)?;
    } else {
        print(&mut out, &report)?;
    }
    out.finish()
}

fn saver(arguments: &Arguments) -> Saver {
    let mut saver = Saver::new().backend(arguments.backend).durability(arguments.durability.into());
    if let Some(bytes) = arguments.shard_size {
        saver = saver.shard_size(bytes);
    }
    if let Some(threads) = arguments.threads {
        saver = saver.threads(threads.into());
    }
    if let Some(slots) = arguments.slots {
        saver = saver.slots(slots.into());
    }
    if let Some(bytes) = arguments.slot_size {
        saver = saver.slot_size(bytes);
    }
    saver
}

fn print(out: &mut Output, report: &SaveReport) -> anyhow::Result<()> {
    let (tensors, files) = (report.tensors as u64, report.files as u64);
    let mut rows = vec![
        ("Checkpoint", report.path.display().to_string()),
        ("Device", describe::device(&report.device)),
        ("Tensors", format!("{} in {}", sizes::count(tensors), sizes::plural(files, "file"))),
        ("Size", sizes::bytes(report.bytes)),
        (
            "Time",
            format!(
                "{} s, {} GB/s",
                sizes::seconds(report.seconds),
                sizes::gb_per_s(report.bytes, report.seconds)
            ),
        ),
        ("Path", describe::paths(&report.paths)),
        ("Synced", synced(report)),
        ("Stages", stages(&report.stages)),
        ("Longest write", sizes::duration(report.longest_stall_s)),
    ];
    if report.peak_pinned_bytes > 0 {
        rows.push(("Pinned memory", sizes::bytes(report.peak_pinned_bytes)));
    }
    rows.extend(report.gds.iter().map(|gds| ("GPUDirect", describe::gds(gds))));
    rows.extend(describe::fallbacks(&report.fallbacks).into_iter().map(|line| ("Fallback", line)));
    out.table(&facts(rows))
}

fn synced(report: &SaveReport) -> String {
    let synced = &report.synced;
    match synced.durability {
        Durability::None => "nothing: a power cut in the next minute may undo or break it".to_owned(),
        _ => format!("{} and the folder", sizes::plural(synced.files_synced as u64, "file")),
    }
}

fn stages(stages: &SaveStages) -> String {
    let mut text = [
        ("plan", stages.plan_s),
        ("open", stages.open_s),
        ("pin", stages.pin_s),
        ("fetch", stages.fetch_s),
        ("write", stages.write_s),
        ("sync and publish", stages.commit_s),
    ]
    .into_iter()
    .filter(|(_, seconds)| *seconds > 0.0)
    .map(|(name, seconds)| format!("{name} {}", sizes::duration(seconds)))
    .collect::<Vec<_>>()
    .join(", ");
    if let Some(hidden) = stages.fetch_hidden {
        text += &format!(" ({} of the fetching while writing)", sizes::percent(hidden));
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
        let line = "save a b --shard-size 5GB --backend direct --durability none --device cuda:1 --threads 2 --slots 4 \
                    --slot-size 4MiB --progress never --json";
        let Only { arguments } = Only::try_parse_from(line.split_whitespace()).unwrap();
        assert_eq!(arguments.shard_size, Some(5_000_000_000));
        assert_eq!(Durability::from(arguments.durability), Durability::None);
    }
}
