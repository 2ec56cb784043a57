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
use test_support::fixture::{File, payload, write_model};
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
        command.args(["-e", "trace=openat,pread64,process_vm_readv,mmap"]);
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

/// Where files cannot be mapped, or the address space is too small for that, every other path serves.
#[test]
fn a_mapping_that_is_refused() {
    let test = "a_mapping_that_is_refused";
    let Some(traced) = Traced::new(test) else { return };
    for (code, words) in
        [("ENODEV", "No such device"), ("ENOMEM", "Cannot allocate memory"), ("EPERM", "not permitted")]
    {
        // Only the file's mappings: strace knows them by the descriptor.
        let refused = [format!("mmap:error={code}")];
        let command = |backend: &str| {
            let mut command = traced.command(backend, &[&refused[0]]);
            if backend == "mmap" {
                let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
                command = Command::new(&traced.strace);
                command.arg("-P").arg(&traced.file).args(args).env("RAYON_NUM_THREADS", "1");
            }
            process::run(&mut command, process::LIMIT)
        };
        let forced = command("mmap");
        assert_eq!((forced.code(), forced.stdout.as_str()), (Some(3), ""), "{forced}");
        assert!(forced.stderr.contains("mapping it") && forced.stderr.contains(words), "{forced}");
        for backend in ["auto", "buffered", "direct"] {
            assert_eq!(digests(&json(&command(backend))), traced.digests, "{backend}, {code}");
        }
    }
}

/// A user who may have few processes: threads that cannot be started are done without.
#[test]
fn few_processes() {
    let test = "few_processes";
    let (Some(setpriv), Some(prlimit)) = (tool(test, "setpriv"), tool(test, "prlimit")) else { return };
    // Where another user can run the program and read the model, whoever owns the build folder.
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("gds");
    fs::copy(GDS, &program).unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    write_model(&model, &[0, 1, 2].map(|k| File::new().tensor(&format!("{k}"), "U8", &[100_000 + k])));
    for path in [folder.path(), &program, &model] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let expected = digests(&json(&run("load --device cpu --digest --json", [&model])));
    // A user of the test's own, who has no other processes.
    let user = format!("{}", 1_900_000_000 + std::process::id());
    let as_user = |processes: u32, line: &str| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&prlimit);
        command.arg(format!("--nproc={processes}")).arg(&program).args(line.split_whitespace()).arg(&model);
        process::run(&mut command, process::LIMIT)
    };
    let enough = as_user(1000, "inspect --json");
    if enough.code() != Some(0) {
        return not_run(
            test,
            &format!("the program cannot be run as another user: {}", enough.stderr.trim()),
        );
    }
    for processes in 1..6 {
        for line in ["inspect --json", "load --device cpu --digest --json", "verify --json"] {
            let report = json(&as_user(processes, line));
            if line.starts_with("load") {
                assert_eq!(digests(&report), expected, "{processes}");
            }
        }
    }
}

/// A tensor of a file that is longer than the process's address space may be.
#[test]
fn little_address_space() {
    let folder = folder::on_disk("little_address_space");
    let path = folder.path().join("model.safetensors");
    let file = File::new().tensor("small", "F32", &[1024]).tensor("large", "U8", &[1 << 30]);
    let header = file.header();
    fs::write(&path, [header.as_slice(), &payload("small", 4096)].concat()).unwrap();
    let whole = fs::OpenOptions::new().write(true).open(&path).unwrap();
    whole.set_len(header.len() as u64 + 4096 + (1 << 30)).unwrap();
    let load = |backend: &str| {
        let line = "ulimit -v 262144 && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args([
            "-c",
            line,
            "sh",
            GDS,
            "load",
            "--device",
            "cpu",
            "--digest",
            "--json",
            "--tensors",
            "small",
        ]);
        process::run(command.args(["--backend", backend]).arg(&path), process::LIMIT)
    };
    let expected = digests(&json(&load("buffered")));
    assert_eq!(expected.len(), 1);
    assert_eq!(digests(&json(&load("auto"))), expected);
    let direct = load("direct");
    assert!(direct.code() == Some(3) || digests(&json(&direct)) == expected, "{direct}");
    let mapped = load("mmap");
    assert_eq!((mapped.code(), mapped.stdout.as_str()), (Some(3), ""), "{mapped}");
    assert!(mapped.stderr.contains("mapping it: Cannot allocate memory"), "{mapped}");
    // More than there is room for is an error, and no abort.
    let all = r#"ulimit -v 262144 && exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", all, "sh", GDS, "load", "--device", "cpu", "--json"]).arg(&path);
    let failed = process::run(&mut command, process::LIMIT);
    assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
    assert!(failed.stderr.starts_with("error: ") && failed.stderr.contains("memory"), "{failed}");
}

/// A folder is found by every name that leads to it.
#[test]
fn any_name_of_a_folder_leads_to_it() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = folder::on_disk("any_name_of_a_folder_leads_to_it");
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b" a b/\xff\xfe\n'\"$x"));
    fs::create_dir_all(&odd).unwrap();
    let shard = |name: &str| File::new().tensor(name, "F32", &[300, 1000]);
    write_model(&odd, &[shard("a"), shard("b")]);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&odd, &link).unwrap();
    std::os::unix::fs::symlink("link", folder.path().join("link to link")).unwrap();
    let expected = digests(&json(&run("load --device cpu --digest --json", [&odd])));
    let here = odd.parent().unwrap();
    let relative = odd.strip_prefix(here).unwrap();
    let names: Vec<PathBuf> = [
        odd.join(""),
        odd.join("."),
        link.clone(),
        link.join(""),
        link.join("model.safetensors.index.json"),
        folder.path().join("link to link"),
        relative.to_owned(),
        Path::new("./").join(relative),
        Path::new("../link").to_owned(),
        Path::new("../link/../").join(relative),
    ]
    .into();
    for name in names {
        for backend in ["auto", "mmap"] {
            let mut command =
                program::gds(&format!("load --device cpu --digest --json --backend {backend}"), [&name]);
            let report = json(&process::run(command.current_dir(here), process::LIMIT));
            assert_eq!(digests(&report), expected, "{name:?} by {backend}");
        }
    }
    // From within, where the name is nothing but a dot.
    let mut command = program::gds("load --device cpu --digest --json", ["."]);
    assert_eq!(digests(&json(&process::run(command.current_dir(&link), process::LIMIT))), expected);
}

/// A set of `count` shards, one of them long enough to be read directly, and digests of its tensors.
fn many_shards(folder: &Path, count: usize) -> std::collections::BTreeMap<String, String> {
    let file = |k: usize| {
        let len = if k == 0 { 2 << 20 } else { 20_001 };
        File::new().tensor(&format!("{k}.a"), "F32", &[3, 5]).tensor(&format!("{k}.b"), "U8", &[len])
    };
    write_model(folder, &(0..count).map(file).collect::<Vec<_>>());
    digests(&json(&run("load --device cpu --digest --json", [folder])))
}

/// Runs `gds` with the words of `line` and `path`, under a limit of so many open files.
fn with_descriptors(limit: &str, line: &str, path: &Path) -> Finished {
    let script = format!(r#"ulimit {limit} && exec "$@""#);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", GDS]).args(line.split_whitespace()).arg(path);
    process::run(&mut command, process::LIMIT)
}

/// More shards than files that may be open: they take turns, on every path and for every command. Where there is no room even for
/// that, the error says what the limit is and how to raise it.
#[test]
fn few_descriptors() {
    let test = "few_descriptors";
    let folder = folder::on_disk(test);
    let (model, expected) = (folder.path(), many_shards(folder.path(), 64));
    for backend in ["auto", "buffered", "mmap", "prefetch", "direct"] {
        shards(model).iter().for_each(|shard| evict(shard));
        let line = format!("load --device cpu --digest --json --backend {backend}");
        let loaded = with_descriptors("-n 24", &line, model);
        if backend == "direct" && loaded.code() == Some(3) && loaded.stderr.contains("Invalid argument") {
            not_run(test, "the disk of the build folder has no O_DIRECT");
            continue;
        }
        let report = json(&loaded);
        assert_eq!(digests(&report), expected, "{backend}");
        if !matches!(backend, "auto" | "prefetch") {
            assert_eq!(paths(&report), [(backend.to_owned(), report["bytes"].as_u64().unwrap())].into());
        }
    }
    with_descriptors("-n 24", "inspect", model).success();
    let manifest = folder.path().join("manifest.json");
    let line = format!("verify --write-manifest {}", manifest.display());
    with_descriptors("-n 24", &line, model).success();
    with_descriptors("-n 24", &format!("verify --manifest {}", manifest.display()), model).success();
    // What stays open is asked of the kernel in its own way.
    let engine = with_descriptors("-n 24", "load --device cpu --backend direct --engine io-uring", model);
    assert!(matches!(engine.code(), Some(3)), "{engine}");

    for line in ["load --device cpu --backend buffered", "inspect"] {
        let failed = with_descriptors("-n 8", line, model);
        assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
        for words in ["64 files", "RLIMIT_NOFILE allows 8", "ulimit -n", model.to_str().unwrap()] {
            assert!(failed.stderr.contains(words), "{words} is missing in: {}", failed.stderr);
        }
    }
    // A soft limit is raised, as far as it may be.
    let report = json(&with_descriptors("-Sn 8", "load --device cpu --digest --json", model));
    assert_eq!(digests(&report), expected);
}

/// A file that takes the place of one that was closed in the meantime is not mixed in.
#[test]
fn a_file_replaced_while_it_was_closed_is_not_mixed_in() {
    let test = "a_file_replaced_while_it_was_closed_is_not_mixed_in";
    let folder = folder::on_disk(test);
    many_shards(folder.path(), 64);
    let expected: Vec<PathBuf> = shards(folder.path());
    // In a child of its own, whose limit does not touch the other tests.
    let child = std::env::var_os("GDS_FEW_DESCRIPTORS");
    let Some(path) = child.map(PathBuf::from) else {
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n 32 && exec "$@""#, "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env("GDS_FEW_DESCRIPTORS", folder.path());
        let finished = process::run(&mut command, process::LIMIT);
        assert_eq!(finished.code(), Some(0), "{finished}");
        return;
    };
    for kind in SERVING {
        let victim = path.join(expected[60].file_name().unwrap());
        let loader = Loader::new().device(Device::cpu()).backend(Backend::Only(kind)).threads(1);
        let loaded = load_while(&loader, &path, move |_| {
            // Of the same length, with other bytes.
            let other = victim.with_extension("new");
            fs::write(&other, vec![0x55; fs::metadata(&victim).unwrap().len() as usize]).unwrap();
            fs::rename(&other, &victim).unwrap();
        });
        let error = loaded.unwrap_err();
        if kind == PathKind::Direct && error.kind() == ErrorKind::Unavailable {
            continue;
        }
        assert!(
            error.to_string().contains(&expected[60].file_name().unwrap().to_string_lossy()[..]),
            "{kind}: {error}"
        );
        many_shards(&path, 64);
    }
}

/// A destination that the kernel cannot write, though it is ours, is reached by way of other memory.
#[test]
fn memory_that_the_kernel_cannot_write_is_reached_by_a_bounce() {
    let Some(traced) = Traced::new("memory_that_the_kernel_cannot_write_is_reached_by_a_bounce") else {
        return;
    };
    for backend in ["auto", "direct", "buffered"] {
        for fault in ["pread64:error=EFAULT:when=3", "pread64:error=EFAULT:when=4"] {
            let report = json(&traced.load(backend, &[fault]));
            assert_eq!(digests(&report), traced.digests, "{backend}");
            assert!(fallbacks(&report).is_empty(), "{backend}: {report}");
        }
    }
    let failed = traced.load("direct", &["pread64:error=EFAULT:when=3+"]);
    assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
    assert!(failed.stderr.contains("Bad address") && failed.stderr.contains("offset"), "{failed}");
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
