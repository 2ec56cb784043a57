//! The pipeline reversed: from memory through slots to files.
//!
//! Extents are dealt from one queue in file order, so that together the workers write sequentially. Every worker has lanes of its
//! own, as in a load: a ring of pinned slots, and windows of registered device memory where a path wants them. While one extent is
//! written the next ones are copied from the device; both are bounded, and so is memory, whatever the model.

mod buffered;
mod direct;
mod extent;
mod gds;
mod route;
mod sink;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::{Device, RingOptions};

pub(crate) use extent::{Bytes, Held, Image, PAGE, Staged};
pub(crate) use route::Route;

use super::error::SaveError;
use crate::cufile::RegisteredBuffer;
use crate::pipeline::{CancelToken, OnProgress};
use crate::report::PathBytes;
use extent::Extent;
use worker::Worker;

/// What the workers share and do not change.
pub(crate) struct Work<'w> {
    pub(crate) routes: &'w [Route],
    /// Where device bytes are; the CPU where there are none.
    pub(crate) device: &'w Device,
    /// Worker threads, at least 1.
    pub(crate) workers: usize,
    /// The ring of each worker, whose slots hold an extent.
    pub(crate) ring: RingOptions,
    /// Bytes of all tensors.
    pub(crate) bytes: u64,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) cancel: CancelToken,
}

/// What the workers did, added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) paths: PathBytes,
    pub(crate) writes: Vec<(Instant, Instant)>,
    pub(crate) fetches: Vec<(Instant, Instant)>,
    /// Extents written.
    pub(crate) extents: usize,
    /// The longest single write.
    pub(crate) longest: Duration,
    /// Host memory pinned, in bytes.
    pub(crate) pinned: u64,
    /// The slowest worker's time to make its ring.
    pub(crate) pin: Duration,
}

impl Tally {
    /// Notes a write that began at `start` and is over.
    fn write(&mut self, start: Instant) {
        let end = Instant::now();
        self.longest = self.longest.max(end - start);
        self.writes.push((start, end));
    }

    fn merge(mut self, mut other: Self) -> Self {
        self.paths.merge(&other.paths);
        self.writes.append(&mut other.writes);
        self.fetches.append(&mut other.fetches);
        self.extents += other.extents;
        self.longest = self.longest.max(other.longest);
        self.pinned += other.pinned;
        self.pin = self.pin.max(other.pin);
        self
    }
}

/// Writes the files of `images`, those of [`Work::routes`] in their order, in extents of at most `extent` bytes, and returns when every
/// write has ended. `windows` are the window slots of each worker; none where no path wants them. The tensors' memory is let go
/// as soon as it is needed no longer.
///
/// # Errors
/// The first failure of any worker, after all of them have stopped; and [`SaveError::Incomplete`] where what was written is not what was
/// planned.
pub(crate) fn run(
    work: &Work<'_>,
    images: Held<Vec<Image<'_>>>,
    extent: u64,
    windows: Vec<Vec<RegisteredBuffer>>,
) -> Result<Tally, SaveError> {
    let extents = extent::cut(images, extent)?;
    let planned = extents.len();
    let shared = Shared {
        queue: Mutex::new(extents.into_iter()),
        windows: Mutex::new(windows),
        failure: Mutex::new(None),
        stopped: AtomicBool::new(false),
        written: AtomicU64::new(0),
    };
    let tally = thread::scope(|scope| {
        let mut handles = Vec::new();
        for index in 0..work.workers.min(planned).max(1) {
            let builder = thread::Builder::new().name(format!("gds-save-{index}"));
            match builder.spawn_scoped(scope, || shared.work(work)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, "a worker thread could not be started; going on with fewer");
                }
            }
        }
        // Fewer workers are slower; where there are none, the caller's thread does it all.
        let alone = handles.is_empty().then(|| catch_unwind(AssertUnwindSafe(|| shared.work(work))));
        let ended = handles.into_iter().map(thread::ScopedJoinHandle::join).chain(alone);
        let tallies = ended.map(|ended| {
            ended.unwrap_or_else(|_| {
                shared.fail(SaveError::Worker { reason: "it panicked".into() });
                Tally::default()
            })
        });
        tallies.fold(Tally::default(), Tally::merge)
    });
    if let Some(error) = lock(&shared.failure).take() {
        return Err(error);
    }
    let (written, bytes) = (tally.paths.total(), work.bytes);
    if work.cancel.is_cancelled() && tally.extents < planned {
        return Err(SaveError::Cancelled { written, planned: bytes });
    }
    if written != bytes || tally.extents != planned {
        return Err(SaveError::Incomplete { written, planned: bytes });
    }
    Ok(tally)
}

/// What the workers share and change.
struct Shared<'a> {
    queue: Mutex<std::vec::IntoIter<Extent<'a>>>,
    /// The window slots of workers that have not begun yet.
    windows: Mutex<Vec<Vec<RegisteredBuffer>>>,
    failure: Mutex<Option<SaveError>>,
    stopped: AtomicBool,
    /// Bytes of tensors.
    written: AtomicU64,
}

impl<'a> Shared<'a> {
    fn work(&self, work: &Work<'_>) -> Tally {
        let windows = lock(&self.windows).pop().unwrap_or_default();
        let (tally, outcome) = Worker::new(work, self, windows).run();
        if let Err(error) = outcome {
            self.fail(error);
        }
        tally
    }

    /// The next extent; `None` at the end, and once anything has failed.
    fn take(&self) -> Option<Extent<'a>> {
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.queue).next()
    }

    /// Remembers the first failure and stops the workers. What nobody will write lets go of its memory.
    fn fail(&self, error: SaveError) {
        self.stopped.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(error);
        let rest = std::mem::take(&mut *lock(&self.queue));
        drop(rest);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
