//! What runs later: queues with a thread each, completions, and the link that copies travel over.

mod completion;
mod gate;
mod link;
mod queue;

pub(crate) use completion::Completion;
pub(crate) use gate::{open_gate, pass_gate, shut_gate};
pub(crate) use link::Link;
pub(crate) use queue::{Health, Queue, Work};
