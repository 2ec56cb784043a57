//! `gds synth`: a checkpoint made up on the spot.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use gds_loader::format::Dtype;
use serde::Serialize;

use super::exit::Usage;
use super::output::{Output, facts, path_as_text};
use super::progress::{Progress, ProgressMode};
use super::sizes;
use crate::synthetic::{self, Layout, Recipe};

/// Make a Llama-shaped checkpoint whose every byte is known
///
/// Each 64-bit word is a function of the seed, the tensor's name and the position in it, so a wrong offset or a swapped tensor can be
/// seen without the file. The same seed gives the same tensors in any number of shards.
#[derive(Args, Debug)]
#[command(after_long_help = JSON)]
pub(crate) struct Arguments {
    /// Folder to write into; made where it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Tensor bytes in all, met within two percent (for example 2GiB or 500MB)
    #[arg(long, value_parser = sizes::parse_size)]
    size: u64,
    /// Number of files; one is model.safetensors, several have an index
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    shards: u16,
    /// Type of every tensor, by its name in the format
    #[arg(long, default_value = "BF16", value_parser = parse_dtype)]
    dtype: Dtype,
    /// Seed of the payload
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Replace a checkpoint in DIR that this command did not make
    #[arg(long)]
    force: bool,
    /// Progress on standard error
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    progress: ProgressMode,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const JSON: &str = "\
JSON fields (bytes, seconds):
  path, files [{path, bytes, tensors}], tensors, bytes (of the tensors), file_bytes, dtype, seed,
  hidden_size, layers, vocabulary, seconds, gb_per_s
The rule of the payload: word i of a tensor, 64 bits, little-endian, is output i of SplitMix64 from the state
mix(mix(seed + 0x9e3779b97f4a7c15) xor FNV-1a-64(name)), mix being SplitMix64's own finaliser.";

/// A dtype in any case.
fn parse_dtype(text: &str) -> Result<Dtype, String> {
    text.to_ascii_uppercase()
        .parse()
        .map_err(|_| format!("'{text}' is not a dtype of safetensors (BF16, F16, F32, F8_E4M3, ...)"))
}

/// The summary as JSON.
#[derive(Serialize)]
struct Summary {
    #[serde(serialize_with = "path_as_text")]
    path: PathBuf,
    files: Vec<SummaryFile>,
    tensors: usize,
    bytes: u64,
    file_bytes: u64,
    dtype: String,
    seed: u64,
    hidden_size: u64,
    layers: u64,
    vocabulary: u64,
    seconds: f64,
    gb_per_s: f64,
}

#[derive(Serialize)]
struct SummaryFile {
    #[serde(serialize_with = "path_as_text")]
    path: PathBuf,
    bytes: u64,
    tensors: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let layout = Layout::new(Recipe {
        bytes: arguments.size,
        dtype: arguments.dtype,
        seed: arguments.seed,
        shards: arguments.shards.into(),
    })
    .map_err(|error| Usage(format!("{error:#}")))?;

    let start = Instant::now();
    let progress = Progress::start(arguments.progress, "writing", layout.file_bytes());
    let files =
        synthetic::write(&layout, &arguments.folder, arguments.force, &|bytes| progress.advance(bytes))?;
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();

    let mut out = Output::new();
    if arguments.json {
        let files = files.into_iter().zip(&layout.shards);
        out.json(&Summary {
            path: arguments.folder.clone(),
            files: files
                .map(|(path, shard)| SummaryFile {
                    path,
                    bytes: shard.file_len(),
                    tensors: shard.tensors.len(),
                })
                .collect(),
            tensors: layout.tensors(),
            bytes: layout.bytes(),
            file_bytes: layout.file_bytes(),
            dtype: arguments.dtype.to_string(),
            seed: arguments.seed,
            hidden_size: layout.architecture.hidden,
            layers: layout.architecture.layers,
            vocabulary: layout.architecture.vocabulary,
            seconds,
            gb_per_s: layout.file_bytes() as f64 / seconds / 1e9,
        })?;
    } else {
        let model = layout.architecture;
        out.table(&facts([
            ("Checkpoint", arguments.folder.display().to_string()),
            ("Files", sizes::count(files.len() as u64)),
            ("Tensors", format!("{} of {}", sizes::count(layout.tensors() as u64), arguments.dtype)),
            ("Size", sizes::bytes(layout.bytes())),
            (
                "Shape",
                format!(
                    "{}, hidden size {}, {} words",
                    sizes::plural(model.layers, "layer"),
                    sizes::count(model.hidden),
                    sizes::count(model.vocabulary)
                ),
            ),
            ("Seed", arguments.seed.to_string()),
            (
                "Written",
                format!(
                    "in {} s, {} GB/s, synced",
                    sizes::seconds(seconds),
                    sizes::gb_per_s(layout.file_bytes(), seconds)
                ),
            ),
        ]))?;
    }
    out.finish()
}
