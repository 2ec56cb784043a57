//! What a ring did.

use std::time::{Duration, Instant};

/// Figures of one ring, since it was made. Copies count once they are over.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RingStatistics {
    /// Bytes copied, both ways.
    pub bytes_copied: u64,
    /// Copies, both ways.
    pub copies: u64,
    /// How often a slot was asked for and none was free.
    pub waits: u64,
    /// Time spent waiting for copies, in `take`, `take_fetched` and `drain`.
    pub waited: Duration,
    /// Bytes of pinned memory: all slots, or 0 on the CPU device and where pinning was refused.
    pub pinned_bytes: u64,
    /// Time to pin them.
    pub pinning: Duration,
    /// Why the slots are not pinned though the device is a CUDA device: the driver's refusal. Copies then go through
    /// the driver's own buffers, correct and slower.
    pub unpinned: Option<String>,
    /// When copies ran: one interval a slot launched or fetched, in order. On a CUDA device measured there and mapped
    /// to the host's clock through an event at the ring's making.
    pub intervals: Vec<(Instant, Instant)>,
}
