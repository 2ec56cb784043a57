//! `gds load`: the JSON, the labels, the digests.

mod cli_support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cli_support::{keys, names_in, run, synth};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use test_support::process;

#[test]
fn the_json_has_the_fields_of_the_design() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 3MB --shards 2");
    let report = run("load --device cpu --json", &[folder.path()]).json();
    let fields = keys(&report);
    for field in [
        "path",
        "device",
        "files",
        "tensors",
        "bytes",
        "seconds",
        "gb_per_s",
        "paths",
        "fallbacks",
        "stages",
        "cache",
        "peak_pinned_bytes",
    ] {
        assert!(fields.contains(&field), "{field} is not in {fields:?}");
    }
    assert!(!fields.contains(&"digests") && !fields.contains(&"runs"));
    assert_eq!(keys(&report["device"]), ["index", "kind", "name"]);
    assert_eq!(report["device"]["kind"], "cpu");
    assert_eq!(keys(&report["paths"]), ["buffered", "direct", "gds", "gds-compat", "mmap"]);
    for stage in ["parse_s", "open_s", "pin_s", "read_s", "copy_s", "copy_hidden"] {
        assert!(keys(&report["stages"]).contains(&stage), "{stage}");
    }
    assert_eq!(keys(&report["cache"]), ["resident_after", "resident_before"]);
    assert_eq!(report["files"], 2);
    assert_eq!(report["tensors"], summary["tensors"]);
    assert_eq!(report["bytes"], summary["bytes"]);
    let by_path: u64 =
        report["paths"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(report["bytes"], by_path);
}

#[test]
fn a_forced_path_carries_every_byte_and_the_digests_are_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 5MB --shards 2 --dtype F32");
    let mut expected = std::collections::BTreeMap::new();
    for name in names_in(folder.path()).iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let hex: String = Sha256::digest(view.data()).iter().map(|byte| format!("{byte:02x}")).collect();
            expected.insert(name, hex);
        }
    }
    let expected = serde_json::to_value(expected).unwrap();
    for backend in ["buffered", "mmap", "direct", "auto"] {
        let line = format!("load --device cpu --backend {backend} --digest --json");
        let done = run(&line, &[folder.path()]);
        if backend == "direct" && done.code() == Some(3) {
            test_support::not_run(
                "a_forced_path_carries_every_byte_and_the_digests_are_the_files",
                done.stderr(),
            );
            continue;
        }
        let report = done.json();
        assert_eq!(report["digests"], expected, "{backend}");
        if backend != "auto" {
            assert_eq!(report["paths"][backend], summary["bytes"], "{report}");
        }
    }
    let table =
        run("load --device cpu --digest --tensors lm_head.weight", &[folder.path()]).ok().stdout().to_owned();
    let line = format!("{}  lm_head.weight", expected["lm_head.weight"].as_str().unwrap());
    assert!(table.lines().any(|found| found == line), "{table}");
}

#[test]
fn a_selection_is_what_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 1MB");
    let line = "load --device cpu --json --digest --tensors *.k_proj.* --tensors model.norm.weight";
    let report = run(line, &[folder.path()]).json();
    assert_eq!(report["tensors"].as_u64(), summary["layers"].as_u64().map(|layers| layers + 1));
    assert!(
        keys(&report["digests"]).iter().all(|name| name.contains("k_proj") || *name == "model.norm.weight")
    );
}

#[test]
fn repeated_runs_are_all_listed_and_the_median_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 1MB");
    for repeat in [2, 5] {
        let report = run(&format!("load --device cpu --json --repeat {repeat}"), &[folder.path()]).json();
        let mut runs: Vec<f64> =
            report["runs"].as_array().unwrap().iter().map(|seconds| seconds.as_f64().unwrap()).collect();
        assert_eq!(runs.len(), repeat);
        runs.sort_by(f64::total_cmp);
        assert_eq!(report["seconds"].as_f64(), Some(runs[(repeat - 1) / 2]));
    }
}

#[test]
fn cold_is_measured_and_not_claimed() {
    let test = "cold_is_measured_and_not_claimed";
    let resident_before =
        |folder: &Path, line: &str| run(line, &[folder]).json()["cache"]["resident_before"].as_f64();
    let load = "load --device cpu --backend buffered --json";

    let disk = test_support::folder::on_disk(test);
    synth(disk.path(), "--size 5MB");
    let warm = resident_before(disk.path(), load);
    let cold = resident_before(disk.path(), &format!("{load} --cold"));
    match (warm, cold) {
        (Some(warm), Some(cold)) => assert!(warm > 0.99 && cold < 0.01, "{warm} {cold}"),
        unknown => {
            test_support::not_run(test, &format!("the kernel does not say what is resident: {unknown:?}"))
        }
    }

    // In memory nothing can be dropped, and the words must not pretend it was.
    if let Some(memory) = test_support::folder::in_memory(test) {
        synth(memory.path(), "--size 5MB");
        let table = run("load --device cpu --backend buffered --cold", &[memory.path()]).ok();
        assert!(!table.stdout().contains("cold:"), "{}", table.stdout());
        assert!(table.stdout().contains("--cold could not drop"), "{}", table.stdout());
    }
}

#[test]
fn progress_goes_to_standard_error_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 1MB");
    for mode in ["auto", "never"] {
        let done = run(&format!("load --device cpu --progress {mode}"), &[folder.path()]).ok();
        assert_eq!(done.stderr(), "", "standard error is no terminal here");
    }
    let done = run("load --device cpu --progress always", &[folder.path()]).ok();
    let last = done.stderr().lines().last().unwrap();
    assert!(last.starts_with("loading: 1.00 MB of 1.00 MB, ") && last.ends_with(" GB/s"), "{last}");
}

/// A sparse file takes no room on a disk, and what it says is true: then it is the memory that is not there.
#[test]
fn a_file_longer_than_the_memory_is_an_error_at_once() {
    const LEN: u64 = 1 << 42;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.safetensors");
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{LEN}],"data_offsets":[0,{LEN}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64 + LEN).unwrap();
    for backend in ["auto", "direct", "buffered"] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v 2097152; exec \"$0\" load --device cpu --backend \"$2\" \"$1\""]);
        limited.arg(env!("CARGO_BIN_EXE_gds")).arg(&path).arg(backend);
        let run = process::run(&mut limited, Duration::from_secs(20));
        assert_eq!(run.code(), Some(1), "{backend}: {run}");
        // What lies before the tensor keeps its place, so that direct reads are aligned in memory as they are in the file.
        let said =
            format!("(os error 12) while allocating {} bytes of host memory", LEN + bytes.len() as u64);
        assert!(run.stderr.contains(&said), "{run}");
    }
}
