//! What a load makes of the page cache: which parts of files it reads through it, what it shares there with other processes,
//! and what it leaves there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod page_cache;
mod program;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use page_cache::{can_be_cold, evict, resident_bytes};
use program::{GDS, digests, json, paths, run, shards, synth};
use serde_json::Value;
use tempfile::TempDir;
use test_support::{folder, not_run, process};

const MIB: u64 = 1 << 20;

/// A checkpoint on a disk that can be cold and read directly, and its digests; or `None` after saying why not.
fn checkpoint(
    test: &str,
    options: &str,
) -> Option<(TempDir, PathBuf, std::collections::BTreeMap<String, String>)> {
    let folder = folder::on_disk(test);
    if !can_be_cold(folder.path()) {
        not_run(test, "files in the build folder do not leave the page cache");
        return None;
    }
    let model = synth(folder.path(), options);
    let direct = run("load --device cpu --backend direct --digest --json", [&model]);
    if direct.code() == Some(3) {
        not_run(test, direct.stderr.trim());
        return None;
    }
    let digests = digests(&json(&direct));
    shards(&model).iter().for_each(|shard| evict(shard));
    Some((folder, model, digests))
}

/// Reads a stretch of `path` into the page cache, with no readahead beyond it.
fn warm(path: &Path, from: u64, to: u64) {
    let file = File::open(path).unwrap();
    // SAFETY: a system call on an open descriptor, without pointers.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    file.read_exact_at(&mut vec![0; (to - from) as usize], from).unwrap();
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// The choices in a report, as `(path, why)`.
fn choices(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    report["choices"].as_array().unwrap().iter().map(|one| (text(&one["path"]), text(&one["why"]))).collect()
}

#[test]
fn a_half_resident_file_is_read_by_both_paths_and_what_was_there_stays() {
    let test = "a_half_resident_file_is_read_by_both_paths_and_what_was_there_stays";
    let Some((_folder, model, expected)) = checkpoint(test, "--size 64MiB") else { return };
    let file = shards(&model).remove(0);
    warm(&file, 0, 32 * MIB);
    let before = resident_bytes(&file, 0);
    let report = json(&run("load --device cpu --digest --json", [&model]));
    assert_eq!(digests(&report), expected);
    let by = paths(&report);
    let (total, buffered) = (report["bytes"].as_u64().unwrap(), by["buffered"]);
    assert!(buffered > 28 * MIB && buffered < 36 * MIB, "{by:?}");
    assert_eq!(by["direct"], total - buffered);
    let resident = report["cache"]["resident_before"].as_f64().unwrap();
    assert!((0.45..0.55).contains(&resident), "{resident}");
    let after = resident_bytes(&file, 0);
    assert!(after.abs_diff(before) <= 2 * MIB, "{before} bytes before, {after} after");
    let choices = choices(&report);
    assert!(
        choices.iter().any(|(path, why)| path == "buffered" && why.contains("page cache")),
        "{choices:?}"
    );
    assert!(choices.iter().any(|(path, why)| path == "direct" && why.contains("storage")), "{choices:?}");
}

#[test]
fn a_file_that_others_load_too_is_read_through_the_page_cache_and_left_there() {
    let test = "a_file_that_others_load_too_is_read_through_the_page_cache_and_left_there";
    let Some((_folder, model, expected)) = checkpoint(test, "--size 64MiB") else { return };
    let file = shards(&model).remove(0);
    // Another loader, that says so as loads do; it makes auto read through the page cache.
    let other = File::open(&file).unwrap();
    announce(&other);
    let load = |options: &str| {
        evict(&file);
        warm(&file, 8 * MIB, 24 * MIB);
        let report = json(&run(&format!("load --device cpu --digest --json {options}"), [&model]));
        assert_eq!(digests(&report), expected);
        report
    };
    let report = load("");
    assert_eq!(paths(&report), [("buffered".to_owned(), report["bytes"].as_u64().unwrap())].into());
    assert!(choices(&report).iter().any(|(_, why)| why.contains("other processes")), "{report}");
    assert!(resident_bytes(&file, 0) + 2 * MIB >= len(&file), "the other one still needs it");
    assert!(paths(&load("--share never"))["direct"] > 40 * MIB);
}

/// `struct flock` of the lock that loads announce themselves by.
fn lock(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0x6764_7300_0000_0000,
        l_len: 1,
        l_pid: 0,
    }
}

/// Holds the lock by which loads know of each other, until `file` is closed.
fn announce(file: &File) {
    let lock = lock(libc::F_RDLCK);
    // SAFETY: the structure lives for the whole call and is not kept.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// How a load ended, and the bytes that it had read from disks.
fn reap(child: std::process::Child) -> (libc::c_int, u64) {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and has not been waited for; both structures live for the whole call.
    let pid = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(pid, child.id() as libc::pid_t);
    // SAFETY: zeroed above, and any bits are a valid value of it.
    let usage = unsafe { usage.assume_init() };
    // In blocks of 512 bytes, whatever the disk's.
    (status, usage.ru_inblock as u64 * 512)
}

#[test]
fn four_processes_that_load_the_same_files_read_the_disk_about_once() {
    let test = "four_processes_that_load_the_same_files_read_the_disk_about_once";
    let Some((_folder, model, _)) = checkpoint(test, "--size 384MiB --shards 3") else { return };
    let files = shards(&model);
    let total: u64 = files.iter().map(|file| len(file)).sum();
    let read = |options: &str| {
        files.iter().for_each(|file| evict(file));
        let line = format!("load --device cpu --json {options}");
        let start = || program::gds(&line, [&model]).stdout(Stdio::null()).spawn().unwrap();
        let children: Vec<_> = (0..4).map(|_| start()).collect();
        let ended: Vec<(libc::c_int, u64)> = children.into_iter().map(reap).collect();
        assert!(ended.iter().all(|(status, _)| *status == 0), "{ended:?}");
        ended.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64 / total as f64
    };
    let apart = read("--backend direct");
    if apart < 3.5 {
        return not_run(test, &format!("disk reads are not accounted for here: {apart:.2} of 4"));
    }
    let shared = read("");
    assert!(shared < 1.6, "the disk was read {shared:.2} times");
}

/// `mincore` tells others that everything is resident; a load by them must not fall for it.
#[test]
fn files_of_somebody_else_are_not_taken_for_resident() {
    let test = "files_of_somebody_else_are_not_taken_for_resident";
    const NOBODY: u32 = 65_534;
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return not_run(test, "only root can become somebody else");
    }
    let Some((folder, model, _)) = checkpoint(test, "--size 64MiB") else { return };
    let file = shards(&model).remove(0);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where nobody may reach it.
    let program = folder.path().join("gds");
    fs::copy(GDS, &program).unwrap();
    let load = || {
        let mut command = Command::new(&program);
        command.args(["load", "--device", "cpu", "--json"]).arg(&model).uid(NOBODY).gid(NOBODY);
        process::run(&mut command, process::LIMIT)
    };
    if load().code() != Some(0) {
        return not_run(test, &format!("nobody cannot load it: {}", load().stderr.trim()));
    }
    // Of who may write it the kernel keeps no secrets; of the others it has nothing but samples.
    for mode in [0o644, 0o666] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        chown(&file, Some(0), Some(0)).unwrap();
        evict(&file);
        let report = json(&load());
        let before = report["cache"]["resident_before"].as_f64().unwrap();
        assert!(before < 0.2, "{mode:o}: {before} of a cold file");
        assert!(paths(&report)["direct"] > 56 * MIB, "{mode:o}: {report}");
        evict(&file);
        warm(&file, 0, 32 * MIB);
        let by = paths(&json(&load()));
        assert!(by["direct"] > 24 * MIB && by["buffered"] > 24 * MIB, "{mode:o}: {by:?}");
        warm(&file, 0, len(&file));
        let report = json(&load());
        assert_eq!(report["paths"]["buffered"], report["bytes"], "{mode:o}");
    }
}

#[test]
fn prefetch_reads_ahead_where_it_fits_and_says_where_it_does_not() {
    let test = "prefetch_reads_ahead_where_it_fits_and_says_where_it_does_not";
    let Some((_folder, model, expected)) = checkpoint(test, "--size 64MiB") else { return };
    let file = shards(&model).remove(0);
    let report = json(&run("load --device cpu --backend prefetch --digest --json", [&model]));
    assert_eq!(digests(&report), expected);
    assert_eq!(report["paths"]["mmap"], report["bytes"]);
    let [(path, why)] = choices(&report).try_into().unwrap();
    assert!(path == "mmap" && why.contains("ahead"), "{why}");
    assert!(resident_bytes(&file, 0) + MIB >= len(&file), "a path that was asked for keeps its pages");
}
