//! Every file system call of a save, as a trait, so that tests can record them, fail them, or die between them.
//!
//! Calls are relative to an open folder: where it is renamed or replaced meanwhile, they still mean the folder that was opened.
//! [`Kernel`] is the real thing and does nothing but call; what an answer means is decided above.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid,
};

/// What a name or an open file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) identity: Identity,
    pub(crate) kind: Kind,
    /// Permission bits, set-id bits and sticky bit.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// What makes two names the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The kinds of file that a save tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Folder,
    Link,
    Other,
}

/// How an existing file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Reading.
    Read,
    /// Reading; a link is followed.
    Follow,
    /// Reading and writing past the page cache.
    Direct,
}

/// The file system, as far as a save uses it. Names are single components; links are not followed
/// unless it is said.
pub(crate) trait System: Send + Sync + fmt::Debug {
    /// Opens a folder for reading; links in `path` are followed.
    fn open_folder(&self, path: &Path) -> io::Result<OwnedFd>;
    fn make_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    fn remove_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Every name in the folder but `.` and `..`.
    fn list(&self, folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>>;
    fn stat(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat>;
    fn stat_open(&self, file: BorrowedFd<'_>) -> io::Result<Stat>;
    /// Whether this process may write what is at `name`.
    fn may_write(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Creates a file that was not there, for reading and writing.
    fn create(&self, folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<OwnedFd>;
    fn open(&self, folder: BorrowedFd<'_>, name: &OsStr, how: How) -> io::Result<OwnedFd>;
    /// Takes the lock of an open file or folder, held until it is closed; false where another has it.
    fn lock(&self, file: BorrowedFd<'_>) -> io::Result<bool>;
    fn unlock(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// The most bytes that this process may make a file long. A write beyond it would end the process by SIGXFSZ.
    fn file_size_limit(&self) -> Option<u64>;
    /// Makes the file `len` bytes long, with space on the disk for all of them.
    fn reserve(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()>;
    fn write_at(&self, file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Starts writing dirty pages of the range to the disk and does not wait. No length: to the end.
    fn start_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;
    /// Waits until dirty pages of the range are written to the disk. An error of the disk is told once: a later sync does not
    /// tell it again.
    fn wait_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;
    fn set_len(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()>;
    fn set_owner(&self, file: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()>;
    fn set_mode(&self, file: BorrowedFd<'_>, mode: u32) -> io::Result<()>;
    /// What closing the file would report; it stays open.
    fn flush(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Waits until what was written to the file, or the names of the folder, are on the disk.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Gives a file a second name, which must be free.
    fn link(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()>;
    /// Renames; what was at `to` is replaced.
    fn rename(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()>;
    /// Renames to a name which must be free.
    fn rename_new(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()>;
    fn unlink(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
}

/// The kernel of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;

impl System for Kernel {
    fn open_folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn make_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o777))?)
    }

    fn remove_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)?)
    }

    fn list(&self, folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
        use std::os::unix::ffi::OsStringExt as _;
        let mut names = Vec::new();
        // Opens the folder anew, so that two lists at once do not share a position.
        for entry in rustix::fs::Dir::read_from(folder)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    fn stat(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.into())
    }

    fn stat_open(&self, file: BorrowedFd<'_>) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(file)?.into())
    }

    fn may_write(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::accessat(folder, name, Access::WRITE_OK, AtFlags::EACCESS)?)
    }

    fn create(&self, folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(mode))?)
    }

    fn open(&self, folder: BorrowedFd<'_>, name: &OsStr, how: How) -> io::Result<OwnedFd> {
        // What is no regular file must not make this wait.
        let flags = match how {
            How::Read => OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
            How::Follow => OFlags::RDONLY | OFlags::NONBLOCK,
            How::Direct => OFlags::RDWR | OFlags::NOFOLLOW | OFlags::DIRECT,
        };
        Ok(rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn lock(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn unlock(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
    }

    fn file_size_limit(&self) -> Option<u64> {
        crate::limits::file_size_limit()
    }

    fn reserve(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)?)
    }

    fn write_at(&self, file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwrite(file, bytes, offset)?)
    }

    fn start_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        sync_file_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE)
    }

    fn wait_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        const ALL: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        sync_file_range(file, offset, len, ALL)
    }

    fn set_len(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(file, len)?)
    }

    fn set_owner(&self, file: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
        Ok(rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }

    fn set_mode(&self, file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    fn flush(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // Network file systems report at each close what they had put off, whichever descriptor it is.
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        // SAFETY: the descriptor is `copy`'s, which gives it up here, so that nobody else closes it.
        match unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(copy)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        Ok(rustix::fs::fsync(file)?)
    }

    fn link(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(folder, from, folder, to, AtFlags::empty())?)
    }

    fn rename(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(folder, from, folder, to)?)
    }

    fn rename_new(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE)?)
    }

    fn unlink(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
    }
}

fn sync_file_range(file: BorrowedFd<'_>, offset: u64, len: u64, flags: u32) -> io::Result<()> {
    let range = (i64::try_from(offset), i64::try_from(len));
    let (Ok(offset), Ok(len)) = range else { return Err(rustix::io::Errno::INVAL.into()) };
    // SAFETY: a system call without pointers, on a descriptor that is borrowed for its length.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl From<rustix::fs::Stat> for Stat {
    fn from(stat: rustix::fs::Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::Regular,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        };
        Self {
            identity: Identity { device: stat.st_dev, inode: stat.st_ino },
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            len: u64::try_from(stat.st_size).unwrap_or(0),
        }
    }
}
