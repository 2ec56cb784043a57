//! Dropped and forgotten while in flight: what the library still uses is never freed.
//!
//! On the simulated libcufile, which writes memory and counts when the transfer comes to its turn, however late. Run under
//! AddressSanitizer (`cargo xtask asan`), with a simulator that was compiled for it, a byte stored into freed memory ends the
//! test. Host memory where cuFile takes it, because that is what the sanitizer watches.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cufile_support;

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::{Device, RegionMut};
use cufile_support::{
    Sample, compat, device_memory, on_sim, on_sim_leaving, pause_transfers, resume_transfers,
};
use gds_loader::cufile::{Batch, CuFile, CuFileStream, Driver, Operation, StreamFlags, StreamOperation};
use test_support::cufile_sim::report;

const LIMIT: Duration = Duration::from_secs(20);
const LEN: u64 = 100_000;
/// How long transfers are held back.
const HELD: Duration = Duration::from_millis(300);

/// Host memory of the heap.
fn memory() -> RegionMut {
    RegionMut::from_vec(vec![0; LEN as usize])
}

/// Lets the transfers that are held back go on after a while.
fn resume_later() -> thread::JoinHandle<()> {
    thread::spawn(|| {
        thread::sleep(HELD);
        resume_transfers();
    })
}

/// Waits until the library has moved `bytes` in all.
fn wait_for(bytes: u64) {
    let start = Instant::now();
    while report().transfers.read_bytes < bytes {
        assert!(start.elapsed() < LIMIT, "{:?}", report().transfers);
        thread::sleep(Duration::from_millis(5));
    }
}

fn stream(driver: &Driver) -> CuFileStream {
    let stream = Device::cuda(0).unwrap().stream().unwrap();
    CuFileStream::register(driver, stream, StreamFlags::default()).unwrap()
}

fn begin(stream: &CuFileStream, file: &CuFile) -> StreamOperation {
    stream.read(file, 0, LEN, memory(), 0).unwrap()
}

fn batch_of(driver: &Driver, file: &CuFile) -> Batch {
    let mut batch = Batch::new(driver, 4).unwrap();
    // The library takes no host memory in a batch. Device memory that is freed too early is a transfer that fails.
    let read = |place: u64| Operation::read(file, place * LEN, LEN, device_memory(LEN), 0).unwrap();
    batch.submit((0..4).map(read).collect()).unwrap();
    batch
}

#[test]
fn a_dropped_read_on_a_stream_is_waited_for() {
    on_sim("a_dropped_read_on_a_stream_is_waited_for", &[], || {
        let (driver, sample) = (compat(), Sample::of("dropped-read", LEN as usize));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let stream = stream(&driver);
        pause_transfers();
        let (first, second) = (begin(&stream, &file), begin(&stream, &file));
        let resume = resume_later();
        let start = Instant::now();
        drop(first);
        assert!(start.elapsed() >= HELD / 2, "{:?}", start.elapsed());
        drop((second, file, stream));
        assert_eq!(report().transfers.read_bytes, 2 * LEN);
        resume.join().unwrap();
        assert!(driver.health().is_ok());
    });
}

#[test]
fn a_forgotten_read_on_a_stream_stays_as_it_is() {
    on_sim_leaving("a_forgotten_read_on_a_stream_stays_as_it_is", &[], || {
        let (driver, sample) = (compat(), Sample::of("forgotten-read", LEN as usize));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let stream = stream(&driver);
        pause_transfers();
        mem::forget(begin(&stream, &file));
        drop((file, stream));
        resume_transfers();
        wait_for(LEN);
        assert_eq!(report().alive.streams, 1, "the forgotten operation holds its stream");
        assert!(driver.health().is_ok());
    });
}

#[test]
fn a_dropped_batch_is_waited_for() {
    on_sim("a_dropped_batch_is_waited_for", &[], || {
        let (driver, sample) = (compat(), Sample::of("dropped-batch", 4 * LEN as usize));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        pause_transfers();
        let batch = batch_of(&driver, &file);
        let resume = resume_later();
        let start = Instant::now();
        drop((batch, file));
        assert!(start.elapsed() >= HELD / 2, "{:?}", start.elapsed());
        let transfers = report().transfers;
        assert_eq!((transfers.read_bytes, transfers.failed), (4 * LEN, 0));
        resume.join().unwrap();
        assert!(driver.health().is_ok());
    });
}

#[test]
fn a_forgotten_batch_stays_as_it_is() {
    on_sim_leaving("a_forgotten_batch_stays_as_it_is", &[], || {
        let (driver, sample) = (compat(), Sample::of("forgotten-batch", 4 * LEN as usize));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        pause_transfers();
        mem::forget(batch_of(&driver, &file));
        drop(file);
        resume_transfers();
        wait_for(4 * LEN);
        let alive = report().alive;
        assert_eq!((alive.batches, alive.handles), (1, 1), "the forgotten batch holds its file");
        assert!(driver.health().is_ok());
    });
}

/// What could not be waited for is kept, and cuFile is given up; the library may write later without harm.
#[test]
fn a_read_that_never_ended_in_time_is_kept() {
    on_sim_leaving("a_read_that_never_ended_in_time_is_kept", &[], || {
        let (driver, sample) = (compat(), Sample::of("kept-read", LEN as usize));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let stream = stream(&driver);
        pause_transfers();
        let (error, buffer) = begin(&stream, &file).finish(Duration::from_millis(50)).unwrap_err();
        assert!(buffer.is_none(), "{error}");
        assert!(driver.health().is_err());
        drop((file, stream));
        resume_transfers();
        wait_for(LEN);
    });
}

/// The proof that the sanitizer sees what the others rely on: a read by the plain C function whose memory is freed before
/// its turn comes.
#[cfg(gds_asan)]
#[test]
fn memory_freed_under_a_read_is_seen() {
    use std::os::fd::AsRawFd as _;
    use std::ptr;

    use cufile_sys::{Api, CU_FILE_HANDLE_TYPE_OPAQUE_FD, CUfileDescr_handle, CUfileDescr_t};

    const TEST: &str = "memory_freed_under_a_read_is_seen";
    let outcome = test_support::cufile_sim::simulation(TEST).run(|| {
        let (_driver, sample) = (compat(), Sample::of("freed", LEN as usize));
        let file = std::fs::File::open(&sample.path).unwrap();
        let mut stream = Device::cuda(0).unwrap().stream().unwrap();
        let api = Api::get().unwrap();
        let mut handle = ptr::null_mut();
        let mut description = CUfileDescr_t {
            type_: CU_FILE_HANDLE_TYPE_OPAQUE_FD,
            handle: CUfileDescr_handle { fd: file.as_raw_fd() },
            ..Default::default()
        };
        let (mut len, mut file_offset, mut offset, mut count) = (LEN as usize, 0, 0, 0);
        let mut memory = vec![0_u8; LEN as usize];
        pause_transfers();
        // SAFETY: everything lives until the end of the process, but for `memory`, which is what the sanitizer must see: in a
        // process that ends of it.
        let answers = unsafe {
            (
                (api.cuFileHandleRegister)(&mut handle, &mut description).result(),
                api.cuFileReadAsync.unwrap()(
                    handle,
                    memory.as_mut_ptr().cast(),
                    &mut len,
                    &mut file_offset,
                    &mut offset,
                    &mut count,
                    stream.raw().unwrap().cast(),
                )
                .result(),
            )
        };
        assert_eq!(answers, (Ok(()), Ok(())));
        drop(memory);
        resume_transfers();
        stream.synchronize(LIMIT).unwrap();
    });
    if let Some(outcome) = outcome {
        assert!(!outcome.finished, "nothing was seen: {outcome}");
        assert!(outcome.child.stderr.contains("heap-use-after-free"), "{outcome}");
    }
}
