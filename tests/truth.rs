//! The label is true: what the report calls `direct` went past the page cache, as the kernel's own witnesses say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod page_cache;
mod program;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use page_cache::{can_be_cold, evict, resident_bytes};
use program::{GDS, json, paths, run, shards, synth};
use serde_json::Value;
use test_support::{folder, not_run, process, tool};

/// Reading a header through the page cache brings some of what follows it: at most the kernel's readahead.
const READAHEAD: u64 = 512 << 10;

/// A cold checkpoint of three files on disk, or `None` after saying why not.
fn cold_checkpoint(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = folder::on_disk(test);
    if !can_be_cold(folder.path()) {
        not_run(test, "files in the build folder do not leave the page cache");
        return None;
    }
    let path = synth(folder.path(), "--size 24MiB --shards 3");
    shards(&path).iter().for_each(|shard| evict(shard));
    Some((folder, path))
}

/// Bytes of data, the headers and their readahead aside, that the page cache holds.
fn resident_data(path: &Path) -> u64 {
    shards(path).iter().map(|shard| resident_bytes(shard, READAHEAD)).sum()
}

fn data_bytes(path: &Path) -> u64 {
    shards(path).iter().map(|shard| shard.metadata().unwrap().len() - READAHEAD).sum()
}

/// Loads by `backend` (and what else is said); `None` after saying so where direct reads are refused here.
fn load(test: &str, path: &Path, backend: &str) -> Option<Value> {
    let finished = run(&format!("load --device cpu --json --backend {backend}"), [path]);
    if backend.starts_with("direct") && finished.code() == Some(3) {
        not_run(test, finished.stderr.trim());
        return None;
    }
    Some(json(&finished))
}

#[test]
fn direct_leaves_the_page_cache_cold() {
    let test = "direct_leaves_the_page_cache_cold";
    for engine in ["io-uring", "threads"] {
        let Some((_folder, path)) = cold_checkpoint(test) else { return };
        let Some(report) = load(test, &path, &format!("direct --engine {engine}")) else { continue };
        assert_eq!(paths(&report), [("direct".to_owned(), report["bytes"].as_u64().unwrap())].into());
        assert_eq!(report["engine"]["name"], engine, "{report}");
        assert_eq!(resident_data(&path), 0, "{engine}");
        let share = |when: &str| report["cache"][when].as_f64().unwrap();
        assert!(share("resident_before") < 0.1 && share("resident_after") < 0.1, "{report}");
    }
}

#[test]
fn buffered_and_mmap_fill_it() {
    for backend in ["buffered", "mmap"] {
        let Some((_folder, path)) = cold_checkpoint("buffered_and_mmap_fill_it") else { return };
        let report = load("buffered_and_mmap_fill_it", &path, backend).unwrap();
        assert_eq!(paths(&report), [(backend.to_owned(), report["bytes"].as_u64().unwrap())].into());
        let resident = resident_data(&path);
        assert!(resident >= data_bytes(&path) / 10 * 9, "{resident} bytes after a load by {backend}");
        let share = |when: &str| report["cache"][when].as_f64().unwrap();
        assert!(share("resident_before") < 0.1 && share("resident_after") > 0.9, "{report}");
    }
}

/// What one traced system call did, on a shard.
#[derive(Debug)]
struct Call {
    name: String,
    /// Everything between the parentheses.
    arguments: String,
    result: i64,
}

/// The calls in strace's output, in order; a call that was interrupted by another thread's line is joined.
fn calls(trace: &str) -> Vec<Call> {
    let mut unfinished: HashMap<&str, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let (process, rest) = line.split_once(' ').unwrap_or_default();
        let rest = rest.trim_start();
        let whole = if let Some(start) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(process, start.to_owned());
            continue;
        } else if let Some((_, end)) = rest.split_once(" resumed>").filter(|_| rest.starts_with("<... ")) {
            format!("{}{end}", unfinished.remove(process).unwrap_or_default())
        } else {
            rest.to_owned()
        };
        let Some((name, rest)) = whole.split_once('(') else { continue };
        // strace pads short calls with spaces before the equals sign.
        let Some((arguments, result)) = rest.rsplit_once(" = ") else { continue };
        let arguments = arguments.trim_end().trim_end_matches(')');
        let result = result.split([' ', '<']).next().and_then(|number| number.parse().ok());
        let Some(result) = result else { continue };
        calls.push(Call { name: name.to_owned(), arguments: arguments.to_owned(), result });
    }
    calls
}

/// The witness is the kernel: which file descriptors were opened with `O_DIRECT`, and which of them the data came from. Reads by
/// threads are seen; those of io_uring are no system calls of their own, and the page cache alone witnesses them, above.
#[test]
fn direct_reads_data_by_descriptors_opened_for_it_and_by_nothing_else() {
    let test = "direct_reads_data_by_descriptors_opened_for_it_and_by_nothing_else";
    let Some(strace) = tool(test, "strace") else { return };
    let Some((folder, path)) = cold_checkpoint(test) else { return };
    let output = folder.path().join("trace");
    let mut command = Command::new(strace);
    command.args(["-f", "-s", "0", "-e"]);
    command.arg("trace=openat,open,read,readv,pread64,preadv,preadv2,mmap,process_vm_readv,io_uring_enter,sendfile,splice");
    for shard in shards(&path) {
        command.arg("-P").arg(shard);
    }
    command.arg("-o").arg(&output).arg(GDS).args([
        "load",
        "--device",
        "cpu",
        "--json",
        "--backend",
        "direct",
        "--engine",
        "threads",
    ]);
    let finished = process::run(command.arg(&path), process::LIMIT);
    if !output.exists() || finished.stderr.contains("ptrace") {
        return not_run(test, &format!("strace may not trace here: {}", finished.stderr.trim()));
    }
    if finished.code() == Some(3) {
        return not_run(test, finished.stderr.trim());
    }
    let report = json(&finished);

    let trace = fs::read_to_string(&output).unwrap();
    let mut opened: HashMap<i64, (PathBuf, bool)> = HashMap::new();
    let (mut by_direct, mut opens) = (0, 0);
    for call in calls(&trace) {
        if call.name.starts_with("open") {
            let shard =
                shards(&path).into_iter().find(|shard| call.arguments.contains(shard.to_str().unwrap()));
            let direct = call.arguments.contains("O_DIRECT");
            opens += u64::from(direct);
            opened.insert(call.result, (shard.unwrap(), direct));
            continue;
        }
        assert_eq!(call.name, "pread64", "a way to read that nobody expects: {call:?}");
        let arguments: Vec<&str> = call.arguments.split(", ").collect();
        let (descriptor, offset) = (arguments[0].parse().unwrap(), arguments[3].parse::<u64>().unwrap());
        let (shard, direct) = &opened[&descriptor];
        if *direct {
            by_direct += call.result as u64;
        } else {
            let header = header_len(shard);
            assert!(
                offset + call.result as u64 <= header,
                "{call:?} reaches beyond the header of {header} bytes"
            );
        }
    }
    assert_eq!(opens, shards(&path).len() as u64);
    let bytes = report["bytes"].as_u64().unwrap();
    assert!(by_direct >= bytes, "{by_direct} bytes by O_DIRECT for {bytes}");
}

/// Bytes of a file's length field and JSON.
fn header_len(shard: &Path) -> u64 {
    use std::os::unix::fs::FileExt as _;
    let mut length = [0; 8];
    fs::File::open(shard).unwrap().read_exact_at(&mut length, 0).unwrap();
    8 + u64::from_le_bytes(length)
}
