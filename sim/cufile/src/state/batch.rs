//! Batches: entries that a thread of the batch's own works off, last one first, and the events they leave.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cufile_sys::{
    CU_FILE_BATCH_FULL, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, CUFILE_COMPLETE, CUFILE_FAILED,
    CUFILEStatus_enum,
};

use crate::error::Result;
use crate::faults::{Effect, hang};
use crate::lock;
use crate::transfer::Job;

/// One entry of a batch.
pub(crate) struct Entry {
    /// What to do; `None` where it was wrong from the start, with its count.
    pub(crate) job: std::result::Result<Job, isize>,
    pub(crate) cookie: usize,
    pub(crate) effect: Option<Effect>,
}

/// How an entry ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) cookie: usize,
    pub(crate) status: CUFILEStatus_enum,
    pub(crate) count: isize,
}

/// A batch.
pub(crate) struct Batch {
    capacity: usize,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: Vec<Entry>,
    /// Entries a thread is at.
    running: usize,
    events: VecDeque<Event>,
    /// A thread works entries off.
    served: bool,
    /// Events of entries of before the last cancel are nobody's.
    canceling: bool,
}

impl Work {
    /// Entries whose event was not fetched.
    fn outstanding(&self) -> usize {
        self.waiting.len() + self.running + self.events.len()
    }
}

impl Batch {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, work: Mutex::default(), changed: Condvar::new() }
    }

    /// Entries neither finished nor cancelled.
    pub(crate) fn in_flight(&self) -> usize {
        let work = lock(&self.work);
        work.waiting.len() + work.running
    }

    /// How many entries it can take at once.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes the entries, all or none.
    pub(crate) fn submit(self: &std::sync::Arc<Self>, entries: Vec<Entry>) -> Result {
        let mut work = lock(&self.work);
        if work.outstanding() + entries.len() > self.capacity {
            return Err(CU_FILE_BATCH_FULL.into());
        }
        work.waiting.extend(entries);
        if !work.served {
            let batch = std::sync::Arc::clone(self);
            let thread = thread::Builder::new().name("cufile-sim-batch".to_owned());
            thread.spawn(move || batch.serve()).map_err(|_| CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR)?;
            work.served = true;
        }
        Ok(())
    }

    fn serve(&self) {
        let mut work = lock(&self.work);
        while let Some(entry) = work.waiting.pop() {
            work.running += 1;
            drop(work);
            let event = entry.run();
            work = lock(&self.work);
            work.running -= 1;
            if !work.canceling {
                work.events.extend(event);
            }
            self.changed.notify_all();
        }
        work.served = false;
    }

    /// Waits for at least `least` events, or as many as are outstanding, and takes at most `most`.
    pub(crate) fn fetch(&self, least: usize, most: usize, limit: Option<Duration>) -> Vec<Event> {
        // Without a limit, and with one too far away to be reached, for as long as it takes.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut work = lock(&self.work);
        while work.events.len() < least && work.waiting.len() + work.running > 0 {
            let left =
                end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            work = self.changed.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let count = work.events.len().min(most);
        work.events.drain(..count).collect()
    }

    /// Drops what no thread is at, waits for the rest, and drops the events.
    pub(crate) fn cancel(&self) {
        let mut work = lock(&self.work);
        work.waiting.clear();
        work.canceling = true;
        while work.running > 0 {
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.events.clear();
        work.canceling = false;
    }

    /// Drops what no thread is at; what a thread is at goes on, and nobody waits for it.
    pub(crate) fn abandon(&self) {
        lock(&self.work).waiting.clear();
    }
}

impl Entry {
    /// Does it; the event it leaves.
    fn run(self) -> Option<Event> {
        let Self { job, cookie, mut effect } = self;
        if let Some(Effect::Hang(duration)) = effect {
            hang(duration);
            effect = None;
        }
        let (status, count) = match (effect, job) {
            (Some(Effect::Lost), _) => return None,
            (Some(Effect::Event(status, count)), _) => (status, count),
            (_, Err(count)) => (CUFILE_FAILED, count),
            (effect, Ok(job)) => match job.run(effect) {
                Ok(count) => (CUFILE_COMPLETE, count),
                Err(errno) => (CUFILE_FAILED, errno.as_count()),
            },
        };
        Some(Event { cookie, status, count })
    }
}
