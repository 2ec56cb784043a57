//! A point in a stream's work that can be waited for.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::sync::lock;

/// Reached once, with the time at which it was.
#[derive(Default)]
pub(crate) struct Completion {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Completion {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Marks it as reached now.
    pub(crate) fn reach(&self) {
        *lock(&self.reached) = Some(Instant::now());
        self.changed.notify_all();
    }

    /// When it was reached.
    pub(crate) fn time(&self) -> Option<Instant> {
        *lock(&self.reached)
    }

    /// Waits until it is reached.
    pub(crate) fn wait(&self) {
        let waited = self.changed.wait_while(lock(&self.reached), |reached| reached.is_none());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
