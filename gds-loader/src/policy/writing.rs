//! Which path a file that is written takes, which path takes over, and what proves that bytes went straight.

use super::cufile::{Verdict, counters};
use super::{Backend, TINY_FILE, verdict};
use crate::cufile::{Driver, Level3};
use crate::facts::{DirectIo, FileSystem};
use crate::transport::{PathKind, ReadCause};

/// The paths by which a file can be written.
pub(crate) const WRITABLE: [PathKind; 3] = [PathKind::Gds, PathKind::Direct, PathKind::Buffered];

/// The paths to try for writing a file of `len` bytes, best first; `gds` says whether GPUDirect Storage serves here and the
/// bytes are a GPU's. Empty where the path asked for writes nothing.
pub(crate) fn writing_order(
    backend: Backend,
    direct_io: DirectIo,
    file_system: FileSystem,
    len: u64,
    gds: bool,
) -> &'static [PathKind] {
    use PathKind::{Buffered, Direct, Gds};
    match backend {
        Backend::Only(Gds) => &[Gds],
        Backend::Only(Direct) => &[Direct],
        Backend::Only(Buffered) => &[Buffered],
        Backend::Only(_) | Backend::Prefetch => &[],
        Backend::Auto if file_system == FileSystem::Memory || len < TINY_FILE => &[Buffered],
        Backend::Auto if direct_io == DirectIo::Unsupported => &[Buffered],
        Backend::Auto if gds => &[Gds, Direct, Buffered],
        Backend::Auto => &[Direct, Buffered],
    }
}

/// The paths of the host after `kind`, for bytes that are the host's or that `kind` could not write.
pub(crate) fn host_order(kind: PathKind) -> &'static [PathKind] {
    match kind {
        PathKind::Gds => &[PathKind::Direct, PathKind::Buffered],
        PathKind::Direct => &[PathKind::Buffered],
        _ => &[],
    }
}

/// Whether a write that failed on `kind` may be tried on another path: not where the disk, the quota or the device said no.
pub(crate) fn may_move_on(kind: PathKind, cause: &ReadCause) -> bool {
    verdict(kind, Some(cause)).is_some()
}

/// cuFile's statistics at the beginning of a save.
#[derive(Debug)]
pub(crate) struct WriteProof {
    driver: Driver,
    before: Result<Level3, String>,
}

impl WriteProof {
    /// Reads the counters.
    pub(crate) fn begin(driver: &Driver) -> Self {
        Self { driver: driver.clone(), before: counters(driver) }
    }

    /// What was counted since. Other saves of the process count too: a doubt is never resolved in favour of `gds`.
    pub(crate) fn verdict(self) -> Verdict {
        let after = self.driver.statistics_level3().map_err(|error| error.to_string());
        let (before, after) = match (self.before, after) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(reason), _) | (_, Err(reason)) => return Verdict::Unverified(reason),
        };
        let rise = |count: fn(&Level3) -> u64| count(&after).saturating_sub(count(&before));
        match (rise(bounced), rise(straight)) {
            (0, 0) => Verdict::Unverified("cuFile counted no write at all".into()),
            (0, _) => Verdict::Verified,
            (bounced, _) => Verdict::Bounced(bounced),
        }
    }
}

/// Writes served by the host.
fn bounced(level3: &Level3) -> u64 {
    level3.gpus.iter().map(|gpu| gpu.write.posix).sum()
}

/// Writes that went straight.
fn straight(level3: &Level3) -> u64 {
    level3.gpus.iter().map(|gpu| gpu.write.nvfs + gpu.write.p2p).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTORS: DirectIo = DirectIo::Supported { memory: 4, offset: 512 };

    #[test]
    fn auto_writes_past_the_page_cache_where_there_is_a_disk() {
        let auto = |direct_io, system, len, gds| writing_order(Backend::Auto, direct_io, system, len, gds)[0];
        assert_eq!(auto(SECTORS, FileSystem::Local, 1 << 30, true), PathKind::Gds);
        assert_eq!(auto(SECTORS, FileSystem::Local, 1 << 30, false), PathKind::Direct);
        let nfs = FileSystem::Network { kind: crate::facts::Network::Nfs, read_size: None };
        assert_eq!(auto(DirectIo::Unknown, nfs, 1 << 30, false), PathKind::Direct);
        assert_eq!(auto(SECTORS, FileSystem::Memory, 1 << 30, true), PathKind::Buffered);
        assert_eq!(auto(SECTORS, FileSystem::Local, 1000, true), PathKind::Buffered);
        assert_eq!(auto(DirectIo::Unsupported, FileSystem::Local, 1 << 30, false), PathKind::Buffered);
    }

    #[test]
    fn a_forced_path_is_the_only_one() {
        for kind in PathKind::ALL {
            let order = writing_order(Backend::Only(kind), SECTORS, FileSystem::Local, 1 << 30, true);
            assert_eq!(order, if WRITABLE.contains(&kind) { vec![kind] } else { vec![] });
        }
    }

    #[test]
    fn a_full_disk_is_not_tried_another_way() {
        let system = |code: i32| ReadCause::from(std::io::Error::from_raw_os_error(code));
        assert!(may_move_on(PathKind::Direct, &system(libc::EINVAL)));
        for code in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EIO, libc::EROFS] {
            assert!(!may_move_on(PathKind::Direct, &system(code)), "{code}");
        }
    }
}
