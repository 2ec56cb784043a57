//! Events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::stream::Stream;
use super::{capture, driver};
use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result};
use crate::engine::{Completion, Work};
use crate::ledger::{Entry, Kind};
use crate::sync::lock;

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const KNOWN_FLAGS: u32 = 0x7;
const DISABLE_TIMING: u32 = 0x2;

/// An event.
pub(crate) struct Event {
    pub(crate) handle: u64,
    /// The context's handle.
    pub(crate) context: u64,
    flags: u32,
    /// The point of the last record; `None` before the first.
    recorded: Mutex<Option<Arc<Completion>>>,
    /// Whether that was on a stream being captured: nothing can tell when it is over.
    captured: AtomicBool,
    pub(crate) entry: Entry,
}

impl Event {
    pub(crate) fn create(context: u64, flags: u32) -> Result<Arc<Self>> {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let entry = Entry::open(Kind::Event, 0);
        let recorded = Mutex::default();
        let captured = AtomicBool::new(false);
        Ok(driver()?.events.insert(|handle| Self { handle, context, flags, recorded, captured, entry }))
    }

    /// Records the stream's work so far. Its time is taken when the stream gets there.
    pub(crate) fn record(&self, stream: &Stream) -> Result {
        if stream.context.handle != self.context {
            return Err(INVALID_HANDLE);
        }
        self.captured.store(capture::is_capturing(stream), Ordering::Release);
        let completion = Completion::new();
        stream.submit(Work::Signal(Arc::clone(&completion)))?;
        *lock(&self.recorded) = Some(completion);
        Ok(())
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Acquire)
    }

    /// The point of the last record.
    pub(crate) fn completion(&self) -> Option<Arc<Completion>> {
        lock(&self.recorded).clone()
    }

    /// Whether all recorded work is done; an event never recorded is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.completion().is_none_or(|completion| completion.time().is_some())
    }

    /// Milliseconds from this event to a later one.
    pub(crate) fn milliseconds_until(&self, end: &Self) -> Result<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(INVALID_HANDLE);
        }
        let (start, end) = (self.completion(), end.completion());
        let (start, end) = start.zip(end).ok_or(INVALID_HANDLE)?;
        let (start, end) = start.time().zip(end.time()).ok_or(NOT_READY)?;
        let ahead = end.saturating_duration_since(start).as_secs_f64();
        let behind = start.saturating_duration_since(end).as_secs_f64();
        Ok(((ahead - behind) * 1e3) as f32)
    }
}

/// The event of that handle.
pub(crate) fn find(handle: u64) -> Result<Arc<Event>> {
    driver()?.events.get(handle).ok_or(INVALID_HANDLE)
}
