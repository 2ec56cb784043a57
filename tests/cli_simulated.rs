//! The commands that load, on the simulated driver.

mod cli_support;

use cli_support::{run, run_simulated, synth};

#[test]
fn a_gpu_gets_the_same_bytes_as_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 10MB --shards 2");
    let cpu = run("load --device cpu --digest --json", &[folder.path()]).json();
    let slow = [("CUDA_SIM_COPY_GB_PER_S", "1"), ("CUDA_SIM_JITTER_US", "500")];
    for backend in ["auto", "buffered", "mmap"] {
        let line = format!("load --digest --json --backend {backend}");
        let gpu = run_simulated(&slow, &line, &[folder.path()]).json();
        assert_eq!(gpu["device"]["kind"], "cuda", "auto is the first GPU");
        assert_eq!(gpu["device"]["index"], 0);
        assert_eq!(gpu["digests"], cpu["digests"]);
        assert_eq!(gpu["bytes"], summary["bytes"]);
        assert!(gpu["peak_pinned_bytes"].as_u64().unwrap() > 0);
        assert!(gpu["stages"]["copy_s"].as_f64().unwrap() > 0.0);
        assert!((0.0..=1.0).contains(&gpu["stages"]["copy_hidden"].as_f64().unwrap()));
    }
}

#[test]
fn a_bit_that_flips_on_the_way_changes_a_digest() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 10MB");
    let cpu = run("load --device cpu --digest --json", &[folder.path()]).json();
    let line = "load --device cuda:0 --digest --json";
    let gpu = run_simulated(&[("CUDA_SIM_FAULT", "corrupt@1")], line, &[folder.path()]).json();
    assert_ne!(gpu["digests"], cpu["digests"]);
}

#[test]
fn the_demo_covers_the_gpu_and_its_proof_is_one() {
    let parent = tempfile::tempdir().unwrap();
    let tour = run_simulated(&[], "demo --size 4MB --json --dir", &[parent.path()]).json();
    for kind in ["cpu", "cuda"] {
        let loads = tour["loads"].as_array().unwrap().iter();
        assert!(loads.filter(|load| load["report"]["device"]["kind"] == kind).count() >= 4, "{tour}");
    }

    // Every copy loses a bit, those that only clear memory before a load included.
    let faults: Vec<String> = (1..=400).map(|copy| format!("corrupt@{copy}")).collect();
    let faults = [("CUDA_SIM_FAULT", faults.join(","))];
    let faults = faults.each_ref().map(|(name, value)| (*name, value.as_str()));
    run_simulated(&faults, "demo --size 4MB --dir", &[parent.path()])
        .fails(1, &["tensor ", "is wrong from its byte"]);
}

#[test]
fn a_driver_that_fails_is_named() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 1MB");
    let load =
        |fault: &str| run_simulated(&[("CUDA_SIM_FAULT", fault)], "load --device cuda:0", &[folder.path()]);
    load("cuMemAlloc_v2@1=2").fails(1, &["cuMemAlloc", "2"]);
    // A driver that does not even start is one that is not available.
    load("cuInit@1=999").fails(3, &["cuInit", "999"]);
    load("cuInit@1=100").fails(3, &["cuInit", "100"]);
}
