//! Streams, and the order between the legacy default stream and the others.

use std::sync::Arc;

use super::context::{self, Context};
use super::{capture, driver};
use crate::code::{INVALID_HANDLE, Result};
use crate::engine::{Queue, Work};
use crate::ledger::{Entry, Kind};

/// `CU_STREAM_NON_BLOCKING`: not ordered with the legacy default stream.
pub(crate) const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`, which 0 stands for too.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) queue: Arc<Queue>,
    legacy: bool,
    /// `None` for default streams.
    entry: Option<Entry>,
}

impl Stream {
    pub(crate) fn create(context: &Arc<Context>, flags: u32, priority: i32) -> Result<Arc<Self>> {
        let entry = Some(Entry::open(Kind::Stream, 0));
        Ok(driver()?.streams.insert(|handle| Self {
            handle,
            context: Arc::clone(context),
            flags,
            priority,
            queue: Queue::new(Arc::clone(&context.health)),
            legacy: false,
            entry,
        }))
    }

    pub(crate) fn default_of(context: &Arc<Context>, legacy: bool) -> Self {
        Self {
            handle: if legacy { LEGACY } else { PER_THREAD },
            context: Arc::clone(context),
            flags: 0,
            priority: 0,
            queue: Queue::new(Arc::clone(&context.health)),
            legacy,
            entry: None,
        }
    }

    /// Adds work. Work of the legacy default stream comes after everything submitted to the context's blocking streams, and
    /// theirs after everything submitted to it.
    pub(crate) fn submit(&self, work: Work) -> Result {
        if capture::is_capturing(self) {
            // Noted, and not done.
            return Ok(());
        }
        if self.legacy {
            capture::permit_legacy(self)?;
            for other in self.context.streams()? {
                if other.is_blocking() && !other.legacy && !other.queue.is_idle() {
                    self.queue.submit(Work::Wait(other.queue.mark()?))?;
                }
            }
        } else if self.is_blocking() {
            let legacy = self.context.legacy_stream();
            if !legacy.queue.is_idle() {
                self.queue.submit(Work::Wait(legacy.queue.mark()?))?;
            }
        }
        self.queue.submit(work)
    }

    /// Adds something to do.
    pub(crate) fn run(&self, action: impl FnOnce() -> Result + Send + 'static) -> Result {
        self.submit(Work::Do(Box::new(action)))
    }

    /// Waits for all its work.
    pub(crate) fn synchronize(&self) -> Result {
        self.queue.drain()?;
        self.context.health.check()
    }

    /// Whether it is the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.legacy
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// It was destroyed by the program; pending work is finished all the same.
    pub(crate) fn release(&self) {
        self.queue.close();
        if let Some(entry) = &self.entry {
            entry.release();
        }
    }

    /// It went with its context.
    pub(crate) fn drop_with_context(&self) {
        self.queue.close();
        if let Some(entry) = &self.entry {
            entry.drop_with_context();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The stream of that handle, if its context can be used.
pub(crate) fn find(handle: u64) -> Result<Arc<Stream>> {
    let stream = find_whatever_its_state(handle)?;
    stream.context.health.check()?;
    Ok(stream)
}

/// The stream of that handle.
pub(crate) fn find_whatever_its_state(handle: u64) -> Result<Arc<Stream>> {
    match handle {
        0 | LEGACY => Ok(context::current_whatever_its_state()?.legacy_stream()),
        PER_THREAD => Ok(context::current_whatever_its_state()?.thread_stream()),
        _ => driver()?.streams.get(handle).ok_or(INVALID_HANDLE),
    }
}
