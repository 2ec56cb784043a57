//! The shared memory in which NVIDIA's library keeps its statistics.
//!
//! Where statistics are asked for before opening, or started later (since 1.15), the library makes a System V segment whose key is
//! the number of the process, for NVIDIA's `gds_stats` to look into. Only closing the driver removes it: a process that ends with the
//! driver open, or is killed, leaves 32 KiB of locked memory on the machine, one of the 4096 segments that there may be. And a
//! later process of the same number, which in a restarted container is every one, opens without statistics and without a word:
//! there is a segment already. So ours is removed when the process ends, and what a process of our number left is removed before.
//! (Seen with 1.20.)

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cufile::ending;

/// Whether its place was free when the library was about to make one: what lies there later is the library's. By nothing else is that
/// told for certain, since locking it may have been refused (`ulimit -l`).
static ROOM: AtomicBool = AtomicBool::new(false);

/// A segment, by what tells whose it is.
struct Segment {
    id: libc::c_int,
    owner: libc::uid_t,
    maker: libc::pid_t,
    attached: u64,
    locked: bool,
}

/// Bit of a segment's mode: its pages are locked (`SHM_LOCKED` of linux/shm.h).
const LOCKED: u32 = 0o2000;

impl Segment {
    /// The one whose key is this process's number.
    fn of_this_process() -> Option<Self> {
        let key = libc::key_t::try_from(process::id()).ok()?;
        // SAFETY: takes numbers; without IPC_CREAT it only looks.
        let id = unsafe { libc::shmget(key, 0, 0) };
        if id < 0 {
            return None;
        }
        // SAFETY: numbers only, of which all zeroes is a value.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is writable for the call.
        if unsafe { libc::shmctl(id, libc::IPC_STAT, &mut about) } != 0 {
            return None;
        }
        Some(Self {
            id,
            owner: about.shm_perm.cuid,
            maker: about.shm_cpid,
            attached: about.shm_nattch as u64,
            locked: u32::from(about.shm_perm.mode) & LOCKED != 0,
        })
    }

    /// Whether an earlier process of this number left it: made by this user, locked as the library does, and in nobody's use. Its
    /// maker's number is of no help: seen from another container it is 0.
    fn is_left_over(&self) -> bool {
        // SAFETY: takes nothing, and cannot fail.
        let user = unsafe { libc::geteuid() };
        self.attached == 0 && self.locked && self.owner == user
    }

    /// Whether a process of this number made it, as seen from here.
    fn is_own(&self) -> bool {
        i64::from(self.maker) == i64::from(process::id())
    }

    /// Removes it: at once, or when nobody has it attached any more.
    fn remove(&self) -> bool {
        // SAFETY: takes numbers; removing reads no structure. Memory that is attached stays until it is detached.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) == 0 }
    }
}

/// To be called before the library begins to keep statistics: what is in the way of its segment is removed, and its own will be when
/// the process ends.
pub(in crate::cufile) fn make_room() {
    remove_left_over();
    if Segment::of_this_process().is_none() {
        ROOM.store(true, Ordering::Relaxed);
    }
    ending::do_last(remove_own);
}

/// Removes what an earlier process of this process's number left. Not the library's own: that one is attached.
fn remove_left_over() {
    if let Some(segment) = Segment::of_this_process().filter(Segment::is_left_over) {
        let removed = segment.remove();
        tracing::debug!(
            id = segment.id,
            removed,
            "statistics of cuFile's, left by an earlier process of this number"
        );
    }
}

/// Removes the one that the library made in this process. For the process's end: `gds_stats` finds it no more.
fn remove_own() {
    if let Some(segment) = Segment::of_this_process().filter(Segment::is_own)
        && ROOM.load(Ordering::Relaxed)
    {
        segment.remove();
    }
}

/// Why the library keeps no statistics though it was told to, where that can be seen. It attaches its own.
pub(super) fn obstacle() -> Option<String> {
    let segment = Segment::of_this_process().filter(|segment| segment.attached == 0 || !segment.is_own())?;
    Some(format!(
        "where the library would keep them there is shared memory of another's, with this process's number for its key; look at \
         `ipcs -m -i {}`",
        segment.id
    ))
}
