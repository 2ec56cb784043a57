//! What NVIDIA's cuFile samples of the folder `4_cuFile_Async` show, through the safe API: one test for each, under the
//! sample's name. `docs/cufile-samples.md` is the table of all of them.
//!
//! All on the simulated libcufile: NVIDIA's launches a kernel for each operation on a stream, which the simulated GPU cannot
//! run, and stores the count -5 (`cufile_flight.rs` has that).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;
mod samples_support;

use std::ffi::c_void;
use std::fs;
use std::time::Duration;

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, look, on_sim, registered};
use gds_loader::cufile::{Buffer, CuFile, CuFileStream, Driver, Mode, StreamFlags, StreamOperation};
use samples_support::{MIB, create};
use test_support::control;

const LIMIT: Duration = Duration::from_secs(20);

fn stream(driver: &Driver, flags: StreamFlags) -> CuFileStream {
    CuFileStream::register(driver, Device::cuda(0).unwrap().stream().unwrap(), flags).unwrap()
}

/// File to device to another file on streams, and a comparison of the files. The memory belongs to each operation until it is
/// over, so the write is enqueued when the read has ended.
fn round_trip(streams: &[CuFileStream], driver: &Driver, memory: impl Fn(u64) -> Buffer) {
    let parts = streams.len() as u64;
    let sample = Sample::of("stream-round-trip", (parts * MIB) as usize);
    let source = CuFile::open(driver, &sample.path).unwrap();
    let target = create(driver, &sample.folder.path().join("copy"));
    let enqueue_all = |begin: &dyn Fn(&CuFileStream, u64, Buffer) -> StreamOperation,
                       buffers: Vec<Buffer>| {
        let begun = (0..).zip(streams).zip(buffers);
        begun.map(|((part, stream), buffer)| begin(stream, part * MIB, buffer)).collect::<Vec<_>>()
    };
    let finish_all = |operations: Vec<StreamOperation>| {
        operations.into_iter().map(|operation| operation.finish_exact(LIMIT).unwrap()).collect::<Vec<_>>()
    };
    let buffers = (0..parts).map(|_| memory(MIB)).collect();
    let read = |stream: &CuFileStream, offset, buffer| stream.read(&source, offset, MIB, buffer, 0).unwrap();
    let buffers = finish_all(enqueue_all(&read, buffers));
    let write =
        |stream: &CuFileStream, offset, buffer| stream.write(&target, offset, MIB, buffer, 0).unwrap();
    finish_all(enqueue_all(&write, buffers));
    assert!(fs::read(target.path()).unwrap() == sample.bytes);
}

/// In the order of the stream: a write behind a copy that has not run yet writes what the copy brings. (The default stream
/// itself cannot be registered through this API: it is nobody's to own.)
#[test]
fn async_rw_default() {
    on_sim("async_rw_default", &[], || {
        let driver = compat();
        let stream = stream(&driver, StreamFlags::default());
        let sample = Sample::of("stream-order", 0);
        let file = create(&driver, &sample.path);
        let memory = device_memory(4096);

        type CopyAsync = extern "C" fn(u64, *const c_void, usize, *mut c_void) -> i32;
        // SAFETY: a C string; RTLD_DEFAULT looks through what is loaded.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cuMemcpyHtoDAsync_v2".as_ptr()) };
        assert!(!address.is_null());
        // SAFETY: the function has this type.
        let copy = unsafe { std::mem::transmute::<*mut c_void, CopyAsync>(address) };
        control::pause_copies();
        assert_eq!(copy(memory.address(), [7_u8; 4096].as_ptr().cast(), 4096, stream.raw()), 0);
        let write = stream.write(&file, 0, 4096, memory, 0).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(fs::read(&sample.path).unwrap().is_empty(), "nothing is written before its turn");
        control::resume_copies();
        assert_eq!(write.finish(LIMIT).unwrap().0, 4096);
        assert!(fs::read(&sample.path).unwrap() == [7_u8; 4096]);

        round_trip(&[stream], &driver, |len| device_memory(len).into());
    });
}

/// Parameters that are set after the operation was enqueued, before its turn comes.
#[test]
fn async_rw_custom() {
    on_sim("async_rw_custom", &[("CUFILE_SIM_MODE", "real")], || {
        let driver = Driver::open(Mode::Direct).unwrap();
        let stream = stream(&driver, StreamFlags::default());
        round_trip(std::slice::from_ref(&stream), &driver, |len| registered(&driver, len).into());

        let sample = Sample::of("stream-late", 1 << 20);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        cufile_support::pause_transfers();
        // The first holds the stream, so that the second's turn has not come.
        let first = stream.read(&file, 0, 4096, device_memory(4096), 0).unwrap();
        let second = stream.read(&file, 0, 65536, registered(&driver, 200_000), 0).unwrap();
        second.set_len(30_001).unwrap();
        second.set_file_offset(123_457).unwrap();
        second.set_buffer_offset(100_003).unwrap();
        cufile_support::resume_transfers();
        let buffer = first.finish_exact(LIMIT).unwrap().into_region().unwrap();
        assert!(look(buffer.address(), 4096) == sample.bytes[..4096]);
        let buffer = second.finish_exact(LIMIT).unwrap().into_registered().unwrap();
        let mut expected = vec![0xA5; 200_000];
        expected[100_003..130_004].copy_from_slice(&sample.bytes[123_457..153_458]);
        assert!(look(buffer.address(), 200_000) == expected);
    });
}

/// Several streams, each with its part, without registered memory: that of the device and of the host.
#[test]
fn async_rw_batch_custom() {
    on_sim("async_rw_batch_custom", &[], || {
        let driver = compat();
        let streams: Vec<_> = (0..4).map(|_| stream(&driver, StreamFlags::default())).collect();
        round_trip(&streams, &driver, |len| device_memory(len).into());
        round_trip(&streams, &driver, |len| RegionMut::from_vec(vec![0; len as usize]).into());
    });
}

/// Several streams for which everything was promised: fixed parameters, whole pages; with registered memory.
#[test]
fn async_rw_batch_register_custom() {
    on_sim("async_rw_batch_register_custom", &[("CUFILE_SIM_MODE", "real")], || {
        let driver = Driver::open(Mode::Direct).unwrap();
        let flags = StreamFlags { page_aligned: true, ..StreamFlags::FIXED };
        let streams: Vec<_> = (0..4).map(|_| stream(&driver, flags)).collect();
        round_trip(&streams, &driver, |len| registered(&driver, len).into());
    });
}
