//! Batches and streams of the safe cuFile API on a library that misbehaves on demand (`sim/cufile`): each end is judged on
//! its own, and nothing in flight is ever freed.
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
    Batch, CuFile, CuFileError, CuFileErrorKind, CuFileStream, Driver, Mode, Operation, StreamFlags,
};

const LIMIT: Duration = Duration::from_secs(20);

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
    // One whose end is not told, and one that does not end: cancelling waits for that one.
    for script in ["batch_event@2=lost", "batch_event@1=hang"] {
        let settings = [("CUFILE_SIM_MODE", "real"), ("CUFILE_SIM_SCRIPT", script)];
        let outcome = on_sim_leaving(TEST, &settings, || {
            let sample = Sample::of("lost", 1 << 20);
            let driver = Driver::open(Mode::Direct).unwrap();
            let file = CuFile::open(&driver, &sample.path).unwrap();
            let mut batch = Batch::new(&driver, 4).unwrap();
            let read = |place: u64| {
                Operation::read(&file, place * 4096, 4096, registered(&driver, 4096), 0).unwrap()
            };
            batch.submit((0..4).map(read).collect()).unwrap();
            assert_eq!(batch.wait(4, Duration::from_millis(300)).unwrap().len(), 3);
            let start = Instant::now();
            drop(batch);
            assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
            let error = driver.health().unwrap_err();
            assert!(matches!(error, CuFileError::Poisoned { .. }), "{error}");
            assert!(matches!(Driver::open(Mode::Direct), Err(CuFileError::Poisoned { .. })));
            let mut memory = device_memory(4096);
            assert_eq!(file.read_exact(&mut memory, 0).unwrap_err().kind(), CuFileErrorKind::Broken);
        });
        let Some(outcome) = outcome else { return };
        let alive = outcome.report().ours_alive();
        assert_eq!(alive["allocations"].count, 1, "the lost operation's memory, and no other: {alive:?}");
    }
}

/// Nor where the caller gives it up.
#[test]
fn cancelling_what_never_ends_is_an_error_in_time() {
    const TEST: &str = "cancelling_what_never_ends_is_an_error_in_time";
    let settings = [("CUFILE_SIM_MODE", "real"), ("CUFILE_SIM_SCRIPT", "batch_event@1=hang")];
    let outcome = on_sim_leaving(TEST, &settings, || {
        let sample = Sample::of("cancelled", 65536);
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 1).unwrap();
        batch.submit(vec![Operation::read(&file, 0, 4096, registered(&driver, 4096), 0).unwrap()]).unwrap();
        // It has begun by then: one that has not is simply dropped.
        assert!(batch.wait(1, Duration::from_secs(1)).unwrap().is_empty());
        let start = Instant::now();
        let error = batch.cancel().unwrap_err();
        assert!(matches!(error, CuFileError::TimedOut { .. }), "{error}");
        drop(batch);
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
        assert!(matches!(driver.health(), Err(CuFileError::Poisoned { .. })));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.report().ours_alive()["allocations"].count, 1);
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
