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
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    key: usize,
    offset: u64,
    expected: u64,
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
        Ok(Self { batch: Batch::new(driver, capacity)?, in_flight: Vec::new() })
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
    pub(crate) fn begin(
        &mut self,
        key: usize,
        gds: &Gds,
        window: RegisteredBuffer,
        extent: &Range<u64>,
    ) -> Option<Ended> {
        let expected = gds.expected(extent);
        match Operation::read(gds.file(), extent.start, expected, window, 0) {
            Ok(operation) => self.submit(key, operation, extent.start, expected),
            Err(error) => Some((key, Err((None, failure(error, extent.start, expected))))),
        }
    }

    /// The reads that ended, waiting for at least one.
    ///
    /// # Errors
    /// Those of the library, and a read that does not end in time.
    pub(crate) fn wait(&mut self) -> CuFileResult<Vec<Ended>> {
        let completions = self.batch.wait(1, LIMIT)?;
        if completions.is_empty() && !self.in_flight.is_empty() {
            return Err(CuFileError::TimedOut { doing: "a batch of reads".into(), limit: LIMIT });
        }
        Ok(completions.into_iter().filter_map(|completion| self.end(completion)).collect())
    }

    fn submit(&mut self, key: usize, operation: Operation, offset: u64, expected: u64) -> Option<Ended> {
        match self.batch.submit(vec![operation]) {
            Ok(tickets) => {
                let reads = tickets.into_iter().map(|ticket| InFlight { ticket, key, offset, expected });
                self.in_flight.extend(reads);
                None
            }
            Err(refused) => {
                let window = refused.operations.into_iter().next().and_then(window_of);
                Some((key, Err((window, failure(refused.error, offset, expected)))))
            }
        }
    }

    fn end(&mut self, completion: Completion) -> Option<Ended> {
        let Completion { ticket, outcome, operation } = completion;
        let place = self.in_flight.iter().position(|read| read.ticket == ticket)?;
        let InFlight { key, offset, expected, .. } = self.in_flight.swap_remove(place);
        match (outcome, operation) {
            (Ok(()), Some(operation)) => window_of(operation).map(|window| (key, Ok(window))),
            (Err(CuFileError::Short { done, .. }), Some(operation)) if done > 0 => match operation.rest(done)
            {
                Ok(rest) => self.submit(key, rest, offset, expected),
                Err(error) => Some((key, Err((None, failure(error, offset, expected))))),
            },
            (Err(error), operation) => {
                Some((key, Err((operation.and_then(window_of), failure(error, offset, expected)))))
            }
            (Ok(()), None) => {
                let what = "an operation that is done and not over".into();
                let error = CuFileError::Nonsense { doing: "waiting for a batch".into(), what };
                Some((key, Err((None, failure(error, offset, expected)))))
            }
        }
    }
}

fn window_of(operation: Operation) -> Option<RegisteredBuffer> {
    operation.into_buffer().into_registered()
}
