//! The shared memory in which NVIDIA's library keeps its statistics, for other programs to look into.
//!
//! As seen on NVIDIA's 1.20: it is made by an opening with a level set, or by starting them later, under the number of the process; where that is taken, the opening succeeds
//! and the level falls to 0. A process that ends with the driver open leaves it.

use std::ffi::c_void;
use std::{process, ptr};

/// Bytes that 1.20 asks for.
const LEN: usize = 32256;

/// A segment of this process's, attached. It outlives its value, as the machine's.
pub(super) struct Segment {
    id: libc::c_int,
    memory: *mut c_void,
}

// SAFETY: memory of the whole process, into which nobody looks here.
unsafe impl Send for Segment {}

impl Segment {
    /// A new one; `None` where there is one already.
    pub(super) fn make() -> Option<Self> {
        let key = libc::key_t::try_from(process::id()).ok()?;
        // SAFETY: takes numbers.
        let id = unsafe { libc::shmget(key, LEN, libc::IPC_CREAT | libc::IPC_EXCL | 0o644) };
        if id < 0 {
            return None;
        }
        // SAFETY: takes numbers; locking reads no structure. The kernel chooses where it is attached.
        let memory = unsafe {
            libc::shmctl(id, libc::SHM_LOCK, ptr::null_mut());
            libc::shmat(id, ptr::null(), 0)
        };
        let segment = Self { id, memory };
        if memory.addr() == usize::MAX {
            segment.remove();
            return None;
        }
        Some(segment)
    }

    /// Takes it off the machine.
    pub(super) fn remove(self) {
        // SAFETY: takes numbers, and memory that was attached here, once; what is none is refused.
        unsafe {
            libc::shmctl(self.id, libc::IPC_RMID, ptr::null_mut());
            libc::shmdt(self.memory);
        }
    }
}
