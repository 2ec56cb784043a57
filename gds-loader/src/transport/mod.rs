//! How bytes of a file reach memory: one file per path, each knowing nothing of the others.
//!
//! Two kinds. Those that read into host memory read once and report what the kernel said; [`Extent`] is the one rule that
//! makes them exact, whether a thread waits for each call or io_uring keeps many in flight. Those that read into device memory are cuFile's, which loops itself. Which transport serves which
//! file, and what happens when one fails, is `policy`'s business alone.

mod advice;
mod buffered;
mod direct;
mod engine;
mod extent;
mod gds;
mod gds_batch;
mod mmap;
mod uring;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub(crate) use advice::ReadAhead;
pub(crate) use buffered::Buffered;
pub(crate) use direct::Direct;
pub use engine::Engine;
pub(crate) use extent::{Extent, read_extent};
pub(crate) use gds::{Gds, Landing};
pub(crate) use gds_batch::{Ended, GdsBatch};
pub(crate) use mmap::Mapped;
pub(crate) use uring::{Ended as QueueEnded, Place, Queue, probe};

pub(crate) use crate::cufile::RegisteredBuffer;

use crate::cufile::CuFileError;
use crate::source::ShardFile;

/// A way from storage to memory, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// GPUDirect Storage, proven by cuFile's own statistics.
    Gds,
    /// cuFile in compatibility mode: it bounces every byte through host memory itself.
    GdsCompat,
    /// `O_DIRECT` reads into slots, or straight into host memory.
    Direct,
    /// Reads through the page cache.
    Buffered,
    /// Copies out of a mapping of the file.
    Mmap,
}

impl PathKind {
    /// Every path, in the order reports list them.
    pub const ALL: [Self; 5] = [Self::Gds, Self::GdsCompat, Self::Direct, Self::Buffered, Self::Mmap];

    /// The name used in reports and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gds => "gds",
            Self::GdsCompat => "gds-compat",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PathKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or(())
    }
}

/// The file a transport reads: already checked, so that every path reads the same inode.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    /// As the user or the index names it.
    pub(crate) path: &'a Path,
    /// For ordinary reads.
    pub(crate) file: &'a ShardFile,
    /// Length at opening, in bytes.
    pub(crate) len: u64,
    /// Alignment for direct I/O, in bytes.
    pub(crate) direct_alignment: u64,
    /// Whether it lies in memory (tmpfs), where there are no sectors.
    pub(crate) in_memory: bool,
    /// Bytes that the kernel reads for one piece of advice to read ahead; `None` where the page cache holds the file.
    pub(crate) read_ahead: Option<u64>,
}

/// One open file on one path.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// The path reads into host memory.
    Host(Arc<dyn HostReads>),
    /// The path reads into device memory.
    Device(Arc<Gds>),
}

impl Transport {
    /// Which path this is.
    pub(crate) fn kind(&self) -> PathKind {
        match self {
            Self::Host(reads) => reads.kind(),
            Self::Device(gds) => gds.kind(),
        }
    }

    /// What offsets, lengths and memory addresses must be multiples of, in bytes: a power of two.
    pub(crate) fn alignment(&self) -> u64 {
        match self {
            Self::Host(reads) => reads.alignment(),
            Self::Device(gds) => gds.alignment(),
        }
    }

    /// Whether both are the same open file on the same path.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(a), Self::Host(b)) => Arc::ptr_eq(a, b),
            (Self::Device(a), Self::Device(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// One open file on a path that reads into host memory.
pub(crate) trait HostReads: Send + Sync + fmt::Debug {
    /// Which path this is.
    fn kind(&self) -> PathKind;

    /// What offsets, lengths and memory addresses must be multiples of, in bytes: a power of two.
    fn alignment(&self) -> u64;

    /// Reads up to `into.len()` bytes at `offset`, once. 0 means there is nothing at or after `offset`.
    ///
    /// # Errors
    /// What the kernel says, unchanged.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file, where it stays open and a [`Queue`] may keep reads of it in flight. Reads through the page cache gain nothing by that: where
    /// they must wait, the kernel gives each a thread of its own.
    fn queued(&self) -> Option<&Arc<File>> {
        None
    }
}

/// Why an extent could not be read.
#[derive(Debug)]
pub(crate) struct ReadFailure {
    /// Where the failing call read from.
    pub(crate) offset: u64,
    /// Bytes of the extent that had arrived.
    pub(crate) got: u64,
    /// Bytes that should have.
    pub(crate) expected: u64,
    /// What was said; `None` where it was "end of file", too early.
    pub(crate) source: Option<ReadCause>,
}

impl ReadFailure {
    /// Whether the kernel could not write to the memory, as where the memory is a device's: other memory may do.
    pub(crate) fn is_bad_address(&self) -> bool {
        matches!(&self.source, Some(ReadCause::System(error)) if error.raw_os_error() == Some(libc::EFAULT))
    }
}

/// What was said to a read that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadCause {
    /// By the kernel.
    #[error(transparent)]
    System(#[from] io::Error),
    /// By cuFile.
    #[error(transparent)]
    CuFile(#[from] Box<CuFileError>),
}
