//! What a load may be told, and what it decides where it is not.

use cuda_staging::{RingOptions, limits};

use crate::error::{Error, Result};
use crate::pipeline::DepthRange;
use crate::plan::{Plan, align_up};
use crate::policy::ReadTuning;

/// Slots take at most this share of the memory the cgroup still allows.
const SHARE_OF_LIMIT: u64 = 8;

/// Extents start and end on multiples of this, in bytes, whatever the file's alignment: the largest in use.
pub(crate) const EXTENT_STEP: u64 = 4096;

/// The same where GPUDirect Storage serves: a read is one DMA, and only long ones fill the PCIe link.
const GDS_READ_SIZE: u64 = 8 << 20;

/// The same in cuFile's compatibility mode: what the library's own bounce buffers hold at once.
const COMPAT_READ_SIZE: u64 = 1 << 20;

/// Reads in flight where GPUDirect Storage serves: one thread waits for each, on the hardware alone.
const GDS_THREADS: usize = 8;

/// Who keeps reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Threads, each waiting for the kernel.
    Host,
    /// io_uring, for several reads of each thread at once.
    Queue,
    /// Threads, each waiting for cuFile to bounce its bytes.
    Compat,
    /// Threads, each waiting for one DMA into a window.
    Threads,
    /// cuFile's batches, for all windows of a thread at once.
    Batches,
}

/// What the caller asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) threads: Option<usize>,
    pub(crate) depth: Option<usize>,
    pub(crate) slots: Option<usize>,
    pub(crate) slot_size: Option<u64>,
    pub(crate) read_size: Option<u64>,
}

/// Sizes that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) threads: usize,
    /// Reads that each of them keeps in flight.
    pub(crate) depth: DepthRange,
    /// In all, over the workers.
    pub(crate) slots: usize,
    pub(crate) slot_size: u64,
    pub(crate) read_size: u64,
}

impl Sizes {
    /// Fills in what was not said: as `tuning` suggests for the storage, and within what the cgroup still allows, `memory_limit`
    /// bytes.
    pub(crate) fn settle(
        self,
        memory_limit: Option<u64>,
        tuning: &ReadTuning,
        reads: Reads,
    ) -> Result<Settled> {
        let (usual, usual_threads) = match reads {
            Reads::Host => (tuning.read_size, tuning.threads),
            Reads::Queue => (tuning.read_size, tuning.workers),
            Reads::Compat => (COMPAT_READ_SIZE, tuning.threads),
            Reads::Threads => (GDS_READ_SIZE, GDS_THREADS),
            Reads::Batches => (GDS_READ_SIZE, 1),
        };
        let most = tuning.slot_memory;
        let budget = memory_limit.map_or(most, |limit| most.min(limit / SHARE_OF_LIMIT));
        let refuse = |option, reason: String| Err(Error::Option { option, reason });
        if let Some(slot) = self.slot_size.filter(|slot| *slot < EXTENT_STEP) {
            let reason = format!("{slot} bytes cannot hold a read, which is of at least {EXTENT_STEP} bytes");
            return refuse("slot-size", reason);
        }
        let read_size = match (self.read_size, self.slot_size) {
            (Some(size), _) => size,
            (None, Some(slot)) => usual.min(slot / EXTENT_STEP * EXTENT_STEP),
            (None, None) => usual.min((budget / 4 / EXTENT_STEP).max(1) * EXTENT_STEP),
        };
        if read_size == 0 || !read_size.is_multiple_of(EXTENT_STEP) {
            return refuse(
                "read-size",
                format!("{read_size} bytes is not a multiple of {EXTENT_STEP} bytes"),
            );
        }
        if read_size > u64::from(u32::MAX) {
            return refuse("read-size", format!("{read_size} bytes is more than one read can return"));
        }
        let slot_size = self.slot_size.unwrap_or(read_size);
        if slot_size < read_size {
            return refuse(
                "slot-size",
                format!("{slot_size} bytes cannot hold one read of {read_size} bytes"),
            );
        }
        let slots = self.slots.unwrap_or_else(|| usize::try_from(budget / slot_size).unwrap_or(2).max(2));
        if slots == 0 {
            return refuse("slots", "there must be at least one".into());
        }
        let threads = self.threads.unwrap_or(usual_threads);
        if threads == 0 {
            return refuse("threads", "there must be at least one".into());
        }
        if self.depth == Some(0) {
            return refuse("depth", "there must be at least one".into());
        }
        let (threads, depth) = match (reads, self.depth) {
            (Reads::Queue, None) => {
                let (start, most) = (tuning.depth, tuning.most_depth);
                (threads, DepthRange { least: 1, start, most: most.max(start) })
            }
            (Reads::Queue, Some(depth)) => (threads, DepthRange::fixed(depth)),
            // As many reads in flight, by a thread for each.
            (Reads::Host, Some(depth)) => (threads.saturating_mul(depth), DepthRange::fixed(1)),
            _ => (threads, DepthRange::fixed(1)),
        };
        Ok(Settled { threads, depth, slots, slot_size, read_size })
    }
}

impl Settled {
    /// How many workers carry out `plan` with `windows` window slots between them, and the ring of pinned slots of each: no
    /// more slots, and no larger ones, than the plan can use.
    pub(crate) fn workers(&self, plan: &Plan, windows: usize) -> (usize, Option<RingOptions>) {
        let slot_pieces = plan.slot_pieces();
        let at_most = match windows {
            0 if slot_pieces == plan.pieces.len() && slot_pieces > 0 => self.slots,
            0 => usize::MAX,
            windows => windows,
        };
        // Two slots a worker, or there is nothing for its copies to overlap with.
        let workers = self.threads.min((at_most / 2).max(1)).min(plan.pieces.len()).max(1);
        let slots = (self.slots / workers).max(1).min(slot_pieces.div_ceil(workers) + 1);
        let slot_size = align_up(plan.slot_bytes(), limits::page_size() as u64);
        let ring = (slot_pieces > 0).then_some(RingOptions { slots, slot_size: slot_size as usize });
        (workers, ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_keep_within_the_slot_memory() {
        let settled = Sizes::default().settle(None, &ReadTuning::unknown(2), Reads::Host).unwrap();
        let expected = Settled {
            threads: 4,
            depth: DepthRange::fixed(1),
            slots: 16,
            slot_size: 4 << 20,
            read_size: 4 << 20,
        };
        assert_eq!(settled, expected);
        for (limit, reads) in [
            (16 << 20, Reads::Host),
            (100 << 20, Reads::Threads),
            (1 << 30, Reads::Host),
            (1 << 30, Reads::Batches),
        ] {
            let tuning = ReadTuning::unknown(64);
            let settled = Sizes::default().settle(Some(limit), &tuning, reads).unwrap();
            assert!(
                settled.slots as u64 * settled.slot_size <= (limit / SHARE_OF_LIMIT).min(tuning.slot_memory)
            );
            assert!(settled.slots >= 2);
        }
    }

    #[test]
    fn a_depth_is_kept_by_whoever_reads() {
        let sizes = Sizes { threads: Some(3), depth: Some(5), ..Sizes::default() };
        let settle = |reads| sizes.settle(None, &ReadTuning::unknown(2), reads).unwrap();
        let (queue, threads) = (settle(Reads::Queue), settle(Reads::Host));
        assert_eq!((queue.threads, queue.depth), (3, DepthRange::fixed(5)));
        assert_eq!((threads.threads, threads.depth), (15, DepthRange::fixed(1)));
    }

    #[test]
    fn sizes_that_do_not_fit_together_are_refused_by_name() {
        let refusal =
            |sizes: Sizes| sizes.settle(None, &ReadTuning::unknown(4), Reads::Host).unwrap_err().to_string();
        assert!(refusal(Sizes { read_size: Some(5000), ..Sizes::default() }).starts_with("read-size"));
        assert!(refusal(Sizes { read_size: Some(0), ..Sizes::default() }).starts_with("read-size"));
        let small_slots = Sizes { read_size: Some(1 << 20), slot_size: Some(4096), ..Sizes::default() };
        assert!(refusal(small_slots).starts_with("slot-size"));
        for slot_size in [1, 4000, 4095] {
            let alone = refusal(Sizes { slot_size: Some(slot_size), ..Sizes::default() });
            assert!(alone.starts_with("slot-size") && alone.contains(&format!("{slot_size} ")), "{alone}");
        }
        assert!(refusal(Sizes { slots: Some(0), ..Sizes::default() }).starts_with("slots"));
        assert!(refusal(Sizes { threads: Some(0), ..Sizes::default() }).starts_with("threads"));
        assert!(refusal(Sizes { depth: Some(0), ..Sizes::default() }).starts_with("depth"));
    }
}
