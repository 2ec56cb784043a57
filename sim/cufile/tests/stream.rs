//! Transfers in the order of a stream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::ffi::c_void;

use cufile_sys::*;
use support::{Calls as _, Gpu, KIB, MIB, Memory, Stream, code, expected, file, load};
use test_support::control::{pause_copies, resume_copies};
use test_support::cufile_sim::{on_simulator, pause_transfers, resume_transfers, set_script};
use test_support::folder::on_disk;

/// The arguments that cuFile reads and writes later.
struct Arguments {
    len: usize,
    file_offset: i64,
    base_offset: i64,
    count: isize,
}

impl Arguments {
    fn new(len: usize, file_offset: i64) -> Box<Self> {
        Box::new(Self { len, file_offset, base_offset: 0, count: -99 })
    }

    fn read(&mut self, api: &Api, file: CUfileHandle_t, memory: &Memory, stream: &Stream) -> i32 {
        // SAFETY: the tests keep the arguments and the memory until the stream is done.
        code(unsafe {
            (api.cuFileReadAsync.unwrap())(
                file,
                memory.address as *mut c_void,
                &mut self.len,
                &mut self.file_offset,
                &mut self.base_offset,
                &mut self.count,
                stream.0 as CUstream,
            )
        })
    }
}

fn register_stream(api: &Api, stream: &Stream, flags: u32) -> i32 {
    // SAFETY: a handle that nobody follows.
    code(unsafe { (api.cuFileStreamRegister.unwrap())(stream.0 as CUstream, flags) })
}

#[test]
fn arguments_are_read_when_their_turn_comes_unless_fixed() {
    let test = "arguments_are_read_when_their_turn_comes_unless_fixed";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let (memory, stream) = (gpu.allocate(MIB), gpu.stream());
        pause_transfers();
        let (mut first, mut late) = (Arguments::new(4096, 0), Arguments::new(1, 0));
        assert_eq!(first.read(&api, handle, &memory, &stream), 0);
        assert_eq!(late.read(&api, handle, &memory, &stream), 0);
        (late.len, late.file_offset, late.base_offset) = (8 * KIB, 4096, 64);
        assert_eq!(late.count, -99);
        resume_transfers();
        stream.synchronize();
        assert_eq!((first.count, late.count), (4096, 8 * KIB as isize));
        assert_eq!(memory.bytes(64, 8 * KIB), expected(4096, 8 * KIB));

        assert_eq!((register_stream(&api, &stream, 16), register_stream(&api, &stream, 7)), (5022, 0));
        assert_eq!(register_stream(&api, &stream, 7), 5022);
        pause_transfers();
        let (mut first, mut fixed) = (Arguments::new(1, 0), Arguments::new(4096, 8192));
        assert_eq!(first.read(&api, handle, &memory, &stream), 0);
        assert_eq!(fixed.read(&api, handle, &memory, &stream), 0);
        (fixed.len, fixed.file_offset, fixed.base_offset) = (1, 0, 1 << 40);
        resume_transfers();
        stream.synchronize();
        assert_eq!((fixed.count, memory.bytes(0, 4096)), (4096, expected(8192, 4096)));
        // SAFETY: a handle that nobody follows.
        let deregister = || code(unsafe { (api.cuFileStreamDeregister.unwrap())(stream.0 as CUstream) });
        assert_eq!((deregister(), deregister()), (0, 5022));
    });
}

/// Registered memory is written only after what the stream had before.
#[test]
fn reads_wait_for_the_streams_earlier_work() {
    let test = "reads_wait_for_the_streams_earlier_work";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let (memory, other, stream) = (gpu.allocate(MIB), gpu.allocate(MIB), gpu.stream());
        assert_eq!(api.register_buffer(memory.address, MIB), 0);
        pause_copies();
        stream.copy(&other, &memory);
        let mut arguments = Arguments::new(MIB, 0);
        assert_eq!(arguments.read(&api, handle, &memory, &stream), 0);
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(arguments.count, -99, "it went before the copy");
        resume_copies();
        stream.synchronize();
        assert_eq!((arguments.count, memory.bytes(0, MIB)), (MIB as isize, expected(0, MIB)));
    });
}

#[test]
fn what_fails_later_is_a_negative_count() {
    let test = "what_fails_later_is_a_negative_count";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let (memory, stream) = (gpu.allocate(MIB), gpu.stream());
        let none = 0x1234 as CUfileHandle_t;
        let mut arguments = Arguments::new(4096, 0);
        assert_eq!((arguments.read(&api, none, &memory, &stream), arguments.count), (5027, -5027));

        let later = |len: usize, script: &str| {
            set_script(script);
            let mut arguments = Arguments::new(len, 0);
            let status = arguments.read(&api, handle, &memory, &stream);
            stream.synchronize();
            (status, arguments.count)
        };
        assert_eq!(later(2 * MIB, ""), (0, -1));
        assert_eq!(later(4096, "read_async@1=bytes:-5"), (0, -5));
        assert_eq!(later(4096, "read_async@1=short:4"), (0, 1024));
        assert_eq!(later(4096, "read_async@1=5038"), (5038, -99));
        assert_eq!(later(4096, "read_async@1=hang:20ms"), (0, 4096));
        assert_eq!(api.register_buffer(memory.address, 4096), 0);
        assert_eq!(later(4097, ""), (0, -5017));
    });
}

#[test]
fn writes_are_in_order_too() {
    let test = "writes_are_in_order_too";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let path = folder.path().join("data");
        let file = file(&path, MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let (memory, stream) = (gpu.allocate(MIB), gpu.stream());
        let (mut read, mut write) =
            (Arguments::new(8 * KIB, 4096), Arguments::new(8 * KIB, 512 * KIB as i64));
        assert_eq!(read.read(&api, handle, &memory, &stream), 0);
        // SAFETY: arguments and memory are kept until the stream is done.
        let status = code(unsafe {
            (api.cuFileWriteAsync.unwrap())(
                handle,
                memory.address as *mut c_void,
                &mut write.len,
                &mut write.file_offset,
                &mut write.base_offset,
                &mut write.count,
                stream.0 as CUstream,
            )
        });
        stream.synchronize();
        assert_eq!((status, read.count, write.count), (0, 8 * KIB as isize, 8 * KIB as isize));
        assert_eq!(std::fs::read(path).unwrap()[512 * KIB..520 * KIB], expected(4096, 8 * KIB));
    });
}
