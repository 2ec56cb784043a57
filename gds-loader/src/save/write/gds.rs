//! cuFile: straight from windows of registered device memory to storage.

use std::ops::Range;

use crate::cufile::{CuFile, CuFileError, CuFileResult, Driver, RegisteredBuffer};
use crate::save::durable::TempFile;

/// A file registered with cuFile for writing.
#[derive(Debug)]
pub(super) struct GdsSink {
    file: CuFile,
}

impl GdsSink {
    /// Opens `file` a second time, for direct I/O, and registers it.
    ///
    /// # Errors
    /// Where it cannot be opened so, or the library does not take it.
    pub(super) fn open(driver: &Driver, file: &TempFile) -> CuFileResult<Self> {
        let failed = |source| CuFileError::File { doing: "opening it for cuFile", path: file.path(), source };
        let direct = file.open_direct().map_err(failed)?;
        Ok(Self { file: CuFile::register(driver, direct, file.path())? })
    }

    /// Writes the bytes `range` of a window at `offset`. Both begin and end at pages, or the library would bounce them.
    pub(super) fn write(
        &self,
        window: &RegisteredBuffer,
        range: Range<u64>,
        offset: u64,
    ) -> CuFileResult<()> {
        self.file.write_all_at(window, range, offset)
    }
}
