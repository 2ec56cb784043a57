//! Batches: many operations with one call, completed in any order.
//!
//! A batch owns what its operations use, files and memory, until the library reports the end of each. Where it does not
//! report one, that memory is never freed. Ends are polled for and never waited for inside of the library, whose own
//! waiting cannot be relied on to end.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use cufile_sys as sys;
use cufile_sys::{Failure, Status};

use super::DROP_LIMIT;
use super::driver::{Driver, Release, bounded};
use super::error::{CuFileError, CuFileResult};
use super::library::{check, need};
use super::operation::{Completion, Operation, Ticket};

/// How long the end of an operation is waited for that may never be reported.
const GRACE: Duration = Duration::from_millis(250);

/// How long cancelling is waited for, which NVIDIA's does at once.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

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
    capacity: u32,
    in_flight: Vec<(usize, Operation)>,
    /// Those of them that were refused and may have begun all the same.
    doubtful: Vec<usize>,
    /// The arrays of submissions whose operations may be in flight: the library is not known to copy them.
    arrays: Vec<Box<[sys::CUfileIOParams_t]>>,
    events: Events,
    next_cookie: usize,
    finished: VecDeque<Completion>,
}

// SAFETY: the handle and the pointers in the arrays are the library's tokens, used by one thread at a time, which may
// be any.
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
        let library = driver.enter()?;
        need!(library, cuFileBatchIOSubmit)?;
        need!(library, cuFileBatchIOGetStatus)?;
        need!(library, cuFileBatchIOCancel)?;
        need!(library, cuFileBatchIODestroy)?;
        let handle = set_up(driver, capacity)?;
        Ok(Self {
            driver: driver.clone(),
            handle,
            capacity,
            in_flight: Vec::new(),
            doubtful: Vec::new(),
            arrays: Vec::new(),
            events: Events::new(capacity),
            next_cookie: 1,
            finished: VecDeque::new(),
        })
    }

    /// Operations it has room for now.
    pub fn room(&self) -> usize {
        self.capacity as usize - self.in_flight.len()
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
                self.doubtful.extend(cookies.iter().copied());
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
        let device = owned.first().map(|(_, operation)| operation.device().clone());
        let library = self.driver.enter_on(device.as_ref())?;
        if self.handle.is_null() {
            return Err(CuFileError::usage("the batch could not be set up again after it was cancelled"));
        }
        let submit = need!(library, cuFileBatchIOSubmit)?;
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
        let library = self.driver.enter()?;
        let get_status = need!(library, cuFileBatchIOGetStatus)?;
        let mut count = self.capacity;
        let mut no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let events = self.events.clear();
        // SAFETY: the batch is set up; there is room for `count` events, for as long as the batch is; the other two are
        // writable for the call.
        let answer = unsafe { get_status(self.handle, 0, &mut count, events, &mut no_time) };
        let answer =
            check("cuFileBatchIOGetStatus", answer, || "asking which operations of a batch ended".into());
        // NVIDIA's answers 5044 where an operation failed, with the event somewhere in the array and the count untouched.
        let before = self.in_flight.len();
        let written = if answer.is_ok() { count } else { self.capacity };
        for event in self.events.read(written) {
            if !event.cookie.is_null() {
                self.note(&event)?;
            }
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

    /// Gives up what is in flight. Each operation still completes: as done, or as cancelled ([`CuFileError::BatchEvent`]
    /// with state 8).
    ///
    /// NVIDIA's 1.20 reports no end of a cancelled operation, so that nobody knows whether it is over: after a short wait
    /// its completion comes without the operation, whose memory is kept for ever. The batch goes on, set up anew.
    ///
    /// # Errors
    /// Those of the library.
    pub fn cancel(&mut self) -> CuFileResult<()> {
        self.call_cancel()?;
        let start = Instant::now();
        while !self.in_flight.is_empty() && start.elapsed() < GRACE {
            self.poll()?;
            thread::sleep(Duration::from_millis(1));
        }
        if self.in_flight.is_empty() {
            return Ok(());
        }
        for (cookie, operation) in mem::take(&mut self.in_flight) {
            let event = sys::CUfileIOEvents_t { status: sys::CUFILE_CANCELED, ..Default::default() };
            let (ticket, outcome) = (Ticket(cookie), operation.outcome(&event));
            mem::forget(operation);
            self.finished.push_back(Completion { ticket, outcome, operation: None });
        }
        mem::forget(mem::take(&mut self.arrays));
        self.keep_events();
        self.destroy()?;
        self.events = Events::new(self.capacity);
        self.handle = set_up(&self.driver, self.capacity)?;
        Ok(())
    }

    /// Never frees the array of events.
    fn keep_events(&mut self) {
        mem::forget(mem::replace(&mut self.events, Events::new(0)));
    }

    /// Cancels what is in flight, which may wait for what has begun: for at most [`CANCEL_LIMIT`]. After that the library may still be
    /// in the call, and the batch is never destroyed.
    fn call_cancel(&mut self) -> CuFileResult<()> {
        const DOING: &str = "cancelling a batch";
        let library = self.driver.enter()?;
        let cancel = need!(library, cuFileBatchIOCancel)?;
        let handle = Handle(self.handle);
        let cancelled = bounded(DOING, CANCEL_LIMIT, move || {
            let handle = handle;
            // SAFETY: the batch is set up, and not destroyed before this has returned.
            unsafe { cancel(handle.0) }
        });
        let answer = cancelled.inspect_err(|error| self.note_silence(error))?;
        check("cuFileBatchIOCancel", answer, || DOING.into())
    }

    /// Where the library did not return, a thread is in it for good, with whatever locks that holds.
    fn note_silence(&self, error: &CuFileError) {
        if matches!(error, CuFileError::TimedOut { .. }) {
            self.driver.poison(error.to_string());
        }
    }

    /// Destroys the batch in the library, which may wait for its threads: for at most [`DROP_LIMIT`].
    fn destroy(&mut self) -> CuFileResult<()> {
        const DOING: &str = "destroying a batch";
        let library = self.driver.library().enter()?;
        let destroy = need!(library, cuFileBatchIODestroy)?;
        let handle = Handle(mem::replace(&mut self.handle, ptr::null_mut()));
        if handle.0.is_null() {
            return Ok(());
        }
        let destroyed = bounded(DOING, DROP_LIMIT, move || {
            let handle = handle;
            // SAFETY: set up once, and destroyed once, here; the batch has no handle any more.
            unsafe { destroy(handle.0) }
        });
        destroyed.inspect_err(|error| self.note_silence(error))
    }
}

/// The array that the library stores events in. It outlives every call, because NVIDIA's 1.20 was seen to set the state
/// of a failed operation in the array of a call that had returned already; so it is only looked at through a pointer.
struct Events {
    first: ptr::NonNull<sys::CUfileIOEvents_t>,
    len: usize,
}

impl Events {
    fn new(capacity: u32) -> Self {
        let events = vec![sys::CUfileIOEvents_t::default(); capacity as usize].into_boxed_slice();
        let len = events.len();
        Self { first: ptr::NonNull::from(Box::leak(events)).cast(), len }
    }

    /// Forgets what is in it. The pointer is for the library.
    fn clear(&mut self) -> *mut sys::CUfileIOEvents_t {
        // SAFETY: `len` elements are allocated until `self` is dropped, and zeros are an event.
        unsafe { self.first.as_ptr().write_bytes(0, self.len) };
        self.first.as_ptr()
    }

    /// Copies of the first `count` events.
    fn read(&self, count: u32) -> Vec<sys::CUfileIOEvents_t> {
        let count = (count as usize).min(self.len);
        // SAFETY: `len` elements are allocated until `self` is dropped. Volatile, since the library may still write.
        (0..count).map(|place| unsafe { self.first.add(place).read_volatile() }).collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let events = ptr::NonNull::slice_from_raw_parts(self.first, self.len);
        // SAFETY: leaked once in `new`, taken back once, here: the batch is destroyed.
        drop(unsafe { Box::from_raw(events.as_ptr()) });
    }
}

/// The library's token of a batch, on its way to another thread.
struct Handle(sys::CUfileBatchHandle_t);

// SAFETY: a token that any thread may give to the library; it is never dereferenced here.
unsafe impl Send for Handle {}

fn set_up(driver: &Driver, capacity: u32) -> CuFileResult<sys::CUfileBatchHandle_t> {
    let library = driver.enter()?;
    let set_up = need!(library, cuFileBatchIOSetUp)?;
    let mut handle: sys::CUfileBatchHandle_t = ptr::null_mut();
    // SAFETY: `handle` is writable for the call.
    let answer = unsafe { set_up(&mut handle, capacity) };
    check("cuFileBatchIOSetUp", answer, || format!("setting up a batch of {capacity} operations"))?;
    Ok(handle)
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
        let callable = matches!(self.driver.enter_to_release(), Release::By(_));
        if callable && !self.in_flight.is_empty() {
            // Waiting comes first: the ends of cancelled operations may never be reported. What was refused most likely never
            // began, and has no end.
            let only_doubtful = self.in_flight.iter().all(|(cookie, _)| self.doubtful.contains(cookie));
            let limit = if only_doubtful { GRACE } else { DROP_LIMIT };
            let waited = self.wait(usize::MAX, limit).map(|_| ());
            if !self.in_flight.is_empty() {
                let cancelled = waited.and_then(|()| self.call_cancel());
                cancelled.and_then(|()| self.wait(usize::MAX, GRACE)).ok();
            }
        }
        if self.in_flight.is_empty() {
            // A batch of a closed driver is gone; one that is not destroyed may still use its array.
            let released = match self.driver.enter_to_release() {
                Release::By(_) => self.destroy().is_ok(),
                Release::Released => true,
                Release::Leak => false,
            };
            if !released {
                self.keep_events();
            }
            return;
        }
        let count = self.in_flight.len();
        self.driver.poison(format!("{count} operations of a batch did not end; their memory is kept"));
        mem::forget(mem::take(&mut self.in_flight));
        mem::forget(mem::take(&mut self.arrays));
        self.keep_events();
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
