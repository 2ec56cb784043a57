//! Which path a file takes, and which path takes over when one fails: the one place that knows them all.
//!
//! Choices are data: [`explain`] maps facts to a list of paths, [`verdict`] maps a path's failure to "this path cannot serve
//! here" or "the data cannot be had". Only the first kind moves a file to its next path; a data error is never hidden.

mod cufile;
mod route;
mod tuning;
mod writing;

use std::io;
use std::str::FromStr;
use std::sync::Arc;

use crate::cufile::{CuFileError, CuFileErrorKind, Driver};
use crate::error::{Error, Result};
use crate::facts::{DirectIo, FileFacts, FileSystem, Residency};
use crate::transport::{Buffered, Direct, Gds, Mapped, PathKind, ReadCause, Target, Transport};

pub(crate) use cufile::{CuFilePaths, Proof, Verdict, windows};
pub(crate) use route::Route;
pub(crate) use tuning::ReadTuning;
pub(crate) use writing::{WRITABLE, WriteProof, host_order, may_move_on, writing_order};

/// Which path a load takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The best path for each file, with fallback to the next.
    #[default]
    Auto,
    /// This path or an error, never a silent other one.
    Only(PathKind),
}

/// vLLM's names for its loading strategies, and the path each means here.
const ALIASES: [(&str, PathKind); 3] =
    [("lazy", PathKind::Mmap), ("eager", PathKind::Buffered), ("prefetch", PathKind::Mmap)];

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, kind)| *kind);
        name.parse().ok().or(alias).map(Self::Only).ok_or_else(|| Error::Option {
            option: "backend",
            reason: format!(
                "{name:?} is none of auto, gds, gds-compat, direct, buffered, mmap (nor vLLM's lazy, eager, prefetch)"
            ),
        })
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

/// From this share on, reading through the page cache beats reading the device.
const MOSTLY_RESIDENT: f64 = 0.9;

/// Below this many bytes a file is read buffered: opening it a second time costs more than it saves.
const TINY_FILE: u64 = 1 << 20;

/// The paths `auto` tries for a file with these facts, best first, and why the first is best, where GPUDirect Storage does
/// not serve.
pub(crate) fn explain(facts: &FileFacts) -> (&'static [PathKind], &'static str) {
    const CACHED: &[PathKind] = &[PathKind::Buffered, PathKind::Mmap];
    const STORED: &[PathKind] = &[PathKind::Direct, PathKind::Buffered, PathKind::Mmap];
    match facts.residency {
        Residency::Share(share) if share >= MOSTLY_RESIDENT => (CACHED, "the page cache holds it"),
        _ if facts.file_system == FileSystem::Memory => (CACHED, "it is in memory already"),
        _ if facts.len < TINY_FILE => (CACHED, "it is tiny"),
        _ if facts.direct_io == DirectIo::Unsupported => (CACHED, "it cannot be read with O_DIRECT"),
        _ => (STORED, "it must be read from storage"),
    }
}

/// The paths `auto` tries where GPUDirect Storage serves on this machine.
pub(crate) fn explain_with_gds(facts: &FileFacts) -> (&'static [PathKind], &'static str) {
    const STRAIGHT: &[PathKind] = &[PathKind::Gds, PathKind::Direct, PathKind::Buffered, PathKind::Mmap];
    const NO_DIRECT: &[PathKind] = &[PathKind::Gds, PathKind::Buffered, PathKind::Mmap];
    const WHY: &str = "GPUDirect Storage serves here";
    match facts.direct_io {
        _ if facts.file_system == FileSystem::Memory || facts.len < TINY_FILE => explain(facts),
        DirectIo::Unsupported => (NO_DIRECT, WHY),
        DirectIo::Supported { .. } | DirectIo::Unknown => (STRAIGHT, WHY),
    }
}

/// Bytes that any kernel reads for one piece of advice to read ahead; what a device takes in one request it reads too.
const LEAST_READ_AHEAD: u64 = 128 << 10;

/// What reads through the page cache should ask for ahead, in steps of how many bytes; `None` where it holds the file.
fn read_ahead(facts: &FileFacts) -> Option<u64> {
    match facts.residency {
        _ if facts.file_system == FileSystem::Memory => None,
        Residency::Share(share) if share >= MOSTLY_RESIDENT => None,
        _ => Some(facts.storage.longest_request.unwrap_or(0).max(LEAST_READ_AHEAD)),
    }
}

/// How far a path's failure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The path cannot serve this file: the rest of it goes by the next one.
    File,
    /// The path could not serve this one piece; what another path says of it decides whether the data can be had at all.
    Piece,
}

/// What a failure of `kind` means; `None` where the data cannot be had, or the device is broken.
fn verdict(kind: PathKind, cause: Option<&ReadCause>) -> Option<Reach> {
    match cause? {
        ReadCause::System(error) => is_environmental(kind, error).then_some(Reach::File),
        ReadCause::CuFile(error) if matches!(**error, CuFileError::BatchEvent { .. }) => Some(Reach::Piece),
        ReadCause::CuFile(error) => match error.kind() {
            CuFileErrorKind::Environment | CuFileErrorKind::Unavailable | CuFileErrorKind::Broken => {
                Some(Reach::File)
            }
            // The library may be wrong about a disk or an end of file; the kernel is asked.
            CuFileErrorKind::Data => Some(Reach::Piece),
            CuFileErrorKind::Usage | CuFileErrorKind::Device => None,
        },
    }
}

/// Whether the kernel's `error` says that `kind` cannot serve here, rather than that the bytes cannot be had.
fn is_environmental(kind: PathKind, error: &io::Error) -> bool {
    let Some(code) = error.raw_os_error() else { return false };
    match kind {
        PathKind::Direct => matches!(code, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOMEM),
        PathKind::Buffered => matches!(code, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS),
        PathKind::Mmap => matches!(code, libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENODEV),
        PathKind::Gds | PathKind::GdsCompat => false,
    }
}

/// Opens a file on a path, or says why that path refuses it.
fn open(kind: PathKind, target: &Target<'_>, driver: Option<&Driver>) -> Result<Transport, String> {
    match kind {
        PathKind::Direct => match Direct::open(target) {
            Ok(direct) => Ok(Transport::Host(Arc::new(direct))),
            Err(error) => Err(format!("opening it with O_DIRECT: {error}")),
        },
        PathKind::Buffered => Ok(Transport::Host(Arc::new(Buffered::open(target)))),
        PathKind::Mmap => match Mapped::open(target) {
            Ok(mapped) => Ok(Transport::Host(Arc::new(mapped))),
            Err(error) => Err(format!("mapping it: {error}")),
        },
        PathKind::Gds | PathKind::GdsCompat => {
            let driver = driver.ok_or("cuFile is not open")?;
            match Gds::open(driver, target) {
                Ok(gds) => Ok(Transport::Device(Arc::new(gds))),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{StorageDevice, StorageKind};

    fn facts(residency: Residency) -> FileFacts {
        FileFacts {
            len: 1 << 30,
            direct_io: DirectIo::Supported { memory: 4, offset: 512 },
            file_system: FileSystem::Local,
            storage: StorageDevice::of_kind(StorageKind::Unknown),
            residency,
            map: None,
        }
    }

    /// The paths tried without and with GPUDirect Storage.
    fn orders(facts: &FileFacts) -> [&'static [PathKind]; 2] {
        [explain(facts).0, explain_with_gds(facts).0]
    }

    #[test]
    fn auto_reads_cold_files_directly_and_warm_ones_buffered() {
        assert_eq!(explain(&facts(Residency::Share(0.0))).0[0], PathKind::Direct);
        assert_eq!(explain(&facts(Residency::Unknown)).0[0], PathKind::Direct);
        assert_eq!(explain(&facts(Residency::Share(1.0))).0[0], PathKind::Buffered);
    }

    #[test]
    fn only_what_must_come_from_storage_is_asked_for_ahead() {
        let cold = facts(Residency::Share(0.0));
        assert_eq!(read_ahead(&cold), Some(LEAST_READ_AHEAD));
        assert_eq!(read_ahead(&facts(Residency::Unknown)), Some(LEAST_READ_AHEAD));
        assert_eq!(read_ahead(&facts(Residency::Share(1.0))), None);
        assert_eq!(read_ahead(&FileFacts { file_system: FileSystem::Memory, ..cold.clone() }), None);
        let storage = StorageDevice { longest_request: Some(1 << 20), ..cold.storage.clone() };
        assert_eq!(read_ahead(&FileFacts { storage, ..cold }), Some(1 << 20));
    }

    #[test]
    fn what_direct_io_gains_nothing_for_is_read_buffered() {
        let cold = facts(Residency::Share(0.0));
        for (exception, gds) in [
            (FileFacts { direct_io: DirectIo::Unsupported, ..cold.clone() }, PathKind::Gds),
            (FileFacts { file_system: FileSystem::Memory, ..cold.clone() }, PathKind::Buffered),
            (FileFacts { len: 1000, ..cold.clone() }, PathKind::Buffered),
        ] {
            assert_eq!(orders(&exception).map(|order| order[0]), [PathKind::Buffered, gds], "{exception:?}");
        }
        assert_eq!(orders(&cold).map(|order| order[0]), [PathKind::Direct, PathKind::Gds]);
    }

    #[test]
    fn a_path_of_stricter_alignment_never_comes_later() {
        for residency in [Residency::Share(0.0), Residency::Share(1.0)] {
            for order in orders(&facts(residency)) {
                // Extents cut for buffered reads need not be aligned.
                let strict = order.iter().rposition(|kind| matches!(kind, PathKind::Gds | PathKind::Direct));
                let loose = order.iter().position(|kind| matches!(kind, PathKind::Buffered | PathKind::Mmap));
                assert!(strict < loose, "{order:?}");
            }
        }
    }

    #[test]
    fn what_the_kernel_says_of_the_data_is_final_and_what_cufile_says_is_not() {
        let system = |code: i32| ReadCause::from(io::Error::from_raw_os_error(code));
        let cufile = |errno: i32| {
            let cause = crate::cufile::TransferError::Os(errno);
            let direction = crate::cufile::Direction::Read;
            let path = "x".into();
            let error =
                CuFileError::Transfer { direction, path, file_offset: 0, done: 0, expected: 1, cause };
            ReadCause::from(Box::new(error))
        };
        assert_eq!(verdict(PathKind::Direct, Some(&system(libc::EINVAL))), Some(Reach::File));
        assert_eq!(verdict(PathKind::Direct, Some(&system(libc::EIO))), None);
        assert_eq!(verdict(PathKind::Buffered, None), None, "the file ended");
        assert_eq!(verdict(PathKind::Gds, Some(&cufile(libc::EIO))), Some(Reach::Piece));
        assert_eq!(verdict(PathKind::Gds, Some(&cufile(libc::EINVAL))), Some(Reach::File));
    }

    #[test]
    fn names_and_aliases_parse_and_others_are_refused() {
        assert_eq!("auto".parse::<Backend>().unwrap(), Backend::Auto);
        for kind in PathKind::ALL {
            assert_eq!(kind.as_str().parse::<Backend>().unwrap(), Backend::Only(kind));
        }
        assert_eq!("eager".parse::<Backend>().unwrap(), Backend::Only(PathKind::Buffered));
        assert!("fast".parse::<Backend>().unwrap_err().to_string().contains("gds-compat"));
    }
}
