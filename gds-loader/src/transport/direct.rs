//! `O_DIRECT` reads, by `pread(2)` or by a queue: past the page cache, from the device into our memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::{HostReads, PathKind, Target};
use crate::source::ShardFile;

/// The file opened a second time, with `O_DIRECT`.
#[derive(Debug)]
pub(crate) struct Direct {
    file: ShardFile,
    alignment: u64,
}

impl Direct {
    /// Opens `target` for direct reads.
    ///
    /// # Errors
    /// `EINVAL` where the file system refuses `O_DIRECT`; `ESTALE` where the path now leads to another file than the one
    /// whose header was read, of which no byte may be mixed in, and without `/proc` that one cannot be opened.
    pub(crate) fn open(target: &Target<'_>) -> io::Result<Self> {
        Ok(Self { file: target.file.direct(target.path)?, alignment: target.direct_alignment })
    }
}

impl HostReads for Direct {
    fn kind(&self) -> PathKind {
        PathKind::Direct
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.open()?.read_at(into, offset)
    }

    fn queued(&self) -> Option<&Arc<File>> {
        self.file.as_kept()
    }
}
