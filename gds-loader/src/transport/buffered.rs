//! Reads through the page cache, with no alignment rule at all.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::advice::ReadAhead;
use super::{HostReads, PathKind, Target};

/// The file as it was opened for its header.
#[derive(Debug)]
pub(crate) struct Buffered {
    file: Arc<File>,
    ahead: ReadAhead,
}

impl Buffered {
    /// Serves any file that is open.
    pub(crate) fn open(target: &Target<'_>) -> Self {
        Self { file: Arc::clone(target.file), ahead: ReadAhead::new(target.read_ahead) }
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
        self.ahead.expect(&self.file, offset, into.len() as u64);
        self.file.read_at(into, offset)
    }
}
