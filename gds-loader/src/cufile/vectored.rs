//! Reads into and writes from several pieces of memory at once (cuFile 1.19).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use cufile_sys::{CUfileIOVec_t, TransferError};

use super::error::{CuFileError, CuFileResult, Direction};
use super::file::CuFile;
use super::io::{MOST_INTERRUPTIONS, Request, errno};
use super::library::need;
use super::memory::{ReadBuffer, Span, WriteBuffer, signed};

/// The most pieces given to the library at once; more are given in turn. NVIDIA's 1.20 refuses more than 128, and after
/// a call with more than 32 its own exit handler never returns (seen in compatibility mode).
const MOST_PIECES: usize = 32;

/// A piece of memory to read into.
///
/// It borrows its buffer: the same bytes cannot be in two pieces.
///
/// ```compile_fail
/// # use gds_loader::cufile::IoSliceMut;
/// let mut bytes = [0_u8; 8];
/// let pieces = [IoSliceMut::new(&mut bytes[..]), IoSliceMut::new(&mut bytes[..])];
/// ```
pub struct IoSliceMut<'a> {
    span: Span,
    device: Option<cuda_staging::Device>,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> IoSliceMut<'a> {
    /// All of a buffer.
    pub fn new<B: ReadBuffer + ?Sized>(buffer: &'a mut B) -> Self {
        Self { span: buffer.span_mut(), device: buffer.device().cloned(), _memory: PhantomData }
    }

    /// The bytes `range` of a buffer.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where the range is not inside.
    pub fn part<B: ReadBuffer + ?Sized>(buffer: &'a mut B, range: Range<u64>) -> CuFileResult<Self> {
        let span = buffer.span_mut().part(&range)?;
        Ok(Self { span, device: buffer.device().cloned(), _memory: PhantomData })
    }
}

/// A piece of memory to write from.
pub struct IoSlice<'a> {
    span: Span,
    device: Option<cuda_staging::Device>,
    _memory: PhantomData<&'a [u8]>,
}

impl<'a> IoSlice<'a> {
    /// All of a buffer.
    pub fn new<B: WriteBuffer + ?Sized>(buffer: &'a B) -> Self {
        Self { span: buffer.span(), device: buffer.device().cloned(), _memory: PhantomData }
    }

    /// The bytes `range` of a buffer.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where the range is not inside.
    pub fn part<B: WriteBuffer + ?Sized>(buffer: &'a B, range: Range<u64>) -> CuFileResult<Self> {
        let span = buffer.span().part(&range)?;
        Ok(Self { span, device: buffer.device().cloned(), _memory: PhantomData })
    }
}

impl CuFile {
    /// Fills the pieces one after the other from one range of the file.
    ///
    /// # Errors
    /// As for [`CuFile::read_exact`], and [`CuFileError::Missing`] before cuFile 1.19.
    pub fn read_vectored_exact(&self, into: &mut [IoSliceMut<'_>], file_offset: u64) -> CuFileResult<()> {
        let device = into.iter().find_map(|piece| piece.device.as_ref());
        self.make_current(device)?;
        let spans = into.iter().map(|piece| piece.span).collect();
        self.transfer_vectored(Direction::Read, spans, file_offset)
    }

    /// Writes the pieces one after the other to one range of the file.
    ///
    /// # Errors
    /// As for [`CuFile::write_all`], and [`CuFileError::Missing`] before cuFile 1.19.
    pub fn write_vectored_all(&self, from: &[IoSlice<'_>], file_offset: u64) -> CuFileResult<()> {
        let device = from.iter().find_map(|piece| piece.device.as_ref());
        self.make_current(device)?;
        let spans = from.iter().map(|piece| piece.span).collect();
        self.transfer_vectored(Direction::Write, spans, file_offset)
    }

    fn transfer_vectored(
        &self,
        direction: Direction,
        mut spans: Vec<Span>,
        file_offset: u64,
    ) -> CuFileResult<()> {
        let sum = spans.iter().try_fold(0_u64, |sum, span| sum.checked_add(span.len()));
        let end = sum.and_then(|sum| file_offset.checked_add(sum));
        let (Some(expected), Some(_)) = (sum, end.filter(|end| i64::try_from(*end).is_ok())) else {
            return Err(CuFileError::usage(format!("pieces at offset {file_offset} of a file")));
        };
        let request = Request { file: self, direction, file_offset, expected };
        // NVIDIA's 1.20 ends the whole process by an assertion where a piece is empty.
        spans.retain(|span| span.len() > 0);
        let (mut first, mut done, mut interrupted) = (0, 0, 0);
        while done < expected {
            let pieces = &spans[first..spans.len().min(first + MOST_PIECES)];
            let asked: u64 = pieces.iter().map(|span| span.len()).sum();
            let mut count = match self.vectored_once(direction, pieces, file_offset + done)? {
                Err(TransferError::Os(libc::EINTR)) if interrupted < MOST_INTERRUPTIONS => {
                    interrupted += 1;
                    continue;
                }
                Err(cause) => return Err(request.failed(done, cause)),
                Ok(0) => return Err(request.short(done)),
                Ok(count) => request.sane(count, asked)?,
            };
            done += count;
            interrupted = 0;
            // Past the pieces that are done, and into the one that is begun.
            while count > 0 {
                let step = count.min(spans[first].len());
                spans[first] = spans[first].after(step);
                count -= step;
                first += usize::from(spans[first].len() == 0);
            }
        }
        Ok(())
    }

    fn vectored_once(
        &self,
        direction: Direction,
        pieces: &[Span],
        file_offset: u64,
    ) -> CuFileResult<Result<usize, TransferError>> {
        let library = self.driver().enter()?;
        let offset = signed(file_offset, "in a file")?;
        let length =
            |span: &Span| usize::try_from(span.len()).map_err(|_| CuFileError::usage("too many bytes"));
        let vectors = pieces
            .iter()
            .map(|span| Ok(CUfileIOVec_t { base: span.start(), len: length(span)? }))
            .collect::<CuFileResult<Vec<_>>>()?;
        let function = match direction {
            Direction::Read => need!(library, cuFileReadv)?,
            Direction::Write => need!(library, cuFileWritev)?,
        };
        // SAFETY:
        // - the handle is registered, since `self` holds it, and the array lives for the call;
        // - each vector is memory that the caller has access to for the time of this call: unique access for reading
        //   into it, through the borrow in its `IoSliceMut`.
        let count = unsafe { function(self.handle(), vectors.as_ptr(), vectors.len(), offset, 0) };
        Ok(cufile_sys::transferred(count, errno()))
    }
}

impl fmt::Debug for IoSliceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IoSliceMut").field(&self.span).finish()
    }
}

impl fmt::Debug for IoSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IoSlice").field(&self.span).finish()
    }
}
