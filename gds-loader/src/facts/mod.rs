//! What the file and the machine are: asked of the kernel, never assumed.
//!
//! Facts are read once a load. A fact the kernel does not give is `Unknown`, which is neither yes nor no.

mod block;
mod device;
mod file_system;
mod memory;
mod mount;
mod processor;
mod residency;
mod root;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, StatxFlags, fstat, major, minor, statx};

pub use block::{BlockDevice, BlockKind};
pub use device::{StorageDevice, StorageKind};
pub use file_system::{FileSystem, Network};
pub use memory::{available_memory, fit_in_memory};
pub use processor::last_level_cache;
pub use residency::{Residency, ResidencyMap, drop_pages, evict, is_resident, residency};
pub use root::Root;

pub(crate) use block::is_address;
pub(crate) use mount::Mount;

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

/// Everything the choice of path needs to know of one file.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// Length in bytes.
    pub len: u64,
    /// What direct I/O demands.
    pub direct_io: DirectIo,
    /// The file system's kind.
    pub file_system: FileSystem,
    /// What the file system lies on.
    pub storage: StorageDevice,
    /// How much of it the page cache holds.
    pub residency: Residency,
    /// Which parts of it; None where the kernel does not say.
    pub map: Option<ResidencyMap>,
}

impl FileFacts {
    /// Gathers the facts of an open file of `len` bytes.
    pub fn of(file: &File, len: u64) -> Self {
        Self::at(file, len, &Places::new(Root::system()))
    }

    /// The same, for one of several files, of which many may lie in the same place.
    pub fn at(file: &File, len: u64, places: &Places) -> Self {
        let (file_system, storage) = places.of(file);
        let map = ResidencyMap::of(file, len);
        let residency = map.as_ref().map_or(Residency::Unknown, |map| Residency::Share(map.share()));
        Self { len, direct_io: DirectIo::of(file), file_system, storage, residency, map }
    }
}

/// The places that a load's files lie in: each device is asked about once.
#[derive(Debug)]
pub struct Places {
    root: Root,
    known: Mutex<HashMap<String, (FileSystem, StorageDevice)>>,
}

impl Places {
    /// No place yet; what the kernel says is read below `root`.
    pub fn new(root: Root) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// The file system of `file`, and what that lies on.
    fn of(&self, file: &File) -> (FileSystem, StorageDevice) {
        let Ok(stat) = fstat(file.as_fd()) else {
            return (FileSystem::Local, StorageDevice::of_kind(StorageKind::Unknown));
        };
        let number = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || {
            let file_system = FileSystem::at(&self.root, file, &number);
            (file_system, StorageDevice::below(&self.root, &number, file_system))
        };
        known.entry(number.clone()).or_insert_with(ask).clone()
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
}
