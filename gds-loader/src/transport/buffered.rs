//! Reads through the page cache, with no alignment rule at all.

use std::io;
use std::os::unix::fs::FileExt as _;

use super::advice::ReadAhead;
use super::{HostReads, PathKind, Target};
use crate::source::ShardFile;

/// The file as it was opened for its header.
#[derive(Debug)]
pub(crate) struct Buffered {
    file: ShardFile,
    ahead: ReadAhead,
}

impl Buffered {
    /// Serves any file.
    pub(crate) fn open(target: &Target<'_>) -> Self {
        Self { file: target.file.clone(), ahead: ReadAhead::new(target.read_ahead) }
    }
}

impl HostReads for Buffered {
    fn kind(&self) -> PathKind {
        PathKind::Buffered
    }

    fn alignment(&self) -> u64 {
        1
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.file.open()?;
        self.ahead.expect(&file, offset, into.len() as u64);
        file.read_at(into, offset)
    }
}
