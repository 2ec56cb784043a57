//! The safe cuFile API on a library that misbehaves on demand (`sim/cufile`): what fails, falls short, hangs or lies comes
//! out as the right bytes or as the right error, and nothing in flight is ever freed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::Device;
use cufile_support::{
    Sample, compat, device_memory, look, on_sim, on_sim_leaving, pause_transfers, registered,
    resume_transfers, set_script,
};
use gds_loader::cufile::{
    Batch, CuFile, CuFileError, CuFileErrorKind, CuFileStream, Driver, DriverSettings, IoSliceMut, Library,
    Mode, Operation, RegisteredBuffer, RegisteredWindow, RegistrationBudget, StreamFlags,
};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn short_counts_are_continued_to_the_exact_count() {
    on_sim("short_counts_are_continued_to_the_exact_count", &[], || {
        let sample = Sample::of("short", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        for script in ["read=short:2", "read=short:3", "read=bytes:4097", "read@1+=short,read@3=-1:4"] {
            set_script(script);
            let mut buffer = registered(&driver, 200_000);
            file.read_exact_at(&mut buffer, 7..150_008, 33).unwrap();
            assert!(look(buffer.address() + 7, 150_001) == sample.bytes[33..150_034], "{script}");
        }
        set_script("readv=bytes:1000");
        let (mut first, mut second) = (registered(&driver, 65536), device_memory(10_000));
        let mut pieces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        file.read_vectored_exact(&mut pieces, 5).unwrap();
        let arrived = [look(first.address(), 65536), look(second.address(), 10_000)].concat();
        assert!(arrived == sample.bytes[5..75_541]);
    });
}

#[test]
fn short_writes_are_continued_to_the_exact_count() {
    on_sim(
        "short_writes_are_continued_to_the_exact_count",
        &[("CUFILE_SIM_SCRIPT", "write=short:3")],
        || {
            let sample = Sample::of("short-writes", 1 << 20);
            let driver = compat();
            let mut buffer = registered(&driver, 1 << 20);
            CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
            let path = sample.folder.path().join("written");
            let mut options = std::fs::OpenOptions::new();
            let file =
                CuFile::open_with(&driver, &path, options.read(true).write(true).create(true)).unwrap();
            file.write_all(&buffer, 0).unwrap();
            assert!(std::fs::read(&path).unwrap() == sample.bytes);
        },
    );
}

#[test]
fn failed_reads_say_what_where_and_how_much_had_arrived() {
    on_sim("failed_reads_say_what_where_and_how_much_had_arrived", &[], || {
        let sample = Sample::of("failed", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        for (effect, status, errno, kind) in [
            ("-1:5027", Some(5027), None, CuFileErrorKind::Environment),
            ("-1:5030", Some(5030), None, CuFileErrorKind::Environment),
            ("-1:5", None, Some(5), CuFileErrorKind::Data),
            ("-1:22", None, Some(22), CuFileErrorKind::Environment),
            ("-5", None, Some(5), CuFileErrorKind::Data),
            ("5999", Some(5999), None, CuFileErrorKind::Environment),
            ("-5999", Some(5999), None, CuFileErrorKind::Environment),
            ("-5012", Some(5012), None, CuFileErrorKind::Device),
        ] {
            set_script(&format!("read@1=bytes:1000,read@2={effect}"));
            let error = file.read_exact(&mut buffer, 4096).unwrap_err();
            let CuFileError::Transfer { done, expected, file_offset, path, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*done, *expected, *file_offset), (1000, 65536, 4096), "{effect}");
            assert_eq!(*path, sample.path);
            assert_eq!(error.status().map(|status| status.code()), status, "{effect}");
            assert_eq!((error.errno(), error.kind()), (errno, kind), "{effect}");
            let code = status.or(errno).unwrap();
            assert!(error.to_string().contains(&code.to_string()), "{error}");
            assert!(look(buffer.address(), 1000) == sample.bytes[4096..5096], "what had arrived");
            // The next read is none the worse.
            set_script("");
            file.read_exact(&mut buffer, 0).unwrap();
        }
    });
}

#[test]
fn registration_refused_is_told_apart_by_what_to_do() {
    on_sim("registration_refused_is_told_apart_by_what_to_do", &[], || {
        let sample = Sample::of("registration", 65536);
        let driver = compat();
        for code in [5030, 5027, 5999] {
            set_script(&format!("handle_register={code}"));
            let error = CuFile::open(&driver, &sample.path).unwrap_err();
            assert_eq!(error.status().map(|status| status.code()), Some(code), "{error}");
            assert_eq!(error.kind(), CuFileErrorKind::Environment);
        }
        // A window that shrinks until it fits, as a caller does it; the memory comes back each time.
        set_script("buf_register>1MiB=5016");
        let device = Device::cuda(0).unwrap();
        let budget = RegistrationBudget::new(64 << 20);
        let mut slot = 2 << 20;
        let window = loop {
            match RegisteredWindow::new(&driver, &device, 4, slot, &budget) {
                Ok(window) => break window,
                Err(error) => assert!(error.is_registration_limit(), "{error}"),
            }
            assert_eq!(budget.used(), 0);
            slot /= 2;
        };
        assert_eq!((window.slot_len(), budget.used()), (256 << 10, 1 << 20));
        set_script("buf_register=5011/719");
        let (memory, error) = RegisteredBuffer::register(&driver, device_memory(4096)).unwrap_err();
        assert_eq!(
            (memory.len(), error.cuda_code(), error.kind()),
            (4096, Some(719), CuFileErrorKind::Device)
        );
        assert!(!error.is_registration_limit());
    });
}

#[test]
fn a_deregistration_that_fails_keeps_the_memory() {
    const TEST: &str = "a_deregistration_that_fails_keeps_the_memory";
    let outcome = on_sim_leaving(TEST, &[("CUFILE_SIM_SCRIPT", "buf_deregister=5030")], || {
        drop(registered(&compat(), 1 << 20));
    });
    if let Some(outcome) = outcome {
        let alive = outcome.report().ours_alive();
        assert_eq!(alive["allocations"].count, 1, "{alive:?}");
    }
}

#[test]
fn bar1_limits_registration_in_real_mode() {
    let settings = [("CUFILE_SIM_MODE", "real"), ("CUDA_SIM_BAR1", "8MiB")];
    on_sim("bar1_limits_registration_in_real_mode", &settings, || {
        let sample = Sample::of("real", 1 << 20);
        let driver = Driver::open(Mode::Direct).unwrap();
        assert!(driver.is_compat_ruled_out());
        driver.set_statistics_level(3).unwrap();
        driver.start_statistics().unwrap();
        let (_, error) = RegisteredBuffer::register(&driver, device_memory(32 << 20)).unwrap_err();
        assert_eq!(error.status().map(|status| status.code()), Some(5016));
        assert!(error.is_registration_limit());
        let mut buffer = registered(&driver, 1 << 20);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(look(buffer.address(), 1 << 20) == sample.bytes);
        let statistics = driver.statistics_level3().unwrap();
        assert_eq!(statistics.posix_reads(), 0);
        assert!(statistics.direct_reads() > 0, "{:?}", statistics.gpus);
    });
}

#[test]
fn a_lying_library_is_found_out_by_its_statistics() {
    on_sim("a_lying_library_is_found_out_by_its_statistics", &[("CUFILE_SIM_MODE", "lying")], || {
        let sample = Sample::of("lying", 65536);
        let driver = Driver::open(Mode::Direct).unwrap();
        driver.set_statistics_level(3).unwrap();
        driver.start_statistics().unwrap();
        let mut buffer = registered(&driver, 65536);
        CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
        let statistics = driver.statistics_level3().unwrap();
        assert!(statistics.posix_reads() > 0 && statistics.direct_reads() == 0, "{:?}", statistics.gpus);
    });
}

#[test]
fn a_hang_in_open_is_bounded_and_remembered() {
    on_sim("a_hang_in_open_is_bounded_and_remembered", &[("CUFILE_SIM_SCRIPT", "open@1=hang")], || {
        let limit = Duration::from_millis(300);
        let start = Instant::now();
        let error = DriverSettings::new().limit(limit).open(Mode::Compat).unwrap_err();
        assert!(matches!(error, CuFileError::TimedOut { limit: found, .. } if found == limit), "{error}");
        assert!(start.elapsed() >= limit && start.elapsed() < Duration::from_secs(10));
        // No second attempt, which would spin too.
        let start = Instant::now();
        for mode in [Mode::Compat, Mode::Direct, Mode::Default] {
            let error = Driver::open(mode).unwrap_err();
            assert_eq!(error.kind(), CuFileErrorKind::Broken, "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn the_environment_bounds_opening() {
    let settings = [("CUFILE_SIM_SCRIPT", "open=hang"), ("GDS_CUFILE_OPEN_SECONDS", "0.2")];
    on_sim("the_environment_bounds_opening", &settings, || {
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(
            matches!(error, CuFileError::TimedOut { limit, .. } if limit == Duration::from_millis(200)),
            "{error}"
        );
    });
}

#[test]
fn an_open_that_fails_is_unavailable_with_its_code() {
    on_sim("an_open_that_fails_is_unavailable_with_its_code", &[], || {
        Library::load().unwrap().version();
        for code in [5033, 5010, 5999] {
            set_script(&format!("open@1={code}"));
            let error = Driver::open(Mode::Compat).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            assert_eq!(error.status().map(|status| status.code()), Some(code));
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
        assert!(Driver::open(Mode::Direct).unwrap_err().is_unavailable());
        compat();
    });
}

#[test]
fn an_old_library_lacks_features_and_nothing_else() {
    let settings = [("CUFILE_SIM_VERSION", "1.3"), ("CUFILE_FORCE_COMPAT_MODE", "true")];
    on_sim("an_old_library_lacks_features_and_nothing_else", &settings, || {
        let sample = Sample::of("old", 65536);
        let driver = compat();
        assert_eq!(driver.library().version(), None);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(look(buffer.address(), 65536) == sample.bytes);
        let stream = Device::cuda(0).unwrap().stream().unwrap();
        let lacking = [
            driver.statistics_level1().map(|_| ()).unwrap_err(),
            driver.set_statistics_level(3).unwrap_err(),
            CuFileStream::register(&driver, stream, StreamFlags::default()).map(|_| ()).unwrap_err(),
            file.read_vectored_exact(&mut [IoSliceMut::new(&mut buffer)], 0).unwrap_err(),
            driver.bar_size_kib(0).map(|_| ()).unwrap_err(),
        ];
        for error in lacking {
            assert!(error.is_unavailable(), "{error}");
        }
        let plain = std::fs::File::open(&sample.path).unwrap();
        assert!(
            matches!(CuFile::register(&driver, plain, "x"), Err(CuFileError::Usage(_))),
            "needs O_DIRECT"
        );
    });
}

#[test]
fn without_parameters_direct_mode_needs_nvidia_fs() {
    const TEST: &str = "without_parameters_direct_mode_needs_nvidia_fs";
    on_sim(TEST, &[("CUFILE_SIM_VERSION", "1.11")], || {
        let error = Driver::open(Mode::Direct).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("nvidia-fs"), "{error}");
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("CUFILE_FORCE_COMPAT_MODE"), "{error}");
    });
}

#[test]
fn one_missing_function_costs_one_feature() {
    let settings = [("CUFILE_SIM_WITHOUT", "cuFileReadv,cuFileBatchIOCancel")];
    on_sim("one_missing_function_costs_one_feature", &settings, || {
        let sample = Sample::of("missing", 4096);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut bytes = [0_u8; 4096];
        let error = file.read_vectored_exact(&mut [IoSliceMut::new(&mut bytes[..])], 0).unwrap_err();
        assert!(matches!(error, CuFileError::Missing { function: "cuFileReadv", .. }), "{error}");
        let error = Batch::new(&driver, 4).unwrap_err();
        assert!(matches!(error, CuFileError::Missing { function: "cuFileBatchIOCancel", .. }), "{error}");
        file.read_exact(&mut bytes[..], 0).unwrap();
        assert!(bytes[..] == sample.bytes);
    });
}

#[test]
fn a_missing_base_function_is_unavailable() {
    on_sim("a_missing_base_function_is_unavailable", &[("CUFILE_SIM_WITHOUT", "cuFileRead")], || {
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("cuFileRead"), "{error}");
    });
}

/// Reads eight blocks in one batch, with this script; the outcome of each in order.
fn batch_with(script: &str, sample: &Sample) -> Vec<Result<(), CuFileError>> {
    let driver = compat();
    let file = CuFile::open(&driver, &sample.path).unwrap();
    let mut batch = Batch::new(&driver, 8).unwrap();
    set_script(script);
    let read = |place: u64| Operation::read(&file, place * 4096, 4096, registered(&driver, 4096), 0).unwrap();
    let tickets = batch.submit((0..8).map(read).collect()).unwrap();
    let mut completions = batch.wait(8, LIMIT).unwrap();
    assert_eq!(completions.len(), 8, "{script}");
    completions.sort_by_key(|completion| tickets.iter().position(|ticket| *ticket == completion.ticket));
    let mut outcomes = Vec::new();
    for (place, completion) in completions.into_iter().enumerate() {
        if completion.outcome.is_ok() {
            let buffer = completion.operation.unwrap().into_buffer().into_registered().unwrap();
            assert!(
                look(buffer.address(), 4096) == sample.bytes[place * 4096..(place + 1) * 4096],
                "{place}"
            );
        }
        outcomes.push(completion.outcome);
    }
    set_script("");
    outcomes
}

#[test]
fn each_event_of_a_batch_counts_on_its_own() {
    on_sim("each_event_of_a_batch_counts_on_its_own", &[], || {
        let sample = Sample::of("events", 1 << 20);
        for (effect, expected) in [("FAILED", 64), ("CANCELED:0", 8), ("INVALID:-5022", 4)] {
            let outcomes = batch_with(&format!("batch_event@3={effect}"), &sample);
            for (place, outcome) in outcomes.into_iter().enumerate() {
                match outcome {
                    Ok(()) => assert_ne!(place, 2, "{effect}"),
                    Err(CuFileError::BatchEvent { state, .. }) => assert_eq!((place, state), (2, expected)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let outcomes = batch_with("batch_event@1=short:2,batch_event@8=-5,batch_event@4=-5027", &sample);
        assert!(matches!(outcomes[0], Err(CuFileError::Short { done: 2048, .. })), "{outcomes:?}");
        assert_eq!(outcomes[7].as_ref().unwrap_err().errno(), Some(5));
        assert_eq!(outcomes[3].as_ref().unwrap_err().status().map(|status| status.code()), Some(5027));
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5);
    });
}

#[test]
fn a_refused_submission_gives_everything_back() {
    on_sim(
        "a_refused_submission_gives_everything_back",
        &[("CUFILE_SIM_SCRIPT", "batch_submit@1=5037")],
        || {
            let sample = Sample::of("submit", 65536);
            let driver = compat();
            let file = CuFile::open(&driver, &sample.path).unwrap();
            let mut batch = Batch::new(&driver, 8).unwrap();
            let read =
                |place: u64| Operation::read(&file, place * 4096, 4096, device_memory(4096), 0).unwrap();
            let refused = batch.submit((0..8).map(read).collect()).unwrap_err();
            assert_eq!(refused.error.status().map(|status| status.code()), Some(5037));
            assert_eq!((refused.operations.len(), batch.in_flight()), (8, 0));
            batch.submit(refused.operations).unwrap();
            for completion in batch.wait(8, LIMIT).unwrap() {
                completion.outcome.unwrap();
            }
        },
    );
}

#[test]
fn a_batch_dropped_in_flight_waits() {
    on_sim("a_batch_dropped_in_flight_waits", &[("CUFILE_SIM_MODE", "real")], || {
        let sample = Sample::of("dropped", 1 << 20);
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 8).unwrap();
        pause_transfers();
        let read =
            |place: u64| Operation::read(&file, place * 65536, 65536, registered(&driver, 65536), 0).unwrap();
        batch.submit((0..8).map(read).collect()).unwrap();
        assert!(batch.wait(1, Duration::from_millis(50)).unwrap().is_empty(), "nothing ended");
        let resume = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            resume_transfers();
        });
        let start = Instant::now();
        drop(batch);
        assert!(start.elapsed() >= Duration::from_millis(200), "it did not wait");
        resume.join().unwrap();
        driver.health().unwrap();
    });
}

#[test]
fn what_never_ends_is_never_freed() {
    const TEST: &str = "what_never_ends_is_never_freed";
    let settings = [("CUFILE_SIM_MODE", "real"), ("CUFILE_SIM_SCRIPT", "batch_event@2=lost")];
    let outcome = on_sim_leaving(TEST, &settings, || {
        let sample = Sample::of("lost", 1 << 20);
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 4).unwrap();
        let read =
            |place: u64| Operation::read(&file, place * 4096, 4096, registered(&driver, 4096), 0).unwrap();
        batch.submit((0..4).map(read).collect()).unwrap();
        assert_eq!(batch.wait(4, Duration::from_millis(300)).unwrap().len(), 3);
        drop(batch);
        let error = driver.health().unwrap_err();
        assert!(matches!(error, CuFileError::Poisoned { .. }), "{error}");
        assert!(matches!(Driver::open(Mode::Direct), Err(CuFileError::Poisoned { .. })));
        let mut memory = device_memory(4096);
        assert_eq!(file.read_exact(&mut memory, 0).unwrap_err().kind(), CuFileErrorKind::Broken);
    });
    if let Some(outcome) = outcome {
        let alive = outcome.report().ours_alive();
        assert_eq!(alive["allocations"].count, 1, "the lost operation's memory, and no other: {alive:?}");
    }
}

#[test]
fn stream_ordered_reads_and_writes_are_exact() {
    on_sim("stream_ordered_reads_and_writes_are_exact", &[], || {
        let sample = Sample::of("stream", 1 << 20);
        let driver = compat();
        let mut options = std::fs::OpenOptions::new();
        let file = CuFile::open_with(&driver, &sample.path, options.read(true).write(true)).unwrap();
        let device = Device::cuda(0).unwrap();
        for flags in [StreamFlags::default(), StreamFlags::FIXED] {
            let stream = CuFileStream::register(&driver, device.stream().unwrap(), flags).unwrap();
            let reads = (0..8_u64).map(|place| {
                let buffer = registered(&driver, 65536);
                stream.read(&file, place * 65536, 60_000, buffer, 100).unwrap()
            });
            let reads: Vec<_> = reads.collect();
            for (place, read) in reads.into_iter().enumerate() {
                let (count, buffer) = read.finish(LIMIT).unwrap();
                let from = place * 65536;
                let buffer = buffer.into_registered().unwrap();
                assert_eq!(count, 60_000);
                assert!(look(buffer.address() + 100, count) == sample.bytes[from..from + 60_000]);
            }
            // The tail of the file: a count, or an error where all was expected.
            let tail = (1 << 20) - 1000;
            let (count, _) =
                stream.read(&file, tail, 4096, device_memory(4096), 0).unwrap().finish(LIMIT).unwrap();
            assert_eq!(count, 1000);
            let read = stream.read(&file, tail, 4096, device_memory(4096), 0).unwrap();
            let (error, buffer) = read.finish_exact(LIMIT).unwrap_err();
            assert!(matches!(error, CuFileError::Short { done: 1000, .. }) && buffer.is_some(), "{error}");
            // Written behind a read, in the stream's order.
            let read =
                stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap().finish_exact(LIMIT).unwrap();
            stream.write(&file, 8192, 4096, read, 0).unwrap().finish_exact(LIMIT).unwrap();
            assert!(std::fs::read(&sample.path).unwrap()[8192..12_288] == sample.bytes[..4096]);
            std::fs::write(&sample.path, &sample.bytes).unwrap();
        }
    });
}

#[test]
fn late_arguments_are_read_when_the_stream_comes_to_them() {
    on_sim("late_arguments_are_read_when_the_stream_comes_to_them", &[], || {
        let sample = Sample::of("late", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        let stream =
            CuFileStream::register(&driver, device.stream().unwrap(), StreamFlags::default()).unwrap();
        pause_transfers();
        let first = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        let late = stream.read(&file, 0, 4096, device_memory(8192), 0).unwrap();
        late.set_len(1000).unwrap();
        late.set_buffer_offset(4096).unwrap();
        late.set_file_offset(12_345).unwrap();
        resume_transfers();
        first.finish_exact(LIMIT).unwrap();
        let (count, buffer) = late.finish(LIMIT).unwrap();
        let memory = buffer.into_region().unwrap();
        assert_eq!(count, 1000);
        assert!(look(memory.address() + 4096, 1000) == sample.bytes[12_345..13_345]);
        assert!(look(memory.address(), 4096) == [0xA5; 4096]);
    });
}

#[test]
fn a_negative_count_on_a_stream_is_an_error() {
    on_sim("a_negative_count_on_a_stream_is_an_error", &[], || {
        let sample = Sample::of("negative", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        let stream = CuFileStream::register(&driver, device.stream().unwrap(), StreamFlags::FIXED).unwrap();
        for (count, errno, status) in
            [(-5, Some(5), None), (-5027, None, Some(5027)), (-5999, None, Some(5999))]
        {
            set_script(&format!("read_async@1=bytes:{count}"));
            let read = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
            let (error, buffer) = read.finish(LIMIT).unwrap_err();
            assert_eq!(error.errno(), errno, "{error}");
            assert_eq!(error.status().map(|status| status.code()), status, "{error}");
            assert_eq!(buffer.unwrap().len(), 4096);
        }
        set_script("read_async@1=5038");
        let (error, buffer) = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap_err();
        assert_eq!(error.status().map(|status| status.code()), Some(5038));
        assert_eq!(buffer.unwrap().len(), 4096, "the memory comes back");
    });
}

#[test]
fn a_stream_operation_dropped_in_flight_waits_and_a_forgotten_one_is_kept() {
    const TEST: &str = "a_stream_operation_dropped_in_flight_waits_and_a_forgotten_one_is_kept";
    let outcome = on_sim_leaving(TEST, &[], || {
        let sample = Sample::of("in-flight", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        let stream = CuFileStream::register(&driver, device.stream().unwrap(), StreamFlags::FIXED).unwrap();
        pause_transfers();
        let read = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        let resume = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            resume_transfers();
        });
        let start = Instant::now();
        drop(read);
        assert!(start.elapsed() >= Duration::from_millis(200), "it did not wait");
        resume.join().unwrap();

        pause_transfers();
        mem::forget(stream.read(&file, 0, 65536, registered(&driver, 65536), 0).unwrap());
        drop((file, stream));
        resume_transfers();
        thread::sleep(Duration::from_millis(200));
        driver.health().unwrap();
    });
    if let Some(outcome) = outcome {
        let alive = outcome.report().ours_alive();
        assert_eq!(alive["allocations"].count, 1, "the forgotten read's memory, and no other: {alive:?}");
        assert_eq!(alive["streams"].count, 1, "{alive:?}");
    }
}

#[test]
fn a_stream_that_never_ends_keeps_what_it_uses() {
    const TEST: &str = "a_stream_that_never_ends_keeps_what_it_uses";
    let outcome = on_sim_leaving(TEST, &[], || {
        let sample = Sample::of("never", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        let stream = CuFileStream::register(&driver, device.stream().unwrap(), StreamFlags::FIXED).unwrap();
        pause_transfers();
        let read = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        let (error, buffer) = read.finish(Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, CuFileError::Device(cuda_staging::Error::TimedOut { .. })), "{error}");
        assert!(buffer.is_none(), "memory in flight does not come back");
        assert!(matches!(driver.health(), Err(CuFileError::Poisoned { .. })));
        resume_transfers();
        thread::sleep(Duration::from_millis(200));
    });
    if let Some(outcome) = outcome {
        assert_eq!(outcome.report().ours_alive()["allocations"].count, 1);
    }
}

#[test]
fn another_users_close_is_explained() {
    on_sim("another_users_close_is_explained", &[], || {
        let sample = Sample::of("close", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        let api = cufile_sys::Api::get().unwrap();
        // SAFETY: takes nothing.
        unsafe { api.cuFileDriverClose_v2.unwrap()() }.result().unwrap();
        let error = file.read_exact(&mut buffer, 0).unwrap_err();
        assert!(matches!(error, CuFileError::Closed { .. }), "{error}");
        assert!(error.to_string().contains("another user"), "{error}");
        let again = compat();
        let fresh = CuFile::open(&again, &sample.path).unwrap();
        drop(file);
        let mut memory = buffer.into_region();
        fresh.read_exact(&mut memory, 0).unwrap();
        assert!(look(memory.address(), 65536) == sample.bytes);
    });
}
