//! What the file and the machine are: asked of the kernel, never assumed.
//!
//! Facts are read once a load. A fact the kernel does not give is `Unknown`, which is neither yes nor no.

mod residency;

use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};

pub use residency::{Residency, evict, residency};

/// What the kernel says about direct I/O on a file (`statx(2)`, `STATX_DIOALIGN`, Linux 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Supported; memory addresses, and offsets and lengths, must be multiples of these, in bytes.
    Supported {
        /// Alignment of memory addresses.
        memory: u64,
        /// Alignment of file offsets and of lengths.
        offset: u64,
    },
    /// The kernel says the file cannot do it.
    Unsupported,
    /// The kernel or the file system does not say (before 6.1, tmpfs, network file systems).
    Unknown,
}

/// Alignment used where the kernel does not say: no block device in use has larger logical sectors.
const CAUTIOUS_ALIGNMENT: u64 = 4096;

impl DirectIo {
    /// Asks the kernel about `file`.
    pub fn of(file: &File) -> Self {
        match statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
            Ok(answer) => Self::from_statx(
                answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0,
                answer.stx_dio_mem_align,
                answer.stx_dio_offset_align,
            ),
            Err(_) => Self::Unknown,
        }
    }

    /// Reads the answer: the fields mean something only where the mask bit says so, and 0 then means "no direct I/O".
    fn from_statx(known: bool, memory: u32, offset: u32) -> Self {
        match (known, memory, offset) {
            (false, _, _) => Self::Unknown,
            (true, 0, _) | (true, _, 0) => Self::Unsupported,
            (true, memory, offset) => Self::Supported { memory: memory.into(), offset: offset.into() },
        }
    }

    /// The one alignment to use for offsets, lengths and addresses, in bytes: a power of two.
    pub fn alignment(self) -> u64 {
        match self {
            Self::Supported { memory, offset } => memory.max(offset).next_power_of_two(),
            Self::Unsupported | Self::Unknown => CAUTIOUS_ALIGNMENT,
        }
    }
}

/// The kind of file system a file lives on, as far as the choice of path cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Memory: tmpfs or ramfs. There is no disk below it to read directly from.
    Memory,
    /// A network or cluster file system (NFS, Lustre, SMB, Ceph, GPFS, BeeGFS, 9p).
    Network,
    /// Anything else: taken to be a local disk.
    Local,
}

impl FileSystem {
    /// Asks the kernel about the file system of `file` (`fstatfs(2)`).
    pub fn of(file: &File) -> Self {
        fstatfs(file.as_fd())
            .map_or(Self::Local, |answer| Self::from_magic(answer.f_type as u64 & 0xffff_ffff))
    }

    /// By the magic numbers of the kernel's `linux/magic.h` and, for file systems outside it, of their own sources.
    fn from_magic(magic: u64) -> Self {
        match magic {
            0x0102_1994 | 0x8584_58f6 => Self::Memory,
            0x6969 | 0x0bd0_0bd0 | 0xff53_4d42 | 0xfe53_4d42 | 0x517b | 0x00c3_6400 | 0x4750_4653
            | 0x1983_0326 | 0x0102_1997 => Self::Network,
            _ => Self::Local,
        }
    }
}

/// Everything the choice of path needs to know of one file.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// Length in bytes.
    pub len: u64,
    /// What direct I/O demands.
    pub direct_io: DirectIo,
    /// The file system's kind.
    pub file_system: FileSystem,
    /// How much of it the page cache holds.
    pub residency: Residency,
}

impl FileFacts {
    /// Gathers the facts of an open file of `len` bytes.
    pub fn of(file: &File, len: u64) -> Self {
        Self {
            len,
            direct_io: DirectIo::of(file),
            file_system: FileSystem::of(file),
            residency: residency(file, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_fields_count_only_where_the_mask_says_so() {
        assert_eq!(DirectIo::from_statx(false, 0, 0), DirectIo::Unknown);
        assert_eq!(DirectIo::from_statx(false, 512, 512), DirectIo::Unknown);
        assert_eq!(DirectIo::from_statx(true, 0, 0), DirectIo::Unsupported);
        assert_eq!(DirectIo::from_statx(true, 4, 512), DirectIo::Supported { memory: 4, offset: 512 });
        assert_eq!(DirectIo::from_statx(true, 4, 512).alignment(), 512);
        assert_eq!(DirectIo::from_statx(true, 512, 4096).alignment(), 4096);
        assert_eq!(DirectIo::Unknown.alignment(), 4096);
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(FileSystem::from_magic(0x0102_1994), FileSystem::Memory);
        assert_eq!(FileSystem::from_magic(0x6969), FileSystem::Network);
        assert_eq!(FileSystem::from_magic(0xef53), FileSystem::Local);
    }
}
