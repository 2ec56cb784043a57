//! Graphs that others capture meanwhile, on the simulated driver: neither harms the other.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use cuda_staging::cudarc::driver::CudaContext;
use cuda_staging::cudarc::driver::sys::{
    CUstream, CUstreamCaptureMode_enum as Mode, cuStreamBeginCapture_v2, cuStreamCreate, cuStreamDestroy_v2,
    cuStreamEndCapture, cuThreadExchangeStreamCaptureMode,
};
use cuda_staging::{Device, Error, RegionMut, RingOptions, SlotCopy, WindowRing};
use test_support::control::set_fault;
use test_support::on_simulator;

const LEN: usize = 4096;

fn begin(stream: CUstream, mode: Mode) {
    // SAFETY: the stream lives.
    assert_eq!(unsafe { cuStreamBeginCapture_v2(stream, mode) } as u32, 0);
}

/// Ends a capture. The code: whether anything broke it.
fn end(stream: CUstream) -> u32 {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream lives, and `graph` is writable.
    unsafe { cuStreamEndCapture(stream, &mut graph) as u32 }
}

/// The mode of this thread, which stays as it is.
fn mode() -> Mode {
    let mut mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let mut swap = || {
        // SAFETY: `mode` is writable.
        assert_eq!(unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) } as u32, 0);
        mode
    };
    let found = swap();
    swap();
    found
}

/// All that a load does with a device, from opening it on.
fn session() {
    let device = Device::cuda(0).unwrap();
    let mut ring = device.ring(RingOptions { slots: 1, slot_size: LEN }).unwrap();
    let (carved, mut parts) =
        device.allocate(LEN as u64, 256).unwrap().carve(std::slice::from_ref(&(0..LEN as u64))).unwrap();
    let filled = ring.take().unwrap().fill(|bytes| {
        bytes.fill(5);
        Ok::<_, Infallible>(bytes.len())
    });
    ring.launch(filled.unwrap(), vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
    ring.drain().unwrap();
    let whole = carved.reunite().unwrap();
    let mut windows: WindowRing<RegionMut> = device.window_ring().unwrap();
    let to = device.allocate(LEN as u64, 256).unwrap();
    windows.launch(whole, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
    let whole = windows.take_back().unwrap().unwrap().freeze();
    let mut bytes = vec![0; LEN];
    device.copy_to_host(&whole, &mut bytes).unwrap();
    assert_eq!(bytes, [5; LEN]);
    device.stream().unwrap().synchronize(Duration::from_secs(10)).unwrap();
    device.health().unwrap();
}

#[test]
fn a_capture_on_another_thread_and_a_load_leave_each_other_alone() {
    on_simulator("a_capture_on_another_thread_and_a_load_leave_each_other_alone", &[], || {
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        begin(stream.cu_stream(), Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        let before = thread::spawn(|| {
            let before = mode();
            session();
            assert_eq!(mode(), before, "the thread's mode is its own again");
            before
        });
        assert_eq!(before.join().unwrap(), Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        assert_eq!(end(stream.cu_stream()), 0, "the capture was broken");
    });
}

#[test]
fn a_capture_on_the_loading_thread_is_left_alone_too() {
    on_simulator("a_capture_on_the_loading_thread_is_left_alone_too", &[], || {
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        begin(stream.cu_stream(), Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        session();
        assert_eq!(end(stream.cu_stream()), 0, "the capture was broken");
    });
}

/// Where a driver forbids it all the same: a refusal of one call, and no broken device.
#[test]
fn what_a_capture_forbids_does_not_poison() {
    on_simulator("what_a_capture_forbids_does_not_poison", &[], || {
        let device = Device::cuda(0).unwrap();
        for code in 900..=908 {
            set_fault(&format!("cuMemAlloc_v2@1={code}"));
            let error = device.allocate(64, 256).unwrap_err();
            assert!(matches!(error, Error::Driver { code: found, .. } if found == code), "{error}");
            device.health().unwrap();
        }
        // A copy is asked about again.
        let mut ring = device.ring(RingOptions { slots: 1, slot_size: LEN }).unwrap();
        let to = device.allocate(LEN as u64, 256).unwrap();
        let filled = ring.take().unwrap().fill(|bytes| Ok::<_, Infallible>(bytes.len()));
        ring.launch(filled.unwrap(), vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        set_fault("cuEventQuery@1=900,cuEventQuery@2=900");
        ring.drain().unwrap();
        // Another refusal ends the wait, and what is in flight is waited for before it goes.
        let to = device.allocate(LEN as u64, 256).unwrap();
        let filled = ring.take().unwrap().fill(|bytes| Ok::<_, Infallible>(bytes.len()));
        ring.launch(filled.unwrap(), vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        set_fault("cuEventQuery@1=1");
        assert!(matches!(ring.drain(), Err(Error::Driver { code: 1, .. })));
        device.health().unwrap();
        ring.drain().unwrap();
    });
}

/// What is captured never runs, so that nobody could wait for it; to ask would break the capture.
#[test]
fn a_stream_that_is_captured_is_not_waited_for() {
    on_simulator("a_stream_that_is_captured_is_not_waited_for", &[], || {
        let device = Device::cuda(0).unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let refused = |stream: CUstream| {
            // SAFETY: the stream lives, on this device.
            let outcome = unsafe { device.pending(stream.cast()) };
            assert!(
                matches!(&outcome, Err(Error::InvalidArgument(why)) if why.contains("captur")),
                "{outcome:?}"
            );
        };
        begin(stream.cu_stream(), Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        refused(stream.cu_stream());
        assert_eq!(end(stream.cu_stream()), 0, "the capture was broken");

        // Nor is the default stream where one that is ordered with it is captured.
        let mut blocking: CUstream = std::ptr::null_mut();
        // SAFETY: `blocking` is writable.
        assert_eq!(unsafe { cuStreamCreate(&mut blocking, 0) } as u32, 0);
        begin(blocking, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        refused(std::ptr::null_mut());
        assert_eq!(end(blocking), 0, "the capture was broken");
        // SAFETY: made above, and not used again.
        assert_eq!(unsafe { cuStreamDestroy_v2(blocking) } as u32, 0);
        device.health().unwrap();
    });
}
