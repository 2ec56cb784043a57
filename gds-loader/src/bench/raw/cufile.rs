//! By cuFile into registered device memory, one read at a time by each thread: what gdsio calls transfer type 0.

use std::time::Instant;

use super::blocks::Blocks;
use super::{Done, Opened, RawOptions, Reader};
use crate::cufile::{CuFile, CuFileError};
use crate::error::{Error, Result};
use crate::policy::{Backend, CuFilePaths, Proof, Verdict};
use crate::report::{GdsProof, GdsReport};
use crate::transport::{PathKind, ReadCause, RegisteredBuffer};

/// The files, registered with cuFile.
pub(super) struct Files<'a> {
    files: Vec<(CuFile, &'a Opened)>,
    paths: CuFilePaths,
    by: PathKind,
}

impl<'a> Files<'a> {
    /// Opens the driver in the mode of the path, and the files.
    pub(super) fn open(opened: &'a [Opened], options: &RawOptions) -> Result<Self> {
        let first = opened.first().map(|opened| opened.path.clone()).unwrap_or_default();
        let paths = CuFilePaths::open(Backend::Only(options.path), &options.device, &first)?;
        let Some(driver) = paths.driver() else {
            let reason = "cuFile's driver did not open".into();
            return Err(Error::Unavailable { path: first, by: options.path, reason });
        };
        let files = opened
            .iter()
            .map(|opened| match CuFile::open(driver, &opened.path) {
                Ok(file) => Ok((file, opened)),
                Err(error) => Err(unavailable(opened, options.path, &error)),
            })
            .collect::<Result<_>>()?;
        Ok(Self { files, paths, by: options.path })
    }

    /// What the statistics say before the first read.
    pub(super) fn proof(&self) -> Option<Proof> {
        self.paths.driver().filter(|_| self.by == PathKind::Gds).map(Proof::begin)
    }

    /// A thread's part: device memory of its own, registered.
    pub(super) fn reader(&self, options: &RawOptions) -> Result<Box<dyn Reader + '_>> {
        let region = options.device.allocate(options.block_size, 4096)?;
        let (Some(driver), Some((_, first))) = (self.paths.driver(), self.files.first()) else {
            return Err(Error::Worker { reason: "no file is registered with cuFile".into() });
        };
        match RegisteredBuffer::register(driver, region) {
            Ok(buffer) => Ok(Box::new(Thread { files: &self.files, by: self.by, buffer })),
            Err((_, error)) => Err(unavailable(first, self.by, &error)),
        }
    }
}

fn unavailable(opened: &Opened, by: PathKind, error: &CuFileError) -> Error {
    Error::Unavailable { path: opened.path.clone(), by, reason: error.to_string() }
}

/// What the statistics say after the last read.
pub(super) fn verdict(proof: Proof, options: &RawOptions) -> GdsReport {
    let (proof, reason) = match proof.verdict() {
        Verdict::Verified => (GdsProof::Verified, None),
        Verdict::Unverified(reason) => (GdsProof::Unverified, Some(reason)),
        Verdict::Bounced(reads) => {
            (GdsProof::Bounced, Some(format!("{reads} of cuFile's reads were served by the host")))
        }
    };
    GdsReport { proof: Some(proof), reason, window_bytes: options.block_size * options.threads as u64 }
}

struct Thread<'a> {
    files: &'a [(CuFile, &'a Opened)],
    by: PathKind,
    buffer: RegisteredBuffer,
}

impl Reader for Thread<'_> {
    fn run(&mut self, blocks: &Blocks) -> Result<Done> {
        let mut done = Done::new()?;
        let size = self.buffer.len();
        while let Some(block) = blocks.deal() {
            let (file, opened) = &self.files[block.file];
            let start = Instant::now();
            let failed = |source| opened.failed(self.by, block.offset, block.len, source);
            let got = file
                .read_at_least(&mut self.buffer, 0..size, block.len, block.offset)
                .map_err(|error| failed(Some(ReadCause::CuFile(Box::new(error)))))?;
            if got < block.len {
                return Err(failed(None));
            }
            done.read(block.len, start.elapsed());
        }
        done.end = Instant::now();
        Ok(done)
    }
}
