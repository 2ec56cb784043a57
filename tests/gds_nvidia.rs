//! NVIDIA's own libcufile, 1.20 and 1.14, on the simulated GPU: its code reads, in compatibility mode, and ours says so.
//!
//! `GDS_TESTS_SIZE` is the size of the checkpoint, 128MiB where it is unset; the acceptance run is with 2GiB.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod gds_support;
mod program;
mod pypi;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::cufile::{
    Batch, CuFile, CuFileStream, Driver, DriverSettings, Library, Mode, Operation, RegisteredBuffer,
    SizeParameter, StreamFlags,
};
use gds_loader::{Backend, Loader, PathKind};
use gds_support::{Checkpoint, LIBRARY, load, load_well, nvidia};
use program::{digests, fallbacks, json, paths, run};
use pypi::real_model;
use test_support::fixture::{File, payload};
use test_support::{Segment, Simulation, folder, not_run};

const COMPAT: &str = "load --device cuda:0 --backend gds-compat --digest --json";

fn size() -> String {
    let size = std::env::var("GDS_TESTS_SIZE").unwrap_or_else(|_| "128MiB".to_owned());
    format!("--size {size} --shards 4")
}

fn on_cpu(path: &Path) -> BTreeMap<String, String> {
    digests(&json(&run("load --device cpu --backend buffered --digest --json", [path])))
}

/// Loads `path` by NVIDIA's library in compatibility mode and compares with `expected`.
#[track_caller]
fn load_by(library: &str, path: &Path, expected: &BTreeMap<String, String>) {
    let (report, run) = load_well(COMPAT, path, &[(LIBRARY, library)]);
    assert_eq!(&digests(&report), expected);
    let bytes = report["bytes"].as_u64().unwrap();
    assert_eq!(paths(&report), [("gds-compat".to_owned(), bytes)].into());
    assert!(fallbacks(&report).is_empty() && report.get("gds").is_none(), "{report}");
    assert!(run.cufile.is_none(), "that was the simulated library");
}

#[test]
fn the_real_model_by_1_20() {
    let test = "the_real_model_by_1_20";
    let (Some(library), Some(file)) = (nvidia(test, "1.20"), real_model(test)) else { return };
    load_by(&library, &file, &on_cpu(&file));
}

#[test]
fn a_checkpoint_in_memory_by_1_20() {
    let test = "a_checkpoint_in_memory_by_1_20";
    let (Some(library), Some(folder)) = (nvidia(test, "1.20"), folder::in_memory(test)) else { return };
    let checkpoint = Checkpoint::new(folder, &size());
    load_by(&library, &checkpoint.path, &checkpoint.digests);
}

/// On a disk of which udev says nothing here; the simulated driver serves its record.
#[test]
fn the_real_model_by_1_14() {
    let test = "the_real_model_by_1_14";
    let (Some(library), Some(file)) = (nvidia(test, "1.14"), real_model(test)) else { return };
    load_by(&library, &file, &on_cpu(&file));
}

#[test]
fn a_checkpoint_on_disk_by_1_14() {
    let test = "a_checkpoint_on_disk_by_1_14";
    let (Some(library), Some(checkpoint)) = (nvidia(test, "1.14"), Checkpoint::on_disk(test, &size())) else {
        return;
    };
    load_by(&library, &checkpoint.path, &checkpoint.digests);
}

/// 1.14 does not take files in memory; nobody else takes over from a path that was forced.
#[test]
fn what_a_version_does_not_take_is_said() {
    let test = "what_a_version_does_not_take_is_said";
    let (Some(library), Some(folder)) = (nvidia(test, "1.14"), folder::in_memory(test)) else { return };
    let checkpoint = Checkpoint::new(folder, "--size 4MiB");
    let run = load(COMPAT, &checkpoint.path, &[(LIBRARY, &library)]);
    assert_eq!(run.finished.code(), Some(3), "{}", run.finished);
    for words in ["5030", "gds-compat", ".safetensors"] {
        assert!(run.finished.stderr.contains(words), "{words} is missing in: {}", run.finished);
    }
    run.assert_nothing_left();

    // Without the udev record of its disk no version takes a file on ext4.
    for version in ["1.20", "1.14"] {
        let (Some(library), Some(checkpoint)) =
            (nvidia(test, version), Checkpoint::on_disk(test, "--size 4MiB"))
        else {
            return;
        };
        let run = load(COMPAT, &checkpoint.path, &[(LIBRARY, &library), ("CUDA_SIM_UDEV", "0")]);
        if run.finished.code() == Some(0) {
            return not_run(test, "udev has a record of the disk here, or it is not ext4");
        }
        assert_eq!(run.finished.code(), Some(3), "{}", run.finished);
        let message = &run.finished.stderr;
        assert!(message.contains("5027") || message.contains("5030"), "{version}: {message}");
        run.assert_nothing_left();
    }
}

/// There is no GPUDirect Storage here, and nothing may look as if there were.
#[test]
fn no_byte_is_ever_reported_as_gds() {
    let test = "no_byte_is_ever_reported_as_gds";
    let Some(folder) = folder::in_memory(test) else { return };
    let in_memory = Checkpoint::new(folder, "--size 8MiB --shards 2");
    let Some(on_disk) = Checkpoint::on_disk(test, "--size 8MiB --shards 2") else { return };
    for version in ["1.20", "1.14"] {
        let Some(library) = nvidia(test, version) else { return };
        for checkpoint in [&in_memory, &on_disk] {
            let settings = [(LIBRARY, library.as_str())];
            let forced = load("load --device cuda:0 --json --backend gds", &checkpoint.path, &settings);
            assert_eq!(forced.finished.code(), Some(3), "{version}: {}", forced.finished);
            assert!(forced.finished.stdout.is_empty());
            for words in ["gds", "only have bounced", "--backend auto"] {
                assert!(
                    forced.finished.stderr.contains(words),
                    "{version}: {words} is missing in {}",
                    forced.finished
                );
            }
            forced.assert_nothing_left();

            let line = "load --device cuda:0 --digest --json --repeat 2 --backend auto";
            let (report, _) = load_well(line, &checkpoint.path, &settings);
            assert_eq!(digests(&report), checkpoint.digests, "{version}");
            assert!(
                paths(&report).keys().all(|path| path == "direct" || path == "buffered"),
                "{version}: {report}"
            );
            assert!(report["gds"]["proof"].is_null(), "{version}: {report}");
            let reason = report["gds"]["reason"].as_str().unwrap();
            assert!(reason.contains("only have bounced"), "{version}: {reason}");
        }
    }
}

/// The library counts the bytes that it reads; they are those of the report.
#[test]
fn its_statistics_agree_on_the_bytes() {
    let test = "its_statistics_agree_on_the_bytes";
    let Some(library) = nvidia(test, "1.20") else { return };
    let simulation =
        Simulation::new(test).setting(LIBRARY, library).setting("CUFILE_LOGFILE_PATH", "/dev/null");
    let outcome = simulation.run(|| {
        let Some(folder) = folder::in_memory(test) else { return };
        let path = folder.path().join("model.safetensors");
        // Long tensors, which are read straight into their places, at places of every alignment.
        let file = File::new().tensor("a", "F32", &[500_000]).tensor("b", "U8", &[900_001]).tensor(
            "c",
            "BF16",
            &[700_000],
        );
        file.write(&path);
        let loader =
            Loader::new().device(Device::cuda(0).unwrap()).backend(Backend::Only(PathKind::GdsCompat));
        let mut before = 0;
        for (threads, read_size) in [(1, 65536), (3, 1 << 20), (8, 4 << 20)] {
            let model = loader.clone().threads(threads).read_size(read_size).load(&path).unwrap();
            for tensor in model.tensors() {
                assert!(
                    tensor.to_vec().unwrap() == payload(tensor.name(), tensor.len() as usize),
                    "{tensor:?}"
                );
            }
            let report = model.report();
            assert_eq!(report.paths.get(PathKind::GdsCompat), report.bytes);
            let driver = Driver::open(Mode::Compat).unwrap();
            let level3 = driver.statistics_level3().unwrap();
            let read = level3.level2.level1.read;
            assert_eq!((read.bytes - before, read.operations.failed), (report.bytes, 0));
            assert!(level3.posix_reads() > 0 && level3.direct_reads() == 0, "they bounced, and it says so");
            before = read.bytes;
        }
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// The library keeps its statistics in shared memory, which stays where the process is killed; and a later process of the same number,
/// as in a container that starts again, would have none.
#[test]
fn what_a_killed_process_left_takes_no_statistics_away() {
    let test = "what_a_killed_process_left_takes_no_statistics_away";
    let Some(library) = nvidia(test, "1.20") else { return };
    let simulation =
        Simulation::new(test).setting(LIBRARY, library).setting("CUFILE_LOGFILE_PATH", "/dev/null");
    let outcome = simulation.run(|| {
        let process = std::process::id();
        Segment::make(process).lock();
        let settings = DriverSettings::new().size(SizeParameter::ProfileStats, 3);
        let driver = settings.clone().open(Mode::Compat).unwrap();
        assert_eq!(driver.statistics_level().unwrap(), 3);
        assert!(driver.statistics_level3().is_ok());
        driver.close().unwrap();
        assert!(Segment::of(process).is_none(), "closing removes it");

        // What somebody uses, or what the library did not lock, is not the library's, and stays.
        for is_locked in [true, false] {
            let others = Segment::make(process);
            let used = is_locked.then(|| {
                others.lock();
                others.attach()
            });
            let driver = settings.clone().open(Mode::Compat).unwrap();
            assert_eq!(driver.statistics_level().unwrap(), 0);
            driver.close().unwrap();
            assert!(Segment::of(process).is_some());
            drop(used);
            others.remove();
        }
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// A server may ask for the version and leave loading to processes that it forks.
#[test]
fn a_child_of_a_process_that_asked_for_the_version_leaves_no_statistics_either() {
    let test = "a_child_of_a_process_that_asked_for_the_version_leaves_no_statistics_either";
    let Some(library) = nvidia(test, "1.20") else { return };
    let simulation =
        Simulation::new(test).setting(LIBRARY, library).setting("CUFILE_LOGFILE_PATH", "/dev/null");
    let outcome = simulation.run(|| {
        assert_eq!(Library::load().unwrap().version().unwrap().to_string(), "1.20");
        // SAFETY: the child is as one that a server forks: it opens what its parent has not, and ends by exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is ended.
            unsafe { libc::alarm(60) };
            let settings = DriverSettings::new().size(SizeParameter::ProfileStats, 3);
            let opened = settings.open(Mode::Compat).is_ok_and(|driver| driver.statistics_level3().is_ok());
            std::process::exit(if opened { 7 } else { 8 });
        }
        let mut status = 0;
        // SAFETY: `status` is writable; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
        assert!(Segment::of(child.unsigned_abs()).is_none(), "its end removes it");
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// With reads in flight, on other threads, and the driver open: the library's own end must not be in the way. Several times, since
/// it meets them or not.
#[test]
fn the_process_ends_in_the_middle_of_a_load() {
    let test = "the_process_ends_in_the_middle_of_a_load";
    for version in ["1.20", "1.14"].repeat(6) {
        let Some(library) = nvidia(test, version) else { return };
        let simulation =
            Simulation::new(test).setting(LIBRARY, library).setting("CUFILE_LOGFILE_PATH", "/dev/null");
        let outcome = simulation.run(|| {
            let folder = folder::on_disk(test);
            let path = folder.path().join("model.safetensors");
            File::new().tensor("a", "F32", &[4 << 20]).write(&path);
            let loader = Loader::new().device(Device::cuda(0).unwrap()).threads(4).read_size(256 << 10);
            let loader = loader.backend(Backend::Only(PathKind::GdsCompat)).on_progress(move |_| {
                let _ = std::fs::remove_dir_all(folder.path());
                std::process::exit(7);
            });
            let error = loader.load(&path).err();
            panic!("that load ended: {error:?}");
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(7), "{version}: {outcome}");
    }
}

/// Ends processes while four threads repeat `work`, and expects the code that they end with.
#[track_caller]
fn ends_while_others(test: &str, work: fn(&Driver, &Device, CuFile)) {
    for version in ["1.20", "1.14"].repeat(2) {
        let Some(library) = nvidia(test, version) else { return };
        let simulation =
            Simulation::new(test).setting(LIBRARY, library).setting("CUFILE_LOGFILE_PATH", "/dev/null");
        let outcome = simulation.run(|| {
            let folder = folder::on_disk(test);
            let path = folder.path().join("file");
            std::fs::write(&path, payload("file", 1 << 20)).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            drop(folder);
            let driver = Driver::open(Mode::Compat).unwrap();
            let device = Device::cuda(0).unwrap();
            let others = [(); 4].map(|()| {
                let (driver, device, file) = (driver.clone(), device.clone(), file.try_clone().unwrap());
                std::thread::spawn(move || {
                    loop {
                        let file = CuFile::register(&driver, file.try_clone().unwrap(), "file");
                        work(&driver, &device, file.unwrap());
                    }
                })
            });
            std::thread::sleep(Duration::from_millis(100));
            assert!(others.iter().all(|other| !other.is_finished()));
            std::process::exit(7);
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(7), "{version}: {outcome}");
    }
}

#[test]
fn the_process_ends_while_others_register() {
    ends_while_others("the_process_ends_while_others_register", |driver, device, file| {
        let memory = device.allocate(1 << 20, 4096).unwrap();
        drop((file, RegisteredBuffer::register(driver, memory)));
    });
}

#[test]
fn the_process_ends_while_others_submit() {
    ends_while_others("the_process_ends_while_others_submit", |driver, device, file| {
        let mut batch = Batch::new(driver, 8).unwrap();
        let reads = (0..8).map(|place| {
            let memory = device.allocate(128 << 10, 4096).unwrap();
            Operation::read(&file, place * (128 << 10), 128 << 10, memory, 0).unwrap()
        });
        batch.submit(reads.collect()).unwrap();
        batch.wait(8, Duration::from_secs(10)).unwrap();
    });
}

#[test]
fn the_process_ends_while_others_enqueue() {
    ends_while_others("the_process_ends_while_others_enqueue", |driver, device, file| {
        let stream = device.stream().unwrap();
        let stream = CuFileStream::register(driver, stream, StreamFlags::default()).unwrap();
        let memory = device.allocate(1 << 20, 4096).unwrap();
        let read = stream.read(&file, 0, 1 << 20, memory, 0).unwrap();
        read.finish(Duration::from_secs(10)).ok();
    });
}
