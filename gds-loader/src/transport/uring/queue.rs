//! Exact reads, many in flight.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_staging::SlotsMemory;

use super::flights::{Flights, Landed, Place};
use super::kernel::{Kernel, Ring};
use crate::transport::{Extent, ReadFailure};

/// How long one read may take, its continuations included, before it is given up.
const LIMIT: Duration = Duration::from_secs(60);

/// Most reads in flight in one queue.
const MOST: usize = 1024;

/// Reads in flight, each known by a key of the caller's.
#[derive(Debug)]
pub(crate) struct Queue<K: Kernel = Ring> {
    flights: Flights<K>,
    reads: Vec<Read>,
    capacity: usize,
}

/// What is read, however many calls it takes.
#[derive(Debug)]
struct Read {
    key: usize,
    file: Arc<File>,
    registered: Option<u32>,
    extent: Extent,
    since: Instant,
    /// The call in flight.
    call: u64,
    /// Bytes it asked for.
    asked: usize,
}

/// How a read ended: where its bytes were to go, and how many are there.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) key: usize,
    pub(crate) place: Place,
    pub(crate) outcome: Result<u64, ReadFailure>,
}

impl Queue {
    /// Room for `capacity` reads.
    ///
    /// # Errors
    /// Where the kernel has no such queue for us.
    pub(crate) fn open(capacity: usize) -> io::Result<Self> {
        let capacity = capacity.clamp(1, MOST);
        Ok(Self::on(Ring::open(capacity as u32)?, capacity))
    }

    /// Registers files of which many reads will come; without it each read names its descriptor.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub(crate) fn register_files(&mut self, files: Vec<Arc<File>>) -> io::Result<()> {
        self.flights.kernel().register_files(files)
    }

    /// Registers slots that will be read into; without it each read maps its memory.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub(crate) fn register_slots(&mut self, slots: SlotsMemory) -> io::Result<()> {
        self.flights.kernel().register_slots(slots)
    }

    /// Begins reading what is left of `extent` into the beginning of `place`; what is over at once comes back at once.
    pub(crate) fn begin(
        &mut self,
        key: usize,
        file: &Arc<File>,
        extent: Extent,
        place: Place,
    ) -> Option<Ended> {
        let registered = self.flights.kernel().registered(file);
        self.begin_named(key, file, registered, extent, place)
    }
}

impl<K: Kernel> Queue<K> {
    fn on(kernel: K, capacity: usize) -> Self {
        Self { flights: Flights::new(kernel), reads: Vec::new(), capacity }
    }

    /// How many more reads it can take.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.flights.len().min(self.capacity)
    }

    /// How many reads are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether [`Queue::wait`] need not wait.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.flights.kernel().has_events()
    }

    /// The reads that ended, waiting for at least one if any is in flight.
    ///
    /// # Errors
    /// Where the kernel fails, a read does not end in time, or one ends that is not in flight.
    pub(crate) fn wait(&mut self) -> io::Result<Vec<Ended>> {
        loop {
            let landed = self.flights.wait(LIMIT)?;
            let ended: Vec<Ended> = landed.into_iter().filter_map(|landed| self.land(landed)).collect();
            if !ended.is_empty() || self.flights.len() == 0 {
                return Ok(ended);
            }
        }
    }

    fn begin_named(
        &mut self,
        key: usize,
        file: &Arc<File>,
        registered: Option<u32>,
        extent: Extent,
        place: Place,
    ) -> Option<Ended> {
        let file = Arc::clone(file);
        self.go_on(Read { key, file, registered, extent, since: Instant::now(), call: 0, asked: 0 }, place)
    }

    /// Makes the next call of a read, if there is one.
    fn go_on(&mut self, mut read: Read, place: Place) -> Option<Ended> {
        let Some(call) = read.extent.next_call() else {
            return Some(Ended { key: read.key, place, outcome: Ok(read.extent.expected()) });
        };
        read.asked = call.len();
        match self.flights.begin(place, call, &read.file, read.registered, read.extent.offset()) {
            Ok(call) => {
                self.reads.push(Read { call, ..read });
                None
            }
            Err((place, error)) => Some(read.failed(place, error)),
        }
    }

    /// Goes on with a read of which one call is over.
    fn land(&mut self, landed: Landed) -> Option<Ended> {
        let Landed { key: call, place, result } = landed;
        let index = self.reads.iter().position(|read| read.call == call)?;
        let mut read = self.reads.swap_remove(index);
        let said = match usize::try_from(result) {
            Ok(count) if count <= read.asked => Ok(count),
            Ok(count) => {
                let error = io::Error::other(format!("{count} bytes for {} that were asked for", read.asked));
                return Some(read.failed(place, error));
            }
            Err(_) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
        };
        match said {
            // Asked for again, but not for ever.
            Err(error) if is_transient(&error) && read.since.elapsed() < LIMIT => {}
            said => {
                if let Err(failure) = read.extent.advance(said) {
                    return Some(Ended { key: read.key, place, outcome: Err(failure) });
                }
            }
        }
        self.go_on(read, place)
    }
}

impl Read {
    fn failed(self, place: Place, error: io::Error) -> Ended {
        Ended { key: self.key, place, outcome: Err(self.extent.failure(Some(error))) }
    }
}

/// Whether the kernel asks to be asked again.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}
