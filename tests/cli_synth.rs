//! `gds synth`: what it writes is safetensors, says where each byte belongs, and is all there or not at all.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure here is the test's failure")]

mod cli_support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cli_support::{gds, keys, names_in, run, synth};
use safetensors::SafeTensors;
use test_support::{IoUring, process, refuse_calls};

/// Every tensor of a folder as the reference reads it: name -> (dtype, shape, bytes).
fn read(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut tensors = BTreeMap::new();
    for name in names_in(folder).iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let tensor = (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec());
            assert!(tensors.insert(name, tensor).is_none());
        }
    }
    tensors
}

/// The documented rule, written down a second time: word `i` is SplitMix64's `i`-th output from a key of seed and name.
fn expected(seed: u64, name: &str, len: usize) -> Vec<u8> {
    fn mix(z: u64) -> u64 {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }
    let mut fnv = 0xcbf29ce484222325u64;
    for byte in name.bytes() {
        fnv = (fnv ^ byte as u64).wrapping_mul(0x100000001b3);
    }
    let mut state = mix(mix(seed.wrapping_add(0x9e3779b97f4a7c15)) ^ fnv);
    let mut bytes = Vec::new();
    while bytes.len() < len {
        state = state.wrapping_add(0x9e3779b97f4a7c15);
        bytes.extend(mix(state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn every_byte_is_what_its_position_demands() {
    let folder = tempfile::tempdir().unwrap();
    for (dtype, shards) in [("BF16", 1), ("F32", 2), ("f8_e4m3", 3), ("F4", 2)] {
        let path = folder.path().join(dtype);
        let summary = synth(&path, &format!("--size 2MB --seed 7 --dtype {dtype} --shards {shards}"));
        let tensors = read(&path);
        assert_eq!(summary["tensors"], tensors.len());
        let mut total = 0;
        for (name, (found, _, bytes)) in &tensors {
            assert_eq!(*found, dtype.to_uppercase());
            assert!(*bytes == expected(7, name, bytes.len()), "{dtype} {name}");
            total += bytes.len() as u64;
        }
        assert_eq!(summary["bytes"], total);
        assert!(total.abs_diff(2_000_000) < 40_000, "{total}");
        for name in ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"]
        {
            assert!(tensors.contains_key(name), "{name}");
        }
    }
}

#[test]
fn the_seed_alone_decides_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, options: &str| {
        let path = folder.path().join(name);
        synth(&path, &format!("--size 1MB {options}"));
        read(&path)
    };
    let first = make("first", "--seed 1 --shards 1");
    assert_eq!(first, make("again", "--seed 1 --shards 1"));
    assert_eq!(first, make("split", "--seed 1 --shards 4"));
    assert_ne!(first, make("other", "--seed 2 --shards 1"));
}

#[test]
fn several_files_have_an_index_that_holds_each_tensor_once() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 1MB --shards 3");
    let shards: Vec<String> = (1..=3).map(|n| format!("model-{n:05}-of-00003.safetensors")).collect();
    let mut names = shards.clone();
    names.push("model.safetensors.index.json".into());
    assert_eq!(names_in(folder.path()), names);

    let index = std::fs::read(folder.path().join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], summary["bytes"]);
    let mut listed = 0;
    for name in shards {
        let bytes = std::fs::read(folder.path().join(&name)).unwrap();
        for tensor in SafeTensors::deserialize(&bytes).unwrap().names() {
            assert_eq!(index["weight_map"][tensor], name.as_str());
            listed += 1;
        }
    }
    assert_eq!(index["weight_map"].as_object().unwrap().len(), listed);
}

#[test]
fn the_summary_has_these_fields() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 1MB --shards 2 --seed 5");
    assert_eq!(
        keys(&summary),
        [
            "bytes",
            "dtype",
            "file_bytes",
            "files",
            "gb_per_s",
            "hidden_size",
            "layers",
            "path",
            "seconds",
            "seed",
            "tensors",
            "vocabulary"
        ]
    );
    assert_eq!(keys(&summary["files"][1]), ["bytes", "path", "tensors"]);
    let on_disk: u64 = summary["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| std::fs::metadata(file["path"].as_str().unwrap()).unwrap().len())
        .sum();
    assert_eq!(summary["file_bytes"], on_disk);
}

#[test]
fn only_its_own_work_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    synth(path, "--size 1MB --shards 3");
    // Its own earlier output goes, the shards that the new one has no use for included.
    synth(path, "--size 1MB");
    assert_eq!(names_in(path), ["model.safetensors"]);

    std::fs::write(path.join("notes.txt"), "mine").unwrap();
    run("synth --size 1MB", &[path]).fails(1, &["notes.txt", "--force"]);
    std::fs::remove_file(path.join("notes.txt")).unwrap();

    // Someone else's model is replaced by force only, and what is no model not even then.
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![1], &[1]).unwrap();
    let other = safetensors::serialize([("theirs", view)], None).unwrap();
    std::fs::write(path.join("model.safetensors"), &other).unwrap();
    std::fs::write(path.join("config.json"), "{}").unwrap();
    run("synth --size 1MB", &[path]).fails(1, &[]);
    assert_eq!(std::fs::read(path.join("model.safetensors")).unwrap(), other);
    synth(path, "--size 1MB --shards 2 --force");
    assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "{}");
    assert!(!path.join("model.safetensors").exists());
}

#[test]
fn only_files_and_links_are_replaced_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("model0.safetensors"), "theirs").unwrap();
    std::fs::create_dir(path.join("model1.safetensors")).unwrap();
    std::fs::write(path.join("model1.safetensors/notes.txt"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", path.join("model2.safetensors")).unwrap();
    synth(path, "--size 1MB --force");
    assert_eq!(names_in(path), ["model.safetensors", "model1.safetensors"]);
    assert_eq!(std::fs::read_to_string(path.join("model1.safetensors/notes.txt")).unwrap(), "mine");

    // In the place of a new file they are in the way, which is found out before anything is touched.
    for (in_the_way, options) in [
        ("model.safetensors", "--size 1MB --force"),
        ("model-00002-of-00002.safetensors", "--size 1MB --shards 2 --force"),
        ("model.safetensors.index.json", "--size 1MB --shards 2 --force"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::create_dir(path.join(in_the_way)).unwrap();
        std::fs::write(path.join("model-00001-of-00002.safetensors"), "theirs").unwrap();
        let before = names_in(path);
        run(&format!("synth {options}"), &[path]).fails(1, &[in_the_way, "neither a file nor a link"]);
        assert_eq!(names_in(path), before);
        let kept = std::fs::read_to_string(path.join("model-00001-of-00002.safetensors")).unwrap();
        assert_eq!(kept, "theirs");
    }
}

#[test]
fn the_old_checkpoint_stays_until_the_new_one_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (old, new) in
        [("--shards 3", "--shards 1"), ("--shards 1", "--shards 2"), ("--shards 2", "--shards 2")]
    {
        synth(path, &format!("--size 1MB --seed 1 {old}"));
        let (names, tensors) = (names_in(path), read(path));
        let mut command = gds();
        command.args(format!("synth --size 1MB --seed 2 {new}").split_whitespace()).arg(path);
        for &call in RENAMES {
            refuse_calls(&mut command, call..=call, IoUring::Forbidden);
        }
        let run = process::run(&mut command, process::LIMIT);
        assert!(run.code() == Some(1) && run.stderr.contains("renaming into"), "{run}");
        assert_eq!(names_in(path), names, "{old}, {new}");
        assert!(read(path) == tensors, "{old}, {new}");
    }
}

/// The calls that rename.
const RENAMES: &[u32] = &[
    #[cfg(target_arch = "x86_64")]
    {
        libc::SYS_rename as u32
    },
    libc::SYS_renameat as u32,
    libc::SYS_renameat2 as u32,
];

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model.safetensors");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    run("synth --size 1MB", &[folder.path()])
        .fails(1, &["model.safetensors is not of an earlier `gds synth`"]);
    assert_eq!(names_in(folder.path()), ["model.safetensors"]);
}

#[test]
fn a_disk_too_small_is_said_at_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let start = Instant::now();
    run("synth --size 100TB", &[&path]).fails(1, &["reserving", "100", "model.safetensors"]);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(names_in(folder.path()).is_empty());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    run("synth --size 1MB", &[&file]).fails(1, &[&*file.to_string_lossy()]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = gds().args(["synth", "--size", "3GB"]).arg(folder.path()).spawn().unwrap();
    let start = Instant::now();
    while names_in(folder.path()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the child is ours and not yet waited for, so its id is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(names_in(folder.path()).is_empty());
}

/// A folder within `folder`, with a file in it, once there is one.
#[track_caller]
fn staged(folder: &Path, child: &mut Child) -> String {
    let start = Instant::now();
    loop {
        let within =
            |name: &String| names_in(&folder.join(name)).iter().any(|file| file.starts_with("model"));
        if let Some(name) = names_in(folder).into_iter().find(within) {
            return name;
        }
        assert!(start.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_killed_one_left_goes_with_the_next_and_a_living_one_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = gds().args(["synth", "--size", "3GB"]).arg(folder.path()).spawn().unwrap();
    let staging = staged(folder.path(), &mut child);
    for line in ["synth --size 1MB", "synth --size 1MB --force"] {
        run(line, &[folder.path()]).fails(1, &["another `gds synth` is writing into", &staging]);
    }
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names_in(folder.path()), [staging]);
    synth(folder.path(), "--size 1MB");
    assert_eq!(names_in(folder.path()), ["model.safetensors"]);
}

#[test]
fn one_of_several_at_once_writes() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut child = gds();
        child.args(["synth", "--size", "100MB", "--shards", "2"]).arg(folder.path());
        child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut children = [start(), start(), start(), start()];
    let written =
        children.iter_mut().filter_map(|child| child.wait().unwrap().code().filter(|code| *code == 0));
    assert!(written.count() >= 1);
    let report = run("inspect --json", &[folder.path()]).json();
    assert_eq!(names_in(folder.path()).len(), 3, "{report}");
}

/// As `flock DIR gds synth DIR` does.
#[test]
fn a_lock_of_others_on_the_folder_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let lock = std::fs::File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    synth(folder.path(), "--size 100kB");
    // A temporary folder without the mark of its maker is not provably one.
    std::fs::create_dir(folder.path().join(".gds-synth-theirs")).unwrap();
    synth(folder.path(), "--size 100kB");
    assert_eq!(names_in(folder.path()), [".gds-synth-theirs", "model.safetensors"]);
}
