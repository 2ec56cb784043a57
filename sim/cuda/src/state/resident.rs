//! Device memory that has its pages before the first allocation is served, and keeps them (`CUDA_SIM_RESIDENT`).
//!
//! A GPU's memory is there; the simulator's is the kernel's to find when first written, which costs a load more than the
//! load itself. The front of a device's memfd is made resident here once, mapped in one piece, and handed out page by
//! page from a list of what is free: first fit, neighbours joined. What does not fit goes the usual way.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::vram::map;
use crate::sync::lock;

/// Bytes that a thread brings in at once: large beside what the call costs, small beside what the others do meanwhile.
const STEP: u64 = 16 << 20;

/// The resident part of a device's memory, from offset 0 of its file.
pub(crate) struct Resident {
    /// Where the simulator reaches it; mapped as long as the process lives.
    base: u64,
    free: Mutex<FreeList>,
}

impl Resident {
    /// Maps the first `len` bytes (whole pages) of `file` and brings their pages in; `None` where they cannot be mapped.
    /// Pages that cannot be brought in now come when they are first written.
    pub(crate) fn new(file: &File, len: u64) -> Option<Self> {
        let base = map(file, 0, len, libc::PROT_READ | libc::PROT_WRITE).ok()?;
        // SAFETY: the range was mapped just now. A hint, which many kernels do not take for shared memory.
        unsafe { libc::madvise(base as *mut _, len as usize, libc::MADV_HUGEPAGE) };
        if let Err(error) = populate(base, len) {
            eprintln!("cuda-sim: CUDA_SIM_RESIDENT: part of the memory is not resident: {error}");
        }
        Some(Self { base, free: Mutex::new(FreeList::new(len)) })
    }

    /// Takes `len` bytes (whole pages); `None` where no free range is as long.
    pub(crate) fn take(self: &Arc<Self>, len: u64) -> Option<Piece> {
        let offset = lock(&self.free).take(len)?;
        Some(Piece { resident: Arc::clone(self), offset, len })
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        lock(&self.free).ranges.values().sum()
    }
}

/// A range of resident memory, nobody else's until it is dropped.
pub(crate) struct Piece {
    resident: Arc<Resident>,
    /// Where it is in the file.
    pub(crate) offset: u64,
    len: u64,
}

impl Piece {
    /// Where the simulator can read and write it.
    pub(crate) fn address(&self) -> u64 {
        self.resident.base + self.offset
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.resident.free).give_back(self.offset, self.len);
    }
}

/// Brings the pages of a mapping in, with every core that there is.
fn populate(base: u64, len: u64) -> Result<(), Error> {
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let start = next.fetch_add(STEP, Ordering::Relaxed);
            if start >= len {
                return Ok(());
            }
            let bytes = STEP.min(len - start) as usize;
            // SAFETY: inside the mapping, which the caller has just made and whose contents this leaves as they are.
            if unsafe { libc::madvise((base + start) as *mut _, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
                return Err(Error::last_os_error());
            }
        }
    };
    let others = thread::available_parallelism().map_or(0, |cores| cores.get() as u64 - 1);
    thread::scope(|scope| {
        // Where no thread can be had, this one does it all.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (0..others.min(len / STEP)).map_while(start).collect();
        let own = work();
        threads.into_iter().filter_map(|thread| thread.join().ok()).fold(own, Result::and)
    })
}

/// What is free: lengths by offset, no two adjacent.
struct FreeList {
    ranges: BTreeMap<u64, u64>,
}

impl FreeList {
    fn new(len: u64) -> Self {
        Self { ranges: BTreeMap::from([(0, len)]) }
    }

    /// The start of the first range that is long enough, which loses its front.
    fn take(&mut self, len: u64) -> Option<u64> {
        let (&offset, &found) = self.ranges.iter().find(|&(_, &found)| found >= len)?;
        self.ranges.remove(&offset);
        if found > len {
            self.ranges.insert(offset + len, found - len);
        }
        Some(offset)
    }

    /// Adds a range that was taken, and joins it with its neighbours.
    fn give_back(&mut self, mut offset: u64, mut len: u64) {
        if let Some(behind) = self.ranges.remove(&(offset + len)) {
            len += behind;
        }
        if let Some((&before, &before_len)) = self.ranges.range(..offset).next_back()
            && before + before_len == offset
        {
            (offset, len) = (before, before_len + len);
        }
        self.ranges.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_that_fits_is_taken_and_neighbours_are_joined() {
        let mut free = FreeList::new(100);
        let starts = [10, 20, 30, 40].map(|len| free.take(len));
        assert_eq!(starts, [0, 10, 30, 60].map(Some));
        assert_eq!(free.take(1), None);
        free.give_back(0, 10);
        free.give_back(30, 30);
        assert_eq!(free.ranges, BTreeMap::from([(0, 10), (30, 30)]));
        assert_eq!(free.take(11), Some(30), "not the first, which is too short");
        assert_eq!(free.take(10), Some(0));
        free.give_back(30, 11);
        free.give_back(0, 10);
        free.give_back(10, 20);
        assert_eq!(free.ranges, BTreeMap::from([(0, 60)]), "joined on both sides");
        free.give_back(60, 40);
        assert_eq!(free.take(100), Some(0));
    }
}
