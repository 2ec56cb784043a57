//! What the workers share while they run: the pieces not dealt yet, the first failure, and the depth of their queues.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cuda_staging::RegionMut;

use super::depth::{Depth, DepthRange};
use super::work::Work;
use crate::error::Error;
use crate::plan::{Piece, Plan};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard};
use crate::transport::RegisteredBuffer;

pub(super) struct Shared {
    pub(super) queue: Mutex<Queue>,
    /// Told when a piece is dealt, and at the end, where anybody touches ahead.
    pub(super) dealt: Condvar,
    /// The window slots of workers that have not begun yet.
    pub(super) windows: Mutex<Vec<Vec<RegisteredBuffer>>>,
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) stopped: AtomicBool,
    pub(super) placed: AtomicU64,
    /// Reads in flight for each worker: who finds out how many, and how many.
    pub(super) depth: Mutex<Depth>,
    pub(super) depth_now: AtomicUsize,
    pub(super) start: Instant,
}

/// The pieces not dealt yet, and the parts they own.
pub(super) struct Queue {
    pub(super) next: usize,
    /// The first piece that nobody has touched ahead.
    pub(super) touched: usize,
    pub(super) parts: std::vec::IntoIter<RegionMut>,
}

impl Shared {
    /// Before any worker has begun.
    pub(super) fn new(work: &Work<'_>, parts: Vec<RegionMut>, windows: Vec<Vec<RegisteredBuffer>>) -> Self {
        let depth = Depth::new(work.queue.unwrap_or(DepthRange::fixed(1)), work.workers);
        Self {
            queue: Mutex::new(Queue { next: 0, touched: 0, parts: parts.into_iter() }),
            dealt: Condvar::new(),
            windows: Mutex::new(windows),
            failure: Mutex::new(None),
            stopped: AtomicBool::new(false),
            placed: AtomicU64::new(0),
            depth_now: AtomicUsize::new(depth.now()),
            depth: Mutex::new(depth),
            start: Instant::now(),
        }
    }

    /// The next piece and its parts; `None` at the end, and once anything has failed.
    pub(super) fn take<'p>(&self, plan: &'p Plan) -> Option<(&'p Piece, Vec<RegionMut>)> {
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut queue = lock(&self.queue);
        let piece = plan.pieces.get(queue.next)?;
        queue.next += 1;
        let parts = queue.parts.by_ref().take(piece.parts.len()).collect();
        drop(queue);
        self.dealt.notify_all();
        Some((piece, parts))
    }

    /// The workers have ended: nothing is dealt any more.
    pub(super) fn end(&self) {
        let _queue = lock(&self.queue);
        self.stopped.store(true, Ordering::Relaxed);
        self.dealt.notify_all();
    }

    /// Takes note that a read that was one of many ended.
    pub(super) fn read_ended(&self, bytes: u64, at: Instant) {
        let mut depth = lock(&self.depth);
        depth.ended(bytes, at.saturating_duration_since(self.start));
        self.depth_now.store(depth.now(), Ordering::Relaxed);
    }

    /// Remembers the first failure and stops the workers.
    pub(super) fn fail(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(error);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
