//! `gds inspect`: what a checkpoint holds. Reads headers only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use gds_loader::format::TensorEntry;
use gds_loader::source::{Origin, Source};
use serde::Serialize;

use super::output::{Align, Output, facts, path_as_text, table};
use super::sizes;

/// Show what a checkpoint holds, without reading its data
///
/// Only headers are read and checked, so this takes milliseconds for any size.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder, a model.safetensors.index.json or a Hugging Face snapshot
    path: PathBuf,
    /// Only tensors whose name matches; may be given several times
    #[arg(long, value_name = "GLOB", value_parser = globset::Glob::new)]
    tensors: Vec<globset::Glob>,
    /// List every file and tensor, however many there are
    #[arg(long)]
    all: bool,
    /// Print one JSON object; it always lists everything
    #[arg(long)]
    json: bool,
}

const JSON: &str = "\
JSON fields (bytes):
  path, totals {files, tensors, bytes, file_bytes, header_bytes, tensors_not_indexed},
  files [{path, bytes, header_bytes, tensors}], dtypes {name: {tensors, bytes}},
  metadata {key: value},
  tensors [{name, dtype, shape, bytes, file, offset}]: file is a position in files, where the
  tensor's bytes start at offset
With --tensors, the totals of tensors and bytes, dtypes and tensors are of those that match.";

/// Rows of a table without `--all`.
const ROWS: usize = 40;
/// Characters of a metadata value without `--all`.
const VALUE: usize = 100;

/// The JSON object. The lists are of everything the path means; `tensors`, `totals` and `dtypes` only of tensors that match.
#[derive(Serialize)]
struct Contents<'a> {
    #[serde(serialize_with = "path_as_text")]
    path: &'a Path,
    /// Why these files.
    #[serde(skip)]
    origin: &'a Origin,
    totals: Totals,
    files: Vec<FileEntry<'a>>,
    dtypes: BTreeMap<&'static str, Share>,
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Default, Serialize)]
struct Totals {
    files: usize,
    tensors: usize,
    /// Of the tensors.
    bytes: u64,
    /// Of the whole files.
    file_bytes: u64,
    header_bytes: u64,
    /// Tensors in the files that an index gives to another file, or to none; not listed.
    tensors_not_indexed: usize,
}

#[derive(Serialize)]
struct FileEntry<'a> {
    #[serde(serialize_with = "path_as_text")]
    path: &'a Path,
    bytes: u64,
    header_bytes: u64,
    tensors: usize,
}

#[derive(Default, Serialize)]
struct Share {
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    bytes: u64,
    /// Which of `files`.
    file: u32,
    /// Where its bytes start in that file.
    offset: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let source = Source::open(&arguments.path)?;
    let contents = contents(&source, &arguments.tensors)?;
    let mut out = Output::new();
    if arguments.json {
        out.json(&contents)?;
    } else {
        print(&mut out, &contents, !arguments.tensors.is_empty(), arguments.all)?;
    }
    out.finish()
}

fn contents<'a>(source: &'a Source, globs: &[globset::Glob]) -> anyhow::Result<Contents<'a>> {
    let mut set = globset::GlobSetBuilder::new();
    for glob in globs {
        set.add(glob.clone());
    }
    let set = set.build()?;
    let wanted = |entry: &TensorEntry| globs.is_empty() || set.is_match(&*entry.name);

    let files: Vec<FileEntry<'_>> = source
        .shards
        .iter()
        .map(|shard| FileEntry {
            path: &shard.path,
            bytes: shard.header.file_len,
            header_bytes: shard.header.data_offset,
            tensors: shard.header.tensors.len(),
        })
        .collect();
    let mut totals = Totals {
        files: files.len(),
        // Sparse files can claim more than 64 bits together.
        file_bytes: files.iter().map(|file| file.bytes).fold(0, u64::saturating_add),
        header_bytes: files.iter().map(|file| file.header_bytes).sum(),
        tensors_not_indexed: source.unindexed.len(),
        ..Totals::default()
    };
    let mut dtypes: BTreeMap<&'static str, Share> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(source.tensors.len());
    for &place in &source.tensors {
        let entry = source.entry(place);
        if !wanted(entry) {
            continue;
        }
        let share = dtypes.entry(entry.dtype.as_str()).or_default();
        share.tensors += 1;
        share.bytes = share.bytes.saturating_add(entry.len);
        totals.tensors += 1;
        totals.bytes = totals.bytes.saturating_add(entry.len);
        tensors.push(Tensor {
            name: &entry.name,
            dtype: entry.dtype.as_str(),
            shape: &entry.shape,
            bytes: entry.len,
            file: place.shard,
            offset: entry.offset,
        });
    }
    Ok(Contents {
        path: &source.path,
        origin: &source.origin,
        totals,
        files,
        dtypes,
        metadata: &source.metadata,
        tensors,
    })
}

fn print(out: &mut Output, contents: &Contents<'_>, filtered: bool, all: bool) -> anyhow::Result<()> {
    let totals = &contents.totals;
    let matching = if filtered { " that match" } else { "" };
    let mut rows = vec![
        ("Checkpoint", contents.path.display().to_string()),
        ("Tensors", format!("{}{matching}", sizes::count(totals.tensors as u64))),
        ("Size", format!("{} ({} bytes)", sizes::bytes(totals.bytes), sizes::count(totals.bytes))),
        (
            "Files",
            format!(
                "{} ({}, headers {}): {}",
                sizes::count(totals.files as u64),
                sizes::bytes(totals.file_bytes),
                sizes::bytes(totals.header_bytes),
                contents.origin,
            ),
        ),
    ];
    if totals.tensors_not_indexed > 0 {
        let more = sizes::plural(totals.tensors_not_indexed as u64, "tensor");
        rows.push(("Left out", format!("{more} that the index gives to another file, or to none")));
    }
    out.table(&facts(rows))?;

    let rows = if all { usize::MAX } else { ROWS };
    out.gap()?;
    print_files(out, contents, rows)?;
    out.gap()?;
    print_dtypes(out, contents)?;
    if !contents.metadata.is_empty() {
        out.gap()?;
        print_metadata(out, contents.metadata, if all { usize::MAX } else { VALUE })?;
    }
    if !contents.tensors.is_empty() {
        out.gap()?;
        print_tensors(out, contents, rows)?;
    }
    Ok(())
}

fn print_files(out: &mut Output, contents: &Contents<'_>, rows: usize) -> anyhow::Result<()> {
    let mut files = table(&[
        ("File", Align::Left),
        ("Tensors", Align::Right),
        ("Header", Align::Right),
        ("Size", Align::Right),
    ]);
    for file in contents.files.iter().take(rows) {
        files.add_row([
            file_name(file.path),
            sizes::count(file.tensors as u64),
            sizes::bytes(file.header_bytes),
            sizes::bytes(file.bytes),
        ]);
    }
    out.table(&files)?;
    left_out(out, contents.files.len(), rows, "file")
}

fn print_dtypes(out: &mut Output, contents: &Contents<'_>) -> anyhow::Result<()> {
    let mut dtypes = table(&[
        ("Dtype", Align::Left),
        ("Tensors", Align::Right),
        ("Size", Align::Right),
        ("Share", Align::Right),
    ]);
    for (name, share) in &contents.dtypes {
        let part = share.bytes as f64 / contents.totals.bytes.max(1) as f64;
        dtypes.add_row([
            (*name).to_owned(),
            sizes::count(share.tensors as u64),
            sizes::bytes(share.bytes),
            sizes::percent(part),
        ]);
    }
    out.table(&dtypes)
}

fn print_metadata(out: &mut Output, metadata: &BTreeMap<String, String>, limit: usize) -> anyhow::Result<()> {
    let mut pairs = table(&[("Metadata", Align::Left), ("Value", Align::Left)]);
    for (key, value) in metadata {
        let mut shown: String = value.chars().take(limit).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        pairs.add_row([key, &shown]);
    }
    out.table(&pairs)
}

fn print_tensors(out: &mut Output, contents: &Contents<'_>, rows: usize) -> anyhow::Result<()> {
    let mut tensors = table(&[
        ("Tensor", Align::Left),
        ("Dtype", Align::Left),
        ("Shape", Align::Left),
        ("Size", Align::Right),
        ("File", Align::Right),
    ]);
    for tensor in contents.tensors.iter().take(rows) {
        tensors.add_row([
            tensor.name.to_owned(),
            tensor.dtype.to_owned(),
            format!("{:?}", tensor.shape),
            sizes::bytes(tensor.bytes),
            (tensor.file + 1).to_string(),
        ]);
    }
    out.table(&tensors)?;
    left_out(out, contents.tensors.len(), rows, "tensor")
}

fn left_out(out: &mut Output, of: usize, rows: usize, what: &str) -> anyhow::Result<()> {
    match of.checked_sub(rows) {
        None | Some(0) => Ok(()),
        Some(more) => {
            let more = more as u64;
            let noun = if more == 1 { what.to_owned() } else { format!("{what}s") };
            out.line(format_args!("… and {} more {noun}; --all lists them", sizes::count(more)))
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
