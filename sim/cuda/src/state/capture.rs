//! Captures: streams whose work is noted for a graph instead of done, and what threads may not call meanwhile.
//!
//! The graph itself is not kept: nothing here could launch it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::stream::Stream;
use super::thread;
use crate::code::{
    ILLEGAL_STATE, INVALID_VALUE, Result, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::sync::lock;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: also the mode of a thread that has asked for none.
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

/// What a capture cannot see, so that a thread may be forbidden to call it while there is one.
const UNSAFE_CALLS: &[&str] = &[
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRetain",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

struct Capture {
    stream: Arc<Stream>,
    /// The number of the thread that began it, and the mode it asked for.
    thread: u64,
    mode: i32,
    invalidated: bool,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

/// How many there are: nearly always none, and then no call looks further.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Swaps the calling thread's mode. The one before.
pub(crate) fn exchange(mode: i32) -> Result<i32> {
    check(mode)?;
    Ok(MODE.replace(mode))
}

fn check(mode: i32) -> Result {
    if (GLOBAL..=RELAXED).contains(&mode) { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn begin(stream: Arc<Stream>, mode: i32) -> Result {
    check(mode)?;
    if stream.is_legacy() {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    if is_capturing(&stream) {
        return Err(ILLEGAL_STATE);
    }
    let mut captures = lock(&CAPTURES);
    captures.push(Capture { stream, thread: thread::number(), mode, invalidated: false });
    COUNT.store(captures.len(), Ordering::Release);
    Ok(())
}

pub(crate) fn end(stream: &Stream) -> Result {
    let mut captures = lock(&CAPTURES);
    let index = captures.iter().position(|capture| capture.stream.is(stream));
    let ended = captures.swap_remove(index.ok_or(STREAM_CAPTURE_UNMATCHED)?);
    COUNT.store(captures.len(), Ordering::Release);
    if ended.invalidated { Err(STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
}

/// `CU_STREAM_CAPTURE_STATUS_*`: none, active, invalidated.
pub(crate) fn status(stream: &Stream) -> i32 {
    let captures = lock(&CAPTURES);
    captures
        .iter()
        .find(|capture| capture.stream.is(stream))
        .map_or(0, |capture| 1 + i32::from(capture.invalidated))
}

pub(crate) fn is_capturing(stream: &Stream) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && status(stream) > 0
}

/// Whether the calling thread may make a call now. One that it may not breaks the captures that forbid it.
pub(crate) fn permit(call: &str) -> Result {
    if COUNT.load(Ordering::Acquire) == 0 || !UNSAFE_CALLS.contains(&call) {
        return Ok(());
    }
    let (mode, this) = (MODE.get(), thread::number());
    let forbids = |capture: &Capture| match mode {
        RELAXED => false,
        THREAD_LOCAL => capture.thread == this && capture.mode != RELAXED,
        _ => capture.mode == GLOBAL || (capture.thread == this && capture.mode != RELAXED),
    };
    invalidate(forbids, STREAM_CAPTURE_UNSUPPORTED)
}

/// Whether the legacy default stream of a context may be used: not while a stream that is ordered with it is captured, whose
/// capture that breaks.
pub(crate) fn permit_legacy(legacy: &Stream) -> Result {
    invalidate(|capture| is_ordered(capture, legacy), STREAM_CAPTURE_IMPLICIT)
}

/// The same, of a question that breaks nothing.
pub(crate) fn permit_question(stream: &Stream) -> Result {
    let ordered = stream.is_legacy() && lock(&CAPTURES).iter().any(|capture| is_ordered(capture, stream));
    if ordered { Err(STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

fn is_ordered(capture: &Capture, legacy: &Stream) -> bool {
    capture.stream.is_blocking() && capture.stream.context.handle == legacy.context.handle
}

/// Breaks the captures that `which` names; the code where there are any.
fn invalidate(which: impl Fn(&Capture) -> bool, code: crate::code::Code) -> Result {
    let mut captures = lock(&CAPTURES);
    let mut found = captures.iter_mut().filter(|capture| which(capture)).peekable();
    if found.peek().is_none() {
        return Ok(());
    }
    found.for_each(|capture| capture.invalidated = true);
    Err(code)
}
