//! What a save is told, and sizes that fit together.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use cuda_staging::{RingOptions, limits};

use super::durable::{Durability, misread};
use super::error::SaveError;
use super::write::PAGE;
use crate::format::HeaderLimits;
use crate::pipeline::{CallerStream, CancelToken, OnProgress};
use crate::policy::{Backend, WRITABLE};

/// Memory for slots, in bytes, and bytes of a write: as in a load, from where the figures are.
const SLOT_MEMORY: u64 = 64 << 20;
const EXTENT: u64 = 4 << 20;
/// Bytes of a write by cuFile, and threads, each waiting for one DMA.
const GDS_EXTENT: u64 = 8 << 20;
const GDS_THREADS: usize = 8;
/// Threads, each waiting for the kernel.
const LEAST_THREADS: usize = 4;
const MOST_THREADS: usize = 16;
/// Slots take at most this share of what the cgroup still allows.
const SHARE_OF_LIMIT: u64 = 8;

/// What a save is told.
#[derive(Clone, Default)]
pub(super) struct Options {
    pub(super) backend: Backend,
    pub(super) durability: Durability,
    pub(super) shard_size: Option<u64>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) limits: HeaderLimits,
    pub(super) threads: Option<usize>,
    pub(super) slots: Option<usize>,
    pub(super) slot_size: Option<u64>,
    pub(super) on_progress: Option<OnProgress>,
    pub(super) cancel: CancelToken,
    pub(super) after: Option<CallerStream>,
}

impl Options {
    /// Whether the options can be meant.
    pub(super) fn check(&self, path: &Path) -> Result<(), SaveError> {
        let refuse = |option, reason: &str| Err(SaveError::Option { option, reason: reason.to_owned() });
        if let Backend::Only(kind) = self.backend
            && !WRITABLE.contains(&kind)
        {
            let reason = format!("{kind} does not write; gds, direct and buffered do");
            return Err(SaveError::Option { option: "backend", reason });
        }
        if path.as_os_str().is_empty() {
            return refuse("path", "it is empty");
        }
        if !self.makes_a_set(path)
            && let Some(reason) = misread(path)
        {
            return Err(SaveError::Option { option: "path", reason });
        }
        if self.shard_size == Some(0) {
            return refuse("shard-size", "a shard must have room for at least one byte");
        }
        if self.threads == Some(0) {
            return refuse("threads", "there must be at least one");
        }
        if self.slots == Some(0) {
            return refuse("slots", "there must be at least one");
        }
        self.extent(false).map(drop)
    }

    /// Whether it is shards in a folder, and no single file.
    pub(super) fn makes_a_set(&self, path: &Path) -> bool {
        self.shard_size.is_some() || path.is_dir()
    }

    /// Bytes of a write.
    pub(super) fn extent(&self, gds: bool) -> Result<u64, SaveError> {
        let extent = self.slot_size.unwrap_or(if gds { GDS_EXTENT } else { EXTENT });
        if extent == 0 || !extent.is_multiple_of(PAGE) || extent > 1 << 30 {
            let reason = format!("{extent} bytes is no multiple of {PAGE} bytes up to 1 GiB");
            return Err(SaveError::Option { option: "slot-size", reason });
        }
        Ok(extent)
    }

    /// How many workers, and the ring of each.
    pub(super) fn workers(&self, extent: u64, windows: usize, cuda: bool) -> (usize, RingOptions) {
        let budget =
            limits::memory_limit().map_or(SLOT_MEMORY, |limit| SLOT_MEMORY.min(limit / SHARE_OF_LIMIT));
        let in_all = self.slots.unwrap_or_else(|| usize::try_from(budget / extent).unwrap_or(1).max(1));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let usual = if windows > 0 { GDS_THREADS } else { cores.clamp(LEAST_THREADS, MOST_THREADS) };
        let workers = self.threads.unwrap_or(usual);
        // Two windows a worker, or two slots, so that there is something for its writes to overlap with.
        let workers = match windows {
            0 if cuda => workers.min((in_all / 2).max(1)),
            0 => workers.min(in_all),
            windows => workers.min((windows / 2).max(1)),
        };
        // On the CPU nothing is copied ahead: what needs a slot at all needs one.
        let slots = if cuda { (in_all / workers).max(1) } else { 1 };
        (workers, RingOptions { slots, slot_size: extent as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_within_their_memory() {
        let options = Options::default();
        for (extent, windows, cuda) in
            [(EXTENT, 0, true), (EXTENT, 0, false), (GDS_EXTENT, 16, true), (GDS_EXTENT, 2, true)]
        {
            let (workers, ring) = options.workers(extent, windows, cuda);
            assert!(workers >= 1 && ring.slots >= 1);
            assert!((workers * ring.slots * ring.slot_size) as u64 <= SLOT_MEMORY, "{workers} {ring:?}");
        }
    }
}
