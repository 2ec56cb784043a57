//! `gds demo`: the tour. Makes a checkpoint, loads it by every path this machine has, verifies every byte, compares.

mod folder;
mod verify;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use cuda_staging::Device;
use gds_loader::format::Dtype;
use gds_loader::{Backend, ErrorKind, LoadReport, Loader, PathKind};
use serde::Serialize;

use super::describe::{self, CacheState};
use super::exit::Usage;
use super::output::{Align, Output, facts, table};
use super::progress::{Progress, ProgressMode};
use super::sizes;
use crate::synthetic::{self, Layout, Recipe};
use folder::Place;

/// Make a checkpoint, load it by every path this machine has, verify every byte, compare
///
/// The checkpoint is two files in a temporary folder that is removed at the end. Each path loads it cold (its pages dropped from the
/// page cache, and that measured) and warm, onto the CPU and onto the first GPU if there is one.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Size of the checkpoint
    #[arg(long, default_value = "1GiB", value_parser = sizes::parse_size)]
    size: u64,
    /// Folder to make the temporary folder in [default: TMPDIR, /tmp or /var/tmp, a disk before memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the checkpoint is made of. The seed could be any.
const SHARDS: usize = 2;
const SEED: u64 = 2026;

/// The JSON object.
#[derive(Serialize)]
struct Tour {
    checkpoint: PathBuf,
    storage: &'static str,
    files: usize,
    tensors: usize,
    bytes: u64,
    loads: Vec<Load>,
    unavailable: Vec<Unavailable>,
}

/// One load, verified: a load with a wrong byte ends the demo with an error.
#[derive(Serialize)]
struct Load {
    backend: PathKind,
    /// `cold` or `warm` as measured, else the share that was in the page cache.
    cache: String,
    verified: bool,
    report: LoadReport,
    #[serde(skip)]
    asked_cold: bool,
}

#[derive(Serialize)]
struct Unavailable {
    what: String,
    reason: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let recipe = Recipe { bytes: arguments.size, dtype: Dtype::BF16, seed: SEED, shards: SHARDS };
    let layout = Layout::new(recipe).map_err(|error| Usage(format!("{error:#}")))?;
    let place = folder::choose(arguments.dir.as_deref(), layout.file_bytes())?;
    let progress = Progress::start(arguments.progress, "writing the checkpoint", layout.file_bytes());
    let files = synthetic::write(&layout, place.path(), false, &|bytes| progress.advance(bytes))?;
    drop(progress);

    let mut tour = Tour {
        checkpoint: place.path().to_owned(),
        storage: place.storage(),
        files: files.len(),
        tensors: layout.tensors(),
        bytes: layout.bytes(),
        loads: Vec::new(),
        unavailable: Vec::new(),
    };
    let mut devices = vec![Device::cpu()];
    match Device::cuda(0) {
        Ok(device) => devices.push(device),
        Err(error) => tour.unavailable.push(Unavailable { what: "GPU".into(), reason: error.to_string() }),
    }
    for device in &devices {
        for kind in PathKind::ALL {
            Stand {
                layout: &layout,
                place: &place,
                files: &files,
                device,
                kind,
                progress: arguments.progress,
            }
            .load_cold_and_warm(&mut tour)?;
        }
    }

    let mut out = Output::new();
    if arguments.json {
        out.json(&tour)?;
    } else {
        print(&mut out, &tour)?;
    }
    out.finish()
}

/// One path and device to try.
struct Stand<'a> {
    layout: &'a Layout,
    place: &'a Place,
    files: &'a [PathBuf],
    device: &'a Device,
    kind: PathKind,
    progress: ProgressMode,
}

impl Stand<'_> {
    /// Both loads, or why there are none.
    fn load_cold_and_warm(&self, tour: &mut Tour) -> anyhow::Result<()> {
        for cold in [true, false] {
            match self.load(cold) {
                Ok(load) => tour.loads.push(load),
                Err(error) => {
                    let loader_error = error.downcast_ref::<gds_loader::Error>();
                    if loader_error.is_none_or(|error| error.kind() != ErrorKind::Unavailable) {
                        return Err(error.context(format!("loading by {}", self.kind)));
                    }
                    let what = self.kind.to_string();
                    // What has no path on one device has none on the next, for the same reason.
                    if tour.unavailable.iter().all(|known| known.what != what) {
                        tour.unavailable.push(Unavailable { what, reason: format!("{error:#}") });
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn load(&self, cold: bool) -> anyhow::Result<Load> {
        verify::scrub(self.device, self.layout.bytes())?;
        if !cold {
            fill_page_cache(self.files)?;
        }
        let what = format!(
            "{} to {}, {}",
            self.kind,
            self.device.info().kind.as_str(),
            if cold { "cold" } else { "warm" }
        );
        let progress = Arc::new(Progress::start(self.progress, what, self.layout.bytes()));
        let model = Loader::new()
            .device(self.device.clone())
            .backend(Backend::Only(self.kind))
            .cold(cold)
            .on_progress({
                let progress = Arc::clone(&progress);
                move |state| progress.set(state.bytes_done, state.bytes_total)
            })
            .load(self.place.path())?;
        verify::verify(&model, self.layout).context("verifying the bytes on the device")?;
        let report = model.report().clone();
        Ok(Load {
            backend: self.kind,
            cache: CacheState::before(&report.cache).to_string(),
            verified: true,
            report,
            asked_cold: cold,
        })
    }
}

/// Reads the files once, so that a warm load finds them in the page cache whatever path came before.
fn fill_page_cache(files: &[PathBuf]) -> anyhow::Result<()> {
    let read = |path: &Path| -> io::Result<u64> {
        io::copy(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut io::sink())
    };
    for path in files {
        read(path).with_context(|| format!("reading {}", path.display()))?;
    }
    Ok(())
}

fn print(out: &mut Output, tour: &Tour) -> anyhow::Result<()> {
    out.table(&facts([
        ("Checkpoint", format!("{} {}", tour.checkpoint.display(), tour.storage)),
        (
            "Contents",
            format!(
                "{}, {} tensors in {} files, removed now",
                sizes::bytes(tour.bytes),
                sizes::count(tour.tensors as u64),
                tour.files
            ),
        ),
    ]))?;
    out.gap()?;
    let mut loads = table(&[
        ("Path", Align::Left),
        ("Device", Align::Left),
        ("Page cache", Align::Left),
        ("Seconds", Align::Right),
        ("GB/s", Align::Right),
        ("Verified", Align::Left),
        ("Notes", Align::Left),
    ]);
    for load in &tour.loads {
        loads.add_row([
            describe::paths(&load.report),
            describe::device(&load.report.device),
            load.cache.clone(),
            sizes::seconds(load.report.seconds),
            sizes::gb_per_s(load.report.bytes, load.report.seconds),
            if load.verified { "yes".into() } else { "no".into() },
            notes(load),
        ]);
    }
    out.table(&loads)?;
    out.gap()?;
    out.line(format_args!(
        "Each load was compared byte by byte, all {} of it, with what its position demands.",
        sizes::bytes(tour.bytes)
    ))?;
    out.line(
        "Cold: at most 1% of the files was in the page cache just before the load. Warm: at least 99% was.",
    )?;
    if !tour.unavailable.is_empty() {
        out.gap()?;
        let mut missing = table(&[("Not available here", Align::Left), ("Why", Align::Left)]);
        for Unavailable { what, reason } in &tour.unavailable {
            missing.add_row([what, reason]);
        }
        out.table(&missing)?;
    }
    Ok(())
}

fn notes(load: &Load) -> String {
    let mut notes = describe::fallbacks(&load.report.fallbacks);
    let state = CacheState::before(&load.report.cache);
    if load.asked_cold && state != CacheState::Cold {
        notes.push("could not be made cold".into());
    }
    if !load.asked_cold && state != CacheState::Warm {
        notes.push("could not be made warm".into());
    }
    notes.join("; ")
}
