//! What a load is to do, and how far it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_staging::{Device, Pending, RingOptions};

use super::{DepthRange, Measure, Touching};
use crate::cufile::Driver;
use crate::manifest::Sums;
use crate::plan::Plan;
use crate::policy::Route;
use crate::sync::AtomicBool;

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes read and handed to the device so far.
    pub bytes_done: u64,
    /// Bytes of the whole load.
    pub bytes_total: u64,
}

/// What is called after each piece, from the workers' threads.
pub(crate) type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Cancels loads: clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that nothing has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every load that has a clone of this token to stop after the pieces in flight.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the workers share.
pub(crate) struct Work<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) routes: &'a [Route],
    pub(crate) device: &'a Device,
    /// Worker threads, at least 1.
    pub(crate) workers: usize,
    /// The ring of each worker; `None` where no piece lands in a slot.
    pub(crate) ring: Option<RingOptions>,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) cancel: CancelToken,
    /// The driver whose batches keep window reads in flight; `None` for one thread a read.
    pub(crate) batches: Option<&'a Driver>,
    /// How many direct reads io_uring keeps in flight for each worker, to begin with and at most; `None` for one read a worker.
    pub(crate) queue: Option<DepthRange>,
    /// Work of the caller's that must end before the destination is written.
    pub(crate) after: Option<Pending>,
    /// How much of the load is done. Serial measurements have one worker.
    pub(crate) measure: Measure,
    /// Who touches the destination ahead of the reads.
    pub(crate) touching: Option<Touching>,
    /// Takes the checksums of bytes as they pass, where these are wanted.
    pub(crate) sums: Option<&'a Sums>,
}
