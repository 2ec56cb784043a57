//! Opening 100,000 tensors in 50 shards, against what the `safetensors` crate needs to parse the same headers.
//!
//! The target is 1.5 times the crate's time, for more work: files opened, duplicate keys looked for, tables by name built.
//! `cargo bench -p gds-loader --bench headers`; set RAYON_NUM_THREADS=1 to compare on one core.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use criterion::{Criterion, criterion_group, criterion_main};
use gds_loader::source::Source;
use safetensors::tensor::Metadata;

const SHARDS: usize = 50;
const TENSORS_PER_SHARD: usize = 2000;
const TENSOR_BYTES: usize = 2 * 16 * 16;

type Failure = Box<dyn std::error::Error>;

fn tensor_name(shard: usize, tensor: usize) -> String {
    format!(
        "model.layers.{shard}.mlp.experts.{}.{}.weight",
        tensor / 3,
        ["gate_proj", "up_proj", "down_proj"][tensor % 3]
    )
}

fn shard_name(shard: usize) -> String {
    format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1)
}

/// Writes the shards, their data as holes, and returns their paths.
fn write_shards(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for shard in 0..SHARDS {
        let entries = (0..TENSORS_PER_SHARD).map(|tensor| {
            let begin = tensor * TENSOR_BYTES;
            let (name, end) = (tensor_name(shard, tensor), begin + TENSOR_BYTES);
            format!(r#""{name}":{{"dtype":"BF16","shape":[16,16],"data_offsets":[{begin},{end}]}}"#)
        });
        let json =
            format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, entries.collect::<Vec<_>>().join(","));
        let path = folder.join(shard_name(shard));
        let mut file = File::create(&path)?;
        file.write_all(&(json.len() as u64).to_le_bytes())?;
        file.write_all(json.as_bytes())?;
        file.set_len((8 + json.len() + TENSORS_PER_SHARD * TENSOR_BYTES) as u64)?;
        paths.push(path);
    }
    Ok(paths)
}

fn write_index(path: &Path) -> Result<(), Failure> {
    let places = (0..SHARDS).flat_map(|shard| {
        (0..TENSORS_PER_SHARD)
            .map(move |tensor| format!(r#""{}":"{}""#, tensor_name(shard, tensor), shard_name(shard)))
    });
    Ok(std::fs::write(path, format!(r#"{{"weight_map":{{{}}}}}"#, places.collect::<Vec<_>>().join(",")))?)
}

/// What the reference makes of the same headers: read, parsed and validated.
fn parse_with_the_reference(paths: &[PathBuf]) -> Result<usize, Failure> {
    let mut data = 0;
    for path in paths {
        let file = File::open(path)?;
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0)?;
        let mut header = vec![0; u64::from_le_bytes(length) as usize];
        file.read_exact_at(&mut header, 8)?;
        let metadata: Metadata = serde_json::from_slice(&header)?;
        data += black_box(metadata).data_len();
    }
    Ok(data)
}

fn headers(criterion: &mut Criterion) {
    let (plain, indexed, paths) = match fixtures() {
        Ok(fixtures) => fixtures,
        Err(error) => {
            eprintln!("the shards to measure with cannot be written: {error}");
            return;
        }
    };
    let mut group = criterion.benchmark_group("100,000 tensors in 50 shards");
    group.sample_size(20);
    group.bench_function("safetensors crate", |bencher| bencher.iter(|| parse_with_the_reference(&paths)));
    group.bench_function("folder without index", |bencher| bencher.iter(|| Source::open(plain.path())));
    group.bench_function("folder with index", |bencher| bencher.iter(|| Source::open(indexed.path())));
    group.finish();
}

fn fixtures() -> Result<(tempfile::TempDir, tempfile::TempDir, Vec<PathBuf>), Failure> {
    let (plain, indexed) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let paths = write_shards(plain.path())?;
    write_shards(indexed.path())?;
    write_index(&indexed.path().join("model.safetensors.index.json"))?;
    let opened = Source::open(plain.path())?.tensors.len();
    assert_eq!(opened, SHARDS * TENSORS_PER_SHARD);
    Ok((plain, indexed, paths))
}

criterion_group!(benches, headers);
criterion_main!(benches);
