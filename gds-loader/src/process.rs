//! Whose a thing of the process is. The child of a fork has a copy of its locks and pools, but not of the threads that would release
//! and serve them: there it is left alone, before any lock is asked for.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that was the first to use something.
#[derive(Debug)]
pub(crate) struct Owner(AtomicU32);

impl Owner {
    /// Nobody yet.
    pub(crate) const fn nobody() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether it is this process, which it becomes where it was nobody.
    pub(crate) fn claim(&self) -> bool {
        let this = process::id();
        let found = self.0.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire);
        found.err().is_none_or(|owner| owner == this)
    }

    /// Whether it is a process that this one was forked from.
    pub(crate) fn is_another(&self) -> bool {
        ![0, process::id()].contains(&self.0.load(Ordering::Acquire))
    }
}
