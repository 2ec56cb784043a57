//! How bytes of a file reach memory: one file per path, each knowing nothing of the others.
//!
//! Two kinds. Those that read into host memory read once and report what the kernel said; [`read_extent`] is the one loop
//! that makes them exact. Those that read into device memory are cuFile's, which loops itself. Which transport serves which
//! file, and what happens when one fails, is `policy`'s business alone.

mod buffered;
mod direct;
mod engine;
mod gds;
mod gds_batch;
mod mmap;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub(crate) use buffered::Buffered;
pub(crate) use direct::Direct;
pub use engine::Engine;
pub(crate) use gds::{Gds, Landing};
pub(crate) use gds_batch::{Ended, GdsBatch};
pub(crate) use mmap::Mapped;

pub(crate) use crate::cufile::RegisteredBuffer;

use crate::cufile::CuFileError;

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

/// The file a transport reads: already open and checked, so that every path reads the same inode.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    /// As the user or the index names it.
    pub(crate) path: &'a Path,
    /// Open for ordinary reads.
    pub(crate) file: &'a Arc<File>,
    /// Length at opening, in bytes.
    pub(crate) len: u64,
    /// Alignment for direct I/O, in bytes.
    pub(crate) direct_alignment: u64,
    /// Whether it lies in memory (tmpfs), where there are no sectors.
    pub(crate) in_memory: bool,
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

/// Longest single call: the kernel stops at 0x7ffff000 bytes whatever is asked, so no call asks for more.
const LONGEST_CALL: usize = 1 << 30;

/// Reads all of `extent` that lies inside a file of `file_len` bytes into the start of `into`, and returns how many bytes that is.
///
/// Loops on short reads and interruptions. A short count that leaves the next call misaligned is read again from the last
/// aligned byte.
///
/// # Errors
/// The first failing call, or an end of file before `file_len`: the file shrank.
pub(crate) fn read_extent(
    transport: &dyn HostReads,
    into: &mut [u8],
    extent: Range<u64>,
    file_len: u64,
) -> Result<u64, ReadFailure> {
    let expected = extent.end.min(file_len).saturating_sub(extent.start);
    let mut done = 0_u64;
    while done < expected {
        let offset = extent.start + done;
        let failure = |source| ReadFailure { offset, got: done, expected, source };
        let rest = into.get_mut(done as usize..(extent.end - extent.start) as usize).unwrap_or_default();
        let call = rest.len().min(LONGEST_CALL);
        match transport.read_at(&mut rest[..call], offset) {
            Ok(0) => return Err(failure(None)),
            Ok(count) => {
                let reached = done + count as u64;
                let aligned = crate::plan::align_down(reached, transport.alignment());
                if reached >= expected {
                    done = reached;
                } else if aligned > done {
                    done = aligned;
                } else {
                    // Less than one sector, and not the file's end: it could be asked for for ever.
                    return Err(failure(None));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failure(Some(error.into()))),
        }
    }
    Ok(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// A file in memory that enforces an alignment and answers as its script says.
    #[derive(Debug)]
    struct Scripted {
        bytes: Vec<u8>,
        alignment: u64,
        script: Mutex<Vec<Answer>>,
    }

    #[derive(Clone, Debug)]
    enum Answer {
        Short(usize),
        Fail(i32),
    }

    impl HostReads for Scripted {
        fn kind(&self) -> PathKind {
            PathKind::Direct
        }

        fn alignment(&self) -> u64 {
            self.alignment
        }

        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            if !(offset | into.len() as u64).is_multiple_of(self.alignment) {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let start = (offset as usize).min(self.bytes.len());
            let mut count = into.len().min(self.bytes.len() - start);
            match self.script.lock().unwrap().pop() {
                Some(Answer::Short(most)) => count = count.min(most.max(1)),
                Some(Answer::Fail(code)) => return Err(io::Error::from_raw_os_error(code)),
                None => {}
            }
            into[..count].copy_from_slice(&self.bytes[start..start + count]);
            Ok(count)
        }
    }

    fn scripted(len: usize, alignment: u64, script: Vec<Answer>) -> Scripted {
        let bytes = (0..len).map(|k| (k * 31 % 251) as u8).collect();
        Scripted { bytes, alignment, script: Mutex::new(script) }
    }

    proptest! {
        #[test]
        fn short_counts_and_interruptions_do_not_change_a_byte(
            len in 1_usize..20_000,
            start in 0_usize..20,
            blocks in 1_usize..20,
            script in prop::collection::vec(
                prop_oneof![(512_usize..5000).prop_map(Answer::Short), Just(Answer::Fail(libc::EINTR))], 0..8),
        ) {
            let file = scripted(len, 512, script);
            let extent = start as u64 * 512..(start + blocks) as u64 * 512;
            let mut into = vec![0xaa; blocks * 512];
            let got = read_extent(&file, &mut into, extent.clone(), len as u64).unwrap() as usize;
            let end = (extent.end as usize).min(len);
            let wanted = file.bytes.get(extent.start as usize..end).unwrap_or_default();
            prop_assert_eq!(&into[..got], wanted);
        }
    }

    #[test]
    fn the_kernel_s_own_cap_does_not_truncate() {
        let file = scripted(100_000, 1, vec![Answer::Short(7); 50]);
        let mut into = vec![0; 100_000];
        assert_eq!(read_extent(&file, &mut into, 0..100_000, 100_000).unwrap(), 100_000);
        assert_eq!(into, file.bytes);
    }

    #[test]
    fn a_file_that_shrank_is_an_error_with_its_place() {
        let file = scripted(1000, 512, vec![]);
        let failure = read_extent(&file, &mut vec![0; 2048], 0..2048, 2000).unwrap_err();
        assert_eq!((failure.offset, failure.got, failure.expected), (512, 512, 2000));
        assert!(failure.source.is_none());
        // With no alignment to keep, the end shows as a count of 0.
        let file = scripted(1000, 1, vec![]);
        let failure = read_extent(&file, &mut vec![0; 2048], 0..2048, 2000).unwrap_err();
        assert_eq!((failure.offset, failure.got, failure.expected), (1000, 1000, 2000));
        assert!(failure.source.is_none());
    }

    #[test]
    fn a_failing_call_is_reported_unchanged() {
        let file = scripted(4096, 512, vec![Answer::Fail(libc::EIO), Answer::Short(1024)]);
        let failure = read_extent(&file, &mut vec![0; 4096], 0..4096, 4096).unwrap_err();
        assert_eq!(failure.offset, 1024);
        let Some(ReadCause::System(error)) = failure.source else { panic!("{failure:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_count_below_one_sector_ends_instead_of_repeating_for_ever() {
        let file = scripted(4096, 512, vec![Answer::Short(100)]);
        assert!(read_extent(&file, &mut vec![0; 4096], 0..4096, 4096).is_err());
    }
}
