//! The kernel with somebody listening: every call of a save can be recorded, failed, cut short, or be the last.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::super::system::{How, Kernel, Stat, System};

/// A call, with what a model of the disk must know of it. Files and folders are told by their inodes' numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::save) enum Call {
    /// One that changes nothing on the disk.
    Other(&'static str),
    MakeFolder {
        above: u64,
        name: OsString,
    },
    RemoveFolder {
        above: u64,
        name: OsString,
    },
    Create {
        folder: u64,
        name: OsString,
    },
    Reserve {
        file: u64,
        len: u64,
    },
    Write {
        file: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        file: u64,
        len: u64,
    },
    Sync {
        file: u64,
    },
    Link {
        folder: u64,
        from: OsString,
        to: OsString,
    },
    Rename {
        folder: u64,
        from: OsString,
        to: OsString,
    },
    Unlink {
        folder: u64,
        name: OsString,
    },
}

impl Call {
    /// Its name, as tests choose errors by.
    pub(in crate::save) fn name(&self) -> &'static str {
        match self {
            Self::Other(name) => name,
            Self::MakeFolder { .. } => "make_folder",
            Self::RemoveFolder { .. } => "remove_folder",
            Self::Create { .. } => "create",
            Self::Reserve { .. } => "reserve",
            Self::Write { .. } => "write_at",
            Self::SetLen { .. } => "set_len",
            Self::Sync { .. } => "sync",
            Self::Link { .. } => "link",
            Self::Rename { .. } => "rename",
            Self::Unlink { .. } => "unlink",
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::save) enum Verdict {
    Go,
    /// It fails, having done nothing.
    Fail(i32),
    /// It succeeds, and is reported as failed.
    Pretend(i32),
    /// A write takes half of its bytes.
    Short,
}

pub(in crate::save) trait Tap: Send + Sync + fmt::Debug {
    fn before(&self, call: &Call) -> Verdict;
    /// After a call that succeeded; `inode` is what a creating call made.
    fn after(&self, call: Call, inode: Option<u64>);
}

#[derive(Debug)]
pub(in crate::save) struct Tapped<T>(pub(in crate::save) T);

impl<T: Tap> Tapped<T> {
    fn call<R>(&self, call: Call, go: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.making(call, go, |_| None)
    }

    fn making<R>(
        &self,
        call: Call,
        go: impl FnOnce() -> io::Result<R>,
        made: impl FnOnce(&R) -> Option<u64>,
    ) -> io::Result<R> {
        let verdict = self.0.before(&call);
        if let Verdict::Fail(code) = verdict {
            return Err(io::Error::from_raw_os_error(code));
        }
        let result = go()?;
        let inode = made(&result);
        self.0.after(call, inode);
        match verdict {
            Verdict::Pretend(code) => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(result),
        }
    }
}

fn inode(file: BorrowedFd<'_>) -> u64 {
    Kernel.stat_open(file).unwrap().identity.inode
}

impl<T: Tap> System for Tapped<T> {
    fn open_folder(&self, path: &Path) -> io::Result<OwnedFd> {
        self.call(Call::Other("open_folder"), || Kernel.open_folder(path))
    }

    fn make_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let made = |_: &()| Some(Kernel.stat(above, name).unwrap().identity.inode);
        let call = Call::MakeFolder { above: inode(above), name: name.into() };
        self.making(call, || Kernel.make_folder(above, name), made)
    }

    fn remove_folder(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let call = Call::RemoveFolder { above: inode(above), name: name.into() };
        self.call(call, || Kernel.remove_folder(above, name))
    }

    fn list(&self, folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
        self.call(Call::Other("list"), || Kernel.list(folder))
    }

    fn stat(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat> {
        self.call(Call::Other("stat"), || Kernel.stat(folder, name))
    }

    fn stat_open(&self, file: BorrowedFd<'_>) -> io::Result<Stat> {
        self.call(Call::Other("stat_open"), || Kernel.stat_open(file))
    }

    fn may_write(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        self.call(Call::Other("may_write"), || Kernel.may_write(folder, name))
    }

    fn create(&self, folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<OwnedFd> {
        let call = Call::Create { folder: inode(folder), name: name.into() };
        let made = |file: &OwnedFd| Some(inode(std::os::fd::AsFd::as_fd(file)));
        self.making(call, || Kernel.create(folder, name, mode), made)
    }

    fn open(&self, folder: BorrowedFd<'_>, name: &OsStr, how: How) -> io::Result<OwnedFd> {
        self.call(Call::Other("open"), || Kernel.open(folder, name, how))
    }

    fn lock(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        self.call(Call::Other("lock"), || Kernel.lock(file))
    }

    fn unlock(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.call(Call::Other("unlock"), || Kernel.unlock(file))
    }

    fn file_size_limit(&self) -> Option<u64> {
        Kernel.file_size_limit()
    }

    fn reserve(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        self.call(Call::Reserve { file: inode(file), len }, || Kernel.reserve(file, len))
    }

    fn write_at(&self, file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let call = Call::Write { file: inode(file), offset, bytes: bytes.to_vec() };
        let verdict = self.0.before(&call);
        let bytes = match verdict {
            Verdict::Fail(code) => return Err(io::Error::from_raw_os_error(code)),
            Verdict::Short => &bytes[..bytes.len().div_ceil(2)],
            Verdict::Go | Verdict::Pretend(_) => bytes,
        };
        let count = Kernel.write_at(file, bytes, offset)?;
        self.0.after(Call::Write { file: inode(file), offset, bytes: bytes[..count].to_vec() }, None);
        match verdict {
            Verdict::Pretend(code) => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(count),
        }
    }

    fn start_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        self.call(Call::Other("start_write_back"), || Kernel.start_write_back(file, offset, len))
    }

    fn wait_write_back(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        self.call(Call::Other("wait_write_back"), || Kernel.wait_write_back(file, offset, len))
    }

    fn set_len(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        self.call(Call::SetLen { file: inode(file), len }, || Kernel.set_len(file, len))
    }

    fn set_owner(&self, file: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
        self.call(Call::Other("set_owner"), || Kernel.set_owner(file, uid, gid))
    }

    fn set_mode(&self, file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
        self.call(Call::Other("set_mode"), || Kernel.set_mode(file, mode))
    }

    fn flush(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.call(Call::Other("flush"), || Kernel.flush(file))
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.call(Call::Sync { file: inode(file) }, || Kernel.sync(file))
    }

    fn link(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let call = Call::Link { folder: inode(folder), from: from.into(), to: to.into() };
        self.call(call, || Kernel.link(folder, from, to))
    }

    fn rename(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let call = Call::Rename { folder: inode(folder), from: from.into(), to: to.into() };
        self.call(call, || Kernel.rename(folder, from, to))
    }

    fn rename_new(&self, folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let call = Call::Rename { folder: inode(folder), from: from.into(), to: to.into() };
        self.call(call, || Kernel.rename_new(folder, from, to))
    }

    fn unlink(&self, folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let call = Call::Unlink { folder: inode(folder), name: name.into() };
        self.call(call, || Kernel.unlink(folder, name))
    }
}
