//! `O_DIRECT` writes by `pwrite(2)`: past the page cache, from our memory to the device.

use std::fs::File;
use std::io;

use super::sink::HostSink;
use crate::facts::DirectIo;
use crate::save::durable::{PublishError, TempFile};
use crate::transport::PathKind;

/// The file opened a second time, with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct Direct {
    file: TempFile,
    direct: File,
    alignment: u64,
}

impl Direct {
    /// Opens `file` for direct writes.
    ///
    /// # Errors
    /// Those of [`TempFile::open_direct`].
    pub(super) fn open(file: &TempFile) -> io::Result<Self> {
        let direct = file.open_direct()?;
        let alignment = DirectIo::of(&direct).alignment();
        Ok(Self { file: file.clone(), direct, alignment })
    }
}

impl HostSink for Direct {
    fn kind(&self) -> PathKind {
        PathKind::Direct
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn write_all(&self, bytes: &[u8], offset: u64) -> Result<(), PublishError> {
        self.file.write_all_by(&self.direct, bytes, offset)
    }
}
