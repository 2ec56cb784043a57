//! The exit codes, and what is said with them.

mod cli_support;

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use cli_support::{gds, names_in, run, synth};
use test_support::process;

#[test]
fn help_and_version_are_done() {
    let version = run("--version", &[]).ok().stdout().to_owned();
    assert!(version.starts_with(concat!("gds ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains("revision ") && version.contains("cuFile bindings 1."), "{version}");
    let help = run("--help", &[]).ok().stdout().to_owned();
    for command in ["demo", "inspect", "load", "synth"] {
        assert!(help.contains(command), "{help}");
        run(&format!("{command} --help"), &[]).ok();
    }
}

#[test]
fn usage_is_2() {
    for line in [
        "",
        "frobnicate",
        "load",
        "inspect",
        "synth somewhere",
        "synth somewhere --size 0",
        "synth somewhere --size many",
        "synth somewhere --size 1GB --shards 0",
        "synth somewhere --size 1GB --shards 5000",
        "synth somewhere --size 10",
        "synth somewhere --size 4EiB",
        "synth somewhere --size 1GB --dtype BF17",
        "load somewhere --device gpu",
        "load somewhere --backend fast",
        "load somewhere --repeat 0",
        "load somewhere --threads 0",
        "load somewhere --slots 0",
        "load somewhere --slot-size 0",
        "load somewhere --progress sometimes",
        "inspect somewhere --tensors [",
        "demo --size 1",
    ] {
        run(line, &[]).fails(2, &[]);
    }
    assert!(!std::path::Path::new("somewhere").exists());
}

#[test]
fn options_that_cannot_be_meant_are_2_once_the_model_is_known() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100kB");
    let path = folder.path();
    run("load --device cpu --tensors [", &[path]).fails(2, &["["]);
    run("load --device cpu --tensors nothing.*", &[path]).fails(2, &["nothing.*"]);
    run("load --device cpu --read-size 5000", &[path]).fails(2, &["5000"]);
    for size in ["1", "4K", "4095"] {
        run(&format!("load --device cpu --slot-size {size}"), &[path]).fails(2, &["slot-size", "4096"]);
    }
}

#[test]
fn what_is_not_there_is_1_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for command in ["inspect", "load --device cpu"] {
        run(command, &[&missing]).fails(1, &[&*missing.to_string_lossy()]);
        // A folder without a checkpoint.
        run(command, &[folder.path()]).fails(1, &[&*folder.path().to_string_lossy()]);
    }
    run("demo --size 100kB --dir", &[&missing]).fails(1, &[&*missing.to_string_lossy()]);
}

#[test]
fn bad_data_is_1_and_named() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100kB");
    let good = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let bad = folder.path().join("bad.safetensors");
    let mut lying = good.clone();
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [&good[..good.len() - 1], &good[..100], &[], b"<!DOCTYPE html><html>", &lying] {
        std::fs::write(&bad, bytes).unwrap();
        for command in ["inspect", "load --device cpu"] {
            run(command, &[&bad]).fails(1, &["bad.safetensors"]);
        }
    }
}

#[test]
fn what_is_forced_and_not_available_is_3() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100kB");
    for backend in ["gds", "gds-compat"] {
        run(&format!("load --device cpu --backend {backend}"), &[folder.path()]).fails(3, &[backend]);
    }
    // No machine has a hundredth GPU, and many have no driver.
    run("load --device cuda:99", &[folder.path()]).fails(3, &["CUDA"]);
    run("load --device GPU-00000000-0000-0000-0000-000000000000", &[folder.path()]).fails(3, &["CUDA"]);
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100kB");
    let path = folder.path().to_str().unwrap();
    for arguments in [
        vec!["inspect", path],
        vec!["inspect", path, "--json"],
        vec!["load", path, "--device", "cpu"],
        vec!["--help"],
        vec!["--version"],
    ] {
        let mut child = gds().args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && stderr.is_empty(), "{arguments:?}: {status}: {stderr}");
    }
}

#[test]
fn a_reader_that_has_gone_does_not_turn_a_verdict_into_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // As many differences as no pipe and no buffer holds.
    for (name, bytes) in [("good", [1_u8; 5000]), ("bad", [2; 5000])] {
        std::fs::create_dir(path(name)).unwrap();
        let tensors = bytes.chunks(1).enumerate().map(|(k, byte)| {
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![1], byte).unwrap();
            (format!("a.long.name.of.a.tensor.{k}"), view)
        });
        let file = safetensors::serialize(tensors, None).unwrap();
        std::fs::write(path(name).join("model.safetensors"), file).unwrap();
    }
    let manifest = path("manifest.json");
    run("verify", &[&path("good"), "--write-manifest".as_ref(), &manifest]).ok();
    for json in [false, true] {
        for closed in [true, false] {
            let mut command = gds();
            command
                .arg("verify")
                .arg(path("bad"))
                .arg("--manifest")
                .arg(&manifest)
                .args(json.then_some("--json"));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut stdout = child.stdout.take().unwrap();
            if !closed {
                stdout.read_exact(&mut [0; 100]).unwrap();
            }
            drop(stdout);
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(1), "{stderr}");
            assert!(stderr.is_empty(), "{stderr}");
        }
    }
    // Where the doctor's verdict is good here, it is so with and without a reader.
    let verdict = run("check", &[]).code();
    let mut child = gds().arg("check").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), verdict);
}

#[test]
fn an_output_that_cannot_be_written_is_1() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100kB");
    let path = folder.path().to_str().unwrap();
    for words in [&["inspect", path][..], &["--help"], &["--version"], &["bench", "--help"], &["-h"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = gds().args(words).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"), "{words:?}");
    }
}

#[test]
fn a_limit_on_files_lengths_is_1_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synth(&model, "--size 100kB");
    let files = |path: &std::path::Path| names_in(path).join(" ");
    let before = (files(folder.path()), files(&model));
    for line in [
        "synth new --size 1MB",
        "synth model --size 1MB",
        "demo --size 1MB --dir .",
        "bench model --device cpu --rounds 1 --backend buffered --plot plot.svg",
        "save --device cpu model new.safetensors",
        "verify model --write-manifest",
        "inspect --json model",
    ] {
        let script = format!("ulimit -f 1; exec \"$0\" {line} >output");
        let mut limited = Command::new("sh");
        limited.args(["-c", &script, env!("CARGO_BIN_EXE_gds")]).current_dir(folder.path());
        let ended = process::run(&mut limited, process::LIMIT);
        assert!(ended.code() == Some(1) && ended.stderr.contains("ulimit -f"), "{line}: {ended}");
        std::fs::remove_file(folder.path().join("output")).unwrap();
        std::fs::remove_file(folder.path().join("plot.svg")).ok();
        assert_eq!((files(folder.path()), files(&model)), before, "{line}");
    }
}
