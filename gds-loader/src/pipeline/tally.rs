//! What the workers did, added up.

use std::time::{Duration, Instant};

use crate::report::PathBytes;

/// What the workers did, added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) paths: PathBytes,
    /// Bytes of the pieces that were done, by any path.
    pub(crate) placed: u64,
    /// Bytes of those that were copied without having been read.
    pub(crate) copied_unread: u64,
    pub(crate) reads: Vec<(Instant, Instant)>,
    /// When pages of the destination were touched ahead of their reads.
    pub(crate) touches: Vec<(Instant, Instant)>,
    pub(crate) copies: Vec<(Instant, Instant)>,
    /// Single copies within these intervals.
    pub(crate) copy_calls: u64,
    /// Host memory pinned, in bytes.
    pub(crate) pinned: u64,
    /// The slowest worker's time to make its ring.
    pub(crate) pin: Duration,
    pub(crate) queues: Queues,
}

/// What became of the workers' queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Workers that had one.
    pub(crate) opened: usize,
    /// Those of them whose files, and whose slots, the kernel registered.
    pub(crate) with_files: usize,
    pub(crate) with_slots: usize,
    /// Why a worker had none.
    pub(crate) refused: Option<String>,
    /// Reads in flight for each when the load ended.
    pub(crate) depth: usize,
}

impl Queues {
    pub(super) fn merge(&mut self, other: Self) {
        self.opened += other.opened;
        self.with_files += other.with_files;
        self.with_slots += other.with_slots;
        self.refused = self.refused.take().or(other.refused);
    }
}

impl Tally {
    pub(super) fn merge(mut self, mut other: Self) -> Self {
        self.paths.merge(&other.paths);
        self.placed += other.placed;
        self.copied_unread += other.copied_unread;
        self.reads.append(&mut other.reads);
        self.touches.append(&mut other.touches);
        self.copies.append(&mut other.copies);
        self.copy_calls += other.copy_calls;
        self.pinned += other.pinned;
        self.pin = self.pin.max(other.pin);
        self.queues.merge(other.queues);
        self
    }
}
