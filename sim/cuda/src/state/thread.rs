//! Each thread's stack of contexts.
//!
//! Plain cells without destructors, so that calls from other libraries' exit handlers find them too.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{INVALID_CONTEXT, OUT_OF_MEMORY, Result};

/// More than any program nests.
const DEPTH: usize = 64;

thread_local! {
    static STACK: [Cell<u64>; DEPTH] = const { [const { Cell::new(0) }; DEPTH] };
    static LENGTH: Cell<usize> = const { Cell::new(0) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// The handle of the current context; 0 where there is none.
pub(crate) fn current() -> u64 {
    match LENGTH.get().checked_sub(1) {
        Some(top) => STACK.with(|stack| stack.get(top).map_or(0, Cell::get)),
        None => 0,
    }
}

/// Replaces the current context; 0 takes it away.
pub(crate) fn set_current(handle: u64) -> Result {
    if LENGTH.get() > 0 {
        LENGTH.set(LENGTH.get() - 1);
    }
    if handle == 0 { Ok(()) } else { push(handle) }
}

pub(crate) fn push(handle: u64) -> Result {
    let length = LENGTH.get();
    STACK.with(|stack| stack.get(length).map(|slot| slot.set(handle))).ok_or(OUT_OF_MEMORY)?;
    LENGTH.set(length + 1);
    Ok(())
}

pub(crate) fn pop() -> Result<u64> {
    let handle = current();
    if handle == 0 {
        return Err(INVALID_CONTEXT);
    }
    LENGTH.set(LENGTH.get() - 1);
    Ok(handle)
}

/// This thread's number, for its own default streams.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if NUMBER.get() == 0 {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}
