//! Reads and writes that wait, and loop until the last byte is there.
//!
//! The library may transfer less than it was asked for, anywhere and for no reason, and hides failures in three ways (see
//! `cufile_sys::transferred`). So nothing here reports success but on an exact count.

use std::io;
use std::ops::Range;

use cufile_sys::TransferError;

use super::error::{CuFileError, CuFileResult, Direction};
use super::file::CuFile;
use super::memory::{ReadBuffer, Span, WriteBuffer, signed};

/// How often in a row a call may answer that a signal interrupted it. Signals come between calls; so many are a failure that left
/// errno as it was.
pub(super) const MOST_INTERRUPTIONS: u32 = 1000;

/// What a read that meets the end of the file is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// An error.
    Fail,
    /// Over; and so is one that has this many bytes.
    Stop { enough: u64 },
}

impl CuFile {
    /// Fills all of `into` from the file.
    ///
    /// # Errors
    /// [`CuFileError::Transfer`] with the code, and [`CuFileError::Short`] where the file ends first: both say how many
    /// bytes arrived. [`CuFileError::Closed`] where another user of the library closed the driver; [`CuFileError::Usage`]
    /// for ranges that cannot be.
    pub fn read_exact<B: ReadBuffer + ?Sized>(&self, into: &mut B, file_offset: u64) -> CuFileResult<()> {
        let span = into.span_mut();
        self.make_current(into.device())?;
        self.transfer(Direction::Read, span, file_offset, AtEnd::Fail).map(|_| ())
    }

    /// Fills the bytes `range` of `into` from the file. Offsets and lengths need no alignment.
    ///
    /// # Errors
    /// As for [`CuFile::read_exact`].
    pub fn read_exact_at<B: ReadBuffer + ?Sized>(
        &self,
        into: &mut B,
        range: Range<u64>,
        file_offset: u64,
    ) -> CuFileResult<()> {
        let span = into.span_mut().part(&range)?;
        self.make_current(into.device())?;
        self.transfer(Direction::Read, span, file_offset, AtEnd::Fail).map(|_| ())
    }

    /// Fills the bytes `range` of `into` from the file, or as many of them as the file has, and returns how many.
    ///
    /// # Errors
    /// As for [`CuFile::read_exact`], but the end of the file is none.
    pub fn read_up_to<B: ReadBuffer + ?Sized>(
        &self,
        into: &mut B,
        range: Range<u64>,
        file_offset: u64,
    ) -> CuFileResult<u64> {
        let enough = range.end.saturating_sub(range.start);
        self.read_at_least(into, range, enough, file_offset)
    }

    /// Asks for all the bytes `range` of `into`, and is content with the first `enough` of them, or with as many as the file
    /// has. What lies beyond is not asked for again: a second request, from wherever the file ends, would not go straight.
    pub(crate) fn read_at_least<B: ReadBuffer + ?Sized>(
        &self,
        into: &mut B,
        range: Range<u64>,
        enough: u64,
        file_offset: u64,
    ) -> CuFileResult<u64> {
        let span = into.span_mut().part(&range)?;
        self.make_current(into.device())?;
        self.transfer(Direction::Read, span, file_offset, AtEnd::Stop { enough })
    }

    /// Writes all of `from` to the file.
    ///
    /// # Errors
    /// As for [`CuFile::read_exact`]; [`CuFileError::Short`] where the library writes nothing more.
    pub fn write_all<B: WriteBuffer + ?Sized>(&self, from: &B, file_offset: u64) -> CuFileResult<()> {
        self.make_current(from.device())?;
        self.transfer(Direction::Write, from.span(), file_offset, AtEnd::Fail).map(|_| ())
    }

    /// Writes the bytes `range` of `from` to the file.
    ///
    /// # Errors
    /// As for [`CuFile::write_all`].
    pub fn write_all_at<B: WriteBuffer + ?Sized>(
        &self,
        from: &B,
        range: Range<u64>,
        file_offset: u64,
    ) -> CuFileResult<()> {
        let span = from.span().part(&range)?;
        self.make_current(from.device())?;
        self.transfer(Direction::Write, span, file_offset, AtEnd::Fail).map(|_| ())
    }

    pub(super) fn make_current(&self, device: Option<&cuda_staging::Device>) -> CuFileResult<()> {
        self.driver().enter_on(device).map(|_| ())
    }

    /// Transfers the whole span, call by call. The caller has access to the span's memory for the time of the call, as
    /// the buffer's type says: unique access for reading into it.
    fn transfer(
        &self,
        direction: Direction,
        span: Span,
        file_offset: u64,
        at_end: AtEnd,
    ) -> CuFileResult<u64> {
        let expected = span.len();
        if file_offset.checked_add(expected).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(CuFileError::usage(format!("{expected} bytes at offset {file_offset} of a file")));
        }
        let request = Request { file: self, direction, file_offset, expected };
        let enough = match at_end {
            AtEnd::Fail => expected,
            AtEnd::Stop { enough } => enough.min(expected),
        };
        let (mut done, mut interrupted) = (0, 0);
        while done < enough {
            let count = match request.once(span.after(done), file_offset + done)? {
                Err(TransferError::Os(libc::EINTR)) if interrupted < MOST_INTERRUPTIONS => {
                    interrupted += 1;
                    continue;
                }
                Err(cause) => return Err(request.failed(done, cause)),
                Ok(count) => request.sane(count, expected - done)?,
            };
            if count == 0 {
                return if at_end == AtEnd::Fail { Err(request.short(done)) } else { Ok(done) };
            }
            done += count;
            interrupted = 0;
        }
        Ok(done)
    }
}

/// What was asked for, for messages.
pub(super) struct Request<'a> {
    pub(super) file: &'a CuFile,
    pub(super) direction: Direction,
    pub(super) file_offset: u64,
    pub(super) expected: u64,
}

impl Request<'_> {
    /// One call of the library. The outer error is one before the call.
    fn once(&self, span: Span, file_offset: u64) -> CuFileResult<Result<usize, TransferError>> {
        let library = self.file.driver().enter()?;
        let offset = signed(file_offset, "in a file")?;
        let in_memory = span.offset()?;
        let size = usize::try_from(span.len()).map_err(|_| CuFileError::usage("more bytes than memory"))?;
        let (handle, base) = (self.file.handle(), span.base());
        // SAFETY:
        // - the handle is registered, since `file` holds it;
        // - `size` bytes at base + offset are memory that the caller has access to for the time of this call: unique
        //   access for reading into it, through a `ReadBuffer`.
        let count = unsafe {
            match self.direction {
                Direction::Read => (library.cuFileRead)(handle, base, size, offset, in_memory),
                Direction::Write => (library.cuFileWrite)(handle, base, size, offset, in_memory),
            }
        };
        Ok(cufile_sys::transferred(count, errno()))
    }

    /// A count that is not more than was asked for.
    pub(super) fn sane(&self, count: usize, asked: u64) -> CuFileResult<u64> {
        let count = count as u64;
        if count > asked {
            return Err(CuFileError::Nonsense {
                doing: format!("transferring {asked} bytes of {}", self.file.path().display()),
                what: format!("{count} bytes"),
            });
        }
        Ok(count)
    }

    pub(super) fn failed(&self, done: u64, cause: TransferError) -> CuFileError {
        let Request { file, direction, file_offset, expected } = *self;
        if let TransferError::CuFile(status) = cause {
            let doing = || format!("{}: {expected} bytes at offset {file_offset}", file.path().display());
            if let Some(error) = file.driver().closed_by_another(status, doing) {
                return error;
            }
        }
        CuFileError::Transfer { direction, path: file.path().into(), file_offset, done, expected, cause }
    }

    pub(super) fn short(&self, done: u64) -> CuFileError {
        let Request { file, direction, file_offset, expected } = *self;
        CuFileError::Short { direction, path: file.path().into(), file_offset, done, expected }
    }
}

/// The calling thread's `errno`, which only means something right after a call that failed.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
