//! What NVIDIA's cuFile samples of the folder `3_cuFile_Batch` show, through the safe API: one test for each, under the
//! sample's name. `docs/cufile-samples.md` is the table of all of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;
mod samples_support;

use std::fs::{self, OpenOptions};
use std::time::Duration;

use cuda_staging::RegionMut;
use cufile_support::{
    Sample, compat, device_memory, look, nvidia, on_nvidia, on_sim, on_sim_leaving, pattern, pause_transfers,
    registered, resume_transfers,
};
use gds_loader::cufile::{
    Batch, Buffer, Completion, CuFile, CuFileError, Driver, Operation, RegisteredBuffer, Ticket,
};
use samples_support::{create, open_both, patterned};

const LIMIT: Duration = Duration::from_secs(20);
/// As many as cuFile takes at once.
const MOST: u32 = 128;

/// The end of every operation, in the order of submission.
fn run(batch: &mut Batch, operations: Vec<Operation>) -> Vec<Completion> {
    let tickets = batch.submit(operations).unwrap();
    let completions = batch.wait(tickets.len(), LIMIT).unwrap();
    in_order(&tickets, completions)
}

fn in_order(tickets: &[Ticket], mut completions: Vec<Completion>) -> Vec<Completion> {
    assert_eq!(completions.len(), tickets.len(), "each ends once");
    let place = |ticket| tickets.iter().position(|other| *other == ticket).unwrap();
    completions.sort_by_key(|completion| place(completion.ticket));
    completions
}

/// The memory of an operation that must have ended well.
#[track_caller]
fn bytes(completion: Completion) -> Vec<u8> {
    completion.outcome.unwrap();
    match completion.operation.unwrap().into_buffer() {
        Buffer::Registered(buffer) => look(buffer.address(), buffer.len()),
        Buffer::Region(region) => match region.host_bytes() {
            Some(bytes) => bytes.to_vec(),
            None => look(region.address(), region.len()),
        },
        Buffer::Shared(region) => look(region.address(), region.len()),
    }
}

/// Handles of one file, every second without `O_DIRECT`.
fn handles(driver: &Driver, sample: &Sample) -> Vec<CuFile> {
    let handle = |place| {
        if place % 2 == 0 {
            return open_both(driver, &sample.path);
        }
        let plain = OpenOptions::new().read(true).write(true).open(&sample.path).unwrap();
        CuFile::register(driver, plain, &sample.path).unwrap()
    };
    (0..8).map(handle).collect()
}

#[test]
fn batch_read() {
    on_nvidia("batch_read", || {
        let (driver, sample) = (compat(), Sample::of("batch-read", 8 << 20));
        let files = handles(&driver, &sample);
        let mut batch = Batch::new(&driver, MOST).unwrap();
        let read = |place: u32| {
            let file = &files[place as usize % 8];
            Operation::read(file, u64::from(place) * 65536, 65536, registered(&driver, 65536), 0).unwrap()
        };
        for (place, completion) in run(&mut batch, (0..MOST).map(read).collect()).into_iter().enumerate() {
            assert!(bytes(completion) == sample.bytes[place * 65536..(place + 1) * 65536], "{place}");
        }
    });
}

#[test]
fn batch_write() {
    on_nvidia("batch_write", || {
        let (driver, sample) = (compat(), Sample::of("batch-write", 0));
        let files = handles(&driver, &sample);
        let mut batch = Batch::new(&driver, MOST).unwrap();
        let memory = RegisteredBuffer::register(&driver, patterned(128 * 4096)).unwrap();
        let mut parts = Vec::new();
        let mut rest = memory;
        for _ in 0..MOST {
            let (part, after) = rest.split_at(4096).unwrap();
            parts.push(part);
            rest = after;
        }
        let write = |(place, part): (usize, RegisteredBuffer)| {
            Operation::write(&files[place % 8], place as u64 * 4096, 4096, part, 0).unwrap()
        };
        for completion in run(&mut batch, parts.into_iter().enumerate().map(write).collect()) {
            completion.outcome.unwrap();
        }
        assert!(fs::read(&sample.path).unwrap() == pattern(128 * 4096));
    });
}

/// Half of the buffers registered, no offset and no length a multiple of anything.
#[test]
fn batch_write_unaligned() {
    on_nvidia("batch_write_unaligned", || {
        const STRIDE: usize = 10_007;
        const LEN: usize = 5_003;
        let (driver, sample) = (compat(), Sample::of("batch-unaligned", 64 * STRIDE));
        let file = open_both(&driver, &sample.path);
        let mut batch = Batch::new(&driver, 64).unwrap();
        let write = |place: usize| {
            let memory = patterned(8192);
            let buffer: Buffer = match place % 2 {
                0 => RegisteredBuffer::register(&driver, memory).unwrap().into(),
                _ => memory.into(),
            };
            let start = place as u64 % 7;
            Operation::write(&file, (place * STRIDE + 3) as u64, LEN as u64, buffer, start).unwrap()
        };
        for completion in run(&mut batch, (0..64).map(write).collect()) {
            completion.outcome.unwrap();
        }
        let mut expected = sample.bytes.clone();
        for place in 0..64 {
            let start = place % 7;
            let to = place * STRIDE + 3;
            expected[to..to + LEN].copy_from_slice(&pattern(8192)[start..start + LEN]);
        }
        assert!(fs::read(&sample.path).unwrap() == expected);
    });
}

/// Ends are taken as they come, some at a time.
#[test]
fn batch_get_status() {
    on_nvidia("batch_get_status", || {
        let (driver, sample) = (compat(), Sample::of("batch-status", 128 * 4096));
        let file = create(&driver, &sample.folder.path().join("copy"));
        let source = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, MOST).unwrap();
        let write = |place: u32| {
            let mut buffer = registered(&driver, 4096);
            source.read_exact(&mut buffer, u64::from(place) * 4096).unwrap();
            Operation::write(&file, u64::from(place) * 4096, 4096, buffer, 0).unwrap()
        };
        let mut left = batch.submit((0..MOST).map(write).collect()).unwrap();
        while !left.is_empty() {
            let completions = batch.wait(1, LIMIT).unwrap();
            assert!(!completions.is_empty(), "{} did not end", left.len());
            for completion in completions {
                completion.outcome.unwrap();
                let place = left.iter().position(|ticket| *ticket == completion.ticket);
                left.swap_remove(place.expect("each ends once"));
            }
            assert_eq!(batch.in_flight(), left.len());
        }
        assert!(fs::read(file.path()).unwrap() == sample.bytes);
    });
}

/// What was submitted either ends well, with its bytes, or as cancelled; the batch serves again afterwards.
#[test]
fn batch_cancel() {
    let Some(simulation) = nvidia("batch_cancel") else { return };
    let outcome = simulation.leaving().run(|| {
        let (driver, sample) = (compat(), Sample::of("batch-cancel", 4 << 20));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 64).unwrap();
        let read =
            |place: u64| Operation::read(&file, place * 65536, 65536, registered(&driver, 65536), 0).unwrap();
        let tickets = batch.submit((0..64).map(read).collect()).unwrap();
        batch.cancel().unwrap();
        let completions = batch.wait(64, LIMIT).unwrap();
        for (place, completion) in in_order(&tickets, completions).into_iter().enumerate() {
            if is_cancelled(&completion) {
                continue;
            }
            assert!(bytes(completion) == sample.bytes[place * 65536..(place + 1) * 65536], "{place}");
        }
        let again = run(&mut batch, (0..64).map(read).collect());
        assert!(again.into_iter().flat_map(bytes).eq(sample.bytes.iter().copied()));
    });
    // The library does not tell the end of what was cancelled, whose memory is kept therefore.
    assert!(outcome.is_none_or(|outcome| outcome.finished));
}

fn is_cancelled(completion: &Completion) -> bool {
    matches!(completion.outcome, Err(CuFileError::BatchEvent { state: 8, .. }))
}

/// The same where it is certain that nothing had begun: all but the first are cancelled.
#[test]
fn batch_cancel_before_it_begins() {
    on_sim_leaving("batch_cancel_before_it_begins", &[], || {
        let (driver, sample) = (compat(), Sample::of("batch-cancel-early", 1 << 20));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut batch = Batch::new(&driver, 16).unwrap();
        let read =
            |place: u64| Operation::read(&file, place * 65536, 65536, device_memory(65536), 0).unwrap();
        pause_transfers();
        let tickets = batch.submit((0..16).map(read).collect()).unwrap();
        let resume = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            resume_transfers();
        });
        batch.cancel().unwrap();
        resume.join().unwrap();
        let completions = in_order(&tickets, batch.wait(16, LIMIT).unwrap());
        assert!(completions.iter().filter(|completion| is_cancelled(completion)).count() >= 15);
    });
}

/// Mixed in one batch: registered and plain memory, with and without `O_DIRECT`, aligned and not, tiny and large.
#[test]
fn batch_various() {
    on_nvidia("batch_various", || various(memory_of_the_device));
}

/// Host memory, which NVIDIA's library fails at random in a batch, corrupting the heap, is refused.
#[test]
fn batch_various_with_host_memory() {
    on_sim("batch_various_with_host_memory", &[], || {
        let (driver, sample) = (compat(), Sample::of("batch-host", 4096));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let host = RegionMut::from_vec(vec![0xA5; 4096]);
        let error = Operation::read(&file, 0, 4096, host, 0).unwrap_err();
        assert!(matches!(error, CuFileError::Usage(_)), "{error}");
    });
}

const MEMORY: u64 = 300_000;

fn memory_of_the_device(place: usize, driver: &Driver) -> Buffer {
    if place.is_multiple_of(2) { registered(driver, MEMORY).into() } else { device_memory(MEMORY).into() }
}

fn various(memory: impl Fn(usize, &Driver) -> Buffer) {
    let (driver, sample) = (compat(), Sample::of("batch-various", 4 << 20));
    let files = handles(&driver, &sample);
    let mut batch = Batch::new(&driver, 48).unwrap();
    // File offset, length and offset in memory of each.
    let shapes: Vec<(usize, usize, usize)> = (0..48)
        .map(|place| match place % 4 {
            0 => (place * 65536, 65536, 4096),
            1 => (place * 60_013, 4097, 1),
            2 => (place * 50_000, 1, 299_999),
            _ => (place * 4096, 262_144, 0),
        })
        .collect();
    let read = |(place, &(offset, len, start)): (usize, &(usize, usize, usize))| {
        let buffer = memory(place, &driver);
        Operation::read(&files[place % 8], offset as u64, len as u64, buffer, start as u64).unwrap()
    };
    let completions = run(&mut batch, shapes.iter().enumerate().map(read).collect());
    for ((offset, len, start), completion) in shapes.into_iter().zip(completions) {
        let mut expected = vec![0xA5; MEMORY as usize];
        expected[start..start + len].copy_from_slice(&sample.bytes[offset..offset + len]);
        assert!(bytes(completion) == expected, "{len} bytes at {offset} to {start}");
    }
}
