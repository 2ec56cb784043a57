//! Who keeps direct reads in flight: io_uring, or threads where the kernel refuses it, and the same bytes by either.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod page_cache;
mod program;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gds_loader::{Backend, CancelToken, Engine, Error, ErrorKind, Loader, PathKind};
use program::{GDS, digests, fallbacks, gds, json, paths, run, shards, synth};
use serde_json::Value;
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{
    IO_URING_CALLS, IoUring, compile, folder, not_run, process, refuse_calls, refuse_io_uring, tool,
    without_io_uring,
};

const ENGINES: [Engine; 2] = [Engine::IoUring, Engine::Threads];

/// A loader to the CPU by direct reads.
fn direct() -> Loader {
    Loader::new().device(cuda_staging::Device::cpu()).backend(Backend::Only(PathKind::Direct))
}

/// A model on disk that io_uring reads directly; `None` after saying why there is none.
fn model(test: &str, file: &File) -> Option<(TempDir, PathBuf)> {
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    file.write(&path);
    match direct().engine(Engine::IoUring).load(&path) {
        Ok(_) => Some((folder, path)),
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            not_run(test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn big() -> File {
    (0..8).fold(File::new(), |file, number| file.tensor(&format!("t.{number}"), "F32", &[250_001]))
}

#[track_caller]
fn engine(report: &Value) -> (String, String) {
    let engine = &report["engine"];
    let reason = engine["reason"].as_str().unwrap_or_default().to_owned();
    (engine["name"].as_str().unwrap().to_owned(), reason)
}

#[test]
fn a_kernel_that_refuses_io_uring_is_asked_and_threads_read() {
    let test = "a_kernel_that_refuses_io_uring_is_asked_and_threads_read";
    let Some((_folder, path)) = model(test, &big()) else { return };
    let line = "load --device cpu --backend direct --digest --json";
    let expected = json(&run(line, [&path]));
    assert_eq!(engine(&expected), ("io-uring".to_owned(), String::new()));
    for (how, why) in [(IoUring::Forbidden, "not permitted"), (IoUring::Unknown, "not implemented")] {
        // All of its calls, and each alone: a profile may let one be set up and then refuse the rest.
        let each_alone = IO_URING_CALLS.map(|call| call..=call);
        for calls in std::iter::once(IO_URING_CALLS).chain(each_alone) {
            let mut command = gds(line, [&path]);
            refuse_calls(&mut command, calls.clone(), how);
            let finished = process::run(&mut command, process::LIMIT);
            assert!(finished.elapsed < Duration::from_secs(5), "{calls:?}: {finished}");
            let report = json(&finished);
            assert_eq!(digests(&report), digests(&expected));
            assert_eq!(paths(&report), paths(&expected), "the path is the same, only its engine is not");
            assert!(fallbacks(&report).is_empty());
            let (name, reason) = engine(&report);
            let explained = reason.contains(why) && reason.contains("seccomp");
            assert!(name == "threads" && explained, "{calls:?}: {name}: {reason}");
        }

        let mut command = gds(&format!("{line} --engine io-uring"), [&path]);
        refuse_io_uring(&mut command, how);
        let forced = process::run(&mut command, process::LIMIT);
        assert_eq!((forced.code(), forced.stdout.as_str()), (Some(3), ""), "{forced}");
        assert!(forced.stderr.contains(why) && forced.stderr.contains("--engine auto"), "{forced}");

        let error = without_io_uring(how, || direct().engine(Engine::IoUring).load(&path).unwrap_err());
        assert!(matches!(error, Some(Error::Engine { .. })), "{error:?}");
    }
}

#[test]
fn io_uring_is_not_missed_where_nothing_is_read_directly() {
    let folder = folder::on_disk("io_uring_is_not_missed_where_nothing_is_read_directly");
    let path = folder.path().join("model.safetensors");
    File::new().tensor("a", "U8", &[5000]).write(&path);
    let loader = Loader::new().device(cuda_staging::Device::cpu()).engine(Engine::IoUring);
    let load = || loader.clone().backend(Backend::Only(PathKind::Buffered)).load(&path).unwrap();
    let model = without_io_uring(IoUring::Forbidden, load).unwrap_or_else(load);
    let report = model.report().engine.clone().unwrap();
    assert_eq!((report.name, report.depth), (Engine::Threads, 1));
    assert!(report.reason.unwrap().contains("no file is read directly"));
}

#[test]
fn what_is_asked_of_an_engine_is_what_it_does() {
    let test = "what_is_asked_of_an_engine_is_what_it_does";
    let Some((_folder, path)) = model(test, &big()) else { return };
    for (engine, threads, depth, expected) in [
        (Engine::IoUring, 1, 1, (1, 1)),
        (Engine::IoUring, 1, 2, (1, 2)),
        (Engine::IoUring, 2, 8, (2, 8)),
        (Engine::IoUring, 3, 300, (3, 300)),
        (Engine::Threads, 1, 1, (1, 1)),
        (Engine::Threads, 2, 3, (6, 1)),
    ] {
        let loader = direct().engine(engine).threads(threads).depth(depth).read_size(16 << 10);
        let model = loader.load(&path).unwrap();
        let report = model.report().engine.clone().unwrap();
        assert_eq!((report.name, (report.workers, report.depth)), (engine, expected), "{report:?}");
        assert_eq!(report.read_size, 16 << 10);
        for number in 0..8 {
            let name = format!("t.{number}");
            assert_eq!(model.get(&name).unwrap().to_vec().unwrap(), payload(&name, 1_000_004));
        }
    }
}

/// What is in flight when a load ends early is waited for, and the process loads on.
#[test]
fn a_load_that_ends_with_reads_in_flight_leaves_nothing() {
    let test = "a_load_that_ends_with_reads_in_flight_leaves_nothing";
    let Some((_folder, path)) = model(test, &big()) else { return };
    let bytes = fs::read(&path).unwrap();
    for engine in ENGINES {
        let loader = direct().engine(engine).threads(2).depth(16).read_size(16 << 10);
        for round in 0..20 {
            let (token, other) = (CancelToken::new(), CancelToken::new());
            let cancel = token.clone();
            let cancelled = loader.clone().cancel(token).on_progress(move |_| cancel.cancel());
            assert_eq!(cancelled.load(&path).unwrap_err().kind(), ErrorKind::Cancelled);

            // The file ends early while reads of its end are in flight.
            let file = path.clone();
            let cut = loader.clone().cancel(other).on_progress(move |_| {
                OpenOptions::new().write(true).open(&file).unwrap().set_len(700_000 + round * 4096).unwrap();
            });
            assert_eq!(cut.load(&path).unwrap_err().kind(), ErrorKind::InvalidData);
            fs::write(&path, &bytes).unwrap();
        }
        let model = loader.load(&path).unwrap();
        assert_eq!(model.get("t.7").unwrap().to_vec().unwrap(), payload("t.7", 1_000_004));
    }
}

/// Registering slots needs locked memory; without, reads are plain and the bytes the same.
#[test]
fn little_lockable_memory() {
    let test = "little_lockable_memory";
    let tiny =
        (0..20_000).fold(File::new(), |file, number| file.tensor(&format!("t.{number}"), "U8", &[401]));
    let Some((folder, path)) = model(test, &tiny) else { return };
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    // Every second tensor: nothing is long enough to be read straight into place.
    let line = "load --device cpu --backend direct --engine io-uring --read-size 1MiB --tensors *[02468] --digest --json";
    let plenty = json(&run(line, [&path]));
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -l 64 && exec "$@""#, "sh", GDS]).args(line.split_whitespace()).arg(&path);
    // SAFETY: setgid and setuid may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            // Without the privilege to lock what it likes; where it was not there to begin with, nothing changes.
            let _ = (libc::setgid(65_534), libc::setuid(65_534));
            Ok(())
        })
    };
    let finished = process::run(&mut command, process::LIMIT);
    if matches!(finished.code(), Some(126 | 127)) {
        return not_run(test, &format!("another user may not run it: {}", finished.stderr.trim()));
    }
    let little = json(&finished);
    assert_eq!(digests(&little), digests(&plenty));
    assert_eq!(engine(&little), ("io-uring".to_owned(), String::new()));
    assert_eq!(little["engine"]["registered"], false, "{little}");
    // SAFETY: a plain question.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(plenty["engine"]["registered"], true, "{plenty}");
    }
}

/// A block device of 4096-byte sectors in a file, with a file system on it.
struct Loop {
    _folder: TempDir,
    backing: PathBuf,
    device: String,
    mount: PathBuf,
}

impl Loop {
    fn new(test: &str) -> Option<Self> {
        let (losetup, mkfs) = (tool(test, "losetup")?, tool(test, "mkfs.ext4")?);
        let folder = folder::on_disk(test);
        let (backing, mount) = (folder.path().join("disk"), folder.path().join("mount"));
        fs::create_dir(&mount).unwrap();
        fs::File::create(&backing).unwrap().set_len(64 << 20).unwrap();
        let attached = process::run(
            Command::new(losetup).args(["--find", "--show", "--sector-size", "4096"]).arg(&backing),
            process::LIMIT,
        );
        if attached.code() != Some(0) {
            not_run(test, &format!("no loop device of 4096-byte sectors: {}", attached.stderr.trim()));
            return None;
        }
        let device = attached.stdout.trim().to_owned();
        let this = Self { _folder: folder, backing, device, mount };
        let made = process::run(Command::new(mkfs).args(["-q", "-b", "4096", &this.device]), process::LIMIT);
        let mounted = process::run(Command::new("mount").arg(&this.device).arg(&this.mount), process::LIMIT);
        if (made.code(), mounted.code()) != (Some(0), Some(0)) {
            not_run(test, &format!("no file system on {}: {made}{mounted}", this.device));
            return None;
        }
        Some(this)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        for command in [
            Command::new("umount").arg("-l").arg(&self.mount),
            Command::new("losetup").args(["--detach", &self.device]),
        ] {
            let _ = command.output();
        }
    }
}

fn sync(path: &Path) {
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn sectors_of_4096_bytes() {
    let test = "sectors_of_4096_bytes";
    let Some(disk) = Loop::new(test) else { return };
    let made = synth(&disk.mount, "--size 16MiB");
    let expected = digests(&json(&run("load --device cpu --backend buffered --digest --json", [&made])));
    for engine in ENGINES {
        shards(&made).iter().for_each(|shard| sync(shard));
        let line =
            format!("load --device cpu --backend direct --digest --json --read-size 64KiB --engine {engine}");
        let finished = run(&line, [&made]);
        if finished.code() == Some(3) {
            return not_run(test, finished.stderr.trim());
        }
        let report = json(&finished);
        assert_eq!(digests(&report), expected, "{engine}");
        assert_eq!(self::engine(&report).0, engine.as_str());
        assert!(fallbacks(&report).is_empty());
    }
}

/// The device loses its second half: an error that says where, never another path's bytes.
#[test]
fn a_disk_that_fails_is_an_error_by_either_engine() {
    let test = "a_disk_that_fails_is_an_error_by_either_engine";
    let Some(disk) = Loop::new(test) else { return };
    let shard = shards(&synth(&disk.mount, "--size 48MiB")).remove(0);
    sync(&shard);
    if let Some(error) = direct().engine(Engine::IoUring).load(&shard).err() {
        return not_run(test, &error.to_string());
    }
    OpenOptions::new().write(true).open(&disk.backing).unwrap().set_len(32 << 20).unwrap();
    for engine in ENGINES {
        for backend in ["direct", "auto"] {
            page_cache::evict(&shard);
            let line = format!("load --device cpu --backend {backend} --engine {engine} --json");
            let failed = run(&line, [&shard]);
            assert_eq!(
                (failed.code(), failed.stdout.as_str()),
                (Some(1), ""),
                "{engine}, {backend}: {failed}"
            );
            for words in ["Input/output error", "offset", "direct"] {
                assert!(failed.stderr.contains(words), "{engine}, {backend}: {failed}");
            }
        }
    }
}

/// Once opened, direct reads of the file are refused: a descriptor of a kind that nobody can read is slipped in.
const REFUSING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int direct = -1;
int open64(const char *path, int flags, ...) {
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);
    int fd = next(path, flags, mode);
    if (fd >= 0 && (flags & O_DIRECT) && strstr(path, ".safetensors")) direct = fd;
    return fd;
}
int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict into) {
    int (*next)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    int outcome = next(dir, path, flags, mask, into);
    if (dir >= 0 && dir == direct) { direct = -1; int other = open("/proc/self/ns/mnt", O_RDONLY); dup2(other, dir); close(other); }
    return outcome;
}
"#;

#[test]
fn reads_that_are_refused_move_the_file_to_the_next_path_by_either_engine() {
    let test = "reads_that_are_refused_move_the_file_to_the_next_path_by_either_engine";
    let Some((folder, path)) = model(test, &big()) else { return };
    if !page_cache::can_be_cold(folder.path()) {
        return not_run(test, "files in the build folder do not leave the page cache");
    }
    let library = folder.path().join("refusing.so");
    compile(REFUSING, &library, &["-shared".into(), "-fPIC".into()]);
    let expected = digests(&json(&run("load --device cpu --digest --json", [&path])));
    for engine in ENGINES {
        sync(&path);
        page_cache::evict(&path);
        let load = |backend: &str| {
            let line = format!("load --device cpu --digest --json --engine {engine} --backend {backend}");
            process::run(gds(&line, [&path]).env("LD_PRELOAD", &library), process::LIMIT)
        };
        let report = json(&load("auto"));
        assert_eq!(digests(&report), expected);
        assert!(paths(&report).contains_key("buffered"), "{report}");
        let [(from, to, reason)] = fallbacks(&report).try_into().unwrap();
        assert_eq!((from.as_str(), to.as_str()), ("direct", "buffered"));
        assert!(reason.contains("offset") && reason.contains("Invalid argument"), "{reason}");
        let forced = load("direct");
        assert_eq!(forced.code(), Some(3), "{forced}");
        assert!(forced.stderr.contains("Invalid argument"), "{forced}");
    }
}
