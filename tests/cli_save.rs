//! `gds save`: the JSON, the files, the exit codes.

mod cli_support;

use std::fs;
use std::path::Path;

use cli_support::{gds, keys, names_in, run, synth};

fn digests(path: &Path) -> serde_json::Value {
    run("load --device cpu --digest --json", &[path]).json()["digests"].clone()
}

#[test]
fn the_json_has_the_fields_of_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synth(&model, "--size 3MB --shards 2");
    let saved = folder.path().join("saved.safetensors");
    let report = run("save --device cpu --json", &[&model, &saved]).json();
    let fields = keys(&report);
    let help = run("save --help", &[]);
    let help = help.stdout();
    for field in &fields {
        assert!(help.contains(field) || *field == "gds", "{field} is not in the help");
    }
    for field in
        ["path", "device", "files", "tensors", "bytes", "seconds", "gb_per_s", "paths", "fallbacks", "stages"]
    {
        assert!(fields.contains(&field), "{field} is not in {fields:?}");
    }
    let stages = ["commit_s", "fetch_hidden", "fetch_s", "open_s", "pin_s", "plan_s", "sync_s", "write_s"];
    assert_eq!(keys(&report["stages"]), stages);
    assert_eq!(report["files"], 1);
    assert_eq!(report["synced"]["durability"], "full");
    assert_eq!(report["synced"]["files_synced"], 1);
    let by_path: u64 =
        report["paths"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(report["bytes"], by_path);
    assert_eq!(digests(&saved), digests(&model));
}

#[test]
fn shards_and_folders_are_sets() {
    let folder = tempfile::tempdir().unwrap();
    let (model, set) = (folder.path().join("model"), folder.path().join("set"));
    synth(&model, "--size 5MB --shards 1");
    let report = run("save --device cpu --json --shard-size 1MB --durability none", &[&model, &set]).json();
    assert!(report["files"].as_u64().unwrap() > 3, "{report}");
    assert_eq!(report["synced"]["files_synced"], 0);
    assert_eq!(digests(&set), digests(&model));
    // Over itself, as one shard.
    let report = run("save --device cpu --json", &[&set, &set]).json();
    assert_eq!(report["files"], 1);
    assert_eq!(names_in(&set).len(), 2, "{:?}", names_in(&set));
    assert_eq!(digests(&set), digests(&model));
}

#[test]
fn exit_codes_tell_usage_from_absence_from_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (model, saved) = (folder.path().join("model"), folder.path().join("saved.safetensors"));
    synth(&model, "--size 1MB");
    fs::write(&saved, "the old one").unwrap();
    for (options, to, code, words) in [
        ("--backend mmap", saved.clone(), 2, "does not write"),
        ("--backend nonsense", saved.clone(), 2, "nonsense"),
        ("--slot-size 1000", saved.clone(), 2, "slot-size"),
        ("--backend gds", saved.clone(), 3, "CUDA device"),
        ("", folder.path().join("nowhere/saved.safetensors"), 1, "nowhere"),
    ] {
        let finished = run(&format!("save --device cpu {options}"), &[&model, &to]);
        finished.fails(code, &[words]);
    }
    assert_eq!(fs::read(&saved).unwrap(), b"the old one");
    assert_eq!(names_in(folder.path()), ["model", "saved.safetensors"]);
}

#[test]
fn for_people_it_says_what_was_synced() {
    let folder = tempfile::tempdir().unwrap();
    let (model, saved) = (folder.path().join("model"), folder.path().join("saved.safetensors"));
    synth(&model, "--size 1MB");
    let said = run("save --device cpu", &[&model, &saved]).ok();
    let said = said.stdout();
    assert!(said.contains("Synced") && said.contains("1 file and the folder"), "{said}");
    let said = run("save --device cpu --durability none", &[&model, &saved]).ok();
    assert!(said.stdout().contains("nothing: a power cut"), "{}", said.stdout());
}

#[test]
fn a_file_that_would_be_read_as_an_index_is_refused_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (model, other) = (folder.path().join("model"), folder.path().join("other.safetensors"));
    synth(&model, "--size 1MB --shards 2");
    run("save --device cpu", &[&model, &other]).ok();
    let before = digests(&model);
    let index = model.join("model.safetensors.index.json");
    // A name that tells nothing, and leads to the index all the same.
    let link = folder.path().join("link.safetensors");
    std::os::unix::fs::symlink(&index, &link).unwrap();
    let missing = folder.path().join("missing.safetensors");
    for to in [&index, &link, &folder.path().join("new.json"), &model.join("config.json")] {
        run("save --device cpu", &[&other, to]).fails(2, &["read as an index", "folder"]);
        run("save --device cpu", &[&missing, to]).fails(2, &["read as an index"]);
    }
    assert_eq!(digests(&model), before);
    assert_eq!(names_in(folder.path()), ["link.safetensors", "model", "other.safetensors"]);
}

#[test]
fn what_is_named_as_a_folder_is_not_made_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, set) = (folder.path().join("model"), folder.path().join("set/"));
    synth(&model, "--size 1MB");
    run("save --device cpu", &[&model, &set]).fails(2, &["--shard-size"]);
    assert_eq!(names_in(folder.path()), ["model"]);
    run("save --device cpu --shard-size 1GB", &[&model, &set]).ok();
    assert_eq!(digests(&set), digests(&model));
}

#[test]
fn a_working_folder_that_was_removed_is_called_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (model, gone) = (folder.path().join("model"), folder.path().join("gone"));
    synth(&model, "--size 1MB");
    for to in ["saved.safetensors", "."] {
        fs::create_dir(&gone).unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "rmdir ../gone && exec \"$0\" save --device cpu \"$1\" \"$2\""]);
        shell.arg(gds().get_program()).arg(&model).arg(to).current_dir(&gone);
        let finished = test_support::process::run(&mut shell, test_support::process::LIMIT);
        assert_eq!(finished.code(), Some(1), "{finished}");
        let words = "error: .: cannot open the folder: No such file or directory (os error 2); is the folder";
        assert!(finished.stderr.starts_with(words), "{finished}");
    }
}
