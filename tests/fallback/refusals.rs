//! Paths that are refused, at opening or later, and reads that fail.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::Device;
use gds_loader::{Backend, Error, ErrorKind, Loader, PathKind};
use test_support::fixture::File;
use test_support::{folder, not_run, process, tool};

use crate::changes::changing;
use crate::page_cache::{can_be_cold, evict, resident_bytes};
use crate::program::{GDS, digests, fallbacks, json, paths, run, synth};
use crate::traced::Traced;

#[test]
fn a_refused_open_falls_back_and_says_why() {
    let Some(traced) = Traced::new("refusals::a_refused_open_falls_back_and_says_why") else { return };
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
    let Some(traced) = Traced::new("refusals::a_refused_read_moves_the_file_and_what_arrived_stays") else {
        return;
    };
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
    let Some(traced) = Traced::new("refusals::a_failing_disk_is_never_hidden") else { return };
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
    let Some(traced) = Traced::new("refusals::interrupted_reads_go_on") else { return };
    for backend in ["direct", "buffered"] {
        let report = json(&traced.load(backend, &["pread64:error=EINTR:when=1+2"]));
        assert_eq!(digests(&report), traced.digests, "{backend}");
        assert!(fallbacks(&report).is_empty());
    }
}

/// Another file under the same name, between the header and the second open: no byte of it may be mixed in.
#[test]
fn a_file_replaced_before_the_second_open_is_not_mixed_in() {
    let Some(traced) = Traced::new("refusals::a_file_replaced_before_the_second_open_is_not_mixed_in") else {
        return;
    };
    for backend in ["auto", "direct"] {
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
        assert_eq!(finished.code(), Some(0), "{backend}: {finished}");
        let report = json(&finished);
        assert_eq!(digests(&report), traced.digests);
        assert_eq!(fallbacks(&report).len(), 0, "{report}");
    }
}

/// Where files cannot be mapped, or the address space is too small for that, every other path serves.
#[test]
fn a_mapping_that_is_refused() {
    let test = "refusals::a_mapping_that_is_refused";
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

/// A destination that the kernel cannot write, though it is ours, is reached by way of other memory.
#[test]
fn memory_that_the_kernel_cannot_write_is_reached_by_a_bounce() {
    let Some(traced) = Traced::new("refusals::memory_that_the_kernel_cannot_write_is_reached_by_a_bounce")
    else {
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
    let test = "refusals::a_file_system_without_direct_reads";
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

#[test]
fn auto_reads_cold_files_directly_and_warm_ones_through_the_cache() {
    let test = "refusals::auto_reads_cold_files_directly_and_warm_ones_through_the_cache";
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
    let folder = folder::on_disk("refusals::paths_that_are_not_here_say_so");
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
