//! What a tensor costs beyond its bytes: 100,000 tiny ones against one of as many bytes.
//!
//! A figure of the release profile is at most 5 µs a tensor; other profiles get ten times that, enough to see a quadratic loop.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::path::Path;

use program::{json, run, well_on_gpu};
use serde_json::Value;
use test_support::fixture::File;
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
