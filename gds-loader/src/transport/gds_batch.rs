//! Reads into windows, many with one call: cuFile's batches.
//!
//! One thread keeps as many reads in flight as it has windows. A read that ends short is continued; one that fails comes back
//! with its window.

use std::ops::Range;
use std::time::Duration;

use super::gds::{Gds, failure};
use super::{ReadFailure, RegisteredBuffer};
use crate::cufile::{Batch, Completion, CuFileError, CuFileResult, Driver, Operation, Ticket};

/// How long one read may take before the load is given up.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads in flight, each known by a key of the caller's.
#[derive(Debug)]
pub(crate) struct GdsBatch {
    batch: Batch,
    in_flight: Vec<InFlight>,
    /// Whether the library has left it unclear what became of a read.
    broken: bool,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    read: Read,
}

/// What is read, whichever operation does it.
#[derive(Clone, Copy, Debug)]
struct Read {
    key: usize,
    offset: u64,
    /// Bytes that the file has of it.
    expected: u64,
    /// Bytes that earlier operations brought.
    done: u64,
}

/// How a read ended.
pub(crate) type Ended = (usize, Result<RegisteredBuffer, (Option<RegisteredBuffer>, ReadFailure)>);

impl GdsBatch {
    /// Room for `capacity` reads.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn new(driver: &Driver, capacity: usize) -> CuFileResult<Self> {
        let most = driver.properties()?.max_batch_size;
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX).clamp(1, most.max(1));
        Ok(Self { batch: Batch::new(driver, capacity)?, in_flight: Vec::new(), broken: false })
    }

    /// Whether more reads may be given to it.
    pub(crate) fn serves(&self) -> bool {
        !self.broken
    }

    /// How many more reads it can take.
    pub(crate) fn room(&self) -> usize {
        self.batch.room()
    }

    /// How many reads are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Begins reading `extent` into the beginning of a window; what was refused comes back at once.
    ///
    /// The whole aligned extent is asked for, since an odd length at the file's end would not go straight.
    pub(crate) fn begin(
        &mut self,
        key: usize,
        gds: &Gds,
        window: RegisteredBuffer,
        extent: &Range<u64>,
    ) -> Option<Ended> {
        let read = Read { key, offset: extent.start, expected: gds.expected(extent), done: 0 };
        match Operation::read(gds.file(), extent.start, extent.end - extent.start, window, 0) {
            Ok(operation) => self.submit(operation, read),
            Err(error) => Some(read.failed(None, error)),
        }
    }

    /// The reads that ended, waiting for at least one. Where the library does not say, or none ends in time, all of them have
    /// failed, and their windows stay with it.
    pub(crate) fn wait(&mut self) -> Vec<Ended> {
        let unclear = match self.batch.wait(1, LIMIT) {
            Ok(completions) if completions.is_empty() && !self.in_flight.is_empty() => {
                CuFileError::TimedOut { doing: "a batch of reads".into(), limit: LIMIT }
            }
            Ok(completions) => {
                return completions.into_iter().filter_map(|completion| self.end(completion)).collect();
            }
            Err(error) => error,
        };
        self.broken = true;
        let failed = |flight: InFlight| {
            let (doing, what) = ("waiting for a batch of reads".into(), format!("no end: {unclear}"));
            flight.read.failed(None, CuFileError::Nonsense { doing, what })
        };
        self.in_flight.drain(..).map(failed).collect()
    }

    fn submit(&mut self, operation: Operation, read: Read) -> Option<Ended> {
        match self.batch.submit(vec![operation]) {
            Ok(tickets) => {
                self.in_flight.extend(tickets.into_iter().map(|ticket| InFlight { ticket, read }));
                None
            }
            Err(refused) => {
                self.broken |= refused.operations.is_empty();
                let window = refused.operations.into_iter().next().and_then(window_of);
                Some(read.failed(window, refused.error))
            }
        }
    }

    fn end(&mut self, completion: Completion) -> Option<Ended> {
        let Completion { ticket, outcome, operation } = completion;
        let place = self.in_flight.iter().position(|flight| flight.ticket == ticket)?;
        let mut read = self.in_flight.swap_remove(place).read;
        let Some(operation) = operation else {
            self.broken = true;
            let what = "an operation that is done and not over".into();
            let nonsense = CuFileError::Nonsense { doing: "waiting for a batch".into(), what };
            return Some(read.failed(None, outcome.err().unwrap_or(nonsense)));
        };
        let error = match outcome {
            Ok(()) => return window_of(operation).map(|window| (read.key, Ok(window))),
            Err(error) => error,
        };
        let more = error.done();
        read.done += more;
        match error {
            CuFileError::Short { .. } if read.done >= read.expected => {
                window_of(operation).map(|window| (read.key, Ok(window)))
            }
            CuFileError::Short { .. } if more > 0 => match operation.rest(more) {
                Ok(rest) => self.submit(rest, read),
                Err(error) => Some(read.failed(None, error)),
            },
            error => Some(read.failed(window_of(operation), error)),
        }
    }
}

impl Read {
    fn failed(self, window: Option<RegisteredBuffer>, error: CuFileError) -> Ended {
        (self.key, Err((window, failure(error, self.offset, self.expected))))
    }
}

fn window_of(operation: Operation) -> Option<RegisteredBuffer> {
    operation.into_buffer().into_registered()
}
