//! A point in a stream's work that can be waited for.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

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
        while !self.wait_for(Duration::from_secs(3600)) {}
    }

    /// Waits at most `limit`; whether it is reached.
    pub(crate) fn wait_for(&self, limit: Duration) -> bool {
        let reached = lock(&self.reached);
        let result = self.changed.wait_timeout_while(reached, limit, |reached| reached.is_none());
        let (reached, _) = result.unwrap_or_else(std::sync::PoisonError::into_inner);
        reached.is_some()
    }
}
