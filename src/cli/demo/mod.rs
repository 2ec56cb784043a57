//! `gds demo`: the tour. Makes a checkpoint, loads it by every path this machine has, verifies every byte, compares.

mod comparison;
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
use gds_loader::{Backend, LoadReport, Loader, PathKind};
use serde::Serialize;

use super::describe::CacheState;
use super::exit::Usage;
use super::output::{Output, path_as_text};
use super::progress::{Progress, ProgressMode};
use super::sizes;
use crate::synthetic::{self, Layout, Recipe};
use folder::Place;

/// Make a checkpoint, load it by every path this machine has, verify every byte, compare
///
/// The checkpoint is two files in a temporary folder that is removed at the end. Each path loads it cold (its pages dropped from the
/// page cache, and that measured) and warm, onto the CPU and onto the first GPU if there is one.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
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

const JSON: &str = "\
JSON fields:
  checkpoint, storage, files, tensors, bytes,
  loads [{backend, cache, verified, report}]: report has the fields of `gds load --json`,
  unavailable [{what [paths or devices], reason}]";

/// What the checkpoint is made of. The seed could be any.
const SHARDS: usize = 2;
const SEED: u64 = 2026;

/// The JSON object.
#[derive(Serialize)]
struct Tour {
    #[serde(serialize_with = "path_as_text")]
    checkpoint: PathBuf,
    storage: String,
    files: usize,
    tensors: usize,
    bytes: u64,
    loads: Vec<Load>,
    unavailable: Vec<Unavailable>,
}

impl Tour {
    /// What has no path on one device has none on the next, and two paths may lack the same thing: each reason is given once.
    fn note_unavailable(&mut self, what: String, reason: String) {
        match self.unavailable.iter_mut().find(|known| known.reason == reason) {
            Some(known) if known.what.contains(&what) => {}
            Some(known) => known.what.push(what),
            None => self.unavailable.push(Unavailable { what: vec![what], reason }),
        }
    }
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
    /// Paths or devices.
    what: Vec<String>,
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
    match gpu(layout.bytes()) {
        Ok(device) => devices.push(device),
        Err(reason) => tour.note_unavailable("cuda".into(), reason),
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

    // Gone before the words that say so.
    drop(place);
    let mut out = Output::new();
    if arguments.json {
        out.json(&tour)?;
    } else {
        comparison::print(&mut out, &tour)?;
    }
    out.finish()
}

/// The first GPU, or why none can take `bytes`.
fn gpu(bytes: u64) -> Result<Device, String> {
    let device = Device::cuda(0).map_err(|error| match error {
        cuda_staging::Error::Unavailable { reason } => reason,
        other => other.to_string(),
    })?;
    match device.memory() {
        Ok(Some(memory)) if memory.free < bytes => {
            Err(format!("the first GPU has only {} of its memory free", sizes::bytes(memory.free)))
        }
        Ok(_) => Ok(device),
        Err(error) => Err(error.to_string()),
    }
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
                Err(error) => match error.downcast_ref() {
                    Some(gds_loader::Error::Unavailable { by, reason, .. }) => {
                        tour.note_unavailable(by.to_string(), reason.clone());
                        return Ok(());
                    }
                    _ => return Err(error.context(format!("loading by {}", self.kind))),
                },
            }
        }
        Ok(())
    }

    fn load(&self, cold: bool) -> anyhow::Result<Load> {
        verify::scrub(self.device, self.layout.bytes())?;
        if !cold {
            fill_page_cache(self.files)?;
        }
        let bytes = self.layout.bytes();
        let what = format!(
            "{} to {}, {}",
            self.kind,
            self.device.info().kind.as_str(),
            if cold { "cold" } else { "warm" }
        );
        let loading = Arc::new(Progress::start(self.progress, what.clone(), bytes));
        let model = Loader::new()
            .device(self.device.clone())
            .backend(Backend::Only(self.kind))
            .cold(cold)
            .on_progress({
                let loading = Arc::clone(&loading);
                move |state| loading.set(state.bytes_done, state.bytes_total)
            })
            .load(self.place.path())?;
        drop(loading);
        let verifying = Progress::start(self.progress, format!("{what}: verifying"), bytes);
        verify::verify(&model, self.layout, &verifying).context("verifying the bytes on the device")?;
        drop(verifying);
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
