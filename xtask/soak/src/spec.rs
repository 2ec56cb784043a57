//! What a child is to do, and what it found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::Model;
use crate::sample::Sample;

/// Which way the bytes are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Engine {
    Auto,
    IoUring,
    Threads,
}

/// What a child is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Loaded at the same time, each by a thread of its own; where it is one, by the first thread.
    pub(crate) models: Vec<Model>,
    /// To the first GPU, else to the CPU.
    pub(crate) gpu: bool,
    /// As `--backend` has it.
    pub(crate) backend: String,
    pub(crate) engine: Engine,
    /// By cuFile's batches.
    pub(crate) batches: bool,
    /// Its libcufile keeps as many threads as it likes.
    pub(crate) foreign_threads: bool,
    /// io_uring is refused to it.
    pub(crate) no_io_uring: bool,
    pub(crate) loads: u64,
    /// And more, as long as so many seconds are not over.
    pub(crate) least_seconds: f64,
    /// But fewer, where they are not done after so many.
    pub(crate) seconds: f64,
    pub(crate) errors: Errors,
}

/// Which errors are right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errors {
    /// None.
    None,
    /// The file changed; or none, where the change and the load missed each other, or its writer rested half way all the while.
    MayChange,
    /// The child makes most loads fail, each in its way, and knows which.
    Provoked,
}

/// What a child found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// Loads that returned, well or not.
    pub(crate) loads: u64,
    /// Bytes of tensors that were compared.
    pub(crate) compared: u64,
    /// Loads that ended in an error that was to be expected, by its kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Bytes by each path.
    pub(crate) paths: BTreeMap<String, u64>,
    /// Models of each version.
    pub(crate) versions: BTreeMap<u32, u64>,
    /// Most bytes pinned for one load.
    pub(crate) pinned: u64,
    pub(crate) seconds: f64,
    /// What is wrong: bytes, errors that should not be, paths not taken.
    pub(crate) problems: Vec<String>,
    /// Before the first load.
    pub(crate) start: Option<Sample>,
    /// After each round of loads.
    pub(crate) samples: Vec<Sample>,
    /// After the last, when threads have had time to end.
    pub(crate) end: Option<Sample>,
}
