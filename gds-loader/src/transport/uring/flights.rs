//! Reads in flight, and the memory that the kernel writes meanwhile.
//!
//! What makes it sound, whatever goes wrong:
//! - memory belongs to [`Flights`] from before the kernel hears of the read until an event of its key has come, whatever the
//!   submission said; a key is never used twice, so no old event can end a new read;
//! - what is still in flight at the end is waited for, for a while, and then leaked, together with what keeps it allocated;
//! - memory that was lent to us cannot be leaked, since its owner takes it back whatever we do: for that the wait has no
//!   bound, as a `pread` of it would have none.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::{FreeSlot, ReadingRegion, ReadingSlot, RegionMut};

use super::kernel::{Event, FileName, Kernel, Request};

/// How long dropping may wait for what is in flight.
const DROP_LIMIT: Duration = Duration::from_secs(10);

/// Where the bytes of a read go, while nobody else writes there.
#[derive(Debug)]
pub(crate) enum Place {
    /// A slot.
    Slot(FreeSlot),
    /// The destination itself, in host memory.
    Region(RegionMut),
}

impl Place {
    fn len(&self) -> u64 {
        match self {
            Self::Slot(slot) => slot.capacity() as u64,
            Self::Region(region) => region.len(),
        }
    }

    /// Gives it to the kernel; comes back where it is no host memory.
    fn begin(self) -> Result<Writing, Self> {
        match self {
            Self::Slot(slot) => Ok(Writing::Slot(slot.begin_read())),
            Self::Region(region) => region.begin_read().map(Writing::Region).map_err(Self::Region),
        }
    }
}

/// The same while the kernel may write there. Dropping it leaks the memory.
#[derive(Debug)]
enum Writing {
    Slot(ReadingSlot),
    Region(ReadingRegion),
}

impl Writing {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Slot(slot) => slot.as_mut_ptr(),
            Self::Region(region) => region.as_mut_ptr(),
        }
    }

    fn is_lent(&self) -> bool {
        matches!(self, Self::Region(region) if region.is_adopted())
    }

    /// Takes the memory back.
    ///
    /// # Safety
    /// - No read into it is in flight.
    unsafe fn end(self) -> Place {
        match self {
            // SAFETY: the caller's promise.
            Self::Slot(slot) => Place::Slot(unsafe { slot.complete(0) }.release()),
            // SAFETY: the caller's promise.
            Self::Region(region) => Place::Region(unsafe { region.complete() }),
        }
    }
}

/// A read that the kernel has, and what it needs until it is over.
#[derive(Debug)]
struct Flight {
    key: u64,
    memory: Writing,
    /// Keeps the descriptor.
    _file: Arc<File>,
}

/// A read that is over.
#[derive(Debug)]
pub(super) struct Landed {
    /// What [`Flights::begin`] gave for it.
    pub(super) key: u64,
    pub(super) place: Place,
    /// Bytes that arrived, or a negated error number.
    pub(super) result: i32,
}

/// Reads in flight.
#[derive(Debug)]
pub(super) struct Flights<K: Kernel> {
    /// Before the memory, so that nothing is asked of a kernel whose memory is gone.
    kernel: K,
    flights: Vec<Flight>,
    next_key: u64,
    /// The process that made it: in a forked child the kernel knows nothing of these reads.
    process: u32,
}

impl<K: Kernel> Flights<K> {
    pub(super) fn new(kernel: K) -> Self {
        Self { kernel, flights: Vec::new(), next_key: 0, process: process::id() }
    }

    pub(super) fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Begins a read at `offset` of `file`, which the kernel may know by another name, into `part` of the place.
    ///
    /// # Errors
    /// The place, where the read could not be asked for.
    pub(super) fn begin(
        &mut self,
        place: Place,
        part: Range<usize>,
        file: &Arc<File>,
        registered: Option<u32>,
        offset: u64,
    ) -> Result<u64, (Place, io::Error)> {
        if let Err(error) = self.check_process() {
            return Err((place, error));
        }
        let len = match u32::try_from(part.end.saturating_sub(part.start)) {
            Ok(len) if part.end as u64 <= place.len() => len,
            _ => return Err((place, io::Error::other(format!("bytes {part:?} of a smaller place")))),
        };
        let mut memory =
            place.begin().map_err(|place| (place, io::Error::other("the place is not host memory")))?;
        let key = self.next_key;
        self.next_key += 1;
        let file_name = registered.map_or(FileName::Descriptor(file.as_raw_fd()), FileName::Registered);
        let into = memory.as_mut_ptr().wrapping_add(part.start);
        let request = Request { key, file: file_name, offset, into, len };
        // SAFETY: `part` lies within the memory, as checked above, which nothing else can touch, and which stays in `flights`,
        // beside its file, until the event of this key has come; registered files live as long as the kernel's side.
        match unsafe { self.kernel.ask(&request) } {
            Ok(()) => {
                self.flights.push(Flight { key, memory, _file: Arc::clone(file) });
                Ok(key)
            }
            // SAFETY: the read was not asked for, and none other was into this memory.
            Err(error) => Err((unsafe { memory.end() }, error)),
        }
    }

    /// The reads that are over, waiting for at least one if any is in flight.
    ///
    /// # Errors
    /// `TimedOut` after `limit`, which is no limit while lent memory is in flight; what the kernel says; an event of a read that
    /// is not in flight.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<Vec<Landed>> {
        self.check_process()?;
        let start = Instant::now();
        loop {
            let landed = self.land()?;
            if !landed.is_empty() || self.flights.is_empty() {
                return Ok(landed);
            }
            let mut left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                if !self.has_lent() {
                    let message = format!("no read was over within {limit:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                left = Duration::from_secs(1);
            }
            self.kernel.wait(left)?;
        }
    }

    /// Takes the memory of reads that are over back.
    fn land(&mut self) -> io::Result<Vec<Landed>> {
        let (mut landed, mut unknown) = (Vec::new(), None);
        for Event { key, result } in self.kernel.events()? {
            match self.flights.iter().position(|flight| flight.key == key) {
                Some(index) => {
                    let memory = self.flights.swap_remove(index).memory;
                    // SAFETY: the event of this read's own key has come, so the kernel is done with its memory.
                    landed.push(Landed { key, place: unsafe { memory.end() }, result });
                }
                None => unknown = Some(key),
            }
        }
        match unknown {
            None => Ok(landed),
            Some(key) => Err(io::Error::other(format!("a completion of read {key}, which is not in flight"))),
        }
    }

    /// Whether memory is in flight whose owner takes it back whatever we do.
    fn has_lent(&self) -> bool {
        self.flights.iter().any(|flight| flight.memory.is_lent())
    }

    fn check_process(&self) -> io::Result<()> {
        if process::id() == self.process {
            return Ok(());
        }
        Err(io::Error::other("reads in flight are not a forked child's"))
    }
}

impl<K: Kernel> Drop for Flights<K> {
    fn drop(&mut self) {
        /// How long to leave the kernel alone after it failed.
        const PAUSE: Duration = Duration::from_millis(10);
        let start = Instant::now();
        while !self.flights.is_empty() && self.check_process().is_ok() {
            let left = DROP_LIMIT.saturating_sub(start.elapsed());
            if let Err(error) = self.wait(left) {
                if left.is_zero() && !self.has_lent() {
                    tracing::error!(reads = self.flights.len(), %error, "reads do not end; their memory is given up");
                    break;
                }
                thread::sleep(PAUSE);
            }
        }
    }
}
