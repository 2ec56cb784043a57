//! The ring on the simulated driver, whose copies run late, on threads of their own.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::convert::Infallible;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::{
    Carved, Device, Error, FilledSlot, Region, RegionMut, Ring, RingOptions, SlotCopy, SlotFetch,
};
use test_support::control::{pause_copies, resume_copies};
use test_support::{Simulation, Tally, on_simulator};

const SLOT: usize = 8192;

fn cuda() -> Device {
    Device::cuda(0).unwrap()
}

fn ring(device: &Device, slots: usize) -> Ring {
    device.ring(RingOptions { slots, slot_size: SLOT }).unwrap()
}

/// `len` bytes that differ from place to place and from `seed` to `seed`.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn take_filled(ring: &mut Ring, content: &[u8]) -> FilledSlot {
    let filled = ring.take().unwrap().fill(|bytes| {
        // What is left from the last use must not matter, so that it is spoilt.
        bytes.fill(0xdb);
        bytes[..content.len()].copy_from_slice(content);
        Ok::<_, Infallible>(content.len())
    });
    filled.unwrap_or_else(|(_, never)| match never {})
}

/// A destination in parts of one slot each.
fn in_slots(device: &Device, count: usize) -> (Carved, Vec<RegionMut>) {
    let ranges: Vec<_> = (0..count).map(|index| (index * SLOT) as u64..((index + 1) * SLOT) as u64).collect();
    device.allocate((count * SLOT) as u64, 256).unwrap().carve(&ranges).unwrap()
}

/// The copies held back go on after `delay`, whatever this thread does meanwhile.
fn resume_copies_after(delay: Duration) {
    thread::spawn(move || {
        thread::sleep(delay);
        resume_copies();
    });
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.device().copy_to_host(region, &mut bytes).unwrap();
    bytes
}

fn reunite(carved: Carved) -> Region {
    carved.reunite().unwrap().freeze()
}

#[test]
fn bytes_arrive_whatever_the_delays() {
    let settings =
        [("CUDA_SIM_COPY_LATENCY_US", "200"), ("CUDA_SIM_JITTER_US", "400"), ("CUDA_SIM_COPY_GB_PER_S", "1")];
    on_simulator("bytes_arrive_whatever_the_delays", &settings, || {
        let device = cuda();
        let mut ring = ring(&device, 3);
        assert_eq!((ring.statistics().pinned_bytes, &ring.statistics().unpinned), (3 * SLOT as u64, &None));
        // Every slot goes to the device in three pieces, its middle one to the front.
        let content = noise(1, 100 * SLOT);
        let ranges: Vec<_> = (0..100_u64)
            .flat_map(|index| {
                let start = index * SLOT as u64;
                [start + 100..start + 200, start..start + 100, start + 200..start + SLOT as u64]
            })
            .collect();
        let region = device.allocate(content.len() as u64, 256).unwrap();
        assert_eq!(region.address() % 256, 0);
        let (carved, parts) = region.carve(&ranges).unwrap();
        let mut parts = parts.into_iter();
        for slot in content.chunks(SLOT) {
            let filled = take_filled(&mut ring, slot);
            let offsets = [0, 100, 200];
            let copies =
                offsets.into_iter().zip(&mut parts).map(|(slot_offset, to)| SlotCopy { slot_offset, to });
            ring.launch(filled, copies.collect()).unwrap();
        }
        ring.drain().unwrap();
        let expected: Vec<u8> = content
            .chunks(SLOT)
            .flat_map(|slot| [&slot[100..200], &slot[..100], &slot[200..]].concat())
            .collect();
        let whole = reunite(carved);
        assert!(bytes_of(&whole) == expected);

        // And the way back, through the same slots.
        let mut fetched = Vec::new();
        let mut waiting = 0..100_u64;
        loop {
            // Two are under way at any time.
            let room = if waiting.start == 0 { 2 } else { 1 };
            for index in waiting.by_ref().take(room) {
                let slot = ring.take().unwrap();
                let from = whole.slice(index * SLOT as u64..(index + 1) * SLOT as u64).unwrap();
                ring.launch_fetch(slot, vec![SlotFetch { slot_offset: 0, from }]).unwrap();
            }
            let Some(filled) = ring.take_fetched().unwrap() else { break };
            fetched.extend_from_slice(filled.bytes());
            ring.put_back(filled.release());
        }
        assert!(fetched == expected);
        let statistics = ring.statistics();
        assert_eq!((statistics.bytes_copied, statistics.copies), (200 * SLOT as u64, 400));
        assert!(statistics.waits > 50, "{} waits", statistics.waits);
    });
}

#[test]
fn workers_have_streams_of_their_own() {
    let settings = [("CUDA_SIM_JITTER_US", "300")];
    on_simulator("workers_have_streams_of_their_own", &settings, || {
        let device = cuda();
        let content = noise(2, 64 * SLOT);
        let (carved, mut parts) = in_slots(&device, 64);
        thread::scope(|scope| {
            for worker in (0..4).rev() {
                let share = parts.split_off(worker * 16);
                let content = &content[worker * 16 * SLOT..];
                let device = &device;
                scope.spawn(move || {
                    let mut ring = ring(device, 2);
                    for (to, slot) in share.into_iter().zip(content.chunks(SLOT)) {
                        let filled = take_filled(&mut ring, slot);
                        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
                    }
                    ring.drain().unwrap();
                });
            }
        });
        assert!(bytes_of(&reunite(carved)) == content);
    });
}

#[test]
fn a_slot_comes_back_only_after_its_copy() {
    on_simulator("a_slot_comes_back_only_after_its_copy", &[], || {
        let device = cuda();
        let mut ring = ring(&device, 1);
        let (carved, mut parts) = in_slots(&device, 1);
        let filled = take_filled(&mut ring, &[1; SLOT]);
        pause_copies();
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
        let carved = carved.reunite().unwrap_err();
        let start = Instant::now();
        resume_copies_after(Duration::from_millis(50));
        let slot = ring.take().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert_eq!(ring.statistics().waits, 1);
        assert!(ring.statistics().waited >= Duration::from_millis(49));
        assert_eq!(bytes_of(&reunite(carved)), [1; SLOT]);
        ring.put_back(slot);
    });
}

/// However busy the machine is: what the ring has waited for it has let go, and what it has not it holds.
#[test]
fn a_launch_does_not_wait_for_its_copy() {
    on_simulator("a_launch_does_not_wait_for_its_copy", &[], || {
        let device = cuda();
        let mut ring = ring(&device, 1);
        let (carved, mut parts) = in_slots(&device, 1);
        let filled = take_filled(&mut ring, &[1; SLOT]);
        pause_copies();
        resume_copies_after(Duration::from_millis(50));
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
        assert_eq!(ring.statistics().waits, 0);
        let carved = carved.reunite().unwrap_err();
        let slot = ring.take().unwrap();
        assert_eq!(bytes_of(&reunite(carved)), [1; SLOT]);
        ring.put_back(slot);
    });
}

#[test]
fn dropping_a_ring_waits_for_its_copies() {
    on_simulator("dropping_a_ring_waits_for_its_copies", &[], || {
        let device = cuda();
        let mut ring = ring(&device, 2);
        let (carved, parts) = in_slots(&device, 2);
        pause_copies();
        for to in parts {
            let filled = take_filled(&mut ring, &[7; SLOT]);
            ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        }
        let start = Instant::now();
        resume_copies_after(Duration::from_millis(50));
        drop(ring);
        assert!(start.elapsed() >= Duration::from_millis(50));
        device.health().unwrap();
        assert_eq!(bytes_of(&reunite(carved)), [7; 2 * SLOT]);
    });
}

#[test]
fn what_does_not_end_in_time_is_leaked_and_never_freed() {
    let outcome = Simulation::new("what_does_not_end_in_time_is_leaked_and_never_freed").run(|| {
        let device = cuda();
        let mut ring = ring(&device, 2);
        ring.set_wait_limit(Duration::from_millis(30));
        let (carved, mut parts) = in_slots(&device, 1);
        let filled = take_filled(&mut ring, &noise(3, SLOT));
        pause_copies();
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
        let error = ring.drain().unwrap_err();
        assert!(
            matches!(error, Error::TimedOut { limit, .. } if limit == Duration::from_millis(30)),
            "{error}"
        );
        assert!(matches!(device.health(), Err(Error::Poisoned { .. })));
        assert!(matches!(ring.take(), Err(Error::Poisoned { first, .. }) if first == error.to_string()));
        // Dropping the stream must not wait either, nor must the copy find its memory gone when it runs at last.
        resume_copies_after(Duration::from_millis(200));
        drop(ring);
        assert!(carved.reunite().is_err());
        thread::sleep(Duration::from_millis(400));
    });
    let Some(outcome) = outcome else { return };
    assert!(outcome.finished, "{outcome}");
    // What the copy in flight uses, and nothing else.
    let kept =
        [("allocations", 1, SLOT as u64), ("events", 2, 0), ("pins", 1, 2 * SLOT as u64), ("retains", 1, 0)];
    let kept = kept.map(|(kind, count, bytes)| (kind.to_owned(), Tally { count, bytes }));
    assert_eq!(outcome.report().ours_alive(), kept.into());
}

#[test]
fn intervals_are_on_the_hosts_clock() {
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "60000")];
    on_simulator("intervals_are_on_the_hosts_clock", &settings, || {
        const TOLERANCE: Duration = Duration::from_millis(20);
        let device = cuda();
        let mut ring = ring(&device, 2);
        let (_, parts) = in_slots(&device, 4);
        thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        for to in parts {
            let filled = take_filled(&mut ring, &[0; SLOT]);
            ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        }
        ring.drain().unwrap();
        let end = Instant::now();
        let intervals = &ring.statistics().intervals;
        assert_eq!(intervals.len(), 4);
        for &(from, to) in intervals {
            assert!(
                from + TOLERANCE >= start && to <= end + TOLERANCE,
                "{intervals:?} in {start:?}..{end:?}"
            );
            assert!(to - from >= Duration::from_millis(59), "a copy takes 60 ms: {intervals:?}");
        }
        assert!(intervals.windows(2).all(|pair| pair[0].1 <= pair[1].0 + TOLERANCE), "one after the other");
    });
}

#[test]
fn slots_that_cannot_be_pinned_are_pageable() {
    let settings = [("CUDA_SIM_FAULT", "cuMemHostRegister_v2@1=801"), ("CUDA_SIM_JITTER_US", "300")];
    on_simulator("slots_that_cannot_be_pinned_are_pageable", &settings, || {
        let device = cuda();
        let mut ring = ring(&device, 2);
        let unpinned = ring.statistics().unpinned.clone().unwrap();
        assert!(unpinned.contains("cuMemHostRegister_v2 failed with 801"), "{unpinned}");
        assert_eq!(ring.statistics().pinned_bytes, 0);
        let content = noise(4, 20 * SLOT);
        let (carved, parts) = in_slots(&device, 20);
        for (to, slot) in parts.into_iter().zip(content.chunks(SLOT)) {
            let filled = take_filled(&mut ring, slot);
            ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        }
        ring.drain().unwrap();
        let whole = reunite(carved);
        assert!(bytes_of(&whole) == content);
        let slot = ring.take().unwrap();
        let fetch = SlotFetch { slot_offset: 0, from: whole.slice(0..SLOT as u64).unwrap() };
        assert!(ring.fetch(slot, vec![fetch]).unwrap().bytes() == &content[..SLOT]);
    });
}

#[test]
fn copies_wait_for_the_callers_stream() {
    on_simulator("copies_wait_for_the_callers_stream", &[], || {
        static DONE: AtomicBool = AtomicBool::new(false);
        /// # Safety
        /// - None: the driver's type of such functions has the word.
        unsafe extern "C" fn work(_: *mut c_void) {
            thread::sleep(Duration::from_millis(50));
            DONE.store(true, Ordering::SeqCst);
        }
        let device = cuda();
        let context = cuda_staging::cudarc::driver::CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let copy_after = |wait: bool| {
            let mut ring = ring(&device, 1);
            let (_, mut parts) = in_slots(&device, 1);
            DONE.store(false, Ordering::SeqCst);
            // SAFETY: the stream lives, and the function takes no argument.
            unsafe {
                cuda_staging::cudarc::driver::result::stream::launch_host_function(
                    stream.cu_stream(),
                    work,
                    std::ptr::null_mut(),
                )
            }
            .unwrap();
            if wait {
                ring.wait_for_cudarc(&stream).unwrap();
            }
            let filled = take_filled(&mut ring, &[0; SLOT]);
            ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: parts.remove(0) }]).unwrap();
            ring.drain().unwrap();
            let done = DONE.load(Ordering::SeqCst);
            stream.synchronize().unwrap();
            done
        };
        assert!(!copy_after(false), "streams are independent of each other");
        assert!(copy_after(true), "the copy ran before the work it was to wait for");
    });
}

#[test]
fn a_stream_of_our_own() {
    on_simulator("a_stream_of_our_own", &[], || {
        let device = cuda();
        let mut stream = device.stream().unwrap();
        assert!(!stream.raw().unwrap().is_null());
        stream.synchronize(Duration::from_secs(1)).unwrap();
        let mut ring = ring(&device, 1);
        // SAFETY: the stream lives, on this device.
        unsafe { ring.wait_for(stream.raw().unwrap()) }.unwrap();
    });
}

#[test]
fn a_wrong_bit_shows() {
    let settings = [("CUDA_SIM_FAULT", "corrupt@3")];
    on_simulator("a_wrong_bit_shows", &settings, || {
        let device = cuda();
        let mut ring = ring(&device, 2);
        let content = noise(5, 4 * SLOT);
        let (carved, parts) = in_slots(&device, 4);
        for (to, slot) in parts.into_iter().zip(content.chunks(SLOT)) {
            let filled = take_filled(&mut ring, slot);
            ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        }
        ring.drain().unwrap();
        let received = bytes_of(&reunite(carved));
        let wrong: u32 = received.iter().zip(&content).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(wrong, 1, "what is read back is what the device has");
    });
}
