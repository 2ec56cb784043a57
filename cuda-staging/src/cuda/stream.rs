//! Streams, and the asynchronous copies on them.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUstream;

use super::api::{Failure, call, code};
use super::context::Context;
use super::event::{Event, within};
use crate::error::{Error, Result};

/// A stream's handle (`CUstream`) as other libraries hand it over.
pub(crate) type RawStream = CUstream;

/// A stream of ours, not synchronised with the default stream.
///
/// The copies are the driver's own and not cudarc's `memcpy_htod`: cudarc records nothing for a part of a pinned
/// buffer, and for device memory records one event per allocation, which would put two streams that fill one
/// allocation in line.
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a stream is a handle that the driver lets any thread use and destroy; `raw` is never dereferenced here.
unsafe impl Send for Stream {}
// SAFETY: as above; every driver call is thread-safe.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.raw).finish()
    }
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let api = context.enter()?;
        let mut raw: CUstream = ptr::null_mut();
        // SAFETY: `raw` is writable for the call, and the context is current.
        let outcome = unsafe { call!(api, cuStreamCreate(&mut raw, NON_BLOCKING)) };
        context.check(outcome, format_args!("making a stream on {}", context.name()))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.raw
    }

    /// Marks in `event` the work enqueued so far.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: the stream lives until `self` is dropped.
        unsafe { event.record(self.raw) }
    }

    /// Waits until everything enqueued is over, for at most `limit`; also in a poisoned context, because only the
    /// driver's word that `event`, recorded last, is over makes it safe to free what the copies used.
    pub(crate) fn settle(&self, limit: Duration, event: &Event) -> Result<()> {
        let doing = "waiting for copies in flight";
        let api = self.context.enter_to_release().ok_or(Error::Forked)?;
        // SAFETY: stream and event live.
        let recorded = unsafe { call!(api, cuEventRecord(event.raw, self.raw)) };
        match recorded.and_then(|()| event.ask(&api, within(limit))) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::TimedOut { doing: doing.to_owned(), limit }),
            Err(failure) => Err(self.context.error(failure, doing)),
        }
    }

    /// Enqueues copies to device memory, each `(from, to, len)` with `len` in bytes.
    ///
    /// # Safety
    /// For each copy, until an event recorded afterwards is over:
    /// - `from..from + len` stays readable host memory that nothing writes;
    /// - `to..to + len` stays allocated on the context's device, and nothing else uses it.
    pub(crate) unsafe fn copy_in(&self, copies: impl Iterator<Item = (*const u8, u64, usize)>) -> Result<()> {
        let api = self.context.enter()?;
        for (from, to, len) in copies {
            // SAFETY: the caller's promise.
            let outcome =
                unsafe { call!(api, cuMemcpyHtoDAsync_v2(to, from.cast::<c_void>(), len, self.raw)) };
            self.context.check(
                outcome,
                format_args!("copying {len} bytes to {:#x} on {}", to, self.context.name()),
            )?;
        }
        Ok(())
    }

    /// Enqueues copies from device memory, each `(from, to, len)` with `len` in bytes.
    ///
    /// # Safety
    /// For each copy, until an event recorded afterwards is over:
    /// - `from..from + len` stays allocated on the context's device, and nothing writes it;
    /// - `to..to + len` stays writable host memory that nothing else uses.
    pub(crate) unsafe fn copy_out(&self, copies: impl Iterator<Item = (u64, *mut u8, usize)>) -> Result<()> {
        let api = self.context.enter()?;
        for (from, to, len) in copies {
            // SAFETY: the caller's promise.
            let outcome =
                unsafe { call!(api, cuMemcpyDtoHAsync_v2(to.cast::<c_void>(), from, len, self.raw)) };
            self.context.check(
                outcome,
                format_args!("copying {len} bytes from {:#x} on {}", from, self.context.name()),
            )?;
        }
        Ok(())
    }

    /// Enqueues copies within the device, each `(from, to, len)` with `len` in bytes.
    ///
    /// # Safety
    /// For each copy, until an event recorded afterwards is over:
    /// - `from..from + len` stays allocated on the context's device, and nothing writes it;
    /// - `to..to + len` stays allocated on the context's device, and nothing else uses it.
    pub(crate) unsafe fn copy_within(&self, copies: impl Iterator<Item = (u64, u64, usize)>) -> Result<()> {
        let api = self.context.enter()?;
        for (from, to, len) in copies {
            // SAFETY: the caller's promise.
            let outcome = unsafe { call!(api, cuMemcpyDtoDAsync_v2(to, from, len, self.raw)) };
            self.context.check(
                outcome,
                format_args!("copying {len} bytes from {from:#x} to {to:#x} on {}", self.context.name()),
            )?;
        }
        Ok(())
    }
}

/// Whether what is enqueued on a stream, or on one that is in order with it, is captured for a graph instead of done. The
/// question breaks no capture.
///
/// # Safety
/// - `stream` is a live stream of the context's device, or null for the default stream.
pub(crate) unsafe fn is_captured(context: &Context, stream: RawStream) -> Result<bool> {
    let api = context.enter()?;
    let mut status: c_int = 0;
    // SAFETY: `status` is writable for the call, the stream is the caller's promise.
    match unsafe { call!(api, cuStreamIsCapturing(stream, &mut status)) } {
        Err(Failure { code: code::STREAM_CAPTURE_IMPLICIT, .. }) => Ok(true),
        asked => context.check(asked, "asking whether a stream is captured").map(|()| status != 0),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed once, here; the driver lets work still enqueued finish first.
        self.context.release(|api| unsafe { call!(api, cuStreamDestroy_v2(self.raw)) });
    }
}
