//! `gds save` where it cannot: exit codes and words, and the old checkpoint untouched.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use program::{GDS, digests, json, run};
use test_support::{folder, not_run, process, tool};

fn content(path: &Path) -> std::collections::BTreeMap<String, String> {
    digests(&json(&run("load --device cpu --digest --json", [path])))
}

/// Runs a script in namespaces of its own, where it may mount; `$GDS` is the program and the folder is where it starts.
fn with_mounts(test: &str, folder: &Path, script: &str) -> Option<test_support::Finished> {
    let unshare = tool(test, "unshare")?;
    let allowed = Command::new(&unshare).args(["-Urm", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        not_run(test, "this user may not make namespaces");
        return None;
    }
    let mut child = Command::new(unshare);
    child.args(["-Urm", "sh", "-ec", script]).current_dir(folder).env("GDS", GDS);
    Some(process::run(&mut child, process::LIMIT))
}

#[test]
fn a_small_disk_that_fills_up_keeps_the_old_checkpoint() {
    let test = "a_small_disk_that_fills_up_keeps_the_old_checkpoint";
    let folder = folder::on_disk("save-full");
    for (name, size) in [("small", "300kB"), ("large", "3MB")] {
        run(&format!("synth --size {size} --shards 1"), [folder.path().join(name)]).success();
    }
    std::fs::create_dir(folder.path().join("disk")).unwrap();
    let script = "mount -t tmpfs -o size=2m tmpfs disk
        \"$GDS\" save --device cpu small disk/model.safetensors >/dev/null
        sum=$(sha256sum disk/model.safetensors)
        for backend in auto buffered direct; do
            code=0; \"$GDS\" save --device cpu --backend $backend large disk/model.safetensors 2>>said || code=$?
            test $code = 1
            test \"$(ls -A disk)\" = model.safetensors
            test \"$(sha256sum disk/model.safetensors)\" = \"$sum\"
            code=0; \"$GDS\" save --device cpu --backend $backend large disk/set 2>>said || code=$?
            test $code = 1
            test \"$(ls -A disk)\" = model.safetensors
        done
        \"$GDS\" save --device cpu small disk/model.safetensors >/dev/null";
    let Some(finished) = with_mounts(test, folder.path(), script) else { return };
    let said = std::fs::read_to_string(folder.path().join("said")).unwrap_or_default();
    assert!(finished.status.success(), "{finished}\n{said}");
    assert_eq!(said.matches("there must be room for both").count(), 6, "{said}");
}

#[test]
fn an_existing_files_mode_outlives_the_umask() {
    let folder = folder::on_disk("save-umask");
    let model = folder.path().join("model");
    run("synth --size 300kB --shards 1", [&model]).success();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    let mut child = Command::new("sh");
    child.args(["-ec", "umask 027; for i in 1 2; do \"$GDS\" save --device cpu model new.safetensors; chmod 640 new.safetensors; umask 077; done; \"$GDS\" save --device cpu model fresh.safetensors"]);
    process::run(child.current_dir(folder.path()).env("GDS", GDS), process::LIMIT).success();
    assert_eq!((mode("new.safetensors"), mode("fresh.safetensors")), (0o640, 0o600));
    assert_eq!(content(&folder.path().join("new.safetensors")), content(&model));
}

#[test]
fn a_checkpoint_is_saved_over_the_one_it_was_loaded_from() {
    let folder = folder::on_disk("save-over");
    let model = folder.path().join("model");
    run("synth --size 3MB --shards 2", [&model]).success();
    let before = content(&model);
    for backend in ["direct", "buffered"] {
        run(&format!("save --device cpu --backend {backend}"), [&model, &model]).success();
        assert_eq!(content(&model), before);
        let file = folder.path().join("file.safetensors");
        run(&format!("save --device cpu --backend {backend}"), [&model, &file]).success();
        run(&format!("save --device cpu --backend {backend}"), [&file, &file]).success();
        assert_eq!(content(&file), before);
    }
}

#[test]
fn a_file_beside_an_index_of_its_name_is_refused() {
    let folder = folder::on_disk("save-beside");
    let model = folder.path().join("model");
    run("synth --size 3MB --shards 2", [&model]).success();
    let finished = run("save --device cpu", [&model, &model.join("model.safetensors")]);
    assert_ne!(finished.code(), Some(0));
    assert!(finished.stderr.contains("remove that index first"), "{finished}");
}
