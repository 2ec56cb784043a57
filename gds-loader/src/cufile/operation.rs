//! One operation of a batch: what it is, and how it ended.

use std::ffi::c_void;
use std::ptr;

use cufile_sys as sys;

use super::error::{CuFileError, CuFileResult, Direction};
use super::file::CuFile;
use super::io::Request;
use super::memory::{Buffer, Span, signed};

/// One read or write of device memory. Owns what it uses.
///
/// Host memory is refused: NVIDIA's 1.20 transfers it by threads of its own, which fail some of the operations and were
/// seen to write to memory that was no longer theirs.
#[derive(Debug)]
pub struct Operation {
    file: CuFile,
    direction: Direction,
    file_offset: u64,
    buffer_offset: u64,
    len: u64,
    buffer: Buffer,
}

impl Operation {
    /// Reads `len` bytes at `file_offset` into `buffer`, from its byte `buffer_offset` on.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where the buffer has no such bytes, is read-only, or is the host's.
    pub fn read(
        file: &CuFile,
        file_offset: u64,
        len: u64,
        buffer: impl Into<Buffer>,
        buffer_offset: u64,
    ) -> CuFileResult<Self> {
        Self::new(Direction::Read, file, file_offset, len, buffer.into(), buffer_offset)
    }

    /// Writes `len` bytes of `buffer`, from its byte `buffer_offset` on, to the file at `file_offset`.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where the buffer has no such bytes, or is the host's.
    pub fn write(
        file: &CuFile,
        file_offset: u64,
        len: u64,
        buffer: impl Into<Buffer>,
        buffer_offset: u64,
    ) -> CuFileResult<Self> {
        Self::new(Direction::Write, file, file_offset, len, buffer.into(), buffer_offset)
    }

    fn new(
        direction: Direction,
        file: &CuFile,
        file_offset: u64,
        len: u64,
        buffer: Buffer,
        buffer_offset: u64,
    ) -> CuFileResult<Self> {
        if !buffer.device().is_cuda() {
            return Err(CuFileError::usage("a batch of host memory; use plain reads and writes for it"));
        }
        let mut operation = Self { file: file.clone(), direction, file_offset, buffer_offset, len, buffer };
        operation.span()?;
        Ok(operation)
    }

    /// The file.
    pub fn file(&self) -> &CuFile {
        &self.file
    }

    /// Bytes it is to transfer.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn device(&self) -> &cuda_staging::Device {
        self.buffer.device()
    }

    /// Whether it transfers nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// What is left to do once `done` bytes are done, as after [`CuFileError::Short`].
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where that is more than it has.
    pub fn rest(mut self, done: u64) -> CuFileResult<Self> {
        let Some(len) = self.len.checked_sub(done) else {
            return Err(CuFileError::usage(format!("{done} bytes done of {}", self.len)));
        };
        self.file_offset += done;
        self.buffer_offset += done;
        self.len = len;
        Ok(self)
    }

    /// The memory's place, checked.
    fn span(&mut self) -> CuFileResult<Span> {
        let Self { direction, file_offset, buffer_offset, len, .. } = *self;
        let whole = match direction {
            Direction::Read => self.buffer.writable()?,
            Direction::Write => self.buffer.readable(),
        };
        let (Some(buffer_end), Some(file_end)) =
            (buffer_offset.checked_add(len), file_offset.checked_add(len))
        else {
            return Err(CuFileError::usage(format!("{len} bytes at offset {file_offset} of a file")));
        };
        signed(file_end, "in a file")?;
        whole.part(&(buffer_offset..buffer_end))
    }

    /// How the library wants to hear of it. Empty operations must not be submitted: their end is never reported.
    pub(super) fn parameters(&mut self, cookie: usize) -> CuFileResult<sys::CUfileIOParams_t> {
        let span = self.span()?;
        let batch = sys::CUfileIOParams_batch {
            devPtr_base: span.base(),
            file_offset: signed(self.file_offset, "in a file")?,
            devPtr_offset: span.offset()?,
            size: usize::try_from(self.len).map_err(|_| CuFileError::usage("more bytes than memory"))?,
        };
        Ok(sys::CUfileIOParams_t {
            mode: sys::CUFILE_BATCH,
            u: sys::CUfileIOParams_u { batch },
            fh: self.file.handle(),
            opcode: match self.direction {
                Direction::Read => sys::CUFILE_READ,
                Direction::Write => sys::CUFILE_WRITE,
            },
            cookie: ptr::without_provenance_mut::<c_void>(cookie),
        })
    }

    /// What an event says about it.
    pub(super) fn outcome(&self, event: &sys::CUfileIOEvents_t) -> CuFileResult<()> {
        let Self { file, direction, file_offset, len: expected, .. } = self;
        let request = Request { file, direction: *direction, file_offset: *file_offset, expected: *expected };
        if event.status != sys::CUFILE_COMPLETE {
            return Err(CuFileError::BatchEvent {
                direction: *direction,
                path: file.path().into(),
                file_offset: *file_offset,
                expected: *expected,
                state: event.status.0,
                count: event.count(),
            });
        }
        let count = sys::transferred(event.count(), 0).map_err(|cause| request.failed(0, cause))?;
        match request.sane(count, *expected)? {
            count if count == *expected => Ok(()),
            count => Err(request.short(count)),
        }
    }
}

/// Names an operation of a batch, from its submission to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) usize);

/// The end of an operation.
#[derive(Debug)]
#[must_use]
pub struct Completion {
    /// Which one, as [`Batch::submit`](super::Batch::submit) named it.
    pub ticket: Ticket,
    /// `Ok` only where every byte was transferred; [`CuFileError::Short`] says how many where some were.
    pub outcome: CuFileResult<()>,
    /// The operation, with its memory. `None` where the library reported a state that does not say it is over: then the
    /// memory is kept for ever.
    pub operation: Option<Operation>,
}
