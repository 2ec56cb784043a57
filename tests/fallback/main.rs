//! When a path cannot serve, or a file changes under the load: the bytes are right and the report says why, or it is an error.
//!
//! The kernel is made to refuse by strace, which fails the K-th call of a thread on one file. A thread's first two reads of a file
//! are those of its header; from the third on they are data. Threads read: what io_uring does no call shows; its completions are
//! scripted in the loader's own tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod changes;
mod limits;
#[path = "../page_cache/mod.rs"]
mod page_cache;
#[path = "../program/mod.rs"]
mod program;
mod refusals;
mod traced;
