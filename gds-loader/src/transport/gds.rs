//! cuFile: straight from storage into device memory, or, in its compatibility mode, bounced through the host by itself.
//!
//! Real GPUDirect Storage reads into registered memory only; anything else the library bounces. So extents go into slots of a
//! registered window, and from there to their places within the GPU. In compatibility mode nothing is gained by that: bytes
//! are read straight into their places.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use cuda_staging::RegionMut;

use super::{PathKind, ReadFailure, Target};
use crate::cufile::{CuFile, CuFileError, CuFileResult, Direction, Driver, Mode, RegisteredBuffer};
use crate::source::reopen;

/// What NVIDIA's design guide wants offsets and lengths to be multiples of, in bytes, or requests go through bounce buffers.
const PAGE: u64 = 4096;

/// Where this path wants bytes to land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// In a slot of a registered window.
    Window,
    /// In their places.
    Straight,
}

/// A file registered with cuFile.
#[derive(Debug)]
pub(crate) struct Gds {
    file: CuFile,
    len: u64,
    alignment: u64,
}

impl Gds {
    /// Opens `target` a second time, for direct I/O where the file system allows it, and registers it.
    ///
    /// # Errors
    /// Where it cannot be opened or the library does not take it; `ESTALE` where the path now leads to another file than the
    /// one whose header was read, and without `/proc` that one cannot be opened.
    pub(crate) fn open(driver: &Driver, target: &Target<'_>) -> CuFileResult<Self> {
        let failed = |source: io::Error| CuFileError::File {
            doing: "opening it for cuFile",
            path: target.path.into(),
            source,
        };
        let Some(first) = target.file.as_kept() else {
            let reason = "cuFile needs files that stay open, and there are too few descriptors for that: raise RLIMIT_NOFILE";
            return Err(failed(io::Error::other(reason)));
        };
        let file = open_direct(target.path, first).map_err(failed)?;
        let file = CuFile::register(driver, file, target.path)?;
        let mut gds = Self { file, len: target.len, alignment: target.direct_alignment.max(PAGE) };
        if gds.landing() == Landing::Straight && target.in_memory {
            // No sectors to keep: pieces then begin where pages of the destination do, which is what bounce buffers copy best.
            gds.alignment = 1;
        }
        Ok(gds)
    }

    /// What the driver's mode makes it: `gds` is a claim until the statistics prove it.
    pub(crate) fn kind(&self) -> PathKind {
        match self.file.driver().mode() {
            Mode::Direct => PathKind::Gds,
            Mode::Compat | Mode::Default => PathKind::GdsCompat,
        }
    }

    pub(super) fn file(&self) -> &CuFile {
        &self.file
    }

    pub(crate) fn alignment(&self) -> u64 {
        self.alignment
    }

    pub(crate) fn landing(&self) -> Landing {
        match self.kind() {
            PathKind::Gds => Landing::Window,
            _ => Landing::Straight,
        }
    }

    /// Reads `extent`, as far as the file has it, into the beginning of a window slot; returns how many bytes that is.
    ///
    /// The whole aligned extent is asked for, since an odd length at the file's end would not go straight.
    pub(crate) fn read_window(
        &self,
        into: &mut RegisteredBuffer,
        extent: Range<u64>,
    ) -> Result<u64, ReadFailure> {
        let expected = self.expected(&extent);
        let read = self.file.read_at_least(into, 0..extent.end - extent.start, expected, extent.start);
        match read {
            Ok(done) if done >= expected => Ok(expected),
            Ok(done) => {
                let (path, file_offset) = (self.file.path().to_path_buf(), extent.start);
                let short =
                    CuFileError::Short { direction: Direction::Read, path, file_offset, done, expected };
                Err(failure(short, extent.start, expected))
            }
            Err(error) => Err(failure(error, extent.start, expected)),
        }
    }

    /// That `extent` could not be read, because cuFile has kept every window.
    pub(crate) fn without_window(&self, extent: &Range<u64>) -> ReadFailure {
        let (doing, what) =
            ("reading into a window".into(), "no end of the reads that have all of them".into());
        failure(CuFileError::Nonsense { doing, what }, extent.start, self.expected(extent))
    }

    /// Reads as many bytes at `offset` as `into` has room for.
    pub(crate) fn read_straight(&self, into: &mut RegionMut, offset: u64) -> Result<(), ReadFailure> {
        let expected = into.len();
        self.file.read_exact(into, offset).map_err(|error| failure(error, offset, expected))
    }

    /// Reads `extent`, as far as the file has it, into host memory; returns how many bytes that is.
    pub(crate) fn read_host(&self, into: &mut [u8], extent: Range<u64>) -> Result<u64, ReadFailure> {
        let expected = self.expected(&extent);
        let read = self.file.read_exact_at(into, 0..expected, extent.start);
        read.map(|()| expected).map_err(|error| failure(error, extent.start, expected))
    }

    /// Bytes of `extent` that the file had when it was opened.
    pub(super) fn expected(&self, extent: &Range<u64>) -> u64 {
        extent.end.min(self.len).saturating_sub(extent.start)
    }
}

/// Opens the file with `O_DIRECT`, or plainly where the file system refuses that: the library is asked then whether it takes it.
fn open_direct(path: &Path, first: &File) -> io::Result<File> {
    match reopen(path, first, libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => reopen(path, first, 0),
        opened => opened,
    }
}

pub(super) fn failure(error: CuFileError, offset: u64, expected: u64) -> ReadFailure {
    let got = error.done();
    ReadFailure { offset: offset + got, got, expected, source: Some(Box::new(error).into()) }
}
