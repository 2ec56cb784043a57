//! Graphs that others capture meanwhile: our calls are no part of them.
//!
//! While any thread captures in the global mode, the default, every other thread is forbidden what a capture cannot see, such as
//! allocating or asking an event: such a call fails, and breaks the capture. A thread whose own mode is relaxed is forbidden
//! nothing. So each call of ours is made in that mode, and the thread then has its own again.

use std::ffi::c_int;

use super::api::{Api, Failure, call};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// This thread's mode is relaxed until it is dropped.
pub(super) struct Relaxed<'a> {
    api: &'a Api,
    /// The thread's own mode; `None` once it has that again.
    before: Option<c_int>,
}

impl<'a> Relaxed<'a> {
    pub(super) fn begin(api: &'a Api) -> Result<Self, Failure> {
        exchange(api, RELAXED).map(|before| Self { api, before: Some(before) })
    }

    /// Gives the thread its own mode back.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        self.before.take().map_or(Ok(()), |before| exchange(self.api, before).map(drop))
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.end() {
            tracing::warn!(code = failure.code, "{} failed", failure.call);
        }
    }
}

/// Sets this thread's mode. The one before.
fn exchange(api: &Api, mut mode: c_int) -> Result<c_int, Failure> {
    // SAFETY: `mode` is readable and writable for the call.
    unsafe { call!(api, cuThreadExchangeStreamCaptureMode(&mut mode)) }.map(|()| mode)
}
