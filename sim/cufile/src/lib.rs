//! A simulated `libcufile.so.0`: the C API of cuFile 1.20 on the simulated CUDA driver.
//!
//! It does what NVIDIA's library was seen to do, in compatibility mode and in the real one, and goes wrong where a script
//! of faults says so. `README.md` of this package lists the settings, the script's grammar, the control symbols and what
//! is simplified. The floors, each using only those below it:
//!
//! ```text
//! api, control        the exported C functions
//! call                what every exported call shares: counting, faults, panics, forks
//! transfer            bytes between a file and memory, however they were asked for
//! state               driver, parameters, files, buffers, batches, streams, statistics
//! cuda                what is asked of the simulated CUDA driver
//! faults, settings    ffi, errors          gate, symbols, report
//! ```

#![warn(missing_docs)]
#![allow(non_snake_case, reason = "the exported functions have cuFile's names")]

mod api;
mod call;
mod control;
mod cuda;
mod error;
mod faults;
mod ffi;
mod gate;
mod process;
mod report;
mod running;
mod settings;
mod state;
mod symbols;
mod transfer;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, ignoring poisoning: a panic in one call is an internal error of that call, and the next one still works.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
