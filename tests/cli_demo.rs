//! `gds demo`: every path, every byte, and nothing left behind.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod cli_support;

use std::time::{Duration, Instant};

use cli_support::{gds, keys, names_in, run};

#[test]
fn every_path_is_compared_and_the_folder_is_gone() {
    let parent = test_support::folder::on_disk("every_path_is_compared_and_the_folder_is_gone");
    let tour = run("demo --size 4MB --json --dir", &[parent.path()]).json();
    assert_eq!(keys(&tour), ["bytes", "checkpoint", "files", "loads", "storage", "tensors", "unavailable"]);
    assert_eq!(tour["files"], 2);
    let loads = tour["loads"].as_array().unwrap();
    for backend in ["buffered", "mmap"] {
        let of_cpu = |load: &&serde_json::Value| {
            load["backend"] == backend && load["report"]["device"]["kind"] == "cpu"
        };
        assert_eq!(loads.iter().filter(of_cpu).count(), 2, "cold and warm by {backend}: {tour}");
    }
    for load in loads {
        assert_eq!(load["verified"], true);
        assert_eq!(load["report"]["bytes"], tour["bytes"]);
        let served = &load["report"]["paths"][load["backend"].as_str().unwrap()];
        assert_eq!(*served, tour["bytes"], "{load}");
        let before = load["report"]["cache"]["resident_before"].as_f64();
        match load["cache"].as_str().unwrap() {
            "cold" => assert!(before.unwrap() <= 0.01),
            "warm" => assert!(before.unwrap() >= 0.99),
            _ => assert!(before.is_none_or(|share| share > 0.01 && share < 0.99)),
        }
    }
    let missing = tour["unavailable"].as_array().unwrap();
    assert!(missing.iter().any(|entry| entry["what"].as_array().unwrap().iter().any(|what| what == "gds")));
    assert!(missing.iter().all(|entry| !entry["reason"].as_str().unwrap().is_empty()));
    assert!(names_in(parent.path()).is_empty());
}

#[test]
fn the_table_names_paths_and_what_is_missing() {
    let parent = tempfile::tempdir().unwrap();
    let table = run("demo --size 1MB --dir", &[parent.path()]).ok().stdout().to_owned();
    for words in ["buffered", "mmap", "cpu", "GB/s", "yes", "Not available", "gds, gds-compat: "] {
        assert!(table.contains(words), "{words} is not in: {table}");
    }
}

#[test]
fn an_interrupt_removes_the_checkpoint() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let parent = tempfile::tempdir().unwrap();
        let mut demo = gds();
        demo.args(["demo", "--size", "2GB", "--dir"]).arg(parent.path());
        assert_eq!(signalled(demo, parent.path(), signal), Some(code));
        assert!(names_in(parent.path()).is_empty());
    }
}

#[test]
fn a_signal_that_it_was_started_to_ignore_stays_ignored() {
    for (name, signal) in [("HUP", libc::SIGHUP), ("INT", libc::SIGINT), ("TERM", libc::SIGTERM)] {
        let parent = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        let script = format!("trap '' {name}; exec \"$0\" demo --size 20MB --dir \"$1\" >/dev/null");
        shell.args(["-c", &script]).arg(gds().get_program()).arg(parent.path());
        assert_eq!(signalled(shell, parent.path(), signal), Some(0), "{name}");
        assert!(names_in(parent.path()).is_empty());
    }
}

/// Sends `signal` to a demo as soon as it has its folder in `parent`, and returns the code it ends with.
fn signalled(mut demo: std::process::Command, parent: &std::path::Path, signal: i32) -> Option<i32> {
    let mut child = demo.spawn().unwrap();
    let start = Instant::now();
    while names_in(parent).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the child is ours and not yet waited for, so its id is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    child.wait().unwrap().code()
}

#[test]
fn what_a_killed_demo_left_goes_with_the_next() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = gds().args(["demo", "--size", "2GB", "--dir"]).arg(parent.path()).spawn().unwrap();
    let start = Instant::now();
    // The lock that marks it, and what is written into it.
    while !names_in(parent.path()).iter().any(|name| names_in(&parent.path().join(name)).len() > 1) {
        assert!(start.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names_in(parent.path()).len(), 1);
    run("demo --size 100kB --dir", &[parent.path()]).ok();
    assert!(names_in(parent.path()).is_empty());
}
