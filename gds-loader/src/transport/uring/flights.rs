//! Reads in flight, and the memory that the kernel writes meanwhile.
//!
//! What makes it sound, whatever goes wrong:
//! - memory belongs to [`Flights`] from before the kernel hears of the read until an event of its key has come, whatever the
//!   submission said; a key is never used twice, so no old event can end a new read;
//! - what is still in flight at the end is waited for, for a while, and then leaked, together with what keeps it allocated;
//! - memory that was lent to us cannot be leaked, since its owner takes it back whatever we do: for that the wait has no
//!   bound, as a `pread` of it would have none;
//! - what the kernel has not taken by the end it never will: there is nothing to wait for, which matters where every call is
//!   refused.

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
    drop_limit: Duration,
}

impl<K: Kernel> Flights<K> {
    pub(super) fn new(kernel: K) -> Self {
        Self { kernel, flights: Vec::new(), next_key: 0, process: process::id(), drop_limit: DROP_LIMIT }
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
        while self.check_process().is_ok() {
            if self.flights.len() <= self.kernel.untaken() {
                // SAFETY: the kernel has none of these reads, and is not called again.
                self.flights.drain(..).for_each(|flight| drop(unsafe { flight.memory.end() }));
                break;
            }
            let left = self.drop_limit.saturating_sub(start.elapsed());
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

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one part is a legal carving")]
mod tests {
    use std::fs;

    use cuda_staging::{Device, RingOptions};

    use super::super::scripted::{Answer, Scripted};
    use super::*;

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    /// A flight of 4096 bytes into a part of a region, which says whether the part is gone.
    fn begun(script: Vec<Answer>) -> (Flights<Scripted>, cuda_staging::Carved) {
        let (carved, mut parts) = RegionMut::from_vec(vec![0; 4096]).carve(&[0..4096]).unwrap();
        let mut flights = Flights::new(Scripted::new(4096, 1, script));
        flights.begin(Place::Region(parts.remove(0)), 0..4096, &file(), None, 0).unwrap();
        (flights, carved)
    }

    /// Whether an address is mapped.
    fn is_mapped(address: usize) -> bool {
        fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
            let range = line.split(' ').next().unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
            (start..end).contains(&address)
        })
    }

    #[test]
    fn what_is_in_flight_is_waited_for_before_its_memory_goes() {
        let (flights, carved) = begun(vec![Answer::Late(3)]);
        drop(flights);
        assert_eq!(carved.reunite().unwrap().host_bytes().unwrap()[1], 31, "it has been read");
    }

    #[test]
    fn what_does_not_end_in_time_is_an_error_and_its_memory_is_never_freed() {
        let (mut flights, carved) = begun(vec![Answer::Late(usize::MAX)]);
        flights.drop_limit = Duration::ZERO;
        assert_eq!(flights.wait(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(flights);
        assert!(carved.reunite().is_err(), "the kernel may still write it");
    }

    #[test]
    fn a_slot_that_the_kernel_has_stays_mapped() {
        let mut ring = Device::cpu().ring(RingOptions { slots: 2, slot_size: 4096 }).unwrap();
        let address = ring.memory().as_mut_ptr().addr();
        let mut flights = Flights::new(Scripted::new(4096, 1, vec![Answer::Late(usize::MAX)]));
        flights.drop_limit = Duration::ZERO;
        let slot = ring.take().unwrap();
        flights.begin(Place::Slot(slot), 0..4096, &file(), None, 0).unwrap();
        drop((flights, ring));
        assert!(is_mapped(address), "the kernel may still write it");
    }

    #[test]
    fn memory_that_was_lent_is_waited_for_without_a_limit() {
        for in_drop in [false, true] {
            let mut bytes = vec![0_u8; 4096];
            let address = bytes.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: `bytes` lives beyond the flights, and is not touched before they are gone.
            let region = unsafe { Device::cpu().adopt(address, 4096) }.unwrap();
            let mut flights = Flights::new(Scripted::new(4096, 1, vec![Answer::Late(5)]));
            flights.drop_limit = Duration::ZERO;
            flights.begin(Place::Region(region), 0..4096, &file(), None, 0).unwrap();
            if !in_drop {
                assert_eq!(flights.wait(Duration::ZERO).unwrap().len(), 1);
            }
            drop(flights);
            assert_eq!(bytes[1], 31);
        }
    }

    #[test]
    fn a_completion_of_nothing_in_flight_is_an_error_and_the_others_end() {
        for answer in [Answer::Twice, Answer::Stray] {
            let (mut flights, carved) = begun(vec![answer]);
            let error = flights.wait(Duration::from_secs(1)).unwrap_err();
            assert!(error.to_string().contains("not in flight"), "{error}");
            drop(flights);
            assert!(carved.reunite().is_ok());
        }
    }

    #[test]
    fn what_the_kernel_never_took_is_not_waited_for() {
        let mut bytes = vec![7_u8; 4096];
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: `bytes` lives beyond the flights, and is not touched before they are gone.
        let lent = unsafe { Device::cpu().adopt(address, 4096) }.unwrap();
        let (carved, mut parts) = RegionMut::from_vec(vec![7; 4096]).carve(&[0..4096]).unwrap();
        let script = vec![Answer::Late(3), Answer::NeverTaken(libc::EPERM)];
        let mut flights = Flights::new(Scripted::new(4096, 1, script));
        for region in [parts.remove(0), lent] {
            flights.begin(Place::Region(region), 0..4096, &file(), None, 0).unwrap();
        }
        let refused = loop {
            match flights.wait(Duration::from_secs(1)) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let start = Instant::now();
        drop(flights);
        assert!(start.elapsed() < DROP_LIMIT, "{:?} for what will never end", start.elapsed());
        assert_eq!(
            carved.reunite().unwrap().host_bytes().unwrap()[1],
            31,
            "what was taken has been waited for"
        );
        assert_eq!(bytes[1], 7);
    }

    #[test]
    fn what_was_refused_comes_back() {
        let mut flights = Flights::new(Scripted::new(4096, 1, vec![Answer::Refuse(libc::EBUSY)]));
        let place = Place::Region(RegionMut::from_vec(vec![7; 4096]));
        let (place, error) = flights.begin(place, 0..4096, &file(), None, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        let (place, _) = flights.begin(place, 1..4097, &file(), None, 0).unwrap_err();
        let Place::Region(region) = place else { panic!("{place:?}") };
        assert_eq!((region.host_bytes().unwrap()[0], flights.len()), (7, 0));
    }

    #[test]
    fn a_forked_child_leaves_the_parents_reads_alone() {
        let (mut flights, carved) = begun(vec![]);
        flights.process += 1;
        assert!(flights.wait(Duration::from_secs(1)).is_err());
        let place = Place::Region(RegionMut::from_vec(vec![0; 1]));
        assert!(flights.begin(place, 0..1, &file(), None, 0).is_err());
        drop(flights);
        assert!(carved.reunite().is_err());
    }
}
