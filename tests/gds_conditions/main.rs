//! Bad conditions of a load by cuFile, within one process: right bytes by another path or a clear error, never a crash, a hang or a
//! wrong byte.
//!
//! Each test runs in a child on the simulated driver and libcufile; what that library does is set from within.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod batches;
mod bed;
mod endings;
mod files;
mod others;
mod streams;
mod windows;
