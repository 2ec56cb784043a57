//! Bad conditions of a load by cuFile, within one process: right bytes by another path or a clear error, never a crash, a hang or a
//! wrong byte.
//!
//! Each test runs in a child on the simulated driver and libcufile; what that library does is set from within.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::Device;
use gds_loader::cufile::{
    Batch, CuFile, CuFileError, CuFileStream, Driver, Mode, Operation, RegisteredBuffer, StreamFlags,
};
use gds_loader::{Backend, Destination, Error, ErrorKind, GdsProof, LoadReport, Loader, Model, PathKind};
use tempfile::TempDir;
use test_support::cufile_sim::{self, Alive};
use test_support::fixture::{File, payload};
use test_support::{control, folder};

const MIB: u64 = 1 << 20;

const REAL: (&str, &str) = ("CUFILE_SIM_MODE", "real");

/// Late copies at random times: a window read into while it is still copied from would bring wrong bytes.
const LATE_COPIES: [(&str, &str); 2] = [("CUDA_SIM_COPY_LATENCY_US", "300"), ("CUDA_SIM_JITTER_US", "700")];

/// Runs `body` on both simulators; nothing of ours, and nothing of the library's, may be left.
#[track_caller]
fn on_both(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    cufile_sim::on_simulator(test, &[&[REAL], settings].concat(), || {
        body();
        assert_eq!(cufile_sim::report().alive, Alive::default());
    });
}

/// A model of two files on disk.
struct Sample {
    folder: TempDir,
    names: [(&'static str, u64); 4],
}

impl Sample {
    fn new(test: &str) -> Self {
        let folder = folder::on_disk(test);
        let names = [("a", 3 * MIB + 1), ("b", 2 * MIB + 4095), ("c", 5 * MIB), ("d", 4097)];
        let file = |range: &[(&str, u64)]| {
            range.iter().fold(File::new(), |file, (name, len)| file.tensor(name, "U8", &[*len]))
        };
        file(&names[..2]).write(&folder.path().join("model-00001-of-00002.safetensors"));
        file(&names[2..]).write(&folder.path().join("model-00002-of-00002.safetensors"));
        Self { folder, names }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn shard(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("model-0000{number}-of-00002.safetensors"))
    }

    /// Whether every byte of the model is right now, whatever is in flight.
    #[track_caller]
    fn check(&self, model: &Model) {
        for tensor in model.tensors() {
            let found = control::read_device_memory(tensor.device_address(), tensor.len() as usize);
            assert!(found == payload(tensor.name(), found.len()), "{tensor:?}");
        }
        assert_eq!(model.len(), self.names.len());
        assert_eq!(model.report().paths.total(), self.names.iter().map(|(_, len)| len).sum::<u64>());
    }
}

fn gpu() -> Device {
    Device::cuda(0).unwrap()
}

/// Small pieces, in the order of the files.
fn loader(backend: Backend) -> Loader {
    Loader::new().device(gpu()).backend(backend).threads(1).read_size(256 << 10)
}

fn forced() -> Loader {
    loader(Backend::Only(PathKind::Gds))
}

/// The same, calling `change` once, after the first piece.
fn with(loader: &Loader, change: impl FnOnce() + Send + 'static) -> Loader {
    let change = std::sync::Mutex::new(Some(change));
    loader.clone().on_progress(move |_| {
        if let Some(change) = change.lock().unwrap().take() {
            change();
        }
    })
}

fn proof(report: &LoadReport) -> Option<GdsProof> {
    report.gds.as_ref().and_then(|gds| gds.proof)
}

fn reasons(report: &LoadReport) -> Vec<&str> {
    report.fallbacks.iter().map(|fallback| fallback.reason.as_str()).collect()
}

/// A call of the library that takes nothing, as another user of it in this process makes it.
fn as_another_user(function: &str) {
    let name = std::ffi::CString::new(function).unwrap();
    let file = std::ffi::CString::new(cufile_sim::library().to_str().unwrap()).unwrap();
    // SAFETY: C strings; the library is loaded already, and these functions of it take nothing.
    unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "{function}");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(address)();
    }
}

#[test]
fn windows_are_read_into_only_once_their_copies_are_over() {
    let test = "windows_are_read_into_only_once_their_copies_are_over";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        for batches in [false, true] {
            // Two windows a worker at the least, 4 to 64 pieces for each.
            for (threads, read_size) in [(1, 4 << 20), (2, 64 << 10), (8, 256 << 10)] {
                let loader = forced().threads(threads).read_size(read_size).cufile_batches(batches);
                let model = loader.load(sample.path()).unwrap();
                sample.check(&model);
                assert_eq!(proof(model.report()), Some(GdsProof::Verified), "{:?}", model.report());
                assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
            }
        }
        let transfers = cufile_sim::report().transfers;
        assert_eq!((transfers.unregistered, transfers.bounced_bytes), (0, 0), "{transfers:?}");
    });
}

/// A request of another length or offset would bounce, on hardware: even a file's end is asked for in whole pages.
#[test]
fn reads_ask_for_whole_pages() {
    let test = "reads_ask_for_whole_pages";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        sample.check(&forced().threads(3).load(sample.path()).unwrap());
        let statistics = Driver::open(Mode::Direct).unwrap().statistics_level3().unwrap();
        let read = statistics.gpus[0].read;
        assert!(read.nvfs > 40 && read.unaligned == 0 && read.posix == 0, "{read:?}");
    });
}

/// With so little room that the same window is used again at once.
#[test]
fn few_windows_are_used_again_and_again() {
    let test = "few_windows_are_used_again_and_again";
    on_both(test, &[&LATE_COPIES[..], &[("CUDA_SIM_BAR1", "32MiB")]].concat(), || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("model.safetensors");
        let file = File::new().tensor("a", "U8", &[41 * MIB + 13]).tensor("b", "F32", &[100_000]);
        file.write(&path);
        for (threads, batches) in [(1, false), (4, false), (1, true)] {
            let loader = forced().threads(threads).read_size(4 * MIB).cufile_batches(batches);
            let model = loader.load(&path).unwrap();
            for tensor in model.tensors() {
                let found = control::read_device_memory(tensor.device_address(), tensor.len() as usize);
                assert!(found == payload(tensor.name(), found.len()), "{tensor:?}");
            }
            assert_eq!(model.report().gds.as_ref().unwrap().window_bytes, 16 * MIB);
        }
        assert_eq!(cufile_sim::report().peak_registered_device_bytes, 16 * MIB);
    });
}

#[test]
fn one_failed_event_of_a_batch_is_read_elsewhere() {
    let test = "one_failed_event_of_a_batch_is_read_elsewhere";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let load = |backend| loader(backend).cufile_batches(true).load(sample.path());
        for (script, words) in [
            ("batch_event@3=FAILED", "failed"),
            ("batch_event@3=INVALID", "invalid"),
            ("batch_event@3=CANCELED", "cancelled"),
            ("batch_event@3=FAILED:-5030", "-5030"),
            ("batch_event@3=-5", "input/output error"),
            ("batch_event@3=bytes:0", "ended after 0"),
            ("batch_submit@3=5022", "5022"),
        ] {
            cufile_sim::set_script(script);
            let model = load(Backend::Auto).unwrap();
            sample.check(&model);
            let report = model.report();
            let [reason] = reasons(report)[..] else { panic!("{script}: {report:?}") };
            assert!(reason.to_lowercase().contains(&words.to_lowercase()), "{script}: {reason}");
            assert!(report.paths.get(PathKind::Gds) > 0, "{script}: {report:?}");
            assert_eq!(proof(report), Some(GdsProof::Verified), "{script}: {report:?}");
            let by_events =
                script.contains("FAILED") || script.contains("INVALID") || script.contains("CANCELED");
            if by_events || script.contains("bytes:0") {
                let elsewhere = report.bytes - report.paths.get(PathKind::Gds);
                assert!(elsewhere > 0 && elsewhere <= 256 << 10, "{script}: that piece alone: {report:?}");
            }

            cufile_sim::set_script(script);
            let error = load(Backend::Only(PathKind::Gds)).unwrap_err();
            assert!(error.to_string().to_lowercase().contains(&words.to_lowercase()), "{script}: {error}");
        }
        // Short events go on where they ended.
        for script in ["batch_event@*=short:2", "batch_event@2=bytes:1,batch_event@5=bytes:4096"] {
            cufile_sim::set_script(script);
            let model = load(Backend::Only(PathKind::Gds)).unwrap();
            sample.check(&model);
        }
        cufile_sim::set_script("");
        sample.check(&load(Backend::Only(PathKind::Gds)).unwrap());
    });
}

/// Where the library leaves it open what became of reads in a batch, what they were to bring comes by another path, and soon: their
/// memory stays with the library. Afterwards the library is not used any more.
#[test]
fn reads_of_an_unknown_fate_are_not_waited_for() {
    let test = "reads_of_an_unknown_fate_are_not_waited_for";
    let scripts = ["batch_submit=5030", "batch_submit@3=5011", "batch_get_status=5030"];
    for (index, script) in scripts.into_iter().enumerate() {
        let settings = [REAL, ("CUDA_SIM_BAR1", "64MiB"), ("CUFILE_SIM_SCRIPT", script)];
        let simulation = cufile_sim::simulation(test).settings(&settings);
        let outcome = simulation.run(|| {
            let folder = folder::on_disk(test);
            let name = |number| format!("{number}");
            let len = (9 << 20) + 1;
            // More files than windows, of which each may cost one.
            for number in 1..=6 {
                let path = folder.path().join(format!("model-{number:05}-of-00006.safetensors"));
                File::new().tensor(&name(number), "U8", &[len]).write(&path);
            }
            let start = Instant::now();
            let loader = loader(Backend::Auto).cufile_batches(true).read_size(4 * MIB);
            let model = loader.load(folder.path()).unwrap();
            let took = start.elapsed();
            assert!(took < Duration::from_secs(6), "{took:?}");
            for number in 1..=6 {
                let address = model.get(&name(number)).unwrap().device_address();
                let found = control::read_device_memory(address, len as usize);
                assert!(found == payload(&name(number), found.len()), "{number}");
            }
            assert_eq!(model.report().paths.total(), 6 * len);
            assert!(!model.report().fallbacks.is_empty());
        });
        let Some(outcome) = outcome else { return };
        assert!(outcome.finished, "{index}: {script}: {outcome}");
    }
}

/// The same events, without the loader: each operation says how it ended, and the others are right.
#[test]
fn every_event_of_a_batch_is_looked_at() {
    let test = "every_event_of_a_batch_is_looked_at";
    on_both(
        test,
        &[("CUFILE_SIM_SCRIPT", "batch_event@2=FAILED,batch_event@4=-5,batch_event@5=bytes:100")],
        || {
            let folder = folder::on_disk(test);
            let path = folder.path().join("file");
            fs::write(&path, payload("file", 8 * 65536)).unwrap();
            let driver = Driver::open(Mode::Direct).unwrap();
            let file = CuFile::open(&driver, &path).unwrap();
            let mut batch = Batch::new(&driver, 8).unwrap();
            let operations = (0..6).map(|place| {
                let memory =
                    RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
                Operation::read(&file, place * 65536, 65536, memory, 0).unwrap()
            });
            let tickets = batch.submit(operations.collect()).unwrap();
            let mut ended = batch.wait(6, Duration::from_secs(20)).unwrap();
            assert_eq!(ended.len(), 6);
            ended.sort_by_key(|completion| tickets.iter().position(|ticket| *ticket == completion.ticket));
            for (place, completion) in ended.into_iter().enumerate() {
                let memory = completion.operation.unwrap().into_buffer().into_registered().unwrap();
                match (place, completion.outcome) {
                    (1, Err(CuFileError::BatchEvent { state: 64, .. })) => {}
                    (3, Err(error @ CuFileError::Transfer { .. })) => {
                        assert_eq!(error.errno(), Some(5), "{error}")
                    }
                    (4, Err(CuFileError::Short { done: 100, expected: 65536, .. })) => {}
                    (0 | 2 | 5, Ok(())) => {
                        let found = control::read_device_memory(memory.address(), 65536);
                        assert!(
                            found == payload("file", 8 * 65536)[place * 65536..(place + 1) * 65536],
                            "{place}"
                        );
                    }
                    (_, outcome) => panic!("{place}: {outcome:?}"),
                }
            }
        },
    );
}

#[test]
fn a_negative_count_on_a_stream_is_an_error_with_its_code() {
    let test = "a_negative_count_on_a_stream_is_an_error_with_its_code";
    on_both(test, &[], || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("file");
        fs::write(&path, payload("file", 65536)).unwrap();
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &path).unwrap();
        let stream = CuFileStream::register(&driver, gpu().stream().unwrap(), StreamFlags::FIXED).unwrap();
        let read = || {
            let memory = RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
            let operation = stream.read(&file, 0, 65536, memory, 0).map_err(|(error, _)| error)?;
            operation.finish_exact(Duration::from_secs(20)).map_err(|(error, _)| error)
        };
        let code = |error: &CuFileError| (error.errno(), error.status().map(|status| status.code()));
        for (script, expected) in [
            ("read_async@1=bytes:-5", (Some(5), None)),
            ("read_async@1=bytes:-5027", (None, Some(5027))),
            ("read_async@1=bytes:-5999", (None, Some(5999))),
            ("read_async@1=5999", (None, Some(5999))),
        ] {
            cufile_sim::set_script(script);
            let error = read().unwrap_err();
            assert_eq!(code(&error), expected, "{script}: {error}");
        }
        cufile_sim::set_script("read_async@1=short:2");
        assert!(matches!(read(), Err(CuFileError::Short { done: 32768, .. })));
        let memory = read().unwrap().into_registered().unwrap();
        assert!(control::read_device_memory(memory.address(), 65536) == payload("file", 65536));
    });
}

#[test]
fn another_user_closes_the_driver_in_the_middle() {
    let test = "another_user_closes_the_driver_in_the_middle";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        let closing = with(&loader(Backend::Auto), || as_another_user("cuFileDriverClose_v2"));
        let model = closing.load(sample.path()).unwrap();
        sample.check(&model);
        let report = model.report();
        let by_gds = report.paths.get(PathKind::Gds);
        assert!(by_gds > 0 && by_gds < report.bytes, "{report:?}");
        assert!(!report.fallbacks.is_empty());
        assert!(reasons(report).iter().all(|reason| reason.contains("another user")), "{report:?}");
        // The counters went with the driver.
        assert_eq!(proof(report), Some(GdsProof::Unverified), "{report:?}");

        // The next load opens it again.
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);

        let closing = with(&forced(), || as_another_user("cuFileDriverClose_v2"));
        let error = closing.load(sample.path()).unwrap_err();
        assert!(matches!(error, Error::Unavailable { by: PathKind::Gds, .. }), "{error:?}");
        assert!(error.to_string().contains("another user"), "{error}");

        // Closed, and opened again by them: our handles are of before.
        let reopened = with(&loader(Backend::Auto), || {
            as_another_user("cuFileDriverClose_v2");
            as_another_user("cuFileDriverOpen");
        });
        let model = reopened.load(sample.path()).unwrap();
        sample.check(&model);
        assert!(reasons(model.report()).iter().all(|reason| reason.contains("5027")), "{:?}", model.report());
        assert!(!model.report().fallbacks.is_empty());
    });
}

/// With batches in flight: whatever they still write to stays, and the load says why it ended.
#[test]
fn another_user_closes_the_driver_under_a_batch() {
    let test = "another_user_closes_the_driver_under_a_batch";
    let outcome = cufile_sim::simulation(test).settings(&[&[REAL], &LATE_COPIES[..]].concat()).run(|| {
        let sample = Sample::new(test);
        for backend in [Backend::Auto, Backend::Only(PathKind::Gds)] {
            let loader = loader(backend).cufile_batches(true);
            match with(&loader, || as_another_user("cuFileDriverClose_v2")).load(sample.path()) {
                Ok(model) => sample.check(&model),
                Err(error) => assert!(error.to_string().contains("another user"), "{error}"),
            }
            let model = loader.load(sample.path()).unwrap();
            sample.check(&model);
            assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
        }
    });
    outcome.inspect(|outcome| assert!(outcome.finished, "{outcome}"));
}

/// Where every read bounces, in batches and one by one, `gds` is claimed by nobody.
#[test]
fn a_library_that_lies_is_found_out() {
    let test = "a_library_that_lies_is_found_out";
    on_both(test, &[("CUFILE_SIM_MODE", "lying")], || {
        let sample = Sample::new(test);
        for batches in [false, true] {
            let model = loader(Backend::Auto).cufile_batches(batches).load(sample.path()).unwrap();
            sample.check(&model);
            let report = model.report();
            assert_eq!(proof(report), Some(GdsProof::Bounced), "{report:?}");
            assert_eq!(report.paths.get(PathKind::Gds), 0, "{report:?}");
            assert_eq!(report.paths.get(PathKind::GdsCompat), report.bytes, "{report:?}");
            let error = forced().cufile_batches(batches).load(sample.path()).unwrap_err();
            assert!(matches!(error, Error::Unavailable { by: PathKind::Gds, .. }), "{error:?}");
        }
    });
}

/// What is dropped in flight is over when its memory is free for others.
#[test]
fn what_is_dropped_in_flight_is_waited_for() {
    let test = "what_is_dropped_in_flight_is_waited_for";
    on_both(test, &[], || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("file");
        fs::write(&path, payload("file", 65536)).unwrap();
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &path).unwrap();
        let memory = || RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
        let stream = CuFileStream::register(&driver, gpu().stream().unwrap(), StreamFlags::FIXED).unwrap();
        let on_stream = || drop(stream.read(&file, 0, 65536, memory(), 0).unwrap());
        let in_batch = || {
            let mut batch = Batch::new(&driver, 1).unwrap();
            batch.submit(vec![Operation::read(&file, 0, 65536, memory(), 0).unwrap()]).unwrap();
            drop(batch);
        };
        let ways: [&dyn Fn(); 2] = [&on_stream, &in_batch];
        for (place, begin_and_drop) in ways.into_iter().enumerate() {
            let read_bytes = || cufile_sim::report().transfers.read_bytes;
            let before = read_bytes();
            cufile_sim::pause_transfers();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(150));
                    cufile_sim::resume_transfers();
                });
                begin_and_drop();
                assert_eq!(read_bytes() - before, 65536, "way {place}: it was not over");
            });
            assert!(driver.health().is_ok());
            assert_eq!(cufile_sim::report().alive.buffers, 0, "way {place}");
        }
    });
}

/// In the child of a fork nothing of the parent's can be used, and the parent is none the worse.
#[test]
fn a_fork_in_the_middle() {
    let test = "a_fork_in_the_middle";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let path = sample.path().to_owned();
        let fork = move || {
            // SAFETY: the child only loads, which answers with an error, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused =
                    |backend| loader_of_the_child(backend).is_some_and(|loader| loader.load(&path).is_ok());
                let any = [Backend::Auto, Backend::Only(PathKind::Gds)].into_iter().any(refused);
                // SAFETY: ends this process at once, without the destructors of the parent's libraries.
                unsafe { libc::_exit(i32::from(any)) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable; the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child loaded with the parent's driver, or died");
        };
        let model = with(&forced(), fork).load(sample.path()).unwrap();
        sample.check(&model);
        sample.check(&forced().load(sample.path()).unwrap());
    });
}

/// A loader in a forked child; `None` where its device says so itself.
fn loader_of_the_child(backend: Backend) -> Option<Loader> {
    Some(Loader::new().device(Device::cuda(0).ok()?).backend(backend))
}

#[test]
fn the_process_ends_while_reads_are_in_flight() {
    let test = "the_process_ends_while_reads_are_in_flight";
    for batches in ["0", "1"] {
        let simulation = cufile_sim::simulation(test).settings(&[REAL, ("BATCHES", batches)]);
        let simulation = simulation.limit(Duration::from_secs(60));
        let outcome = simulation.run(|| {
            let sample = Sample::new(test);
            let batches = std::env::var("BATCHES").unwrap() == "1";
            cufile_sim::pause_transfers();
            let path = sample.path().to_owned();
            thread::spawn(move || forced().threads(4).cufile_batches(batches).load(path));
            let begun = || {
                let calls = cufile_sim::report().calls;
                calls.get("cuFileRead").or(calls.get("cuFileBatchIOSubmit")).is_some_and(|count| *count > 0)
            };
            while !begun() {
                thread::sleep(Duration::from_millis(1));
            }
            // Written over while they are in flight, and left.
            drop(sample);
            std::process::exit(7);
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(7), "{outcome}");
        assert!(outcome.child.elapsed < Duration::from_secs(30), "{outcome}");
    }
}

/// Whatever still lives when the process ends, and however it ends: it ends as it was told to, and nothing is called that is gone.
#[test]
fn the_process_ends_with_everything_alive() {
    use std::sync::OnceLock;
    let test = "the_process_ends_with_everything_alive";
    static KEPT: OnceLock<(Driver, Loader, Model)> = OnceLock::new();
    thread_local! {
        static OF_THIS_THREAD: std::cell::RefCell<Option<(Driver, Model)>> = const { std::cell::RefCell::new(None) };
    }
    for (way, code) in [("return", 0), ("exit", 7), ("panic", 101), ("at_exit", 9)] {
        let simulation = cufile_sim::simulation(test).settings(&[REAL, ("WAY", way)]);
        let outcome = simulation.limit(Duration::from_secs(60)).run(|| {
            let sample = Sample::new(test);
            let load = || forced().load(sample.path()).unwrap();
            let driver = || Driver::open(Mode::Direct).unwrap();
            let (model, other) = (load(), load());
            sample.check(&model);
            OF_THIS_THREAD.with(|place| *place.borrow_mut() = Some((driver(), other)));
            assert!(KEPT.set((driver(), forced(), model)).is_ok());
            match std::env::var("WAY").unwrap().as_str() {
                "exit" => std::process::exit(7),
                "panic" => panic!("on purpose"),
                "at_exit" => {
                    extern "C" fn last() {
                        // What a destructor of the caller's may do: use it, and let go of it.
                        let (driver, loader, model) = KEPT.get().unwrap();
                        let _ = (driver.health(), model.tensors().map(|tensor| tensor.len()).sum::<u64>());
                        let _ = loader.load("/nonexistent");
                        OF_THIS_THREAD.try_with(|place| place.borrow_mut().take()).ok();
                    }
                    // SAFETY: a function that takes nothing and returns nothing.
                    assert_eq!(unsafe { libc::atexit(last) }, 0);
                    std::process::exit(9)
                }
                _ => {}
            }
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(code), "{way}: {outcome}");
        assert!(outcome.child.elapsed < Duration::from_secs(30), "{way}: {outcome}");
    }
}

fn resize(path: &Path, change: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len().checked_add_signed(change).unwrap();
    file.set_len(len).unwrap();
}

#[test]
fn files_that_change_while_they_are_read() {
    let test = "files_that_change_while_they_are_read";
    on_both(test, &[], || {
        for (backend, batches) in [
            (Backend::Auto, false),
            (Backend::Only(PathKind::Gds), false),
            (Backend::Auto, true),
            (Backend::Only(PathKind::Gds), true),
        ] {
            let what = format!("{backend}, batches {batches}");
            let loader = loader(backend).cufile_batches(batches);
            let free = || gpu().memory().unwrap().unwrap().free;
            let before = free();
            for cut in [-2, -5000, -3 * MIB as i64, 1] {
                let sample = Sample::new(test);
                let shard = sample.shard(2);
                let error = with(&loader, move || resize(&shard, cut)).load(sample.path()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}, {cut}: {error}");
                assert!(error.to_string().contains("00002-of"), "{what}, {cut}: {error}");
                assert_eq!(free(), before, "{what}, {cut}: device memory is back");
            }
            // Replaced, as an atomic update does it: what was opened is what is loaded.
            let sample = Sample::new(test);
            let shard = sample.shard(2);
            let model = with(&loader, move || {
                let other = shard.with_extension("new");
                fs::write(&other, b"nothing that was ever a model").unwrap();
                fs::rename(&other, &shard).unwrap();
            });
            let model = model.load(sample.path()).unwrap();
            sample.check(&model);
            assert!(model.report().fallbacks.is_empty(), "{what}: {:?}", model.report());
        }
    });
}

/// Only what the library says of the disk is doubted: a file that is really too short is an error, whoever reads it.
#[test]
fn an_error_of_the_disk_is_checked_with_the_kernel() {
    let test = "an_error_of_the_disk_is_checked_with_the_kernel";
    on_both(test, &[], || {
        for script in ["read@3+=-1:5", "read@3+=bytes:0", "read@3+=-5044"] {
            let sample = Sample::new(test);
            cufile_sim::set_script(script);
            let model = loader(Backend::Auto).load(sample.path()).unwrap();
            sample.check(&model);
            let pieces = model.report().fallbacks.len();
            assert!(pieces > 10, "{script}: each piece was tried: {:?}", model.report());
            assert!(model.report().paths.get(PathKind::Gds) > 0);

            cufile_sim::set_script(script);
            let shard = sample.shard(1);
            let error =
                with(&loader(Backend::Auto), move || resize(&shard, -5000)).load(sample.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{script}: {error}");
            cufile_sim::set_script("");
        }
    });
}

/// Registration is not paid for twice: each load has one window, whatever its number of files, and one handle for each file.
#[test]
fn registered_memory_keeps_within_its_budget() {
    let test = "registered_memory_keeps_within_its_budget";
    on_both(test, &[("CUDA_SIM_BAR1", "1GiB")], || {
        let sample = Sample::new(test);
        let loads = 4;
        for _ in 0..loads {
            sample.check(&forced().threads(16).read_size(8 * MIB).load(sample.path()).unwrap());
        }
        let report = cufile_sim::report();
        assert!(report.peak_registered_device_bytes <= 128 * MIB, "{report:?}");
        assert_eq!(report.calls["cuFileBufRegister"], loads, "{:?}", report.calls);
        assert_eq!(report.calls["cuFileBufDeregister"], loads);
        assert_eq!(report.calls["cuFileHandleRegister"], 2 * loads);
        assert_eq!(report.calls["cuFileDriverOpen"], 1);
    });
}

/// A load into memory of the caller's, in compatibility mode too, comes after what the caller's stream still does to it.
#[test]
fn the_callers_stream_is_waited_for() {
    let test = "the_callers_stream_is_waited_for";
    for mode in ["real", "compat"] {
        let settings =
            [("CUDA_SIM_COPY_LATENCY_US", "5000"), ("CUFILE_SIM_MODE", mode), ("PATH_OF_CUFILE", mode)];
        cufile_sim::on_simulator(test, &settings, || {
            let kind = match std::env::var("PATH_OF_CUFILE").unwrap().as_str() {
                "real" => PathKind::Gds,
                _ => PathKind::GdsCompat,
            };
            let folder = folder::on_disk(test);
            let path = folder.path().join("model.safetensors");
            File::new().tensor("a", "F32", &[100_000]).write(&path);
            let device = gpu();
            let mut stream = device.stream().unwrap();
            let memory = device.allocate(400_000, 256).unwrap();
            let stale = vec![0xee_u8; 400_000];
            device.memory().unwrap(); // makes the context current on this thread
            for _ in 0..20 {
                // SAFETY: the context is current; `stale` and the destination outlive the stream's work, waited for below.
                let code = unsafe {
                    let stream = stream.raw().unwrap().cast();
                    let from = stale.as_ptr().cast();
                    cuda_staging::cudarc::driver::sys::cuMemcpyHtoDAsync_v2(
                        memory.address(),
                        from,
                        400_000,
                        stream,
                    )
                };
                assert_eq!(code as u32, 0);
            }
            let loader = Loader::new().device(device.clone()).backend(Backend::Only(kind));
            // SAFETY: the stream lives until the end of this test, and is the device's.
            let loader = unsafe { loader.after_stream(stream.raw().unwrap()) };
            // SAFETY: `memory` outlives the load, and the loader waits for the stream, the only one that writes it.
            let destination =
                unsafe { Destination::device("a", &device, memory.address(), 400_000) }.unwrap();
            let report = loader.load_into(&path, vec![destination]).unwrap();
            assert_eq!(report.paths.get(kind), 400_000, "{report:?}");
            stream.synchronize(Duration::from_secs(30)).unwrap();
            assert!(control::read_device_memory(memory.address(), 400_000) == payload("a", 400_000));
        });
    }
}

/// Whoever comes second gets what he asked for or is told why not; loads in the mode that is open go on.
#[test]
fn one_process_has_one_mode() {
    let test = "one_process_has_one_mode";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        sample.check(&forced().load(sample.path()).unwrap());
        let error = loader(Backend::Only(PathKind::GdsCompat)).load(sample.path()).unwrap_err();
        let Error::Unavailable { by: PathKind::GdsCompat, reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("one process for each mode"), "{reason}");
        sample.check(&loader(Backend::Auto).load(sample.path()).unwrap());

        // The other way round, in which `auto` goes on without.
        Driver::open(Mode::Direct).unwrap().close().map_err(|(_, error)| error).unwrap();
        let model = loader(Backend::Only(PathKind::GdsCompat)).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::GdsCompat), model.report().bytes);
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), 0);
        assert!(model.report().gds.as_ref().is_some_and(|gds| gds.reason.as_ref().unwrap().contains("mode")));
        assert_eq!(forced().load(sample.path()).unwrap_err().kind(), ErrorKind::Unavailable);
    });
}

/// Loads at the same time share the driver, each with a window of its own; one that is given up leaves the others alone.
#[test]
fn many_loads_at_once() {
    let test = "many_loads_at_once";
    on_both(test, &[&LATE_COPIES[..], &[("CUDA_SIM_BAR1", "1GiB")]].concat(), || {
        let sample = Sample::new(test);
        let cancelled = AtomicBool::new(false);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|number| {
                    let (sample, cancelled) = (&sample, &cancelled);
                    scope.spawn(move || {
                        if number == 3 {
                            let token = gds_loader::CancelToken::new();
                            let cancel = token.clone();
                            let loader = with(&forced().cancel(token), move || cancel.cancel());
                            let error = loader.load(sample.path()).unwrap_err();
                            assert_eq!(error.kind(), ErrorKind::Cancelled);
                            return cancelled.store(true, Ordering::Relaxed);
                        }
                        sample.check(
                            &forced().threads(3).cufile_batches(number == 2).load(sample.path()).unwrap(),
                        );
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(cancelled.load(Ordering::Relaxed));
    });
}

/// Batches of a library that has none: another way to keep reads in flight is no other path.
#[test]
fn a_library_without_batches() {
    let test = "a_library_without_batches";
    on_both(test, &[("CUFILE_SIM_WITHOUT", "cuFileBatchIOSetUp")], || {
        let sample = Sample::new(test);
        let model = forced().cufile_batches(true).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
    });
}

/// What waits, waits for a reason: reads held back in the library end a load late, and not wrong.
#[test]
fn reads_that_take_their_time() {
    let test = "reads_that_take_their_time";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        forced().load(sample.path()).unwrap();
        for batches in [false, true] {
            cufile_sim::pause_transfers();
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                scope.spawn(|| {
                    sender
                        .send(forced().threads(4).cufile_batches(batches).load(sample.path()).unwrap())
                        .unwrap();
                });
                assert!(
                    receiver.recv_timeout(Duration::from_millis(100)).is_err(),
                    "done before a byte was read"
                );
                cufile_sim::resume_transfers();
                sample.check(&receiver.recv_timeout(Duration::from_secs(30)).unwrap());
            });
        }
    });
}

/// Tensors that are wanted alone, and those in memory of the caller's with a guard on both sides.
#[test]
fn only_what_is_wanted_is_written() {
    let test = "only_what_is_wanted_is_written";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        let device = gpu();
        for batches in [false, true] {
            let mut memories = BTreeMap::new();
            for (name, len) in [("b", 2 * MIB + 4095), ("d", 4097)] {
                let region = device.allocate(len + 512, 256).unwrap();
                control::write_device_memory(region.address(), &vec![0xa5; region.len() as usize]);
                memories.insert(name, (region, len));
            }
            let destinations = memories.iter().map(|(name, (region, len))| {
                // SAFETY: the regions outlive the load, and nothing else uses them.
                unsafe { Destination::device(*name, &device, region.address() + 256, *len) }.unwrap()
            });
            let report =
                forced().cufile_batches(batches).load_into(sample.path(), destinations.collect()).unwrap();
            assert_eq!(report.paths.get(PathKind::Gds), 2 * MIB + 4095 + 4097);
            for (name, (region, len)) in &memories {
                let found = control::read_device_memory(region.address(), region.len() as usize);
                let (before, rest) = found.split_at(256);
                let (bytes, after) = rest.split_at(*len as usize);
                assert!(bytes == payload(name, *len as usize), "{name}");
                assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "around {name}");
            }
        }
    });
}

/// A drop of the model, and of what it was loaded with, in any order; a tensor that outlives the driver's last user.
#[test]
fn a_tensor_outlives_everything() {
    let test = "a_tensor_outlives_everything";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let model = Arc::new(forced().load(sample.path()).unwrap());
        let tensor = model.get("c").unwrap();
        drop(model);
        as_another_user("cuFileDriverClose_v2");
        assert!(tensor.to_vec().unwrap() == payload("c", tensor.len() as usize));
    });
}
