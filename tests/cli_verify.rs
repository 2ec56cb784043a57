//! `gds verify` and `gds load --manifest`: exit codes, the JSON, the list of what differs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod cli_support;

use std::path::Path;

use cli_support::{keys, names_in, run, run_simulated, synth};

/// Flips the last byte of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_was_written_is_checked_and_a_changed_byte_is_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 3MB --shards 2");
    let plain = run("verify --json", &[folder.path()]).json();
    assert_eq!(
        (&plain["ok"], &plain["manifest"], &plain["tensors"]),
        (&true.into(), &().into(), &summary["tensors"])
    );
    let written = run("verify --json --progress never --write-manifest --json=x", &[folder.path()]);
    assert_eq!(written.code(), Some(2), "--json takes no value");

    let file = folder.path().join("model.gds-manifest.json");
    let report = run("verify", &[folder.path(), Path::new("--json"), Path::new("--write-manifest")]).json();
    assert_eq!(report["written"].as_str(), file.to_str());
    assert_eq!(report["files"], 3, "the index too");
    assert!(file.is_file());
    let checked = run("verify", &[folder.path(), Path::new("--json"), Path::new("--manifest"), &file]).json();
    assert_eq!(
        keys(&checked),
        [
            "bytes",
            "cache",
            "differences",
            "fallbacks",
            "files",
            "gb_per_s",
            "manifest",
            "ok",
            "path",
            "paths",
            "proven",
            "seconds",
            "tensors",
            "written"
        ]
    );
    assert_eq!((&checked["ok"], &checked["proven"]), (&true.into(), &"slots".into()));

    // A load is checked too, and by the bytes of the device where that is asked for.
    for (mode, proven) in [("host", "slots"), ("device", "device")] {
        let line = format!("load --device cpu --json --manifest-mode {mode} --manifest");
        let report = run(&line, &[&file, folder.path()]).json();
        assert_eq!(report["verified"]["proven"], proven);
        assert_eq!(
            (&report["verified"]["bytes"], &report["verified"]["tensors"]),
            (&report["bytes"], &report["tensors"])
        );
    }
    let table = run("load --device cpu --manifest", &[&file, folder.path()]).ok().stdout().to_owned();
    assert!(table.contains("as they arrived in host memory: all as the manifest says"), "{table}");

    let shards: Vec<_> =
        names_in(folder.path()).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
    damage(&folder.path().join(&shards[1]));
    let found = run("verify", &[folder.path(), Path::new("--json"), Path::new("--manifest")]);
    assert_eq!(found.code(), Some(1));
    let found: serde_json::Value = serde_json::from_str(found.stdout()).unwrap();
    let [difference] = found["differences"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&difference["file"], &difference["kind"]), (&shards[1].as_str().into(), &"checksum".into()));
    let tensor = difference["tensor"].as_str().unwrap();
    for mode in ["host", "device"] {
        let line = format!("verify --device cpu --manifest-mode {mode} --manifest");
        let said = run(&line, &[&file, folder.path()]);
        assert_eq!(said.code(), Some(1));
        assert!(
            said.stdout().contains("1 difference from") && said.stdout().contains(tensor),
            "{}",
            said.stdout()
        );
    }
    run("load --device cpu --manifest", &[&file, folder.path()])
        .fails(1, &[tensor, &shards[1], "the manifest says"]);
}

#[test]
fn a_gpu_is_checked_by_what_is_on_it() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 3MB");
    let file = folder.path().join("m.json");
    run("verify --write-manifest", &[&file, folder.path()]).ok();
    let device = "verify --json --device cuda:0 --manifest-mode device --manifest";
    let report = run_simulated(&[], device, &[&file, folder.path()]).json();
    assert_eq!((&report["ok"], &report["loaded"]["verified"]["proven"]), (&true.into(), &"device".into()));
    let said = run_simulated(&[("CUDA_SIM_FAULT", "corrupt@1")], device, &[&file, folder.path()]);
    assert_eq!(said.code(), Some(1), "{}", said.stderr());
    assert!(said.stdout().contains("\"kind\":\"checksum\""), "{}", said.stdout());
}

#[test]
fn what_is_no_manifest_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 1MB");
    let file = folder.path().join("m.json");
    run("verify --manifest", &[&file, folder.path()]).fails(1, &["m.json", "No such file"]);
    std::fs::write(&file, "{\"format\": \"gds-manifest\", \"version\": 2}").unwrap();
    for line in ["verify --manifest", "load --device cpu --manifest"] {
        run(line, &[&file, folder.path()]).fails(1, &["m.json", "version 2", "--write-manifest"]);
    }
    run("verify --manifest-mode device", &[folder.path()]).fails(2, &["--manifest"]);
    run("verify --write-manifest a --manifest b", &[folder.path()]).fails(2, &["cannot be used with"]);
}

#[test]
fn a_manifest_replaces_nothing_but_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    synth(folder.path(), "--size 1MB --shards 2");
    let (index, first) = (path("model.safetensors.index.json"), path("model-00001-of-00002.safetensors"));
    let second = path("model-00002-of-00002.safetensors");
    std::fs::write(path("config.json"), "{\"hidden_size\": 64}").unwrap();
    let before: Vec<_> =
        names_in(folder.path()).iter().map(|name| std::fs::read(path(name)).unwrap()).collect();
    // As the shell makes it of *.safetensors.
    run("verify --write-manifest", &[&first, &second]).fails(2, &["00001-of-00002", "another file"]);
    for file in [
        &index,
        &path("config.json"),
        &path("new.safetensors"),
        &path("new.safetensors.index.json"),
        folder.path(),
    ] {
        let write = Path::new("--write-manifest");
        run("verify", &[folder.path(), write, file]).fails(2, &[&file.to_string_lossy()]);
        // Before any of it is read.
        run("verify", &[&path("missing"), write, file]).fails(2, &[&file.to_string_lossy()]);
    }
    let nowhere = path("nowhere/manifest.json");
    run("verify", &[&path("missing"), Path::new("--write-manifest"), &nowhere]).fails(1, &["nowhere"]);
    let after: Vec<_> =
        names_in(folder.path()).iter().map(|name| std::fs::read(path(name)).unwrap()).collect();
    assert!(before == after);
    for _ in 0..2 {
        run("verify", &[folder.path(), Path::new("--write-manifest")]).ok();
    }
    run("verify", &[folder.path(), Path::new("--manifest")]).ok();
}
