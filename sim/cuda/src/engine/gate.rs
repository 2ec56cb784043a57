//! The gate that tests shut to hold all copies back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;

static SHUT: AtomicBool = AtomicBool::new(false);
static LOCK: Mutex<()> = Mutex::new(());
static OPENED: Condvar = Condvar::new();

/// From now on every copy waits before it starts.
pub(crate) fn shut_gate() {
    SHUT.store(true, Ordering::Release);
}

/// The copies held back go on.
pub(crate) fn open_gate() {
    let _guard = lock(&LOCK);
    SHUT.store(false, Ordering::Release);
    OPENED.notify_all();
}

/// Waits while the gate is shut.
pub(crate) fn pass_gate() {
    if SHUT.load(Ordering::Acquire) {
        let guard = lock(&LOCK);
        let waited = OPENED.wait_while(guard, |()| SHUT.load(Ordering::Acquire));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
