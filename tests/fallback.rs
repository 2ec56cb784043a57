//! When a path cannot serve, or a file changes under the load: the bytes are right and the report says why, or it is an error.
//!
//! The kernel is made to refuse by strace, which fails the K-th call of a thread on one file. A thread's first two reads of a file
//! are those of its header; from the third on they are data. Threads read: what io_uring does no call shows; its completions are
//! scripted in the loader's own tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod page_cache;
mod program;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::Device;
use gds_loader::{Backend, Error, ErrorKind, Loader, Model, PathKind};
use page_cache::{can_be_cold, evict, resident_bytes};
use program::{GDS, digests, fallbacks, json, paths, run, shards, synth};
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{Finished, folder, not_run, on_simulator, process, tool};

/// A cold file on disk that O_DIRECT reads, with its digests, and strace; or `None` after saying what is missing.
struct Traced {
    folder: TempDir,
    file: PathBuf,
    strace: PathBuf,
    digests: std::collections::BTreeMap<String, String>,
}

impl Traced {
    fn new(test: &str) -> Option<Self> {
        let strace = tool(test, "strace")?;
        let folder = folder::on_disk(test);
        let file = shards(&synth(folder.path(), "--size 4MiB")).remove(0);
        let direct = run("load --device cpu --backend direct --digest --json", [&file]);
        if direct.code() == Some(3) {
            not_run(test, direct.stderr.trim());
            return None;
        }
        let traced = Self { folder, file, strace, digests: digests(&json(&direct)) };
        let nothing = traced.load("buffered", &[]);
        if nothing.code() != Some(0) || !can_be_cold(traced.folder.path()) {
            not_run(
                test,
                &format!(
                    "strace may not trace here, or files stay in the page cache: {}",
                    nothing.stderr.trim()
                ),
            );
            return None;
        }
        Some(traced)
    }

    fn command(&self, backend: &str, injected: &[&str]) -> Command {
        let mut command = Command::new(&self.strace);
        command.args(["-f", "-qq", "-o"]).arg(self.folder.path().join("trace"));
        command.args(["-e", "trace=openat,pread64,process_vm_readv"]);
        // Of a mapping's reads strace knows the memory and not the file, and nothing else reads memory like that.
        if backend != "mmap" {
            command.arg("-P").arg(&self.file);
        }
        injected.iter().for_each(|fault| {
            command.arg("-e").arg(format!("inject={fault}"));
        });
        // One thread for headers and one for data, so that calls are counted as the test means them.
        command
            .env("RAYON_NUM_THREADS", "1")
            .arg(GDS)
            .args(["load", "--device", "cpu", "--digest", "--json"]);
        command.args(["--threads", "1", "--engine", "threads", "--read-size", "256KiB"]);
        command.args(["--backend", backend]).arg(&self.file);
        command
    }

    /// Loads the file, cold, with these faults.
    fn load(&self, backend: &str, injected: &[&str]) -> Finished {
        evict(&self.file);
        process::run(&mut self.command(backend, injected), process::LIMIT)
    }
}

#[test]
fn a_refused_open_falls_back_and_says_why() {
    let Some(traced) = Traced::new("a_refused_open_falls_back_and_says_why") else { return };
    let refused = ["openat:error=EINVAL:when=2"];
    let report = json(&traced.load("auto", &refused));
    assert_eq!(digests(&report), traced.digests);
    assert_eq!(paths(&report), [("buffered".to_owned(), report["bytes"].as_u64().unwrap())].into());
    let [(from, to, reason)] = fallbacks(&report).try_into().unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("direct", "buffered"));
    assert!(reason.contains("O_DIRECT") && reason.contains("Invalid argument"), "{reason}");

    let forced = traced.load("direct", &refused);
    assert_eq!(forced.code(), Some(3), "{forced}");
    for words in ["O_DIRECT", "Invalid argument", traced.file.to_str().unwrap(), "auto"] {
        assert!(forced.stderr.contains(words), "{words} is missing in: {}", forced.stderr);
    }
    assert!(forced.stdout.is_empty());
}

#[test]
fn a_refused_read_moves_the_file_and_what_arrived_stays() {
    let Some(traced) = Traced::new("a_refused_read_moves_the_file_and_what_arrived_stays") else { return };
    let report = json(&traced.load("auto", &["pread64:error=EINVAL:when=3"]));
    assert_eq!(digests(&report), traced.digests);
    let by = paths(&report);
    assert!(by["direct"] > 0 && by["buffered"] > by["direct"], "{by:?}");
    let [(from, to, reason)] = fallbacks(&report).try_into().unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("direct", "buffered"));
    assert!(reason.contains("offset") && reason.contains("Invalid argument"), "{reason}");

    // Reads refused for good: the mapping serves.
    let report = json(&traced.load("auto", &["pread64:error=EINVAL:when=3+"]));
    assert_eq!(digests(&report), traced.digests);
    let by = paths(&report);
    assert!(by["direct"] > 0 && by["mmap"] > 0 && !by.contains_key("buffered"), "{by:?}");
    assert_eq!(fallbacks(&report).len(), 2);

    let forced = traced.load("direct", &["pread64:error=EINVAL:when=3"]);
    assert_eq!(forced.code(), Some(3), "{forced}");
    assert!(forced.stderr.contains("Invalid argument"), "{forced}");
}

#[test]
fn a_failing_disk_is_never_hidden() {
    let Some(traced) = Traced::new("a_failing_disk_is_never_hidden") else { return };
    for (backend, by, fault) in [
        ("auto", "direct", "pread64:error=EIO:when=3"),
        ("direct", "direct", "pread64:error=EIO:when=3"),
        ("buffered", "buffered", "pread64:error=EIO:when=3"),
        ("mmap", "mmap", "process_vm_readv:error=EIO:when=2"),
        // What a failed read of a mapped page looks like; the file has not become shorter, and nobody may say so.
        ("mmap", "mmap", "process_vm_readv:error=EFAULT:when=2"),
    ] {
        let failed = traced.load(backend, &[fault]);
        assert_eq!(failed.code(), Some(1), "{backend}: {failed}");
        for words in ["Input/output error", "offset", by, traced.file.to_str().unwrap()] {
            assert!(failed.stderr.contains(words), "{backend}: {words} is missing in: {}", failed.stderr);
        }
        assert!(failed.stdout.is_empty(), "{backend}: {}", failed.stdout);
    }
}

#[test]
fn interrupted_reads_go_on() {
    let Some(traced) = Traced::new("interrupted_reads_go_on") else { return };
    for backend in ["direct", "buffered"] {
        let report = json(&traced.load(backend, &["pread64:error=EINTR:when=1+2"]));
        assert_eq!(digests(&report), traced.digests, "{backend}");
        assert!(fallbacks(&report).is_empty());
    }
}

/// Another file under the same name, between the header and the second open: no byte of it may be mixed in.
#[test]
fn a_file_replaced_before_the_second_open_is_not_mixed_in() {
    let Some(traced) = Traced::new("a_file_replaced_before_the_second_open_is_not_mixed_in") else { return };
    for (backend, code) in [("auto", 0), ("direct", 3)] {
        let (path, saved) = (traced.file.clone(), traced.folder.path().join("saved"));
        fs::hard_link(&path, &saved).unwrap();
        let other = traced.folder.path().join("other");
        fs::write(&other, vec![0x55; fs::metadata(&path).unwrap().len() as usize]).unwrap();
        let trace = traced.folder.path().join("trace");
        let _ = fs::remove_file(&trace);
        evict(&traced.file);
        let finished = thread::scope(|scope| {
            let swap = scope.spawn(|| {
                // The header has been read once there are two reads in the trace.
                let deadline = Instant::now() + Duration::from_secs(20);
                let reads = || fs::read_to_string(&trace).unwrap_or_default().matches("pread64").count();
                while reads() < 2 && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(5));
                }
                fs::rename(&other, &path).unwrap();
            });
            let delayed = ["openat:delay_enter=1500000:when=2"];
            let finished = process::run(&mut traced.command(backend, &delayed), process::LIMIT);
            swap.join().unwrap();
            finished
        });
        fs::rename(&saved, &path).unwrap();
        assert_eq!(finished.code(), Some(code), "{backend}: {finished}");
        if code == 0 {
            let report = json(&finished);
            assert_eq!(digests(&report), traced.digests);
            assert_eq!(fallbacks(&report).len(), 1, "{report}");
        }
    }
}

/// Shards need a descriptor each, and a second one to be read directly.
#[test]
fn few_descriptors() {
    let test = "few_descriptors";
    let folder = folder::on_disk(test);
    let model = synth(folder.path(), "--size 24MiB --shards 20");
    let expected = digests(&json(&run("load --device cpu --digest --json", [&model])));
    let load = |descriptors: u32, backend: &str| {
        shards(&model).iter().for_each(|shard| evict(shard));
        let script = format!(r#"ulimit -n {descriptors} && exec "$@""#);
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &script,
            "sh",
            GDS,
            "load",
            "--device",
            "cpu",
            "--digest",
            "--json",
            "--backend",
        ]);
        process::run(command.arg(backend).arg(&model), process::LIMIT)
    };
    let failed = load(12, "buffered");
    assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
    for words in ["Too many open files", "-of-00020", "ulimit -n"] {
        assert!(failed.stderr.contains(words), "{failed}");
    }

    // Enough for the headers: what cannot be opened again is read as it is open.
    let report = json(&load(28, "auto"));
    assert_eq!(digests(&report), expected);
    let by = paths(&report);
    if by.contains_key("direct") {
        assert!(by["buffered"] > 0, "{by:?}");
        let fallbacks = fallbacks(&report);
        assert!(
            !fallbacks.is_empty()
                && fallbacks.iter().all(|(_, _, reason)| reason.contains("Too many open files"))
        );
    }
}

/// On ramfs, which refuses O_DIRECT; mounted in a namespace of the test's own.
#[test]
fn a_file_system_without_direct_reads() {
    let test = "a_file_system_without_direct_reads";
    let Some(unshare) = tool(test, "unshare") else { return };
    let folder = folder::on_disk(test);
    let model = synth(folder.path(), "--size 4MiB --shards 2");
    let expected = digests(&json(&run("load --device cpu --digest --json", [&model])));
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let load = |backend: &str| {
        let script = r#"mount -t ramfs none "$1" && cp "$2"/* "$1" || exit 99
                        exec "$3" load --device cpu --digest --json --backend "$4" "$1""#;
        let mut command = Command::new(&unshare);
        command.args(["-Urm", "sh", "-c", script, "sh"]).args([&mount, &model]).args([GDS, backend]);
        process::run(&mut command, process::LIMIT)
    };
    let report = load("auto");
    if matches!(report.code(), Some(99) | None) || report.stderr.contains("unshare") {
        return not_run(test, &format!("a ramfs cannot be mounted here: {}", report.stderr.trim()));
    }
    let report = json(&report);
    assert_eq!(digests(&report), expected);
    assert_eq!(paths(&report), [("buffered".to_owned(), report["bytes"].as_u64().unwrap())].into());
    let forced = load("direct");
    assert_eq!(forced.code(), Some(3), "{forced}");
    assert!(forced.stderr.contains("O_DIRECT") && forced.stderr.contains("Invalid argument"), "{forced}");
}

/// A file of 1 MiB and some, and a loader of one thread that reads it in small pieces by `kind`.
fn changing(test: &str, device: &Device, kind: PathKind) -> Option<(TempDir, PathBuf, Loader)> {
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    File::new().tensor("a", "F32", &[250_000]).tensor("b", "U8", &[50_001]).write(&path);
    let loader =
        Loader::new().device(device.clone()).backend(Backend::Only(kind)).threads(1).read_size(65_536);
    match loader.load(&path) {
        Err(error @ Error::Unavailable { .. }) => {
            not_run(test, &error.to_string());
            None
        }
        outcome => {
            assert_eq!(outcome.unwrap().get("b").unwrap().to_vec().unwrap(), payload("b", 50_001));
            Some((folder, path, loader))
        }
    }
}

/// Loads while `change` happens after the first piece.
fn load_while(
    loader: &Loader,
    path: &Path,
    change: impl Fn(&Path) + Send + Sync + 'static,
) -> gds_loader::Result<Model> {
    let (done, file) = (AtomicBool::new(false), path.to_owned());
    let loader = loader.clone().on_progress(move |_| {
        if !done.swap(true, Ordering::Relaxed) {
            change(&file);
        }
    });
    loader.load(path)
}

const SERVING: [PathKind; 3] = [PathKind::Buffered, PathKind::Direct, PathKind::Mmap];

fn resize(path: &Path, len: impl Fn(u64) -> u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len(file.metadata().unwrap().len())).unwrap();
}

fn files_that_change(test: &str, device: &Device) {
    for kind in SERVING {
        let free = || device.memory().unwrap().map(|memory| memory.free);
        let before = free();
        for cut in [2, 1000, 100_000, 700_000] {
            let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
            let error = load_while(&loader, &path, move |path| resize(path, |len| len - cut)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{kind}, {cut} bytes cut: {error}");
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            assert_eq!(free(), before, "device memory is back");
        }
        let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
        let error = load_while(&loader, &path, |path| resize(path, |len| len + 1)).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{kind}: {error:?}");
        assert_eq!(error.kind(), ErrorKind::InvalidData);

        // Written to at the same length, as by a download that made the file long first, or by a copy over it.
        for cut in [1, 4096, 700_000] {
            let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
            let error = load_while(&loader, &path, move |path| {
                // File systems keep the time of a write to some milliseconds.
                thread::sleep(Duration::from_millis(20));
                resize(path, |len| len - cut);
                resize(path, |len| len + cut);
            });
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Rewritten { .. } | Error::Read { .. }), "{kind}: {error:?}");
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            assert_eq!(free(), before, "device memory is back");
        }

        // Replaced, as an atomic update does it: what was opened is what is loaded.
        let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
        let inode = fs::metadata(&path).unwrap().ino();
        let model = load_while(&loader, &path, |path| {
            let other = path.with_extension("new");
            fs::write(&other, b"nothing that was ever a model").unwrap();
            fs::rename(&other, path).unwrap();
        });
        let model = model.unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(model.get("a").unwrap().to_vec().unwrap(), payload("a", 1_000_000));
        assert_eq!(model.get("b").unwrap().to_vec().unwrap(), payload("b", 50_001));
    }
}

#[test]
fn files_that_change_while_loaded() {
    files_that_change("files_that_change_while_loaded", &Device::cpu());
}

#[test]
fn files_that_change_while_loaded_to_a_gpu() {
    let test = "files_that_change_while_loaded_to_a_gpu";
    on_simulator(test, &[("CUDA_SIM_JITTER_US", "300")], || {
        files_that_change(test, &Device::cuda(0).unwrap())
    });
}

#[test]
fn auto_reads_cold_files_directly_and_warm_ones_through_the_cache() {
    let test = "auto_reads_cold_files_directly_and_warm_ones_through_the_cache";
    let folder = folder::on_disk(test);
    if !can_be_cold(folder.path()) {
        return not_run(test, "files in the build folder do not leave the page cache");
    }
    let Some((_other, _, _)) = changing(test, &Device::cpu(), PathKind::Direct) else { return };
    let path = folder.path().join("model.safetensors");
    File::new().tensor("a", "F32", &[2 << 20]).write(&path);
    let loader = Loader::new().device(Device::cpu());
    let by = |loader: &Loader| {
        let report = loader.load(&path).unwrap().report().clone();
        PathKind::ALL.into_iter().filter(|&kind| report.paths.get(kind) == report.bytes).collect::<Vec<_>>()
    };
    evict(&path);
    assert_eq!(by(&loader), [PathKind::Direct]);
    assert!(resident_bytes(&path, 1 << 20) == 0, "a direct load fills no cache, so the next is direct too");
    assert_eq!(by(&loader), [PathKind::Direct]);
    fs::read(&path).unwrap();
    assert_eq!(by(&loader), [PathKind::Buffered]);
    assert_eq!(by(&loader.clone().cold(true)), [PathKind::Direct], "cold drops the pages first");
}

#[test]
fn paths_that_are_not_here_say_so() {
    let folder = folder::on_disk("paths_that_are_not_here_say_so");
    let path = folder.path().join("model.safetensors");
    File::new().tensor("a", "F32", &[5]).write(&path);
    for kind in [PathKind::Gds, PathKind::GdsCompat] {
        let error = Loader::new().device(Device::cpu()).backend(Backend::Only(kind)).load(&path).unwrap_err();
        let Error::Unavailable { by, reason, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*by, error.kind()), (kind, ErrorKind::Unavailable));
        assert!(!reason.is_empty());
        let finished = run(&format!("load --device cpu --json --backend {kind}"), [&path]);
        assert_eq!((finished.code(), finished.stdout.as_str()), (Some(3), ""), "{finished}");
        assert!(finished.stderr.contains(kind.as_str()) && finished.stderr.contains(reason), "{finished}");
    }
}
