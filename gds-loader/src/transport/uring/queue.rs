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
    limit: Duration,
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
        Self { flights: Flights::new(kernel), reads: Vec::new(), capacity, limit: LIMIT }
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
            let landed = self.flights.wait(self.limit)?;
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
            Err(error) if is_transient(&error) => {
                if read.since.elapsed() >= self.limit {
                    return Some(read.failed(place, error));
                }
            }
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use cuda_staging::{Device, RegionMut, RingOptions};
    use proptest::prelude::*;

    use super::super::scripted::{Answer, Scripted};
    use super::*;
    use crate::transport::ReadCause;

    /// Longest read of these tests, in bytes.
    const LEN: usize = 8192;

    fn queue(len: usize, alignment: u64, script: impl IntoIterator<Item = Answer>) -> Queue<Scripted> {
        Queue::on(Scripted::new(len, alignment, script), 64)
    }

    fn nothing() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    /// Memory of a slot, aligned to a page, filled with what no test expects.
    fn slot(ring: &mut cuda_staging::Ring) -> Place {
        let slot = ring.take().unwrap();
        let dirty = slot.fill(|bytes| {
            bytes.fill(0xaa);
            Ok::<usize, ()>(0)
        });
        Place::Slot(dirty.map_err(|_| ()).unwrap().release())
    }

    fn bytes(place: Place, len: u64) -> Vec<u8> {
        let Place::Slot(slot) = place else { panic!("{place:?}") };
        slot.fill(|_| Ok::<_, ()>(len as usize)).map_err(|_| ()).unwrap().bytes().to_vec()
    }

    fn ring(slots: usize) -> cuda_staging::Ring {
        Device::cpu().ring(RingOptions { slots, slot_size: LEN }).unwrap()
    }

    /// Reads one extent of a file of `len` bytes.
    fn read(
        len: usize,
        alignment: u64,
        script: Vec<Answer>,
        extent: std::ops::Range<u64>,
        file_len: u64,
    ) -> Ended {
        let (mut queue, mut ring) = (queue(len, alignment, script), ring(1));
        let place = slot(&mut ring);
        match queue.begin_named(7, &nothing(), None, Extent::new(&extent, file_len, alignment), place) {
            Some(ended) => ended,
            None => queue.wait().unwrap().pop().unwrap(),
        }
    }

    proptest! {
        #[test]
        fn short_completions_and_interruptions_do_not_change_a_byte(
            len in 1_usize..60_000,
            script in prop::collection::vec(prop_oneof![
                (512_usize..5000).prop_map(Answer::Short),
                Just(Answer::Fail(libc::EINTR)),
                Just(Answer::Fail(libc::EAGAIN)),
                (0_usize..3).prop_map(Answer::Late),
            ], 0..40),
            order in prop::collection::vec(0_usize..8, 0..40),
        ) {
            let count = len.div_ceil(LEN);
            let (mut queue, mut ring) = (queue(len, 512, script), ring(count));
            queue.flights.kernel().order = order.into();
            let mut left: Vec<usize> = (0..count).collect();
            let file = nothing();
            let mut ended = Vec::new();
            for key in 0..count {
                let extent = (key * LEN) as u64..((key + 1) * LEN) as u64;
                let place = slot(&mut ring);
                ended.extend(queue.begin_named(key, &file, None, Extent::new(&extent, len as u64, 512), place));
            }
            while queue.in_flight() > 0 {
                ended.extend(queue.wait().unwrap());
            }
            for Ended { key, place, outcome } in ended {
                let wanted = queue.flights.kernel().file[key * LEN..].iter().copied().take(LEN).collect::<Vec<u8>>();
                prop_assert_eq!(outcome.unwrap(), wanted.len() as u64);
                prop_assert_eq!(bytes(place, wanted.len() as u64), wanted);
                left.retain(|&other| other != key);
            }
            prop_assert!(left.is_empty(), "{:?} did not end", left);
        }
    }

    #[test]
    fn a_completion_that_failed_is_a_failure_with_its_place() {
        let script = vec![Answer::Short(1024), Answer::Fail(libc::EIO)];
        let Ended { key, outcome, .. } = read(LEN, 512, script, 0..LEN as u64, LEN as u64);
        let failure = outcome.unwrap_err();
        assert_eq!((key, failure.offset, failure.got, failure.expected), (7, 1024, 1024, LEN as u64));
        let Some(ReadCause::System(error)) = failure.source else { panic!("{failure:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_file_that_shrank_is_a_failure_and_not_a_short_success() {
        let failure = read(1000, 512, vec![], 0..2048, 2000).outcome.unwrap_err();
        assert_eq!((failure.offset, failure.got, failure.expected), (512, 512, 2000));
        assert!(failure.source.is_none());
        assert!(read(LEN, 512, vec![Answer::Short(100)], 0..LEN as u64, LEN as u64).outcome.is_err());
    }

    #[test]
    fn more_bytes_than_were_asked_for_are_a_failure() {
        assert!(read(LEN, 512, vec![Answer::TooMany], 0..LEN as u64, LEN as u64).outcome.is_err());
    }

    #[test]
    fn a_read_that_is_refused_ends_at_once_with_its_place() {
        let ended = read(LEN, 512, vec![Answer::Refuse(libc::EINVAL)], 0..LEN as u64, LEN as u64);
        assert!(ended.outcome.is_err() && matches!(ended.place, Place::Slot(_)));
    }

    #[test]
    fn asking_again_has_an_end() {
        for code in [libc::EAGAIN, libc::EINTR] {
            let mut queue = queue(LEN, 1, std::iter::repeat_n(Answer::Fail(code), 1_000_000));
            queue.limit = Duration::from_millis(20);
            let place = Place::Region(RegionMut::from_vec(vec![0; LEN]));
            queue.begin_named(0, &nothing(), None, Extent::new(&(0..LEN as u64), LEN as u64, 1), place);
            let ended = queue.wait().unwrap().pop().unwrap();
            assert!(ended.outcome.is_err());
        }
    }

    #[test]
    fn the_kernel_reads_what_it_is_asked_for() {
        let test = "transport::uring::queue::tests::the_kernel_reads_what_it_is_asked_for";
        let content: Vec<u8> = (0..1050_u32).map(|k| (k % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let mut exact = vec![0; content.len()];
        file.read_exact_at(&mut exact, 0).unwrap();
        assert_eq!(exact, content);
        let file = Arc::new(file);
        for registered in [false, true] {
            let mut queue = match Queue::open(4) {
                Ok(queue) => queue,
                Err(error) => return test_support::not_run(test, &format!("no io_uring: {error}")),
            };
            let mut ring = ring(4);
            if registered {
                queue.register_files(vec![Arc::clone(&file)]).unwrap();
                queue.register_slots(ring.memory()).unwrap();
            }
            // Three of them lie beyond the end.
            let mut ended = Vec::new();
            for key in 0..4 {
                let extent = key as u64 * 4096..(key as u64 + 1) * 4096;
                let place = slot(&mut ring);
                ended.extend(queue.begin(key, &file, Extent::new(&extent, 1050, 1), place));
            }
            while queue.in_flight() > 0 {
                ended.extend(queue.wait().unwrap());
            }
            ended.sort_by_key(|ended| ended.key);
            let outcomes: Vec<u64> = ended.iter().map(|ended| *ended.outcome.as_ref().unwrap()).collect();
            assert_eq!(outcomes, [1050, 0, 0, 0]);
            assert_eq!(bytes(ended.remove(0).place, 1050), content);
        }
    }
}
