//! Who read, and how deep.

use serde::{Deserialize, Serialize};

use crate::transport::Engine;

/// Who kept the host's reads in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EngineReport {
    /// `io-uring` where it read at least the files on the direct path, else `threads`.
    pub name: Engine,
    /// Reads in flight for each worker when the load ended: it is adapted while a load runs. 1 where threads read.
    pub depth: usize,
    /// Worker threads.
    pub workers: usize,
    /// Most bytes of one read.
    pub read_size: u64,
    /// Why it is not io_uring; absent where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the slots were registered with io_uring, which saves the kernel from mapping them for every read.
    pub registered: bool,
    /// Whether the files were, which saves it from looking each up for every read.
    pub registered_files: bool,
}
