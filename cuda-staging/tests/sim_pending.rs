//! Streams of the caller's that are busy for as long as they like, on the simulated driver.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::convert::Infallible;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cuda_staging::cudarc::driver::{CudaContext, CudaStream, result};
use cuda_staging::{Device, Error, RegionMut, Ring, RingOptions, SlotCopy, WindowRing};
use test_support::on_simulator;

const SLOT: usize = 4096;

/// How long the caller's work is the only thing that happens.
const WHILE: Duration = Duration::from_millis(100);

static BUSY: AtomicBool = AtomicBool::new(false);

/// Gives a stream something to do until [`BUSY`] is false.
fn keep_busy(stream: &CudaStream) {
    /// # Safety
    /// - None: the driver's type of such functions has the word.
    unsafe extern "C" fn work(_: *mut c_void) {
        while BUSY.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    BUSY.store(true, Ordering::SeqCst);
    // SAFETY: the stream lives, and the function takes no argument.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), work, std::ptr::null_mut()) }.unwrap();
}

/// Ends the caller's work after [`WHILE`].
fn end_later() {
    thread::spawn(|| {
        thread::sleep(WHILE);
        BUSY.store(false, Ordering::SeqCst);
    });
}

fn ring(device: &Device) -> Ring {
    device.ring(RingOptions { slots: 1, slot_size: SLOT }).unwrap()
}

#[test]
fn a_ring_waits_longer_for_the_callers_stream_than_for_its_copies() {
    on_simulator("a_ring_waits_longer_for_the_callers_stream_than_for_its_copies", &[], || {
        let device = Device::cuda(0).unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let mut ring = ring(&device);
        ring.set_wait_limit(WHILE / 10);
        let (carved, mut parts) = device
            .allocate(SLOT as u64, 256)
            .unwrap()
            .carve(std::slice::from_ref(&(0..SLOT as u64)))
            .unwrap();
        keep_busy(&stream);
        ring.wait_for_cudarc(&stream).unwrap();
        let filled = ring.take().unwrap().fill(|bytes| {
            bytes.fill(3);
            Ok::<_, Infallible>(bytes.len())
        });
        end_later();
        ring.launch(filled.unwrap(), vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
        assert!(!BUSY.load(Ordering::SeqCst), "a copy was enqueued behind work that may take for ever");
        ring.drain().unwrap();
        device.health().unwrap();
        let mut bytes = vec![0; SLOT];
        device.copy_to_host(&carved.reunite().unwrap().freeze(), &mut bytes).unwrap();
        assert_eq!(bytes, [3; SLOT]);
    });
}

#[test]
fn no_window_is_copied_behind_the_callers_stream() {
    on_simulator("no_window_is_copied_behind_the_callers_stream", &[], || {
        let device = Device::cuda(0).unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let mut ring: WindowRing<RegionMut> = device.window_ring().unwrap();
        let [window, to] = [0, 1].map(|_| device.allocate(SLOT as u64, 256).unwrap());
        keep_busy(&stream);
        // SAFETY: the stream lives, on this device.
        unsafe { ring.wait_for(stream.cu_stream().cast()) }.unwrap();
        end_later();
        ring.launch(window, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        assert!(!BUSY.load(Ordering::SeqCst), "a copy was enqueued behind work that may take for ever");
        assert!(ring.take_back().unwrap().is_some());
    });
}

#[test]
fn a_wait_for_the_caller_that_is_given_up_leaves_the_device_well() {
    on_simulator("a_wait_for_the_caller_that_is_given_up_leaves_the_device_well", &[], || {
        let device = Device::cuda(0).unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        keep_busy(&stream);
        // SAFETY: the stream lives, on this device.
        let pending = unsafe { device.pending(stream.cu_stream().cast()) }.unwrap();
        let asked = AtomicU32::new(0);
        let thrice = || asked.fetch_add(1, Ordering::Relaxed) < 3;
        assert!(!pending.wait(thrice).unwrap());
        device.health().unwrap();
        let mut ring = ring(&device);
        let slot = ring.take().unwrap();
        ring.put_back(slot);
        end_later();
        assert!(pending.wait(|| true).unwrap());
        assert!(pending.wait(|| false).unwrap(), "what is over stays over");
    });
}

#[test]
fn the_cpu_has_no_stream_to_wait_for() {
    // SAFETY: it is refused.
    let outcome = unsafe { Device::cpu().pending(std::ptr::null_mut()) };
    assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{outcome:?}");
}
