//! Host memory in whole pages, zeroed by the kernel: slots, and the CPU device's allocations.
//!
//! The first touch of memory is most of the cost of a warm load: in huge pages it is a third of what it is in small ones. They
//! are asked for, and where the kernel has none everything is the same but the speed.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};
use crate::limits::{huge_page_size, mappable, page_size};

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A destination: large, written once.
    Destination,
    /// Slots, perhaps pinned. A forked child finds them zeroed: sharing them copy-on-write would, on older kernels,
    /// move the parent's pages away from under the GPU's copies.
    Slots,
}

/// An anonymous private mapping. Its bytes are initialised from the start (zero) and stay so.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned by this value; who may touch which bytes when is for the slots and regions above.
unsafe impl Send for HostMemory {}
// SAFETY: as above; a shared reference gives the address and the length only.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps at least `len` bytes, which must not be 0: whole pages, in huge ones where the kernel has them.
    ///
    /// The last part of it, shorter than a huge page, and what is shorter as a whole, have ordinary pages: a small model takes
    /// no more memory than it needs.
    pub(crate) fn map(len: usize, purpose: Purpose) -> Result<Self> {
        let out_of_memory = |errno: Errno| Error::OutOfMemory {
            call: "mmap",
            code: errno.raw_os_error(),
            doing: match mappable(Path::new("/")) {
                None => format!("allocating {len} bytes of host memory"),
                Some(words) => {
                    format!("allocating {len} bytes of host memory (this process may have {words})")
                }
            },
            requested: len as u64,
            free: None,
        };
        let len = len
            .checked_next_multiple_of(page_size())
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| out_of_memory(Errno::NOMEM))?;
        let huge = huge_page_size().filter(|&huge| huge <= len);
        // A huge page needs an address that is a multiple of its size, which not every kernel gives unasked.
        let aligned = huge.and_then(|huge| Self::map_aligned(len, huge).ok());
        let memory = match aligned {
            Some(memory) => memory,
            None => Self::map_pages(len).map_err(out_of_memory)?,
        };
        if purpose == Purpose::Slots {
            memory.advise(Advice::LinuxWipeOnFork);
        }
        if huge.is_some() {
            memory.advise(Advice::LinuxHugepage);
        }
        Ok(memory)
    }

    /// Maps `len` bytes, whole pages, wherever the kernel likes.
    fn map_pages(len: usize) -> std::result::Result<Self, Errno> {
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // From now on the address travels as an integer too; regions turn it back into a pointer.
        let start = ptr::with_exposed_provenance_mut::<u8>(start.expose_provenance());
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }

    /// Maps `len` bytes, whole pages, at a multiple of `alignment`, itself a multiple of the page size.
    fn map_aligned(len: usize, alignment: usize) -> std::result::Result<Self, Errno> {
        let longer = len.checked_add(alignment - page_size()).ok_or(Errno::NOMEM)?;
        let whole = ManuallyDrop::new(Self::map_pages(longer)?);
        let start = whole.start;
        let before = start.addr().get().next_multiple_of(alignment) - start.addr().get();
        // SAFETY: `longer` leaves room to move the start up to the next multiple of the alignment.
        let (aligned, end) = unsafe { (start.add(before), start.add(before + len)) };
        // What lies around the aligned part goes back; where the kernel refuses, it is address space lost, never memory.
        for (start, len) in [(start, before), (end, longer - before - len)] {
            drop((len > 0).then_some(Self { start, len }));
        }
        Ok(Self { start: aligned, len })
    }

    /// Advice: a kernel without it is none the worse.
    fn advise(&self, advice: Advice) {
        // SAFETY: the range is this mapping; no advice given here changes what this process reads in it.
        if let Err(errno) = unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) } {
            tracing::debug!(?advice, %errno, "madvise refused");
        }
    }

    /// Whether the kernel can give memory its pages ahead of the first write (since Linux 5.14).
    pub(crate) fn can_populate() -> bool {
        static CAN: OnceLock<bool> = OnceLock::new();
        // SAFETY: of no bytes nothing is done; the kernel only says whether it knows the advice.
        *CAN.get_or_init(|| unsafe { madvise(ptr::null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok())
    }

    /// Gives the pages of `range` memory of their own now, as if each were written with what it holds. They may be in use.
    pub(crate) fn populate(&self, range: Range<usize>) -> std::result::Result<(), Errno> {
        let first = range.start / page_size() * page_size();
        let end = range.end.next_multiple_of(page_size()).min(self.len);
        if first >= end {
            return Ok(());
        }
        let start = self.start.as_ptr().wrapping_add(first);
        // SAFETY: whole pages of this mapping; what is in them stays as it is, whoever reads or writes it meanwhile.
        unsafe { madvise(start.cast(), end - first, Advice::LinuxPopulateWrite) }
    }

    /// Asks the kernel to take this memory's pages, none of which has been touched yet, from a NUMA node.
    pub(crate) fn prefer_node(&self, node: u32) {
        const MPOL_PREFERRED: libc::c_int = 1;
        let mut mask = [0_u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else { return };
        *word = 1 << (node % 64);
        // SAFETY: the range is this mapping and the mask is as long as said (the kernel reads one bit less than it is
        // told); the call changes where pages come from, not what is in them.
        let outcome = unsafe {
            let (start, bits) = (self.start.as_ptr(), mask.len() * 64 + 1);
            libc::syscall(libc::SYS_mbind, start, self.len, MPOL_PREFERRED, mask.as_ptr(), bits, 0)
        };
        if outcome != 0 {
            let error = std::io::Error::last_os_error();
            tracing::debug!(node, %error, "mbind refused; the pages come from anywhere");
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map_pages`; every slot or region in it shares the owner of this value.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::warn!(%errno, bytes = self.len, "munmap failed; the memory is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pages of the mapping have memory.
    fn resident(memory: &HostMemory) -> usize {
        let mut pages = vec![0_u8; memory.len / page_size()];
        // SAFETY: the range is this mapping, and there is a byte for each of its pages.
        let outcome = unsafe { libc::mincore(memory.as_ptr().cast(), memory.len, pages.as_mut_ptr()) };
        assert_eq!(outcome, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn large_memory_begins_where_a_huge_page_may() {
        let Some(huge) = huge_page_size() else { return };
        for len in [huge, huge + page_size(), 3 * huge - 1] {
            for purpose in [Purpose::Destination, Purpose::Slots] {
                let memory = HostMemory::map(len, purpose).unwrap();
                assert_eq!(memory.as_ptr().addr() % huge, 0);
                assert_eq!(memory.len(), len.next_multiple_of(page_size()));
                assert_eq!(resident(&memory), 0);
            }
        }
    }

    #[test]
    fn small_memory_takes_the_pages_it_needs_and_a_tail_no_huge_one() {
        let Some(huge) = huge_page_size() else { return };
        for len in [huge / 2, huge + huge / 2] {
            let memory = HostMemory::map(len, Purpose::Destination).unwrap();
            memory.populate(len - 1..len).unwrap();
            assert!(resident(&memory) * page_size() <= huge / 8, "{} pages for one byte", resident(&memory));
        }
    }

    #[test]
    fn populated_pages_have_memory_and_keep_what_was_in_them() {
        if !HostMemory::can_populate() {
            return;
        }
        let pages = 10;
        let memory = HostMemory::map(pages * page_size(), Purpose::Slots).unwrap();
        // SAFETY: within the mapping, which nothing else uses.
        unsafe { memory.as_ptr().add(page_size()).write(7) };
        memory.populate(page_size()..3 * page_size() + 1).unwrap();
        assert_eq!(resident(&memory), 3);
        memory.populate(0..pages * page_size()).unwrap();
        memory.populate(5..5).unwrap();
        assert_eq!(resident(&memory), pages);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
        assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 7);
    }
}
