//! The gate that every transfer passes before it touches a file or memory; tests shut it to keep transfers in flight.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock;

static SHUT: Mutex<bool> = Mutex::new(false);
static OPENED: Condvar = Condvar::new();

pub(crate) fn shut() {
    *lock(&SHUT) = true;
}

pub(crate) fn open() {
    *lock(&SHUT) = false;
    OPENED.notify_all();
}

/// Returns once the gate is open.
pub(crate) fn pass() {
    let shut = lock(&SHUT);
    drop(OPENED.wait_while(shut, |shut| *shut).unwrap_or_else(PoisonError::into_inner));
}
