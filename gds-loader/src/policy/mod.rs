//! Which path a file takes, and which path takes over when one fails: the one place that knows them all.
//!
//! Choices are data: [`explain`] maps facts to a list of paths, [`verdict`] maps a path's failure to "this path cannot serve
//! here" or "the data cannot be had". Only the first kind moves a file to its next path; a data error is never hidden.

mod cufile;
mod page_cache;
mod prefetch;
mod presence;
mod route;
mod runs;
mod tuning;
mod writing;

use std::io;
use std::str::FromStr;
use std::sync::Arc;

use crate::cufile::{CuFileError, CuFileErrorKind, Driver};
use crate::error::{Error, Result};
use crate::facts::{DirectIo, FileFacts, FileSystem, Network, Residency};
use crate::source::advice;
use crate::transport::{Buffered, Direct, Gds, Mapped, PathKind, ReadCause, Target, Transport};

pub(crate) use cufile::{CuFilePaths, Proof, Verdict, windows};
pub(crate) use page_cache::Memory;
pub(crate) use prefetch::Prefetch;
pub(crate) use route::{Route, Terms};
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
    /// `mmap` or an error, with all that is read being brought into the page cache ahead of it: where it fits there.
    Prefetch,
}

impl Backend {
    /// The one path that is asked for.
    pub(crate) fn forced(self) -> Option<PathKind> {
        match self {
            Self::Auto => None,
            Self::Only(kind) => Some(kind),
            Self::Prefetch => Some(PathKind::Mmap),
        }
    }
}

/// vLLM's names for its loading strategies, and what each means here.
const ALIASES: [(&str, Backend); 3] = [
    ("lazy", Backend::Only(PathKind::Mmap)),
    ("eager", Backend::Only(PathKind::Buffered)),
    ("prefetch", Backend::Prefetch),
];

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, backend)| *backend);
        name.parse().ok().map(Self::Only).or(alias).ok_or_else(|| Error::Option {
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
            Self::Prefetch => f.pad("prefetch"),
        }
    }
}

/// From this share on a file is read through the page cache where nobody says which parts of it are there.
const MOSTLY_RESIDENT: f64 = 0.9;

/// Below this many bytes a file is read buffered: opening it a second time costs more than it saves.
const TINY_FILE: u64 = 1 << 20;

/// The paths `auto` tries for a file with these facts, best first, and why the first is best, where GPUDirect Storage does
/// not serve. Parts of a file that is read directly may go through the page cache all the same.
pub(crate) fn explain(facts: &FileFacts) -> (&'static [PathKind], &'static str) {
    const CACHED: &[PathKind] = &[PathKind::Buffered, PathKind::Mmap];
    const STORED: &[PathKind] = &[PathKind::Direct, PathKind::Buffered, PathKind::Mmap];
    // Faults fetch page after page over the network: never the mapping.
    const SERVED: &[PathKind] = &[PathKind::Buffered];
    const CLUSTER: &[PathKind] = &[PathKind::Direct, PathKind::Buffered];
    match facts.file_system {
        FileSystem::Memory => (CACHED, "it is in memory already"),
        FileSystem::Network { .. } if is_resident(facts) => (SERVED, "the page cache holds it"),
        FileSystem::Network { kind: Network::Lustre | Network::Weka, .. }
            if facts.direct_io != DirectIo::Unsupported && facts.len >= TINY_FILE =>
        {
            (CLUSTER, "it is on a cluster file system made for large direct reads")
        }
        FileSystem::Network { .. } => {
            (SERVED, "it is on a network file system, whose client fetches large buffered reads best")
        }
        FileSystem::Local if is_resident(facts) => (CACHED, "the page cache holds it"),
        FileSystem::Local if facts.len < TINY_FILE => (CACHED, "it is tiny"),
        FileSystem::Local if facts.direct_io == DirectIo::Unsupported => {
            (CACHED, "it cannot be read with O_DIRECT")
        }
        FileSystem::Local => (STORED, "it must be read from storage"),
    }
}

/// Whether reading the file as a whole through the page cache is best because it is there.
fn is_resident(facts: &FileFacts) -> bool {
    match (&facts.map, facts.residency) {
        (Some(map), _) => runs::covers(&runs::cached_runs(map), &(0..facts.len)),
        (None, Residency::Share(share)) => share >= MOSTLY_RESIDENT,
        (None, Residency::Unknown) => false,
    }
}

/// The paths `auto` tries where GPUDirect Storage serves on this machine.
pub(crate) fn explain_with_gds(facts: &FileFacts) -> (&'static [PathKind], &'static str) {
    const STRAIGHT: &[PathKind] = &[PathKind::Gds, PathKind::Direct, PathKind::Buffered, PathKind::Mmap];
    const NO_DIRECT: &[PathKind] = &[PathKind::Gds, PathKind::Buffered, PathKind::Mmap];
    const SERVED: &[PathKind] = &[PathKind::Gds, PathKind::Buffered];
    const CLUSTER: &[PathKind] = &[PathKind::Gds, PathKind::Direct, PathKind::Buffered];
    const WHY: &str = "GPUDirect Storage serves here";
    match (facts.file_system, facts.direct_io) {
        (FileSystem::Memory, _) => explain(facts),
        _ if facts.len < TINY_FILE => explain(facts),
        (FileSystem::Network { kind: Network::Lustre | Network::Weka, .. }, direct)
            if direct != DirectIo::Unsupported =>
        {
            (CLUSTER, WHY)
        }
        (FileSystem::Network { .. }, _) => (SERVED, WHY),
        (FileSystem::Local, DirectIo::Unsupported) => (NO_DIRECT, WHY),
        (FileSystem::Local, DirectIo::Supported { .. } | DirectIo::Unknown) => (STRAIGHT, WHY),
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
            // So may it be about the GPU. One that is broken fails the next path too.
            CuFileErrorKind::Device if error.status().is_some() => Some(Reach::File),
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
            Err(error) => Err(format!("opening it with O_DIRECT: {error}{}", advice(&error))),
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
    use crate::facts::{ResidencyMap, StorageDevice, StorageKind};

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
    fn network_file_systems_are_never_mapped_and_directly_read_only_where_made_for_it() {
        let on = |kind| FileFacts {
            file_system: FileSystem::Network { kind, read_size: None },
            direct_io: DirectIo::Unknown,
            ..facts(Residency::Unknown)
        };
        for (kind, first) in [
            (Network::Nfs, PathKind::Buffered),
            (Network::Smb, PathKind::Buffered),
            (Network::Fuse, PathKind::Buffered),
            (Network::Lustre, PathKind::Direct),
            (Network::Weka, PathKind::Direct),
        ] {
            let [without, with] = orders(&on(kind));
            assert_eq!((without[0], with[0], with[1]), (first, PathKind::Gds, first), "{kind}");
            assert!(!without.contains(&PathKind::Mmap) && !with.contains(&PathKind::Mmap), "{kind}");
        }
    }

    #[test]
    fn a_file_is_read_as_a_whole_from_the_page_cache_only_where_no_long_stretch_is_missing() {
        let of = |shares: &[f64]| {
            let map = ResidencyMap::from_shares(2 << 20, shares);
            let len = shares.len() as u64 * (2 << 20);
            let facts = FileFacts { len, map: Some(map), ..facts(Residency::Unknown) };
            explain(&facts).0[0]
        };
        assert_eq!(of(&[1.0; 100]), PathKind::Buffered);
        let mut shares = [1.0; 100];
        shares[50] = 0.0;
        assert_eq!(of(&shares), PathKind::Buffered);
        shares[51..55].fill(0.0);
        assert_eq!(of(&shares), PathKind::Direct, "95 of 100 are there, and the others are one long read");
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
        assert_eq!("lazy".parse::<Backend>().unwrap(), Backend::Only(PathKind::Mmap));
        assert_eq!("prefetch".parse::<Backend>().unwrap().to_string(), "prefetch");
        assert!("fast".parse::<Backend>().unwrap_err().to_string().contains("gds-compat"));
    }
}
