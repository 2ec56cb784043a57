//! Operations in flight, batches and streams, on NVIDIA's own library in compatibility mode on the simulated GPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::time::Duration;

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, look, nvidia, on_nvidia, pattern, registered};
use gds_loader::cufile::{Batch, Buffer, CuFile, CuFileError, CuFileStream, Operation, StreamFlags};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_batch_of_mixed_sizes_is_exact() {
    on_nvidia("a_batch_of_mixed_sizes_is_exact", || {
        let sample = Sample::of("batch", 4 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 16).unwrap();
        // Three rounds in one batch, of registered and plain memory, aligned and not.
        for round in 0..3_u64 {
            let sizes = [4096, 65536, 1 << 20, 1, 513, 100_001, 4095, 0];
            let mut expected = BTreeMap::new();
            let mut operations = Vec::new();
            for (place, len) in sizes.into_iter().enumerate() {
                let (file_offset, buffer_offset) = (place as u64 * 300_000 + round * 13, place as u64 * 7);
                let buffer: Buffer = match place % 2 {
                    0 => registered(&driver, 2 << 20).into(),
                    _ => device_memory(2 << 20).into(),
                };
                operations.push(Operation::read(&file, file_offset, len, buffer, buffer_offset).unwrap());
                expected.insert(place, (file_offset as usize, buffer_offset, len));
            }
            let tickets = batch.submit(operations).unwrap();
            let mut done = 0;
            while done < sizes.len() {
                let completions = batch.wait(1, LIMIT).unwrap();
                assert!(!completions.is_empty(), "nothing ended in time");
                for completion in completions {
                    completion.outcome.unwrap();
                    let place = tickets.iter().position(|ticket| *ticket == completion.ticket).unwrap();
                    let (from, to, len) = expected.remove(&place).expect("each ends once");
                    let arrived = bytes(completion.operation.unwrap().into_buffer());
                    let end = (to + len) as usize;
                    assert!(arrived[to as usize..end] == sample.bytes[from..from + len as usize], "{place}");
                    let around = arrived[..to as usize].iter().chain(&arrived[end..]);
                    assert!(around.copied().all(|byte| byte == 0xA5), "{place} wrote beside its bytes");
                    done += 1;
                }
            }
            assert_eq!((batch.in_flight(), batch.room()), (0, 16));
        }
    });
}

fn bytes(buffer: Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Registered(buffer) => look(buffer.address(), buffer.len()),
        Buffer::Region(region) => look(region.address(), region.len()),
        Buffer::Shared(region) => look(region.address(), region.len()),
    }
}

#[test]
fn a_batch_that_meets_the_end_of_the_file_says_how_much_arrived() {
    on_nvidia("a_batch_that_meets_the_end_of_the_file_says_how_much_arrived", || {
        let sample = Sample::of("batch-end", 10_000);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 4).unwrap();
        let offsets = [0, 8192, 20_000];
        let read = |offset: &u64| Operation::read(&file, *offset, 4096, device_memory(4096), 0).unwrap();
        let tickets = batch.submit(offsets.iter().map(read).collect()).unwrap();
        let mut completions = batch.wait(3, LIMIT).unwrap();
        completions.sort_by_key(|completion| tickets.iter().position(|ticket| *ticket == completion.ticket));
        let [whole, tail, beyond] = <[_; 3]>::try_from(completions).unwrap();
        whole.outcome.unwrap();
        let error = tail.outcome.unwrap_err();
        assert!(matches!(error, CuFileError::Short { done: 1808, expected: 4096, .. }), "{error}");
        assert_eq!(tail.operation.unwrap().rest(1808).unwrap().len(), 4096 - 1808);
        let error = beyond.outcome.unwrap_err();
        assert!(matches!(error, CuFileError::Short { done: 0, .. }), "{error}");
    });
}

#[test]
fn a_batch_writes() {
    on_nvidia("a_batch_writes", || {
        let sample = Sample::of("batch-write", 1 << 20);
        let driver = compat();
        let mut options = OpenOptions::new();
        let file = CuFile::open_with(&driver, &sample.path, options.read(true).write(true)).unwrap();
        let mut batch = Batch::new(&driver, 4).unwrap();
        let host = RegionMut::from_vec(vec![0; 4096]);
        assert!(
            matches!(Operation::read(&file, 0, 4096, host, 0), Err(CuFileError::Usage(_))),
            "host memory"
        );
        let frozen = device_memory(50_000);
        test_support::control::write_device_memory(frozen.address(), &pattern(50_000));
        let frozen = frozen.freeze();
        let mut device = registered(&driver, 65536);
        file.read_exact(&mut device, 0).unwrap();
        let operations = vec![
            Operation::write(&file, 100_001, 30_000, frozen.clone(), 5).unwrap(),
            Operation::write(&file, 200_704, 65536, device, 0).unwrap(),
        ];
        batch.submit(operations).unwrap();
        for completion in batch.wait(2, LIMIT).unwrap() {
            completion.outcome.unwrap();
        }
        let mut expected = sample.bytes.clone();
        expected[100_001..130_001].copy_from_slice(&pattern(50_000)[5..30_005]);
        expected[200_704..266_240].copy_from_slice(&sample.bytes[..65536]);
        assert!(std::fs::read(&sample.path).unwrap() == expected);
        assert!(Operation::read(&file, 0, 1, frozen, 0).is_err(), "read-only memory");
    });
}

#[test]
fn what_a_batch_cannot_take_comes_back() {
    on_nvidia("what_a_batch_cannot_take_comes_back", || {
        let sample = Sample::of("batch-refused", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        for capacity in [0, 129, u32::MAX] {
            assert!(matches!(Batch::new(&driver, capacity), Err(CuFileError::Usage(_))), "{capacity}");
        }
        let mut batch = Batch::new(&driver, 2).unwrap();
        let read = || Operation::read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        let refused = batch.submit(vec![read(), read(), read()]).unwrap_err();
        assert!(matches!(refused.error, CuFileError::Usage(_)) && refused.operations.len() == 3);
        for (len, offset) in [(4097, 0), (1, 4096), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(
                Operation::read(&file, 0, len, device_memory(4096), offset).is_err(),
                "{len} at {offset}"
            );
        }
        assert!(batch.submit(Vec::new()).unwrap().is_empty());
        assert!(batch.wait(5, LIMIT).unwrap().is_empty(), "nothing to wait for");
        batch.cancel().unwrap();
        assert!(batch.wait(5, LIMIT).unwrap().is_empty(), "nothing was cancelled");
        // Its memory is in use until here, though nobody waited for it.
        batch.submit(refused.operations.into_iter().take(2).collect()).unwrap();
        drop(batch);
        assert!(driver.health().is_ok());
    });
}

#[test]
fn a_cancelled_batch_completes_everything_and_goes_on() {
    const TEST: &str = "a_cancelled_batch_completes_everything_and_goes_on";
    let Some(simulation) = nvidia(TEST) else { return };
    let outcome = simulation.leaving().run(|| {
        let sample = Sample::of("batch-cancelled", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 8).unwrap();
        let read =
            |place: u64| Operation::read(&file, place * 65536, 65536, registered(&driver, 65536), 0).unwrap();
        let tickets = batch.submit((0..8).map(read).collect()).unwrap();
        batch.cancel().unwrap();
        let completions = batch.wait(8, LIMIT).unwrap();
        assert_eq!((completions.len(), batch.in_flight()), (8, 0));
        for completion in completions {
            let place = tickets.iter().position(|ticket| *ticket == completion.ticket).unwrap();
            match completion.outcome {
                Ok(()) => {
                    let arrived = bytes(completion.operation.unwrap().into_buffer());
                    assert!(arrived == sample.bytes[place * 65536..(place + 1) * 65536]);
                }
                // Perhaps not over: its memory does not come back.
                Err(CuFileError::BatchEvent { state: 8, .. }) => assert!(completion.operation.is_none()),
                Err(error) => panic!("{error}"),
            }
        }
        let tickets = batch.submit((0..8).map(read).collect()).unwrap();
        for completion in batch.wait(8, LIMIT).unwrap() {
            completion.outcome.unwrap();
            let place = tickets.iter().position(|ticket| *ticket == completion.ticket).unwrap();
            let arrived = bytes(completion.operation.unwrap().into_buffer());
            assert!(arrived == sample.bytes[place * 65536..(place + 1) * 65536]);
        }
    });
    // The memory of cancelled operations is kept on purpose.
    assert!(outcome.is_none_or(|outcome| outcome.finished));
}

#[test]
fn a_negative_count_on_a_stream_is_an_error_with_its_code() {
    on_nvidia("a_negative_count_on_a_stream_is_an_error_with_its_code", || {
        let sample = Sample::of("stream", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        for flags in [StreamFlags::default(), StreamFlags::FIXED] {
            let stream = CuFileStream::register(&driver, device.stream().unwrap(), flags).unwrap();
            let read = stream.read(&file, 0, 65536, registered(&driver, 65536), 0).unwrap();
            let (error, buffer) = read.finish(LIMIT).unwrap_err();
            assert_eq!(error.errno(), Some(5), "{error}");
            assert_eq!(error.status(), None);
            // The memory is back, and a plain read takes over.
            let mut buffer = buffer.unwrap().into_registered().unwrap();
            file.read_exact(&mut buffer, 0).unwrap();
            assert!(look(buffer.address(), 65536) == sample.bytes[..65536]);
            let (error, _) =
                stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap().finish_exact(LIMIT).unwrap_err();
            assert_eq!(error.errno(), Some(5), "{error}");
            // Dropped and forgotten in flight.
            drop(stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap());
        }
        assert!(driver.health().is_ok());
    });
}

#[test]
fn a_stream_refuses_what_cannot_be() {
    on_nvidia("a_stream_refuses_what_cannot_be", || {
        let sample = Sample::of("stream-refused", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let device = Device::cuda(0).unwrap();
        let cpu = CuFileStream::register(&driver, Device::cpu().stream().unwrap(), StreamFlags::default());
        assert!(matches!(cpu, Err(CuFileError::Usage(_))));
        let aligned = StreamFlags { page_aligned: true, ..StreamFlags::FIXED };
        let stream = CuFileStream::register(&driver, device.stream().unwrap(), aligned).unwrap();
        for (file_offset, len, offset) in
            [(1, 4096, 0), (0, 4095, 0), (0, 4096, 1), (0, 8192, 0), (u64::MAX, 0, 0)]
        {
            let refused = stream.read(&file, file_offset, len, device_memory(4096), offset).unwrap_err();
            assert!(matches!(refused, (CuFileError::Usage(_), Some(_))), "{file_offset} {len} {offset}");
        }
        let frozen = device_memory(4096).freeze();
        assert!(matches!(stream.read(&file, 0, 4096, frozen, 0), Err((CuFileError::Usage(_), Some(_)))));
        let read = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        assert!(
            read.set_len(0).is_err()
                && read.set_file_offset(0).is_err()
                && read.set_buffer_offset(0).is_err()
        );
        drop(read);

        let stream =
            CuFileStream::register(&driver, device.stream().unwrap(), StreamFlags::default()).unwrap();
        let read = stream.read(&file, 0, 4096, device_memory(8192), 0).unwrap();
        assert!(read.set_len(4097).is_err(), "more than it was enqueued with");
        assert!(read.set_buffer_offset(4097).is_err(), "no room for all of its length");
        assert!(read.set_file_offset(u64::MAX).is_err());
        read.set_len(100).unwrap();
        read.set_buffer_offset(4096).unwrap();
        read.set_file_offset(12_345).unwrap();
        drop(read);
    });
}
