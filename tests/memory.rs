//! Host memory is bounded, whatever the model: loading to a GPU, and saving from it, takes the slots and little else.
//!
//! The witness is the kernel: `RssAnon` of the process, sampled every millisecond. The simulated device's memory is shared memory and
//! does not count there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use program::gds;
use serde_json::Value;
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{folder, not_run, simulator};

/// What a load may add to the process, in bytes.
const MOST: u64 = 96 << 20;

/// What the slots may take of it.
const MOST_PINNED: u64 = 64 << 20;

const GIB: u64 = 1 << 30;

/// A file of `len` bytes of tensors, 64 MiB each; of real bytes, or all holes.
fn checkpoint(test: &str, len: u64, sparse: bool) -> (TempDir, PathBuf) {
    const EACH: u64 = 64 << 20;
    let file =
        (0..len / EACH).fold(File::new(), |file, number| file.tensor(&format!("t.{number}"), "U8", &[EACH]));
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    let header = file.header();
    fs::write(&path, &header).unwrap();
    let mut out = OpenOptions::new().append(true).open(&path).unwrap();
    if sparse {
        out.set_len(header.len() as u64 + len).unwrap();
    } else {
        let block = payload("block", 1 << 20);
        (0..len >> 20).for_each(|_| out.write_all(&block).unwrap());
    }
    (folder, path)
}

/// The value of a field of /proc/PID/status or /proc/meminfo, in bytes.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// A load to the simulated GPU.
struct Watched {
    report: Value,
    /// Most bytes of anonymous memory seen.
    peak: u64,
    samples: u64,
}

fn load(path: &Path, options: &str) -> Watched {
    watch(gds(&format!("load --device cuda:0 --json {options}"), [path]))
}

fn watch(mut command: Command) -> Watched {
    simulator::prepare(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let start = Instant::now();
    let (mut peak, mut samples) = (0, 0);
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("watchdog: {command:?} did not end");
        }
        if let Some(now) = field(&status, "RssAnon") {
            peak = peak.max(now);
            samples += 1;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.success(), "{ended}");
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    Watched { report: serde_json::from_str(&stdout).unwrap(), peak, samples }
}

fn check(name: &str, path: &Path, bytes: u64, options: &str) {
    judge(name, load(path, options), bytes);
}

fn judge(name: &str, watched: Watched, bytes: u64) {
    let Watched { report, peak, samples } = watched;
    let seconds = &report["seconds"];
    println!(
        "{name}: RssAnon at most {:.1} MiB in {samples} samples over {seconds} s",
        peak as f64 / 1048576.0
    );
    assert_eq!(report["bytes"], bytes);
    let pinned = report["peak_pinned_bytes"].as_u64().unwrap();
    assert!(pinned > 0 && pinned <= MOST_PINNED, "{report}");
    assert!(samples >= 20, "{samples} samples say nothing");
    // All of the process's, of which the growth is a part.
    assert!(peak <= MOST, "{peak} bytes of anonymous memory");
}

#[test]
fn one_gib() {
    let (_folder, path) = checkpoint("one_gib", GIB, false);
    for options in ["--backend buffered", "--backend mmap", "--threads 16"] {
        check(&format!("1 GiB {options}"), &path, GIB, options);
    }
}

/// Two at a time are on the disk: the old and the new one.
#[test]
fn saving_one_gib() {
    let (folder, path) = checkpoint("saving_one_gib", GIB, true);
    for options in ["--backend buffered", "--backend direct", "--threads 16 --shard-size 300MiB"] {
        let saved = folder.path().join(if options.contains("shard") { "set" } else { "saved.safetensors" });
        let command = gds(&format!("save --device cuda:0 --json {options}"), [&path, &saved]);
        judge(&format!("saving 1 GiB {options}"), watch(command), GIB);
    }
}

/// Read directly, lest eight gibibytes of holes fill the page cache.
#[test]
fn eight_gib() {
    let available = field("/proc/meminfo", "MemAvailable").unwrap_or(0);
    if available < 12 * GIB {
        return not_run(
            "eight_gib",
            &format!("12 GiB of memory are needed, {available} bytes are available"),
        );
    }
    let (_folder, path) = checkpoint("eight_gib", 8 * GIB, true);
    check("8 GiB", &path, 8 * GIB, "--backend auto");
}
