//! Events: is a copy over, and when was it.

use std::fmt::Display;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent;

use super::api::{Api, Failure, call, code};
use super::context::Context;
use super::stream::RawStream;
use crate::error::{Error, Result};
use crate::sync;

/// An event with timing.
pub(crate) struct Event {
    context: Arc<Context>,
    pub(super) raw: CUevent,
}

// SAFETY: an event is a handle that the driver lets any thread use and destroy; `raw` is never dereferenced here.
unsafe impl Send for Event {}
// SAFETY: as above; every driver call is thread-safe.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let api = context.enter()?;
        let mut raw: CUevent = ptr::null_mut();
        // SAFETY: `raw` is writable for the call, and the context is current.
        let outcome = unsafe { call!(api, cuEventCreate(&mut raw, 0)) };
        context.check(outcome, format_args!("making an event on {}", context.name()))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Marks in it the work enqueued on `stream` so far.
    ///
    /// # Safety
    /// - `stream` is a live stream of the same device, or null for the default stream.
    pub(crate) unsafe fn record(&self, stream: RawStream) -> Result<()> {
        let api = self.context.enter()?;
        // SAFETY: the event lives, the stream by the caller's promise.
        let outcome = unsafe { call!(api, cuEventRecord(self.raw, stream)) };
        self.context.check(outcome, "recording an event")
    }

    /// Waits until the work recorded in the event, copies of ours, is over, for at most `limit`. Where it is not, the context
    /// is poisoned, as by a failure that may have broken it: nothing is known about the copies then.
    pub(crate) fn wait(&self, limit: Duration, doing: impl Display) -> Result<()> {
        let api = self.context.enter()?;
        match self.ask(&api, within(limit)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::TimedOut { doing: doing.to_string(), limit })
                .inspect_err(|error| self.context.poison(error)),
            Err(failure) => self.context.check(Err(failure), doing),
        }
    }

    /// Waits until the work recorded in the event is over, or `go_on` says false. Whether it is over.
    pub(crate) fn is_over(&self, go_on: impl FnMut() -> bool, doing: impl Display) -> Result<bool> {
        let api = self.context.enter()?;
        self.context.check(self.ask(&api, go_on), doing)
    }

    /// Whether the work recorded in the event is over before `go_on` says false, which is asked after each time that
    /// it is not.
    ///
    /// By asking, because `cuEventSynchronize` cannot be bounded: a few quick questions for copies that are nearly
    /// over, then with sleeps between them.
    pub(super) fn ask(
        &self,
        api: &Api,
        mut go_on: impl FnMut() -> bool,
    ) -> std::result::Result<bool, Failure> {
        const QUICK_QUESTIONS: u32 = 8;
        const SHORTEST_SLEEP: Duration = Duration::from_micros(5);
        const LONGEST_SLEEP: Duration = Duration::from_micros(100);

        let mut questions = 0;
        let mut sleep = SHORTEST_SLEEP;
        loop {
            // SAFETY: the event lives until `self` is dropped.
            match unsafe { call!(api, cuEventQuery(self.raw)) } {
                Ok(()) => return Ok(true),
                // The latter where a capture forbids to ask: it will be over.
                Err(Failure { code: code::NOT_READY | code::STREAM_CAPTURE_UNSUPPORTED, .. }) => {}
                Err(failure) => return Err(failure),
            }
            if !go_on() {
                return Ok(false);
            }
            questions += 1;
            if questions <= QUICK_QUESTIONS {
                sync::yield_now();
            } else {
                sync::sleep(sleep);
                sleep = (sleep * 2).min(LONGEST_SLEEP);
            }
        }
    }

    /// The time from `earlier` to this event, both being over. Its resolution is about half a microsecond.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration> {
        let api = self.context.enter()?;
        let mut milliseconds: f32 = 0.0;
        // SAFETY: `milliseconds` is writable for the call, and both events live.
        let outcome = unsafe { call!(api, cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)) };
        self.context.check(outcome, format_args!("measuring a copy on {}", self.context.name()))?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1000.0).unwrap_or_default())
    }
}

/// Says true for so long from now on.
pub(super) fn within(limit: Duration) -> impl FnMut() -> bool {
    let start = Instant::now();
    move || start.elapsed() < limit
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed once, here.
        self.context.release(|api| unsafe { call!(api, cuEventDestroy_v2(self.raw)) });
    }
}
