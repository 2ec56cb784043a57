//! What a tensor costs beyond its bytes: 100,000 tiny ones against one of as many bytes.
//!
//! A figure of the release profile is at most 5 µs a tensor; other profiles get ten times that, enough to see a quadratic loop.
//! The same number in 50 files, headers only, is set against the `safetensors` crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::fs;
use std::path::{Path, PathBuf};

use gds_loader::source::Source;
use program::{json, run, well_on_gpu};
use safetensors::SafeTensors;
use serde_json::Value;
use test_support::fixture::{File, write_model};
use test_support::folder;

const TENSORS: u64 = 100_000;

/// Microseconds a tensor may cost.
const MOST: f64 = if cfg!(debug_assertions) { 50.0 } else { 5.0 };

/// Seconds of the fastest of several loads.
fn fastest(report: &Value) -> f64 {
    let runs = report["runs"].as_array().unwrap();
    runs.iter().map(|seconds| seconds.as_f64().unwrap()).fold(f64::INFINITY, f64::min)
}

fn on_cpu(path: &Path) -> Value {
    json(&run("load --device cpu --json --repeat 5", [path]))
}

fn on_gpu(path: &Path) -> Value {
    well_on_gpu("load --device cuda:0 --json --repeat 5", path, &[]).0
}

#[test]
fn a_tiny_tensor_costs_microseconds() {
    let folder = folder::on_disk("tiny_tensors");
    let (tiny, one) = (folder.path().join("tiny.safetensors"), folder.path().join("one.safetensors"));
    // Odd lengths before wide elements, so that on either device every tensor starts a stretch of its own.
    let file = (0..TENSORS).fold(File::new(), |file, number| {
        let name = format!("model.layers.{}.mlp.experts.{}.weight", number / 1000, number % 1000);
        if number % 2 == 0 { file.tensor(&name, "U8", &[13]) } else { file.tensor(&name, "F32", &[17]) }
    });
    file.write(&tiny);
    let bytes = file.tensors().iter().map(|tensor| tensor.len() as u64).sum();
    File::new().tensor("one", "U8", &[bytes]).write(&one);

    for (device, load) in [("the CPU", on_cpu as fn(&Path) -> Value), ("the simulated GPU", on_gpu)] {
        let (many, single) = (load(&tiny), load(&one));
        assert_eq!((&many["tensors"], &many["bytes"]), (&TENSORS.into(), &bytes.into()));
        assert_eq!(single["bytes"], bytes);
        let each = (fastest(&many) - fastest(&single)) / TENSORS as f64 * 1e6;
        println!(
            "{device}: {each:.2} µs a tensor ({:.1} ms for {TENSORS}, {:.1} ms for one of as many bytes); stages {}",
            fastest(&many) * 1e3,
            fastest(&single) * 1e3,
            many["stages"]
        );
        assert!(each <= MOST, "{each} µs a tensor on {device}: {many}");
    }
}

/// Processor time of this process so far, of all its threads, in seconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Least processor time of three calls.
fn cost(call: impl Fn() -> usize) -> f64 {
    let times = (0..3).map(|_| {
        let start = processor_time();
        assert_eq!(call() as u64, TENSORS);
        processor_time() - start
    });
    times.fold(f64::INFINITY, f64::min)
}

fn by_the_reference(files: &[PathBuf]) -> usize {
    let parsed = files.iter().map(|path| {
        let (_, metadata) = SafeTensors::read_metadata(&fs::read(path).unwrap()).unwrap();
        metadata.tensors().len()
    });
    parsed.sum()
}

/// By processor time, so that threads are no advantage and a busy machine is no excuse.
#[test]
fn opening_costs_at_most_half_more_than_parsing_by_the_reference() {
    const FILES: u64 = 50;
    let folder = folder::on_disk("tiny_tensors");
    let shards: Vec<File> = (0..FILES)
        .map(|shard| {
            (0..TENSORS / FILES).fold(File::new().metadata("format", "pt"), |file, number| {
                file.tensor(&format!("model.layers.{shard}.mlp.experts.{number}.weight"), "BF16", &[2, 2])
            })
        })
        .collect();
    let index = write_model(folder.path(), &shards);
    let files = program::shards(folder.path());
    let reference = cost(|| by_the_reference(&files));
    let open = |path: &Path| cost(|| Source::open(path).unwrap().tensors.len());
    let with_index = open(&index);
    fs::remove_file(&index).unwrap();
    let without = open(folder.path());
    println!(
        "processor time for {TENSORS} tensors in {FILES} files: reference {:.1} ms, folder {:.1} ms ({:.2}), with index {:.1} ms ({:.2})",
        reference * 1e3,
        without * 1e3,
        without / reference,
        with_index * 1e3,
        with_index / reference
    );
    let most = if cfg!(debug_assertions) { 3.0 } else { 1.5 };
    assert!(without / reference <= most, "{without} s for {reference} s");
    assert!(with_index / reference <= most, "{with_index} s for {reference} s");
}
