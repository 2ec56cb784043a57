//! `gds demo`: the tour. Makes a checkpoint, loads it by every path this machine has, verifies every byte, compares.

mod child;
mod comparison;
mod folder;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use cuda_staging::Device;
use gds_loader::bench::{Asked, CacheState};
use gds_loader::format::Dtype;
use gds_loader::source::Source;
use gds_loader::{Backend, LoadReport, Loader, PathKind};
use serde::{Deserialize, Serialize};

use super::describe;
use super::exit::Usage;
use super::output::{Output, path_as_text};
use super::page_cache;
use super::progress::{Progress, ProgressMode};
use super::sizes;
use crate::synthetic::{self, Layout, Recipe};

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
    /// Load the checkpoint in this folder by one path only, for the demo that made it
    #[arg(long, hide = true, requires = "by")]
    checkpoint: Option<PathBuf>,
    /// That path
    #[arg(long, hide = true, requires = "checkpoint")]
    by: Option<Backend>,
}

const JSON: &str = "\
JSON fields:
  checkpoint, storage, files, tensors, bytes,
  loads [{backend, asked, cache, verified, report}]: report has the fields of `gds load --json`,
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
    /// Tries every path that needs no process of its own, onto one device.
    fn load_onto(
        &mut self,
        device: &Device,
        layout: &Layout,
        checkpoint: &Path,
        progress: ProgressMode,
    ) -> anyhow::Result<()> {
        for kind in PathKind::ALL.into_iter().filter(|kind| !CUFILE.contains(kind)) {
            self.add(Stand { layout, checkpoint, device, kind, progress }.load_cold_and_warm()?);
        }
        Ok(())
    }

    fn add(&mut self, tried: Tried) {
        self.loads.extend(tried.loads);
        for Unavailable { what, reason } in tried.unavailable {
            what.into_iter().for_each(|what| self.note_unavailable(what, reason.clone()));
        }
    }

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
#[derive(Serialize, Deserialize)]
struct Load {
    backend: PathKind,
    /// What the page cache was to be.
    asked: Asked,
    /// `cold` or `warm` as measured, else the share that was in the page cache.
    cache: String,
    verified: bool,
    report: LoadReport,
}

#[derive(Serialize, Deserialize)]
struct Unavailable {
    /// Paths or devices.
    what: Vec<String>,
    reason: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let recipe = Recipe { bytes: arguments.size, dtype: Dtype::BF16, seed: SEED, shards: SHARDS };
    let layout = Layout::new(recipe).map_err(|error| Usage(format!("{error:#}")))?;
    if let (Some(checkpoint), Some(Backend::Only(kind))) = (&arguments.checkpoint, arguments.by) {
        return child::run(&layout, checkpoint, kind, arguments.progress);
    }
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
    tour.load_onto(&Device::cpu(), &layout, place.path(), arguments.progress)?;
    match gpu(layout.bytes()) {
        Ok(device) => {
            tour.load_onto(&device, &layout, place.path(), arguments.progress)?;
            drop(device);
            for kind in CUFILE {
                tour.add(child::spawn(arguments.size, place.path(), kind, arguments.progress)?);
            }
        }
        Err(reason) => {
            for what in ["cuda", PathKind::Gds.as_str(), PathKind::GdsCompat.as_str()] {
                tour.note_unavailable(what.into(), reason.clone());
            }
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

/// The paths whose library has one mode for a whole process: each is loaded by in a process of its own.
const CUFILE: [PathKind; 2] = [PathKind::Gds, PathKind::GdsCompat];

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
    checkpoint: &'a Path,
    device: &'a Device,
    kind: PathKind,
    progress: ProgressMode,
}

/// What trying one path gave: loads, or why there are none.
#[derive(Default, Serialize, Deserialize)]
struct Tried {
    loads: Vec<Load>,
    unavailable: Vec<Unavailable>,
}

impl Stand<'_> {
    fn load_cold_and_warm(&self) -> anyhow::Result<Tried> {
        let mut tried = Tried::default();
        for asked in [Asked::Cold, Asked::Warm] {
            match self.load(asked) {
                Ok(load) => tried.loads.push(load),
                Err(error) => match error.downcast_ref() {
                    Some(gds_loader::Error::Unavailable { by, reason, .. }) => {
                        let (what, reason) = (vec![by.to_string()], reason.clone());
                        tried.unavailable.push(Unavailable { what, reason });
                        break;
                    }
                    _ => return Err(error.context(format!("loading by {}", self.kind))),
                },
            }
        }
        Ok(tried)
    }

    fn load(&self, asked: Asked) -> anyhow::Result<Load> {
        if asked == Asked::Warm {
            let shards = Source::open(self.checkpoint)?.shards;
            page_cache::fill(shards.iter().map(|shard| shard.path.as_path()))?;
        }
        // Last, so that the memory the load gets was in use just now: see `bench::take_and_give_back`.
        verify::scrub(self.device, self.layout.bytes())?;
        let bytes = self.layout.bytes();
        let what = format!("{} to {}, {}", self.kind, self.device.info().kind.as_str(), asked.as_str());
        let loading = Arc::new(Progress::start(self.progress, what.clone(), bytes));
        let model = Loader::new()
            .device(self.device.clone())
            .backend(Backend::Only(self.kind))
            .cold(asked == Asked::Cold)
            .on_progress({
                let loading = Arc::clone(&loading);
                move |state| loading.set(state.bytes_done, state.bytes_total)
            })
            .load(self.checkpoint)?;
        drop(loading);
        let verifying = Progress::start(self.progress, format!("{what}: verifying"), bytes);
        verify::verify(&model, self.layout, &verifying).context("verifying the bytes on the device")?;
        drop(verifying);
        let report = model.report().clone();
        let cache = describe::cache_state(CacheState::before(&report.cache));
        Ok(Load { backend: self.kind, asked, cache, verified: true, report })
    }
}
