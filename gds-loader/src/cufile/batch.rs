//! Batches: many operations with one call, completed in any order.
//!
//! A batch owns what its operations use, files and memory, until the library reports the end of each. Where it does not
//! report one, that memory is never freed. Ends are polled for and never waited for inside of the library, whose own
//! waiting cannot be relied on to end.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use cufile_sys as sys;
use cufile_sys::{Failure, Status};

use super::DROP_LIMIT;
use super::driver::{Driver, Release};
use super::error::{CuFileError, CuFileResult, Direction};
use super::file::CuFile;
use super::io::Request;
use super::library::{check, need};
use super::memory::{Buffer, Span, signed};

/// One read or write. Owns what it uses.
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
    /// [`CuFileError::Usage`] where the buffer has no such bytes, or is read-only.
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
    /// [`CuFileError::Usage`] where the buffer has no such bytes.
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

    fn parameters(&mut self, cookie: usize) -> CuFileResult<sys::CUfileIOParams_t> {
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
    fn outcome(&self, event: &sys::CUfileIOEvents_t) -> CuFileResult<()> {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(usize);

/// The end of an operation.
#[derive(Debug)]
#[must_use]
pub struct Completion {
    /// Which one, as [`Batch::submit`] named it.
    pub ticket: Ticket,
    /// `Ok` only where every byte was transferred; [`CuFileError::Short`] says how many where some were.
    pub outcome: CuFileResult<()>,
    /// The operation, with its memory. `None` where the library reported a state that does not say it is over: then the
    /// memory is kept for ever.
    pub operation: Option<Operation>,
}

/// A refused submission.
#[derive(Debug)]
pub struct SubmitError {
    /// Why.
    pub error: CuFileError,
    /// The operations, where none of them was begun. Else they stay in the batch: some may have been begun, and those
    /// complete as usual.
    pub operations: Vec<Operation>,
}

/// A batch: room for a number of operations at a time, used again and again. One thread uses it at a time.
///
/// Dropping it cancels what is in flight and waits; what does not end within [`DROP_LIMIT`] is never freed.
pub struct Batch {
    driver: Driver,
    handle: sys::CUfileBatchHandle_t,
    capacity: usize,
    in_flight: Vec<(usize, Operation)>,
    /// The arrays of submissions whose operations may be in flight: the library is not known to copy them.
    arrays: Vec<Box<[sys::CUfileIOParams_t]>>,
    next_cookie: usize,
    finished: VecDeque<Completion>,
}

// SAFETY: the handle and the arrays are the library's tokens, used by one thread at a time, which may be any.
unsafe impl Send for Batch {}

impl Batch {
    /// A batch with room for `capacity` operations.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] for more than [`DriverProperties::max_batch_size`](super::DriverProperties); those of the
    /// library; [`CuFileError::Missing`] before cuFile 1.2.
    pub fn new(driver: &Driver, capacity: u32) -> CuFileResult<Self> {
        let most = driver.properties()?.max_batch_size;
        if capacity == 0 || capacity > most {
            return Err(CuFileError::usage(format!(
                "a batch of {capacity} operations; cuFile takes 1 to {most}"
            )));
        }
        let library = driver.library();
        need!(library, cuFileBatchIOSubmit)?;
        need!(library, cuFileBatchIOGetStatus)?;
        need!(library, cuFileBatchIOCancel)?;
        need!(library, cuFileBatchIODestroy)?;
        let set_up = need!(library, cuFileBatchIOSetUp)?;
        let mut handle: sys::CUfileBatchHandle_t = ptr::null_mut();
        // SAFETY: `handle` is writable for the call.
        let answer = unsafe { set_up(&mut handle, capacity) };
        check("cuFileBatchIOSetUp", answer, || format!("setting up a batch of {capacity} operations"))?;
        Ok(Self {
            driver: driver.clone(),
            handle,
            capacity: capacity as usize,
            in_flight: Vec::new(),
            arrays: Vec::new(),
            next_cookie: 1,
            finished: VecDeque::new(),
        })
    }

    /// Operations it has room for now.
    pub fn room(&self) -> usize {
        self.capacity - self.in_flight.len()
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Submits operations, and names them in their order.
    ///
    /// # Errors
    /// [`SubmitError`], with the operations where it is certain that none was begun.
    pub fn submit(&mut self, operations: Vec<Operation>) -> CuFileResult<Vec<Ticket>, SubmitError> {
        if operations.len() > self.room() {
            let error = CuFileError::usage(format!(
                "{} operations for a batch with room for {}",
                operations.len(),
                self.room()
            ));
            return Err(SubmitError { error, operations });
        }
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        let cookies: Vec<usize> = (self.next_cookie..).take(operations.len()).collect();
        let mut owned: Vec<(usize, Operation)> = cookies.iter().copied().zip(operations).collect();
        let submitted = self.call_submit(&mut owned);
        let give_back =
            |owned: Vec<(usize, Operation)>| owned.into_iter().map(|(_, operation)| operation).collect();
        match submitted {
            Err(error) => Err(SubmitError { error, operations: give_back(owned) }),
            Ok(Err(failure)) => {
                let error = self.driver.refused(
                    "cuFileBatchIOSubmit",
                    failure,
                    format!("submitting {} operations", owned.len()),
                );
                if is_refused_whole(failure.status) {
                    self.arrays.pop();
                    return Err(SubmitError { error, operations: give_back(owned) });
                }
                self.in_flight.extend(owned);
                self.next_cookie += cookies.len();
                Err(SubmitError { error, operations: Vec::new() })
            }
            Ok(Ok(())) => {
                for (cookie, operation) in owned {
                    if operation.is_empty() {
                        let (ticket, outcome) = (Ticket(cookie), Ok(()));
                        self.finished.push_back(Completion { ticket, outcome, operation: Some(operation) });
                    } else {
                        self.in_flight.push((cookie, operation));
                    }
                }
                self.next_cookie += cookies.len();
                Ok(cookies.into_iter().map(Ticket).collect())
            }
        }
    }

    /// Submits all but the empty ones, which the library accepts and never reports the end of. The outer error is one
    /// before the call.
    fn call_submit(&mut self, owned: &mut [(usize, Operation)]) -> CuFileResult<Result<(), Failure>> {
        let device = owned.first().map(|(_, operation)| operation.buffer.device().clone());
        self.driver.enter_on(device.as_ref())?;
        let submit = need!(self.driver.library(), cuFileBatchIOSubmit)?;
        let parameters = owned
            .iter_mut()
            .filter(|(_, operation)| !operation.is_empty())
            .map(|(cookie, operation)| operation.parameters(*cookie));
        let array: Box<[sys::CUfileIOParams_t]> = parameters.collect::<CuFileResult<_>>()?;
        if array.is_empty() {
            return Ok(Ok(()));
        }
        let count = array.len() as u32;
        self.arrays.push(array);
        let array = self.arrays.last_mut().map_or(ptr::null_mut(), |array| array.as_mut_ptr());
        // SAFETY:
        // - the batch is set up, and has room for `count` operations;
        // - the array lives until nothing of this batch is in flight;
        // - each operation's file is registered and its memory is its own, unique where it is read into; both live until
        //   the library reports its end, or for ever.
        Ok(unsafe { submit(self.handle, count, array, 0) }.result())
    }

    /// The operations that ended, waiting for at least `least` of them (or all in flight, if fewer) up to `limit`. They
    /// come in any order.
    ///
    /// # Errors
    /// Those of the library. What ended before is kept for the next call.
    pub fn wait(&mut self, least: usize, limit: Duration) -> CuFileResult<Vec<Completion>> {
        let least = least.min(self.in_flight.len() + self.finished.len());
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        loop {
            self.poll()?;
            if self.finished.len() >= least || start.elapsed() >= limit {
                return Ok(self.finished.drain(..).collect());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_micros(500));
        }
    }

    /// Asks the library which operations ended.
    fn poll(&mut self) -> CuFileResult<()> {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        self.driver.enter()?;
        let get_status = need!(self.driver.library(), cuFileBatchIOGetStatus)?;
        let mut events = vec![sys::CUfileIOEvents_t::default(); self.capacity];
        let mut count = self.capacity as u32;
        let mut no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the batch is set up; there is room for `count` events; all three are writable for the call.
        let answer = unsafe { get_status(self.handle, 0, &mut count, events.as_mut_ptr(), &mut no_time) };
        let answer =
            check("cuFileBatchIOGetStatus", answer, || "asking which operations of a batch ended".into());
        // NVIDIA's answers 5044 where an operation failed, with the event somewhere in the array and the count untouched.
        let before = self.in_flight.len();
        let written = if answer.is_ok() { count as usize } else { events.len() };
        for event in events.iter().take(written).filter(|event| !event.cookie.is_null()) {
            self.note(event)?;
        }
        if self.in_flight.len() == before {
            answer?;
        }
        if self.in_flight.is_empty() {
            self.arrays.clear();
        }
        Ok(())
    }

    fn note(&mut self, event: &sys::CUfileIOEvents_t) -> CuFileResult<()> {
        if matches!(event.status, sys::CUFILE_WAITING | sys::CUFILE_PENDING) {
            return Ok(());
        }
        let cookie = event.cookie.addr();
        let Some(place) = self.in_flight.iter().position(|(other, _)| *other == cookie) else {
            // Whatever ended is none of ours: nothing the library says about this batch can be relied on.
            let what = format!("the end of operation {cookie}, which is not in flight");
            self.driver.poison(format!("a batch: cuFile reported {what}"));
            return Err(CuFileError::Nonsense { doing: "waiting for a batch".into(), what });
        };
        let (_, operation) = self.in_flight.swap_remove(place);
        let outcome = operation.outcome(event);
        let operation = if is_over(event.status) {
            Some(operation)
        } else {
            // The library may go on writing to this memory.
            tracing::warn!(
                state = event.status.0,
                "an operation of a batch may not be over; its memory is kept"
            );
            mem::forget(operation);
            None
        };
        self.finished.push_back(Completion { ticket: Ticket(cookie), outcome, operation });
        Ok(())
    }

    /// Asks the library to end what is in flight. Each operation still completes, as cancelled or as done.
    ///
    /// # Errors
    /// Those of the library.
    pub fn cancel(&mut self) -> CuFileResult<()> {
        self.driver.enter()?;
        let cancel = need!(self.driver.library(), cuFileBatchIOCancel)?;
        // SAFETY: the batch is set up.
        let answer = unsafe { cancel(self.handle) };
        check("cuFileBatchIOCancel", answer, || "cancelling a batch".into())
    }
}

/// Whether a submission refused with this code began nothing: wrong arguments, a full queue, a driver that is not open.
/// After any other, some operations may have been begun.
fn is_refused_whole(status: Status) -> bool {
    matches!(status.code(), 5001 | 5006 | 5017 | 5022 | 5027 | 5037 | 5049)
}

/// Whether an operation in this state is over. A time-out is the library's, not the device's.
fn is_over(state: sys::CUfileStatus_t) -> bool {
    matches!(state, sys::CUFILE_COMPLETE | sys::CUFILE_FAILED | sys::CUFILE_CANCELED | sys::CUFILE_INVALID)
}

impl Drop for Batch {
    fn drop(&mut self) {
        let settled = match self.driver.enter_to_release() {
            Release::By(_) if self.in_flight.is_empty() => true,
            Release::By(_) => {
                self.cancel().ok();
                self.wait(usize::MAX, DROP_LIMIT).is_ok() && self.in_flight.is_empty()
            }
            // The close of the driver is not known to wait for batches.
            Release::Released => self.in_flight.is_empty(),
            Release::Leak => false,
        };
        if !settled {
            if !self.in_flight.is_empty() {
                let count = self.in_flight.len();
                self.driver
                    .poison(format!("{count} operations of a batch did not end; their memory is kept"));
            }
            mem::forget(mem::take(&mut self.in_flight));
            mem::forget(mem::take(&mut self.arrays));
            return;
        }
        if let (Release::By(api), false) = (self.driver.enter_to_release(), self.handle.is_null()) {
            // SAFETY: set up in `new` and destroyed once, here; nothing is in flight.
            api.cuFileBatchIODestroy.into_iter().for_each(|destroy| unsafe { destroy(self.handle) });
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("capacity", &self.capacity)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
