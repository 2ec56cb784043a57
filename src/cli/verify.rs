//! `gds verify`: every byte of a checkpoint read, and held against a manifest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use cuda_staging::{Device, DeviceSelector};
use gds_loader::manifest::{Difference, Manifest, ManifestMode, Proven};
use gds_loader::{Backend, Error, LoadReport, Loader, Verifier, VerifyReport};
use serde::Serialize;

use super::Exit;
use super::describe;
use super::output::{Output, facts, path_as_text};
use super::output_file::{Kind, OutputFile};
use super::progress::{Progress, ProgressMode};
use super::sizes;

/// Read every byte of a checkpoint, and hold it against a manifest or write one
///
/// Headers, lengths and index are always checked. A manifest holds a checksum (CRC-64/NVME) of every tensor and file: it finds what
/// accidents do to them, and is no protection against an adversary (for that, compare `gds load --digest` with SHA-256 sums from a
/// trusted place). Exit code 1 where anything differs; all that does is listed.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder, a model.safetensors.index.json or a Hugging Face snapshot
    path: PathBuf,
    /// Hold it against this manifest; without FILE, model.gds-manifest.json beside the model
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    manifest: Option<Option<PathBuf>>,
    /// Write a manifest of what is read; without FILE, to model.gds-manifest.json beside the model.
    /// What is there already is replaced only if it is a manifest
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "manifest")]
    write_manifest: Option<Option<PathBuf>>,
    /// Which bytes to hold against the manifest: host, as they are read; device, as read back from the device after a load
    #[arg(long, value_enum, default_value_t, value_name = "WHICH", requires = "manifest")]
    manifest_mode: Mode,
    /// Where to load to with --manifest-mode device: auto, cpu, cuda:N or a GPU's UUID
    #[arg(long, default_value = "auto", requires = "manifest")]
    device: DeviceSelector,
    /// By which path: auto, direct, buffered or mmap; with --manifest-mode device also gds and gds-compat
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Drop the files from the page cache first, so that what is read is what the storage holds
    #[arg(long)]
    cold: bool,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const JSON: &str = "\
JSON fields (bytes, seconds; GB = 10^9 bytes; null where the machine does not say):
  path, ok, manifest (the file compared with, or null), written (the manifest written, or null),
  differences [{file, tensor, place {offset, length}, kind, expected, found, reason}]: kind is missing,
  extra, length, type, checksum, header or unreadable; tensor is absent where it is the file's,
  files, tensors, bytes, seconds, gb_per_s, paths, fallbacks, cache as of gds load,
  proven: slots (the bytes as they were read) or device;
with --manifest-mode device, instead of the last two lines: loaded, the object of gds load, or null";

/// Which bytes are held against a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// As they arrive in host memory; with GPUDirect Storage, as on the device
    #[default]
    Host,
    /// As read back from the device
    Device,
}

impl From<Mode> for ManifestMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Host => Self::Host,
            Mode::Device => Self::Device,
        }
    }
}

/// The JSON object.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(serialize_with = "path_as_text")]
    path: &'a Path,
    ok: bool,
    manifest: Option<String>,
    written: Option<String>,
    differences: &'a [Difference],
    #[serde(flatten)]
    found: Found<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Read(Read<'a>),
    Loaded { loaded: Option<&'a LoadReport> },
}

/// What a [`VerifyReport`] has besides path and differences.
#[derive(Serialize)]
struct Read<'a> {
    files: usize,
    tensors: usize,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    paths: gds_loader::PathBytes,
    fallbacks: &'a [gds_loader::Fallback],
    cache: gds_loader::CacheReport,
    proven: Proven,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let beside = |file: &Option<PathBuf>| file.clone().unwrap_or_else(|| Manifest::beside(&arguments.path));
    let manifest = arguments.manifest.as_ref().map(beside);
    let write = arguments.write_manifest.as_ref().map(beside);
    // Before any of it is read.
    write.as_deref().map(|file| OutputFile::check(file, Kind::Manifest)).transpose()?;
    match (&manifest, arguments.manifest_mode) {
        (Some(file), Mode::Device) => load(arguments, file),
        (manifest, _) => read(arguments, manifest.as_deref(), write.as_deref()),
    }
}

/// Reads the files, and compares or records what they hold.
fn read(arguments: &Arguments, manifest: Option<&Path>, write: Option<&Path>) -> anyhow::Result<Exit> {
    let progress = Arc::new(Progress::start(arguments.progress, "verifying", 0));
    let shown = Arc::clone(&progress);
    let verifier = Verifier::new()
        .backend(arguments.backend)
        .cold(arguments.cold)
        .on_progress(move |state| shown.set(state.bytes_done, state.bytes_total));
    let report = match manifest {
        Some(file) => verifier.check(&arguments.path, &Manifest::read(file)?)?,
        None => {
            let (made, report) = verifier.read(&arguments.path)?;
            write.map(|file| made.write(file)).transpose()?;
            report
        }
    };
    drop(verifier);
    drop(progress);
    let mut out = Output::new();
    if arguments.json {
        let read = Read {
            files: report.files,
            tensors: report.tensors,
            bytes: report.bytes,
            seconds: report.seconds,
            gb_per_s: report.gb_per_s,
            paths: report.paths,
            fallbacks: &report.fallbacks,
            cache: report.cache,
            proven: report.proven,
        };
        out.json(&summary(arguments, manifest, write, &report.differences, Found::Read(read)))?;
    } else {
        print(&mut out, &report, manifest, write)?;
    }
    finish(out, &report.differences)
}

/// Loads the model, and compares what is on the device.
fn load(arguments: &Arguments, file: &Path) -> anyhow::Result<Exit> {
    let manifest = Manifest::read(file)?;
    let device = Device::open(&arguments.device)?;
    let progress = Arc::new(Progress::start(arguments.progress, "loading", 0));
    let shown = Arc::clone(&progress);
    let loader = Loader::new()
        .device(device)
        .backend(arguments.backend)
        .cold(arguments.cold)
        .manifest(manifest, ManifestMode::Device)
        .on_progress(move |state| shown.set(state.bytes_done, state.bytes_total));
    let loaded = loader.load(&arguments.path);
    drop(loader);
    drop(progress);
    let (report, differences) = match loaded {
        Ok(model) => (Some(model.report().clone()), Vec::new()),
        Err(Error::Manifest { differences, .. }) => (None, differences),
        Err(error) => return Err(error.into()),
    };
    let mut out = Output::new();
    if arguments.json {
        let found = Found::Loaded { loaded: report.as_ref() };
        out.json(&summary(arguments, Some(file), None, &differences, found))?;
    } else {
        let mut rows = vec![("Checkpoint", arguments.path.display().to_string())];
        if let Some(report) = &report {
            rows.push(("Device", describe::device(&report.device)));
            rows.extend(report.verified.iter().map(|verified| ("Verified", describe::verified(verified))));
        }
        rows.push(("Manifest", verdict(file, &differences)));
        out.table(&facts(rows))?;
        list(&mut out, &differences)?;
    }
    finish(out, &differences)
}

fn summary<'a>(
    arguments: &'a Arguments,
    manifest: Option<&Path>,
    written: Option<&Path>,
    differences: &'a [Difference],
    found: Found<'a>,
) -> Summary<'a> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Summary {
        path: &arguments.path,
        ok: differences.is_empty(),
        manifest: manifest.map(text),
        written: written.map(text),
        differences,
        found,
    }
}

fn print(
    out: &mut Output,
    report: &VerifyReport,
    manifest: Option<&Path>,
    write: Option<&Path>,
) -> anyhow::Result<()> {
    let (files, tensors) = (report.files as u64, report.tensors as u64);
    let time = format!(
        "{} s, {} GB/s",
        sizes::seconds(report.seconds),
        sizes::gb_per_s(report.bytes, report.seconds)
    );
    let mut rows = vec![
        ("Checkpoint", report.path.display().to_string()),
        ("Read", format!("{}, {}", sizes::plural(files, "file"), sizes::plural(tensors, "tensor"))),
        ("Size", sizes::bytes(report.bytes)),
        ("Time", time),
        ("Path", describe::paths(&report.paths)),
        ("Page cache", describe::cache(&report.cache)),
    ];
    rows.extend(describe::fallbacks(&report.fallbacks).into_iter().map(|line| ("Fallback", line)));
    rows.extend(manifest.map(|file| ("Manifest", verdict(file, &report.differences))));
    rows.extend(write.map(|file| ("Manifest", format!("written to {}", file.display()))));
    if manifest.is_none() && write.is_none() {
        let words = "none: headers, lengths and index are as they must be, and every byte could be read";
        rows.push(("Manifest", words.to_owned()));
    }
    out.table(&facts(rows))?;
    list(out, &report.differences)
}

/// What became of the comparison.
fn verdict(file: &Path, differences: &[Difference]) -> String {
    match differences.len() as u64 {
        0 => format!("all is as {} says", file.display()),
        count => format!("{} from {}", sizes::plural(count, "difference"), file.display()),
    }
}

fn list(out: &mut Output, differences: &[Difference]) -> anyhow::Result<()> {
    if !differences.is_empty() {
        out.gap()?;
    }
    differences.iter().try_for_each(|difference| out.line(difference))
}

fn finish(out: Output, differences: &[Difference]) -> anyhow::Result<Exit> {
    out.finish()?;
    Ok(if differences.is_empty() { Exit::Done } else { Exit::Failed })
}
