//! Work on streams: the caller's before a load, and reads that take their time.

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gds_loader::cufile::{CuFile, CuFileError, CuFileStream, Driver, Mode, RegisteredBuffer, StreamFlags};
use gds_loader::{Backend, Destination, Loader, PathKind};
use test_support::cufile_sim;
use test_support::fixture::{File, payload};
use test_support::{control, folder};

use crate::bed::{Sample, forced, gpu, on_both};

#[test]
fn a_negative_count_on_a_stream_is_an_error_with_its_code() {
    let test = "streams::a_negative_count_on_a_stream_is_an_error_with_its_code";
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

/// A load into memory of the caller's, in compatibility mode too, comes after what the caller's stream still does to it.
#[test]
fn the_callers_stream_is_waited_for() {
    let test = "streams::the_callers_stream_is_waited_for";
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

/// What waits, waits for a reason: reads held back in the library end a load late, and not wrong.
#[test]
fn reads_that_take_their_time() {
    let test = "streams::reads_that_take_their_time";
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
