//! The first touch of memory, taken off the threads that fill it.

use std::fmt;
use std::ops::Range;

use super::allocation::Allocation;
use super::{RegionMut, check_inside};
use crate::memory::HostMemory;
use crate::sync::Arc;

/// Gives an allocation's pages their memory ahead of whoever writes to them.
///
/// The kernel zeroes a page when it is first written: as much work as copying it, done by the thread that waits for it, and
/// for direct I/O before the read is even begun. Another thread can do it earlier with this. It keeps the allocation, but no
/// access to its bytes: these stay as they are, whoever reads or writes them at the same time.
#[derive(Clone)]
pub struct Toucher {
    allocation: Arc<Allocation>,
    offset: u64,
    len: u64,
}

impl RegionMut {
    /// For touching this region's memory ahead of time. None where that is nobody's business here: on a GPU, for memory of
    /// the caller's, and where the kernel has no call for it.
    pub fn toucher(&self) -> Option<Toucher> {
        let allocation = &self.lease.allocation;
        let can = allocation.host_memory().is_some() && HostMemory::can_populate();
        can.then(|| Toucher { allocation: Arc::clone(allocation), offset: self.offset, len: self.len })
    }
}

impl Toucher {
    /// Touches every page that `range`, in bytes from the start of the region, has a byte in. Whether the kernel did so: where
    /// it did not, nothing is wrong yet, and whoever writes there learns what is.
    pub fn touch(&self, range: Range<u64>) -> bool {
        let Some(memory) = self.allocation.host_memory() else { return false };
        if check_inside(&range, self.len).is_err() {
            return false;
        }
        // Inside a mapping, so it fits.
        let within = (self.offset + range.start) as usize..(self.offset + range.end) as usize;
        memory
            .populate(within)
            .inspect_err(|errno| tracing::debug!(?range, %errno, "pages not touched ahead"))
            .is_ok()
    }
}

impl fmt::Debug for Toucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toucher")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, RegionMut};

    #[test]
    fn a_region_is_touched_while_its_parts_are_written_and_comes_back() {
        const LEN: u64 = 1 << 20;
        let region = Device::cpu().allocate(LEN, 1).unwrap();
        let Some(toucher) = region.toucher() else { return };
        let (carved, mut parts) = region.carve(&[0..LEN / 2, LEN / 2..LEN]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(toucher.touch(0..LEN)));
            parts[1].host_bytes_mut().unwrap().fill(9);
        });
        drop(parts);
        let whole = carved.reunite().expect("a toucher is no part");
        let bytes = whole.host_bytes().unwrap();
        assert!(bytes[..LEN as usize / 2].iter().all(|byte| *byte == 0));
        assert!(bytes[LEN as usize / 2..].iter().all(|byte| *byte == 9));
        drop(whole);
        assert!(toucher.touch(5..6), "the memory lives as long as its toucher");
        assert!(!toucher.touch(0..LEN + 1), "nothing is touched beyond the end");
    }

    #[test]
    fn the_callers_memory_is_not_touched() {
        assert!(RegionMut::from_vec(vec![0; 4096]).toucher().is_none());
        assert!(Device::cpu().allocate(0, 1).unwrap().toucher().is_none());
    }
}
