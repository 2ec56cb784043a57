//! Copies run later, in order, on their stream, and read their source then.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use support::{at, isolated, pattern};

const LEN: usize = 100_000;

#[test]
fn a_pinned_source_is_read_when_the_copy_runs() {
    isolated("a_pinned_source_is_read_when_the_copy_runs", &[], |driver| {
        driver.start();
        let (device, stream, slot) = (driver.allocate(LEN), driver.stream(), driver.pinned(LEN));
        slot.fill(1);
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, stream), 0);
        // A slot used again too early.
        slot.fill(2);
        assert_eq!(driver.cuStreamQuery(stream), 600);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(driver.cuStreamQuery(stream), 0);
        assert!(driver.read_back(device, LEN).iter().all(|&byte| byte == 2));
    });
}

#[test]
fn a_pageable_source_is_staged_at_the_call() {
    isolated("a_pageable_source_is_staged_at_the_call", &[], |driver| {
        driver.start();
        let (device, stream) = (driver.allocate(LEN), driver.stream());
        let mut source = vec![1; LEN];
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(&source), LEN, stream), 0);
        source.fill(2);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert!(driver.read_back(device, LEN).iter().all(|&byte| byte == 1));
    });
}

#[test]
fn a_large_pageable_source_arrives_whole() {
    isolated("a_large_pageable_source_arrives_whole", &[], |driver| {
        driver.start();
        let source = pattern((17 << 20) + 3);
        let (device, stream) = (driver.allocate(source.len()), driver.stream());
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(&source), source.len(), stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert!(driver.read_back(device, source.len()) == source);
    });
}

#[test]
fn copies_of_a_stream_run_in_order() {
    isolated("copies_of_a_stream_run_in_order", &[("CUDA_SIM_JITTER_US", "300")], |driver| {
        driver.start();
        let (device, stream, slots) = (driver.allocate(LEN), driver.stream(), driver.pinned(8 * LEN));
        for (number, slot) in slots.chunks_mut(LEN).enumerate() {
            slot.fill(number as u8);
            assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, stream), 0);
        }
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert!(driver.read_back(device, LEN).iter().all(|&byte| byte == 7));
    });
}

#[test]
fn every_form_of_copy_brings_the_bytes() {
    isolated("every_form_of_copy_brings_the_bytes", &[], |driver| {
        driver.start();
        let source = pattern(LEN);
        let (a, b, stream) = (driver.allocate(LEN), driver.allocate(LEN), driver.stream());
        assert_eq!(driver.cuMemcpyHtoD_v2(a, at(&source), LEN), 0);
        assert_eq!(driver.cuMemcpyDtoD_v2(b, a, LEN), 0);
        assert!(driver.read_back(b, LEN) == source);

        assert_eq!(driver.cuMemsetD8_v2(b, 7, LEN), 0);
        assert!(driver.read_back(b, LEN).iter().all(|&byte| byte == 7));
        assert_eq!(driver.cuMemcpyDtoDAsync_v2(b, a, LEN, stream), 0);
        let landed = driver.pinned(LEN);
        assert_eq!(driver.cuMemcpyDtoHAsync_v2(at(landed), b, LEN, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert!(landed == source);

        assert_eq!(driver.cuMemsetD32Async(b + 4, 0x0403_0201, 3, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(driver.read_back(b + 4, 12), [1, 2, 3, 4].repeat(3));

        let other = pattern(2 * LEN);
        assert_eq!(driver.cuMemcpy(a, at(&other), LEN), 0);
        assert!(driver.read_back(a, LEN) == other[..LEN]);
        assert_eq!(driver.cuMemcpyHtoD_v2(a, at(&source), 0), 0);
    });
}

#[test]
fn a_batch_keeps_to_each_copys_source_order() {
    isolated("a_batch_keeps_to_each_copys_source_order", &[], |driver| {
        driver.start();
        let (device, stream, slot) = (driver.allocate(3 * LEN), driver.stream(), driver.pinned(3 * LEN));
        slot.fill(1);
        let to: Vec<u64> = (0..3).map(|index| device + (index * LEN) as u64).collect();
        let from: Vec<u64> = (0..3).map(|index| at(slot) + (index * LEN) as u64).collect();
        // In stream order for the first two, during the call for the last.
        let attributes = [[1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]];
        let launch = |stream| {
            let (lengths, starts) = ([LEN; 3], [0usize, 2]);
            let (to, from, lengths) = (to.as_ptr(), from.as_ptr(), lengths.as_ptr());
            driver.cuMemcpyBatchAsync_v2(
                to,
                from,
                lengths,
                3,
                attributes.as_ptr(),
                starts.as_ptr(),
                2,
                stream,
            )
        };
        driver.cuda_sim_pause_copies();
        assert_eq!(launch(stream), 0);
        slot.fill(2);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        let landed = driver.read_back(device, 3 * LEN);
        assert!(landed[..2 * LEN].iter().all(|&byte| byte == 2));
        assert!(landed[2 * LEN..].iter().all(|&byte| byte == 1));
        assert_eq!(launch(0), 1, "the legacy default stream is not allowed");
    });
}

#[test]
fn a_copy_to_pinned_memory_returns_and_one_to_pageable_memory_waits() {
    let name = "a_copy_to_pinned_memory_returns_and_one_to_pageable_memory_waits";
    isolated(name, &[("CUDA_SIM_COPY_LATENCY_US", "50000")], |driver| {
        driver.start();
        let (device, stream, slot) = (driver.allocate(LEN), driver.stream(), driver.pinned(LEN));
        assert_eq!(driver.cuMemsetD8_v2(device, 9, LEN), 0);
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyDtoHAsync_v2(at(slot), device, LEN, stream), 0);
        assert_eq!(driver.cuStreamQuery(stream), 600);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert!(slot.iter().all(|&byte| byte == 9));

        let start = Instant::now();
        let landed = vec![0u8; LEN];
        assert_eq!(driver.cuMemcpyDtoHAsync_v2(at(&landed), device, LEN, stream), 0);
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert!(std::hint::black_box(landed).iter().all(|&byte| byte == 9));
    });
}

#[test]
fn speed_is_as_set_and_shared_by_all_streams() {
    isolated("speed_is_as_set_and_shared_by_all_streams", &[("CUDA_SIM_COPY_GB_PER_S", "0.2")], |driver| {
        driver.start();
        let len = 10_000_000;
        let (device, slot) = (driver.allocate(2 * len), driver.pinned(len));
        let (one, two) = (driver.stream(), driver.stream());
        let (first, last) = (driver.event(), driver.event());
        let start = Instant::now();
        assert_eq!(driver.cuEventRecord(first, one), 0);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), len, one), 0);
        assert_eq!(driver.cuEventRecord(last, one), 0);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device + len as u64, at(slot), len, two), 0);
        assert_eq!(driver.cuCtxSynchronize(), 0);
        let both = start.elapsed().as_secs_f64();
        // 20 MB at 0.2 GB/s; a loaded machine may take longer, never less.
        assert!((0.099..2.0).contains(&both), "{both}");
        let mut milliseconds = 0.0;
        assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, first, last), 0);
        assert!((49.0..1_000.0).contains(&milliseconds), "{milliseconds}");
    });
}

#[test]
fn a_copy_to_memory_freed_meanwhile_breaks_the_context() {
    isolated("a_copy_to_memory_freed_meanwhile_breaks_the_context", &[], |driver| {
        driver.start();
        let (device, stream, slot) = (driver.allocate(LEN), driver.stream(), driver.pinned(LEN));
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, stream), 0);
        assert_eq!(driver.cuMemFree_v2(device), 0);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 700);
        // For good, but releases still work.
        let mut address = 0;
        assert_eq!(driver.cuMemAlloc_v2(&mut address, 1), 700);
        assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
        assert_eq!(driver.cuMemFreeHost(at(slot)), 0);
    });
}

#[test]
fn a_copy_from_memory_unpinned_meanwhile_breaks_the_context() {
    isolated("a_copy_from_memory_unpinned_meanwhile_breaks_the_context", &[], |driver| {
        driver.start();
        let (device, stream) = (driver.allocate(LEN), driver.stream());
        let slot = vec![0u8; LEN];
        assert_eq!(driver.cuMemHostRegister_v2(at(&slot), LEN, 0), 0);
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(&slot), LEN, stream), 0);
        assert_eq!(driver.cuMemHostUnregister(at(&slot)), 0);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuCtxSynchronize(), 700);
    });
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    isolated("a_destroyed_stream_finishes_its_work", &[], |driver| {
        driver.start();
        let (device, stream, slot) = (driver.allocate(LEN), driver.stream(), driver.pinned(LEN));
        let event = driver.event();
        slot.fill(3);
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, stream), 0);
        assert_eq!(driver.cuEventRecord(event, stream), 0);
        assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 400);
        assert_eq!(driver.cuEventQuery(event), 600);
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuEventSynchronize(event), 0);
        assert!(driver.read_back(device, LEN).iter().all(|&byte| byte == 3));
    });
}

#[test]
fn streams_wait_for_events_and_values() {
    isolated("streams_wait_for_events_and_values", &[("CUDA_SIM_COPY_LATENCY_US", "20000")], |driver| {
        driver.start();
        let (device, slot) = (driver.allocate(LEN), driver.pinned(LEN));
        let (writer, reader, event) = (driver.stream(), driver.stream(), driver.event());
        let landed = driver.pinned(LEN);
        slot.fill(5);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, writer), 0);
        assert_eq!(driver.cuEventRecord(event, writer), 0);
        assert_eq!(driver.cuStreamWaitEvent(reader, event, 0), 0);
        assert_eq!(driver.cuMemcpyDtoHAsync_v2(at(landed), device, LEN, reader), 0);
        assert_eq!(driver.cuStreamSynchronize(reader), 0);
        assert!(landed.iter().all(|&byte| byte == 5));

        let flag = driver.allocate(4);
        assert_eq!(driver.cuMemsetD8_v2(flag, 0, 4), 0);
        assert_eq!(driver.cuStreamWaitValue32_v2(reader, flag, 1, 1), 0);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(driver.cuStreamQuery(reader), 600);
        assert_eq!(driver.cuStreamWriteValue32_v2(writer, flag, 1, 0), 0);
        assert_eq!(driver.cuStreamSynchronize(reader), 0);
    });
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    isolated("the_legacy_stream_waits_for_blocking_streams_only", &[], |driver| {
        driver.start();
        let (device, slot) = (driver.allocate(LEN), driver.pinned(LEN));
        let mut blocking = 0;
        assert_eq!(driver.cuStreamCreate(&mut blocking, 0), 0);
        let free = driver.stream();
        for (stream, legacy_waits) in [(blocking, true), (free, false)] {
            driver.cuda_sim_pause_copies();
            assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, stream), 0);
            assert_eq!(driver.cuMemsetD32Async(device, 1, 1, 0), 0);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(driver.cuStreamQuery(0), if legacy_waits { 600 } else { 0 });
            driver.cuda_sim_resume_copies();
            assert_eq!(driver.cuCtxSynchronize(), 0);
        }
    });
}

#[test]
fn a_host_function_runs_in_order_and_may_not_call_the_driver() {
    isolated("a_host_function_runs_in_order_and_may_not_call_the_driver", &[], |driver| {
        static SEEN: AtomicI32 = AtomicI32::new(0);
        static CALL: std::sync::OnceLock<unsafe extern "C" fn() -> i32> = std::sync::OnceLock::new();
        extern "C" fn host_function(_argument: *mut c_void) {
            // SAFETY: cuCtxSynchronize takes no arguments.
            SEEN.store(unsafe { CALL.get().unwrap()() }, Ordering::Release);
        }
        driver.start();
        // SAFETY: the symbol has this signature.
        let call =
            unsafe { *driver.library.get::<unsafe extern "C" fn() -> i32>("cuCtxSynchronize").unwrap() };
        CALL.set(call).unwrap();
        let stream = driver.stream();
        assert_eq!(driver.cuLaunchHostFunc(stream, host_function, std::ptr::null_mut()), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(SEEN.load(Ordering::Acquire), 800);
    });
}

#[test]
fn a_copy_past_the_end_of_an_allocation_is_refused() {
    isolated("a_copy_past_the_end_of_an_allocation_is_refused", &[], |driver| {
        driver.start();
        let device = driver.allocate(LEN);
        let (host, stream) = (vec![0u8; 2 * LEN], driver.stream());
        assert_eq!(driver.cuMemcpyHtoD_v2(device, at(&host), LEN + 1), 1);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device + 1, at(&host), LEN, stream), 1);
        assert_eq!(driver.cuMemcpyHtoD_v2(at(&host), device, 1), 1, "the other way round");
        assert_eq!(driver.cuMemcpyDtoH_v2(at(&host), at(&host) + LEN as u64, 1), 1, "no device memory");
        assert_eq!(driver.cuMemcpyHtoD_v2(0, at(&host), 1), 1);
        assert_eq!(driver.cuMemsetD8_v2(device, 0, LEN + 1), 1);
    });
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    isolated("each_thread_has_a_default_stream_of_its_own", &[], |driver| {
        const PER_THREAD: u64 = 2;
        let context = driver.start();
        let (device, slot) = (driver.allocate(LEN), driver.pinned(LEN));
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(slot), LEN, PER_THREAD), 0);
        assert_eq!(driver.cuStreamQuery(PER_THREAD), 600);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(driver.cuCtxSetCurrent(context), 0);
                assert_eq!(driver.cuStreamQuery(PER_THREAD), 0);
            });
        });
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(PER_THREAD), 0);
        assert_eq!(driver.cuStreamQuery(PER_THREAD), 0);
    });
}

/// A staging ring as loaders have it, in many threads at once: slots are used again when their event is reached.
#[test]
fn rings_of_many_threads_bring_every_byte() {
    const THREADS: usize = 6;
    const SLOTS: usize = 3;
    const PIECE: usize = 10_000;
    const PIECES: usize = 200;
    isolated("rings_of_many_threads_bring_every_byte", &[("CUDA_SIM_JITTER_US", "50")], |driver| {
        let context = driver.start();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    assert_eq!(driver.cuCtxSetCurrent(context), 0);
                    let (device, stream) = (driver.allocate(PIECE * PIECES), driver.stream());
                    let sent: Vec<u8> =
                        pattern(PIECE * PIECES).iter().map(|byte| byte ^ thread as u8).collect();
                    let slots = driver.pinned(SLOTS * PIECE);
                    let events = [(); SLOTS].map(|()| driver.event());
                    for (number, piece) in sent.chunks(PIECE).enumerate() {
                        let (slot, event) =
                            (&mut slots[number % SLOTS * PIECE..][..PIECE], events[number % SLOTS]);
                        assert_eq!(driver.cuEventSynchronize(event), 0);
                        slot.copy_from_slice(piece);
                        let to = device + (number * PIECE) as u64;
                        assert_eq!(driver.cuMemcpyHtoDAsync_v2(to, at(slot), PIECE, stream), 0);
                        assert_eq!(driver.cuEventRecord(event, stream), 0);
                    }
                    assert_eq!(driver.cuStreamSynchronize(stream), 0);
                    assert!(driver.read_back(device, sent.len()) == sent);
                    assert_eq!(driver.cuMemFree_v2(device), 0);
                    assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
                });
            }
        });
        assert_eq!(driver.report()["devices"][0]["used"], 0);
    });
}
