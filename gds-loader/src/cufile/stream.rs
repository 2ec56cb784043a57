//! Reads and writes in the order of a CUDA stream.
//!
//! The library returns at once, reads its arguments when the stream comes to them and stores the count at the end. So an
//! operation in flight owns everything: file, memory, and a block of arguments, and gives the memory back only after the
//! stream is known to have passed it. Dropping one waits; what does not end within [`DROP_LIMIT`] is never freed.

use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicI64, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuda_staging::{Device, Stream};
use cufile_sys as sys;

use super::DROP_LIMIT;
use super::driver::{Driver, Release};
use super::error::{CuFileError, CuFileResult, Direction};
use super::file::CuFile;
use super::io::Request;
use super::library::{Entered, need};
use super::memory::{Buffer, Span, signed};

/// What is promised about all operations of a stream; the library then does less work for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamFlags {
    /// Offsets in memory are final when an operation is enqueued.
    pub fixed_buffer_offset: bool,
    /// Offsets in the file are final when an operation is enqueued.
    pub fixed_file_offset: bool,
    /// Lengths are final when an operation is enqueued.
    pub fixed_len: bool,
    /// Offsets and lengths are multiples of 4096.
    pub page_aligned: bool,
}

impl StreamFlags {
    /// Everything final when enqueued.
    pub const FIXED: Self =
        Self { fixed_buffer_offset: true, fixed_file_offset: true, fixed_len: true, page_aligned: false };

    fn raw(self) -> u32 {
        [
            (self.fixed_buffer_offset, sys::CU_FILE_STREAM_FIXED_BUF_OFFSET),
            (self.fixed_file_offset, sys::CU_FILE_STREAM_FIXED_FILE_OFFSET),
            (self.fixed_len, sys::CU_FILE_STREAM_FIXED_FILE_SIZE),
            (self.page_aligned, sys::CU_FILE_STREAM_PAGE_ALIGNED_INPUTS),
        ]
        .into_iter()
        .fold(0, |flags, (set, flag)| if set { flags | flag } else { flags })
    }
}

/// A CUDA stream that cuFile's operations can be enqueued on. Cheap to clone; operations in flight hold one.
#[derive(Clone)]
pub struct CuFileStream {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    device: Device,
    raw: sys::CUstream,
    flags: StreamFlags,
    stream: Mutex<Stream>,
}

// SAFETY: the raw stream is a handle that the driver lets any thread use; it is never dereferenced here.
unsafe impl Send for Inner {}
// SAFETY: as above; the rest is thread-safe.
unsafe impl Sync for Inner {}

impl CuFileStream {
    /// Registers a stream of a CUDA device.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.7; [`CuFileError::Usage`] for a stream of the CPU device; those of the
    /// library.
    pub fn register(driver: &Driver, stream: Stream, flags: StreamFlags) -> CuFileResult<Self> {
        const CALL: &str = "cuFileStreamRegister";
        let Some(raw) = stream.raw().map(|raw| raw.cast::<sys::CUstream_st>()) else {
            return Err(CuFileError::usage("the CPU device has no streams"));
        };
        let library = driver.enter_on(Some(stream.device()))?;
        need!(library, cuFileReadAsync)?;
        need!(library, cuFileWriteAsync)?;
        need!(library, cuFileStreamDeregister)?;
        let register = need!(library, cuFileStreamRegister)?;
        // SAFETY: the stream lives; it is deregistered before it is destroyed.
        let answer = unsafe { register(raw, flags.raw()) };
        answer.result().map_err(|failure| driver.refused(CALL, failure, "registering a stream".into()))?;
        let (driver, device) = (driver.clone(), stream.device().clone());
        Ok(Self { inner: Arc::new(Inner { driver, device, raw, flags, stream: Mutex::new(stream) }) })
    }

    /// The driver's handle (`CUstream`), to enqueue work of one's own; valid as long as this value.
    pub fn raw(&self) -> *mut c_void {
        self.inner.raw.cast()
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Waits until all that is enqueued is done, for at most `limit`.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn synchronize(&self, limit: Duration) -> CuFileResult<()> {
        self.inner.settle(limit)
    }

    /// Enqueues a read of `len` bytes at `file_offset` into `buffer`, from its byte `buffer_offset` on.
    ///
    /// # Errors
    /// The memory comes back with the error, unless the library refused and its stream does not end.
    pub fn read(
        &self,
        file: &CuFile,
        file_offset: u64,
        len: u64,
        buffer: impl Into<Buffer>,
        buffer_offset: u64,
    ) -> CuFileResult<StreamOperation, (CuFileError, Option<Buffer>)> {
        self.enqueue(Direction::Read, file, file_offset, len, buffer.into(), buffer_offset)
    }

    /// Enqueues a write of `len` bytes of `buffer`, from its byte `buffer_offset` on, to the file at `file_offset`.
    ///
    /// # Errors
    /// As for [`CuFileStream::read`].
    pub fn write(
        &self,
        file: &CuFile,
        file_offset: u64,
        len: u64,
        buffer: impl Into<Buffer>,
        buffer_offset: u64,
    ) -> CuFileResult<StreamOperation, (CuFileError, Option<Buffer>)> {
        self.enqueue(Direction::Write, file, file_offset, len, buffer.into(), buffer_offset)
    }

    fn enqueue(
        &self,
        direction: Direction,
        file: &CuFile,
        file_offset: u64,
        len: u64,
        mut buffer: Buffer,
        buffer_offset: u64,
    ) -> CuFileResult<StreamOperation, (CuFileError, Option<Buffer>)> {
        let checked = self.check(direction, file_offset, len, &mut buffer, buffer_offset);
        let (library, span, arguments, function) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((error, Some(buffer))),
        };
        let flight = Flight {
            stream: self.clone(),
            file: file.clone(),
            direction,
            file_offset,
            max_len: len,
            buffer,
            arguments: Arc::new(arguments),
        };
        let Arguments { len, file_offset, buffer_offset, count } = &*flight.arguments;
        // SAFETY:
        // - handle and stream are registered, since the flight holds them;
        // - whatever values the library finds in the arguments, late ones included, they are a range of the flight's
        //   memory, which is its own, unique where it is read into;
        // - the flight is dropped only once the stream has passed the operation, else never.
        let answer = unsafe {
            function(
                file.handle(),
                span.base(),
                len.as_ptr(),
                file_offset.as_ptr(),
                buffer_offset.as_ptr(),
                count.as_ptr(),
                self.inner.raw,
            )
        };
        drop(library);
        let operation = StreamOperation { flight: Some(flight) };
        match answer.result() {
            Ok(()) => Ok(operation),
            Err(failure) => {
                let (call, verb) = match direction {
                    Direction::Read => ("cuFileReadAsync", "read"),
                    Direction::Write => ("cuFileWriteAsync", "write"),
                };
                let doing = format!("enqueueing a {verb} of {}", file.path().display());
                let error = self.inner.driver.refused(call, failure, doing);
                // Refused is not "never begun": the memory comes back when the stream is done.
                Err((error, operation.end(DROP_LIMIT).ok().map(|flight| flight.buffer)))
            }
        }
    }

    /// Everything that can be wrong before the call.
    fn check(
        &self,
        direction: Direction,
        file_offset: u64,
        len: u64,
        buffer: &mut Buffer,
        buffer_offset: u64,
    ) -> CuFileResult<(Entered, Span, Arguments, sys::functions::cuFileReadAsync)> {
        let driver = &self.inner.driver;
        let whole = match direction {
            Direction::Read => buffer.writable()?,
            Direction::Write => buffer.readable(),
        };
        let end =
            buffer_offset.checked_add(len).ok_or_else(|| CuFileError::usage("more bytes than memory"))?;
        let span = whole.part(&(buffer_offset..end))?;
        let file_end = file_offset.saturating_add(len);
        signed(file_end, "in a file")?;
        if self.inner.flags.page_aligned && !(file_offset | len | buffer_offset).is_multiple_of(PAGE) {
            return Err(CuFileError::usage(format!(
                "the stream was promised multiples of 4096: file offset {file_offset}, {len} bytes, buffer offset \
                 {buffer_offset}"
            )));
        }
        let arguments = Arguments {
            len: AtomicUsize::new(usize::try_from(len).map_err(|_| CuFileError::usage("too many bytes"))?),
            file_offset: AtomicI64::new(signed(file_offset, "in a file")?),
            buffer_offset: AtomicI64::new(span.offset()?),
            count: AtomicIsize::new(NO_COUNT),
        };
        let library = driver.enter_on(Some(&self.inner.device))?;
        let function = match direction {
            Direction::Read => need!(library, cuFileReadAsync)?,
            Direction::Write => need!(library, cuFileWriteAsync)?,
        };
        Ok((library, span, arguments, function))
    }
}

impl Inner {
    fn settle(&self, limit: Duration) -> CuFileResult<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(stream.synchronize(limit)?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Release::By(library) = self.driver.enter_to_release() {
            self.device.make_current().ok();
            // SAFETY: registered once, and deregistered once, here; operations in flight would hold a clone.
            let answer = library.cuFileStreamDeregister.map(|deregister| unsafe { deregister(self.raw) });
            if let Some(Err(failure)) = answer.map(sys::CUfileError::result) {
                tracing::warn!(%failure, "cuFileStreamDeregister failed");
            }
        }
    }
}

/// What [`StreamFlags::page_aligned`] promises, in bytes.
const PAGE: u64 = 4096;

/// A count that no transfer has: the library stored none.
const NO_COUNT: isize = isize::MIN;

/// What the library reads when the stream comes to the operation, and the count it stores. Atomic, because it does so on
/// a thread of its own, and late arguments are set from ours.
struct Arguments {
    len: AtomicUsize,
    file_offset: AtomicI64,
    buffer_offset: AtomicI64,
    count: AtomicIsize,
}

/// All that an operation uses.
struct Flight {
    stream: CuFileStream,
    file: CuFile,
    direction: Direction,
    file_offset: u64,
    /// The length it was enqueued with, which late arguments cannot exceed.
    max_len: u64,
    buffer: Buffer,
    arguments: Arc<Arguments>,
}

/// A read or write on a stream, in flight. Forgetting it is safe: nothing it uses is ever freed then.
///
/// Its memory is not to be had before it is over:
///
/// ```compile_fail
/// # use gds_loader::cufile::{CuFile, CuFileStream};
/// # fn read(stream: &CuFileStream, file: &CuFile, region: cuda_staging::RegionMut) {
/// let read = stream.read(file, 0, 4096, region, 0).unwrap();
/// region.freeze(); // moved into the operation
/// # }
/// ```
#[must_use = "dropping it waits for it"]
pub struct StreamOperation {
    flight: Option<Flight>,
}

impl StreamOperation {
    /// Waits until it is over, for at most `limit`, and gives its count and its memory back. The count may be less than was
    /// asked for, as at the end of a file; see [`StreamOperation::finish_exact`].
    ///
    /// # Errors
    /// [`CuFileError::Transfer`] where the library stored a negative count, with its code (NVIDIA's 1.20 in compatibility
    /// mode on a simulated GPU: -5); [`CuFileError::Nonsense`] where it stored none. [`CuFileError::Device`] where the
    /// stream failed or did not end in time: the memory is then kept for ever, and cuFile is poisoned.
    pub fn finish(self, limit: Duration) -> CuFileResult<(u64, Buffer), (CuFileError, Option<Buffer>)> {
        let flight = match self.end(limit) {
            Ok(flight) => flight,
            Err(error) => return Err((error, None)),
        };
        match flight.count() {
            Ok(count) => Ok((count, flight.buffer)),
            Err(error) => Err((error, Some(flight.buffer))),
        }
    }

    /// As [`StreamOperation::finish`], and an error where not every byte asked for was transferred.
    ///
    /// # Errors
    /// As for `finish`, and [`CuFileError::Short`].
    pub fn finish_exact(self, limit: Duration) -> CuFileResult<Buffer, (CuFileError, Option<Buffer>)> {
        let flight = match self.end(limit) {
            Ok(flight) => flight,
            Err(error) => return Err((error, None)),
        };
        let asked = flight.arguments.len.load(Ordering::Acquire) as u64;
        match flight.count() {
            Ok(count) if count == asked => Ok(flight.buffer),
            Ok(count) => {
                let error = flight.request(asked).short(count);
                Err((error, Some(flight.buffer)))
            }
            Err(error) => Err((error, Some(flight.buffer))),
        }
    }

    /// Changes how many bytes it is to transfer: at most as many as it was enqueued with. Takes effect if the stream has
    /// not come to the operation yet; whether it had, nobody is told.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] for more bytes, or where lengths of this stream are fixed.
    pub fn set_len(&self, len: u64) -> CuFileResult<()> {
        let Some(flight) = &self.flight else { return Ok(()) };
        flight.late(flight.stream.inner.flags.fixed_len, "length", len)?;
        if len > flight.max_len {
            return Err(CuFileError::usage(format!("{len} bytes for a request of {}", flight.max_len)));
        }
        flight.arguments.len.store(len as usize, Ordering::Release);
        Ok(())
    }

    /// Changes the offset in the file, as [`StreamOperation::set_len`] the length.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where there is no such offset, or where those of this stream are fixed.
    pub fn set_file_offset(&self, offset: u64) -> CuFileResult<()> {
        let Some(flight) = &self.flight else { return Ok(()) };
        flight.late(flight.stream.inner.flags.fixed_file_offset, "file offset", offset)?;
        signed(offset.saturating_add(flight.max_len), "in a file")?;
        flight.arguments.file_offset.store(signed(offset, "in a file")?, Ordering::Release);
        Ok(())
    }

    /// Changes the offset in the memory, as [`StreamOperation::set_len`] the length. The length it was enqueued with must
    /// fit behind it, so that no mixture of old and new arguments reaches beyond the memory.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where it does not fit, or where offsets of this stream are fixed.
    pub fn set_buffer_offset(&self, offset: u64) -> CuFileResult<()> {
        let Some(flight) = &self.flight else { return Ok(()) };
        flight.late(flight.stream.inner.flags.fixed_buffer_offset, "buffer offset", offset)?;
        let end = offset.saturating_add(flight.max_len);
        let span = flight.buffer.readable().part(&(offset..end))?;
        flight.arguments.buffer_offset.store(span.offset()?, Ordering::Release);
        Ok(())
    }

    /// Waits for the stream. Where it does not end, everything the operation uses is kept for ever.
    fn end(mut self, limit: Duration) -> CuFileResult<Flight> {
        let Some(flight) = self.flight.take() else {
            return Err(CuFileError::usage("the operation is over"));
        };
        match flight.stream.inner.settle(limit) {
            Ok(()) => Ok(flight),
            Err(error) => {
                flight.keep(&error);
                Err(error)
            }
        }
    }
}

impl Flight {
    fn request(&self, expected: u64) -> Request<'_> {
        Request { file: &self.file, direction: self.direction, file_offset: self.file_offset, expected }
    }

    /// The count that the library stored. Only once the stream has passed the operation.
    fn count(&self) -> CuFileResult<u64> {
        let request = self.request(self.max_len);
        match self.arguments.count.load(Ordering::Acquire) {
            NO_COUNT => Err(CuFileError::Nonsense {
                doing: format!("an operation on a stream with {}", self.file.path().display()),
                what: "no count".into(),
            }),
            count => {
                let count = sys::transferred(count, 0).map_err(|cause| request.failed(0, cause))?;
                request.sane(count, self.max_len)
            }
        }
    }

    /// Whether an argument may be set late.
    fn late(&self, fixed: bool, what: &str, value: u64) -> CuFileResult<()> {
        if fixed {
            return Err(CuFileError::usage(format!("the stream was promised a fixed {what}")));
        }
        if self.stream.inner.flags.page_aligned && !value.is_multiple_of(PAGE) {
            return Err(CuFileError::usage(format!(
                "the stream was promised multiples of 4096: {what} {value}"
            )));
        }
        Ok(())
    }

    /// Never frees anything of it: the library may still use it.
    fn keep(self, error: &CuFileError) {
        self.file.driver().poison(format!("an operation on a stream did not end: {error}"));
        mem::forget(self);
    }
}

impl Drop for StreamOperation {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        if let Err(error) = flight.stream.inner.settle(DROP_LIMIT) {
            flight.keep(&error);
        }
    }
}

impl fmt::Debug for CuFileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFileStream")
            .field("device", &self.inner.device)
            .field("flags", &self.inner.flags)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StreamOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("StreamOperation");
        if let Some(flight) = &self.flight {
            fields
                .field("direction", &flight.direction)
                .field("file", &flight.file.path())
                .field("buffer", &flight.buffer);
        }
        fields.finish()
    }
}
