//! Host memory in whole pages, zeroed by the kernel: slots, and the CPU device's allocations.

use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};
use crate::limits::page_size;

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
    /// Maps at least `len` bytes, which must not be 0: whole pages.
    pub(crate) fn map(len: usize, purpose: Purpose) -> Result<Self> {
        let out_of_memory = |code| Error::OutOfMemory {
            call: "mmap",
            code,
            doing: format!("allocating {len} bytes of host memory"),
            requested: len as u64,
            free: None,
        };
        let len = len
            .checked_next_multiple_of(page_size())
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| out_of_memory(Errno::NOMEM.raw_os_error()))?;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .map_err(|errno| out_of_memory(errno.raw_os_error()))?;
        // From now on the address travels as an integer too; regions turn it back into a pointer.
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(start.expose_provenance()))
            .ok_or_else(|| out_of_memory(0))?;
        let memory = Self { start, len };
        let advice = match purpose {
            Purpose::Destination => Advice::LinuxHugepage,
            Purpose::Slots => Advice::LinuxWipeOnFork,
        };
        // Advice: a kernel without it is none the worse.
        // SAFETY: the range is this mapping; neither advice changes what this process reads in it.
        if let Err(errno) = unsafe { madvise(memory.start.as_ptr().cast(), len, advice) } {
            tracing::debug!(?purpose, %errno, "madvise refused");
        }
        Ok(memory)
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
        // SAFETY: mapped in `map`; every slot or region in it shares the owner of this value.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::warn!(%errno, bytes = self.len, "munmap failed; the memory is left behind");
        }
    }
}
