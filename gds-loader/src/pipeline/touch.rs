//! The first touch of a destination in host memory, by threads of its own, ahead of the reads.
//!
//! The kernel zeroes pages when they are first written. Under a direct read that is done before the read is begun, so that
//! the storage idles meanwhile: measured here, one thread that touches ahead makes cold direct reads 5 to 9 % faster and costs
//! no more CPU time, since the pages must be zeroed anyway. Reads that copy (through the page cache) touch pages
//! just before filling them, while they are in the core's caches: with every core reading, another thread that touches
//! only takes time from them, 10 % here. So only cores that reading leaves idle touch ahead.
//!
//! How much that is depends on where the memory comes from. In a virtual machine whose free memory the host takes back, the
//! first touch of a page has the host find one too, at a tenth of the speed, which looks like slow storage: direct reads of a
//! file in the page cache were seen at half the speed of cold ones for that alone (the cache kept the memory that was backed;
//! into memory touched before, both read alike).
//!
//! Touching stays a bounded distance ahead: memory is taken as it is needed, and a cancelled load stops taking it.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cuda_staging::Toucher;

use super::shared::{Shared, lock};
use super::work::Work;
use crate::plan::{Landing, Piece};

/// How far ahead of the last piece dealt pages are touched, in bytes: enough for the storage never to wait for one.
const AHEAD: u64 = 64 << 20;

/// Threads that touch ahead at most: each zeroes some 10 GB/s in huge pages and still 2 GB/s in small ones.
const MOST_THREADS: usize = 4;

/// Who touches a destination ahead of the reads.
#[derive(Debug)]
pub(crate) struct Touching {
    toucher: Toucher,
    threads: usize,
}

impl Touching {
    /// For a load of `bytes` bytes on a machine of so many `cores`, of which `reading` are busy with reading. None where
    /// nobody can do it, no core is idle, it is not worth a thread, or `memory_limit` (bytes this process may still use)
    /// says that memory had better be taken late.
    pub(crate) fn new(
        toucher: Option<Toucher>,
        bytes: u64,
        cores: usize,
        reading: usize,
        memory_limit: Option<u64>,
    ) -> Option<Self> {
        let threads = cores.saturating_sub(reading).min(MOST_THREADS.min(cores.div_ceil(4)));
        let fits = memory_limit.is_none_or(|limit| limit.saturating_sub(AHEAD) >= bytes);
        let worth_it = threads > 0 && bytes > AHEAD && fits;
        toucher.filter(|_| worth_it).map(|toucher| Self { toucher, threads })
    }

    /// How many threads are to do it.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Touches what will be read next, piece by piece, until there is nothing left or the load ends; says when.
    pub(super) fn run(&self, work: &Work<'_>, shared: &Shared) -> Vec<(Instant, Instant)> {
        let mut touched = Vec::new();
        while let Some(range) = shared.next_untouched(work) {
            let start = Instant::now();
            if !self.toucher.touch(range) {
                break;
            }
            touched.push((start, Instant::now()));
        }
        touched
    }
}

impl Shared {
    /// The next part that is neither dealt nor touched and is read straight into place, once it is near enough.
    fn next_untouched(&self, work: &Work<'_>) -> Option<Range<u64>> {
        let pieces = &work.plan.pieces;
        let mut queue = lock(&self.queue);
        loop {
            let over = self.stopped.load(Ordering::Relaxed) || work.cancel.is_cancelled();
            let front = pieces.get(queue.next).filter(|_| !over)?;
            queue.touched = queue.touched.max(queue.next);
            while pieces.get(queue.touched)?.landing != Landing::Straight {
                queue.touched += 1;
            }
            let first_part = |piece: &Piece| work.plan.parts[piece.parts.start].clone();
            let part = first_part(&pieces[queue.touched]);
            if distance(first_part(front).start, part.start, work.plan.bytes) <= AHEAD {
                queue.touched += 1;
                return Some(part);
            }
            queue = self.dealt.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How far a part at `to` is ahead of one at `from`, in a destination of some `bytes` bytes: parts lie there in the order of their
/// pieces, but where a load begins in the middle, since others read the same files, its beginning comes after its end.
fn distance(from: u64, to: u64, bytes: u64) -> u64 {
    to.checked_sub(from).unwrap_or_else(|| to.saturating_add(bytes).saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_staging::Device;

    #[test]
    fn what_comes_after_the_end_is_as_far_as_what_lies_between() {
        let bytes = 10 * AHEAD;
        assert_eq!(distance(3 * AHEAD, 4 * AHEAD, bytes), AHEAD);
        assert_eq!(distance(3 * AHEAD, 0, bytes), 7 * AHEAD, "that is read last, and not touched first");
        assert_eq!(distance(9 * AHEAD, 0, bytes), AHEAD);
    }

    fn threads(bytes: u64, cores: usize, reading: usize, limit: Option<u64>) -> usize {
        let toucher = Device::cpu().allocate(1, 1).unwrap().toucher();
        if toucher.is_none() {
            return 0;
        }
        Touching::new(toucher, bytes, cores, reading, limit).map_or(0, |touching| touching.threads())
    }

    #[test]
    fn only_idle_cores_touch_ahead() {
        const GIB: u64 = 1 << 30;
        if Device::cpu().allocate(1, 1).unwrap().toucher().is_none() {
            return;
        }
        assert_eq!(threads(GIB, 2, 0, None), 1, "direct reads leave both idle");
        assert_eq!(threads(GIB, 2, 4, None), 0, "every core copies out of the page cache");
        assert_eq!(threads(GIB, 64, 16, None), MOST_THREADS);
        assert_eq!(threads(GIB, 16, 15, None), 1);
        assert_eq!(threads(1 << 20, 64, 0, None), 0, "a small model is not worth a thread");
        assert_eq!(threads(GIB, 64, 0, Some(GIB)), 0, "memory is tight");
        assert_eq!(threads(GIB, 64, 0, Some(4 * GIB)), MOST_THREADS);
    }
}
