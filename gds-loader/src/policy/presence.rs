//! Whether other processes load the same file now.
//!
//! Who loads a file holds a read lock on one of two bytes of it, far beyond any file's end, and asks whether others do. Such a lock
//! belongs to the open file: the kernel lets it go when the file is closed, however the process ends. Nothing is written anywhere, and
//! since read locks exclude none of each other, nobody ever waits.
//!
//! Trade-off: only loads on one machine, and through one file system, see each other. Network file systems would ask
//! their server, and are left alone.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

/// Where the two bytes are: `gds` in ASCII, far above the 2^60 bytes that the largest file systems reach.
const PLACE: i64 = 0x6764_7300_0000_0000;

/// This process's word that it is loading a file; withdrawn when dropped.
#[derive(Debug)]
pub(crate) struct Presence {
    file: Arc<File>,
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Loads that read through the page cache, now that they know of others.
    Sharing,
    /// Loads that would, had they the memory.
    Short,
    /// Both.
    Any,
}

impl Whose {
    fn bytes(self) -> (i64, i64) {
        match self {
            Self::Sharing => (PLACE, 1),
            Self::Short => (PLACE + 1, 1),
            Self::Any => (PLACE, 2),
        }
    }
}

impl Presence {
    /// Lets others know of this load of `file`, until this value is dropped.
    ///
    /// # Errors
    /// What `fcntl(2)` says: somebody has locked the file as a whole, or the file system has no locks.
    pub(crate) fn announce(file: &Arc<File>, whose: Whose) -> io::Result<Self> {
        fcntl(file, libc::F_OFD_SETLK, libc::F_RDLCK, whose)?;
        Ok(Self { file: Arc::clone(file) })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // Where that fails, the lock goes with the file.
        let _ = fcntl(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK, Whose::Any);
    }
}

/// Whether a load of `file`, opened by somebody else, is known of now.
pub(crate) fn others(file: &File, whose: Whose) -> bool {
    // What a write lock would conflict with; asking for one needs no right to write.
    fcntl(file, libc::F_OFD_GETLK, libc::F_WRLCK, whose).is_ok_and(|found| {
        // A range that more than one of our bytes lies in is somebody else's.
        i32::from(found.l_type) == libc::F_RDLCK && found.l_start >= PLACE && found.l_len == 1
    })
}

fn fcntl(file: &File, command: libc::c_int, kind: libc::c_int, whose: Whose) -> io::Result<libc::flock> {
    let (l_start, l_len) = whose.bytes();
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start,
        l_len,
        l_pid: 0,
    };
    // SAFETY: the structure is the kernel's `struct flock`, lives on this stack for the whole call and is not kept.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if code == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_seen_by_others_and_not_by_itself() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || Arc::new(File::open(named.path()).unwrap());
        let (one, two, three) = (open(), open(), open());
        let sharing = |file: &File| others(file, Whose::Sharing);
        assert!(!sharing(&one));
        let first = Presence::announce(&one, Whose::Sharing).unwrap();
        assert!(!sharing(&one) && sharing(&two));
        let second = Presence::announce(&two, Whose::Sharing).unwrap();
        assert!(sharing(&one) && sharing(&two) && sharing(&three));
        drop(first);
        assert!(!sharing(&two) && sharing(&one));
        drop(second);
        assert!(!sharing(&three));
        let _short = Presence::announce(&one, Whose::Short).unwrap();
        assert!(!sharing(&two) && others(&two, Whose::Any) && !others(&one, Whose::Any));
    }

    #[test]
    fn a_lock_of_somebody_else_s_is_no_load() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let (mine, other) = (File::open(named.path()).unwrap(), named.as_file());
        for kind in [libc::F_RDLCK, libc::F_WRLCK] {
            let mut whole =
                libc::flock { l_type: kind as libc::c_short, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
            // SAFETY: as in `fcntl`.
            let code = unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_SETLK, &raw mut whole) };
            assert_eq!(code, 0);
            assert!(!others(&mine, Whose::Any));
        }
        assert!(
            Presence::announce(&Arc::new(mine), Whose::Sharing).is_err(),
            "the whole file is locked for writing"
        );
    }
}
