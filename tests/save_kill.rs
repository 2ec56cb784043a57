//! kill -9 of `gds save` at any time leaves the old checkpoint or the new one, whole, and nothing that the next save does not clean.
//!
//! Every single step is killed in `gds-loader`, on the seam; here it is the whole program, on a disk, at moments that fall as they may.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use program::{digests, gds, json, run};
use test_support::{folder, process};

const ROUNDS: u32 = 40;

/// What a checkpoint holds, by tensor.
fn content(path: &Path) -> std::collections::BTreeMap<String, String> {
    digests(&json(&run("load --device cpu --digest --json", [path])))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn kill_at_any_time(target: &str, options: &str, files: usize) {
    let folder = folder::on_disk("save-killed");
    let model = |seed: &str| {
        let path = folder.path().join(seed);
        run(&format!("synth --size 4MB --shards 2 --seed {seed}"), [&path]).success();
        path
    };
    let models = [model("1"), model("2")];
    let contents = models.each_ref().map(|path| content(path));
    assert_ne!(contents[0], contents[1]);
    let above = folder.path().join("saved");
    std::fs::create_dir(&above).unwrap();
    let path = above.join(target);
    let line = format!("save --device cpu --json {options}");
    let save = |model: &PathBuf| gds(&line, [model, &path]);
    let start = Instant::now();
    process::run(&mut save(&models[0]), process::LIMIT).success();
    let whole = start.elapsed();
    let mut seen = [0, 0];
    for round in 1..=ROUNDS {
        let mut child = save(&models[1]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * round / ROUNDS);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = contents.iter().position(|known| *known == content(&path));
        let found = found.unwrap_or_else(|| panic!("neither, killed in round {round}: {:?}", names(&above)));
        seen[found] += 1;
        process::run(&mut save(&models[0]), process::LIMIT).success();
        assert_eq!(content(&path), contents[0]);
        let left = if path.is_dir() { names(&path) } else { names(&above) };
        assert_eq!(left.len(), files, "after round {round}: {left:?}");
    }
    eprintln!("{target}: the old one {} times, the new one {} times", seen[0], seen[1]);
}

#[test]
fn a_killed_save_of_a_file_leaves_the_old_or_the_new() {
    kill_at_any_time("model.safetensors", "--backend buffered", 1);
}

#[test]
fn a_killed_save_of_a_set_leaves_the_old_or_the_new() {
    kill_at_any_time("set", "--shard-size 2MB", 4);
}
