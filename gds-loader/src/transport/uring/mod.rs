//! Direct reads kept in flight by io_uring: one thread for many of them.
//!
//! - `kernel`: what is asked of the kernel and what it answers, behind a small trait, so that tests can answer instead.
//! - `flights`: owns the memory that the kernel writes, from before it hears of a read until it has said that it is over.
//! - `queue`: exact reads, by the rule that `pread` follows too.
//! - `probe`: whether the kernel lets us, tried and not guessed.
//!
//! `unsafe` is in `kernel` and `flights` alone.

mod flights;
mod kernel;
mod probe;
mod queue;
#[cfg(test)]
mod scripted;

pub(crate) use flights::Place;
pub(crate) use probe::probe;
pub(crate) use queue::{Ended, Queue};
