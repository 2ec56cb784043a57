//! Captures for graphs: what is noted and not done, and what other threads may not call meanwhile.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::thread;

use support::{Driver, at, isolated};

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

const UNSUPPORTED: i32 = 900;
const INVALIDATED: i32 = 901;

/// What an allocation on another thread, which is in `mode`, answers.
fn elsewhere(driver: &Driver, context: u64, mode: i32) -> i32 {
    let allocate = || {
        let (mut address, mut swapped) = (0, mode);
        assert_eq!(driver.cuCtxSetCurrent(context), 0);
        assert_eq!(driver.cuThreadExchangeStreamCaptureMode(&mut swapped), 0);
        assert_eq!(swapped, GLOBAL, "a new thread's mode");
        let code = driver.cuMemAlloc_v2(&mut address, 64);
        assert_eq!(driver.cuThreadExchangeStreamCaptureMode(&mut swapped), 0);
        assert_eq!(swapped, mode);
        code
    };
    thread::scope(|scope| scope.spawn(allocate).join().unwrap())
}

#[test]
fn a_capture_forbids_what_its_mode_and_the_threads_say() {
    isolated("a_capture_forbids_what_its_mode_and_the_threads_say", &[], |driver| {
        let context = driver.start();
        let (stream, mut graph) = (driver.stream(), 1);
        let cases = [
            (GLOBAL, GLOBAL, UNSUPPORTED),
            (GLOBAL, THREAD_LOCAL, 0),
            (GLOBAL, RELAXED, 0),
            (THREAD_LOCAL, GLOBAL, 0),
            (RELAXED, GLOBAL, 0),
        ];
        for (mode, theirs, expected) in cases {
            assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
            assert_eq!(elsewhere(driver, context, theirs), expected, "{mode} beside {theirs}");
            let ended = if expected == 0 { 0 } else { INVALIDATED };
            assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), ended, "{mode} beside {theirs}");
            assert_eq!(elsewhere(driver, context, GLOBAL), 0, "it is over");
        }
        // The thread that captures is forbidden the same, unless the capture is relaxed.
        for (mode, expected) in [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED), (RELAXED, 0)] {
            assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
            assert_eq!(driver.cuMemAlloc_v2(&mut 0, 64), expected, "{mode}");
            driver.cuStreamEndCapture(stream, &mut graph);
        }
    });
}

#[test]
fn what_is_captured_is_not_done() {
    isolated("what_is_captured_is_not_done", &[], |driver| {
        driver.start();
        let (stream, event, address) = (driver.stream(), driver.event(), driver.allocate(64));
        assert_eq!(driver.cuMemsetD8_v2(address, 1, 64), 0);
        let (mut status, mut graph) = (9, 1);
        assert_eq!(driver.cuStreamBeginCapture_v2(stream, RELAXED), 0);
        assert_eq!(driver.cuStreamIsCapturing(stream, &mut status), 0);
        assert_eq!(status, 1);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(address, at(&[7; 64]), 64, stream), 0);
        assert_eq!(driver.cuEventRecord(event, stream), 0);
        assert_eq!(driver.cuEventQuery(event), 907);
        assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(driver.cuStreamIsCapturing(stream, &mut status), 0);
        assert_eq!(status, 0);
        assert_eq!(driver.read_back(address, 64), [1; 64]);
        assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 903);
    });
}

#[test]
fn the_default_stream_breaks_the_captures_it_is_ordered_with() {
    isolated("the_default_stream_breaks_the_captures_it_is_ordered_with", &[], |driver| {
        driver.start();
        let (mut blocking, mut status, mut graph) = (0, 0, 0);
        assert_eq!(driver.cuStreamCreate(&mut blocking, 0), 0);
        let event = driver.event();
        assert_eq!(driver.cuStreamBeginCapture_v2(blocking, RELAXED), 0);
        assert_eq!(driver.cuStreamIsCapturing(0, &mut status), 906);
        assert_eq!(driver.cuStreamIsCapturing(blocking, &mut status), 0);
        assert_eq!(status, 1, "a question breaks nothing");
        assert_eq!(driver.cuEventRecord(event, 0), 906);
        assert_eq!(driver.cuStreamEndCapture(blocking, &mut graph), INVALIDATED);
    });
}
