//! A ring: one worker's slots and the stream their copies run on.
//!
//! The worker takes a slot, reads into it, launches its copies and takes the next one; while it reads, the last ones
//! are copied. The number of slots bounds the host memory, and makes the reader wait where copies lag.
//!
//! What is in flight belongs to the ring: the slot, and the regions it is copied to or from. It is given back only
//! when the driver has said that the copies are over. If that cannot be learnt, it is leaked and the device poisoned.

mod flight;
mod lane;
mod window;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;

use self::flight::{InFlight, Part};
pub use self::flight::{SlotCopy, SlotFetch};
use self::lane::Lane;
pub use self::window::{Window, WindowRing};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::limits::page_size;
use crate::memory::{HostMemory, Purpose};
use crate::slot::{FilledSlot, FreeSlot, Slot, SlotMemory, SlotsMemory};
use crate::statistics::RingStatistics;

/// How long a wait for one slot's copies may take, unless [`Ring::set_wait_limit`] says otherwise.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How long dropping a ring may wait for what is in flight.
pub const DROP_WAIT_LIMIT: Duration = Duration::from_secs(10);

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// How many slots.
    pub slots: usize,
    /// Bytes of each, rounded up to whole pages.
    pub slot_size: usize,
}

/// Slots, and their copies in flight.
///
/// Dropping a ring waits for what is in flight, for at most [`DROP_WAIT_LIMIT`].
pub struct Ring {
    free: Vec<Slot>,
    memory: Arc<SlotMemory>,
    /// To the device, the oldest first.
    copying: VecDeque<InFlight<SlotCopy>>,
    /// From the device, the oldest first; waiting to be taken, the first ones perhaps over.
    fetching: VecDeque<InFlight<SlotFetch>>,
    /// None on the CPU device, where copies are done at once.
    lane: Option<Lane>,
    statistics: RingStatistics,
    wait_limit: Duration,
    /// Last: released after all that was made on it.
    device: Device,
}

impl Ring {
    pub(crate) fn new(device: &Device, options: RingOptions) -> Result<Self> {
        let RingOptions { slots, slot_size } = options;
        let (capacity, total) = slot_size
            .checked_next_multiple_of(page_size())
            .and_then(|capacity| Some((capacity, capacity.checked_mul(slots)?)))
            .filter(|&(_, total)| total > 0)
            .ok_or_else(|| Error::invalid(format!("a ring of {slots} slots of {slot_size} bytes")))?;

        let mut statistics = RingStatistics::default();
        let lane = device.context().map(|context| Lane::new(context, WAIT_LIMIT)).transpose()?;
        let memory = HostMemory::map(total, Purpose::Slots)?;
        if let Some(node) = device.numa_node() {
            memory.prefer_node(node);
        }
        let memory = Arc::new(match &lane {
            Some(lane) => lane.pin(memory, &mut statistics)?,
            None => SlotMemory::Pageable(memory),
        });
        let mut free = Vec::with_capacity(slots);
        // Backwards, so that the first slot taken is the first in memory.
        for index in (0..slots).rev() {
            let events = lane.as_ref().map(Lane::copy_events).transpose()?;
            // SAFETY: each index is used once.
            free.extend(unsafe { Slot::of(&memory, index, capacity, events, device) });
        }
        Ok(Self {
            free,
            memory,
            copying: VecDeque::with_capacity(slots),
            fetching: VecDeque::new(),
            lane,
            statistics,
            wait_limit: WAIT_LIMIT,
            device: device.clone(),
        })
    }

    /// The device copies go to and come from.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How long a wait for one slot's copies may take from now on.
    pub fn set_wait_limit(&mut self, limit: Duration) {
        self.wait_limit = limit;
    }

    /// What it did so far.
    pub fn statistics(&self) -> &RingStatistics {
        &self.statistics
    }

    /// The memory that its slots lie in.
    pub fn memory(&self) -> SlotsMemory {
        SlotsMemory(Arc::clone(&self.memory))
    }

    /// Whether a slot is free, or will be once its copies are over: else [`take`](Self::take) fails.
    pub fn can_take(&self) -> bool {
        self.has_free() || !self.copying.is_empty()
    }

    /// Whether a slot is free now: else [`take`](Self::take) waits.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A free slot. Where there is none, waits for the oldest copy to the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the caller has all slots, so that no wait could bring one;
    /// [`Error::TimedOut`], and those of the driver.
    pub fn take(&mut self) -> Result<FreeSlot> {
        self.device.health()?;
        if self.free.is_empty() && !self.copying.is_empty() {
            self.statistics.waits += 1;
            self.retire_oldest()?;
        }
        self.free.pop().map(|slot| FreeSlot { slot }).ok_or_else(|| {
            Error::invalid(
                "no slot is free and none is being copied: put slots back, or take what was fetched",
            )
        })
    }

    /// Puts a slot back unused. One made on another device is dropped.
    pub fn put_back(&mut self, slot: FreeSlot) {
        if self.device.is_same(slot.slot.device()) {
            self.free.push(slot.slot);
        }
    }

    /// Copies from a filled slot to the device, and returns before that is done. The ring has slot and regions until
    /// then: the slot comes back from [`take`](Self::take), the regions are dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a copy reaches beyond the slot or goes to another device; those of the driver.
    /// After the latter, some of the bytes may have been copied.
    pub fn launch(&mut self, filled: FilledSlot, copies: Vec<SlotCopy>) -> Result<()> {
        let flight = self.start(InFlight { slot: filled.slot, parts: copies })?;
        self.copying.push_back(flight);
        // On the CPU device it is over already.
        if self.lane.is_none() { self.retire_oldest() } else { Ok(()) }
    }

    /// Copies from the device to a slot, and returns before that is done. The slot comes back from
    /// [`take_fetched`](Self::take_fetched).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a copy reaches beyond the slot or comes from another device; those of the
    /// driver.
    pub fn launch_fetch(&mut self, slot: FreeSlot, fetches: Vec<SlotFetch>) -> Result<()> {
        let flight = self.start(InFlight { slot: slot.slot, parts: fetches })?;
        self.fetching.push_back(flight);
        Ok(())
    }

    /// The oldest slot that was launched to be fetched, once its bytes are there; None where there is none. It is
    /// filled up to the end of its last part.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of the driver.
    pub fn take_fetched(&mut self) -> Result<Option<FilledSlot>> {
        let Some(oldest) = self.fetching.front() else { return Ok(None) };
        self.statistics.waited += self.wait(&oldest.slot)?;
        let Some(flight) = self.fetching.pop_front() else { return Ok(None) };
        match self.count(&flight) {
            Ok(()) => Ok(Some(FilledSlot { len: flight.end(), slot: flight.slot })),
            Err(error) => {
                self.free.push(flight.slot);
                Err(error)
            }
        }
    }

    /// Copies from the device to a slot and waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] also where launched fetches have not been taken yet; those of
    /// [`launch_fetch`](Self::launch_fetch) and [`take_fetched`](Self::take_fetched).
    pub fn fetch(&mut self, slot: FreeSlot, fetches: Vec<SlotFetch>) -> Result<FilledSlot> {
        if !self.fetching.is_empty() {
            self.put_back(slot);
            return Err(Error::invalid("fetching at once while launched fetches wait to be taken"));
        }
        self.launch_fetch(slot, fetches)?;
        self.take_fetched()?.ok_or_else(|| Error::invalid("nothing was fetched"))
    }

    /// Waits for all copies. After `Ok` no region given to [`launch`](Self::launch) is held, and what was launched to
    /// be fetched can be taken without waiting.
    ///
    /// # Errors
    /// [`Error::TimedOut`] where one slot's copies take longer than the wait limit, and those of the driver.
    pub fn drain(&mut self) -> Result<()> {
        self.device.health()?;
        while !self.copying.is_empty() {
            self.retire_oldest()?;
        }
        if let Some(newest) = self.fetching.back() {
            self.statistics.waited += self.wait(&newest.slot)?;
        }
        Ok(())
    }

    /// Has copies launched from now on come after the work that is on the caller's stream now (`CUstream`; null is the
    /// default stream). The next launch waits until that is over, however long it takes: a limit would be for a copy of
    /// ours. Who wants to give up sooner waits by [`Device::pending`] before launching.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on the CPU device; those of the driver.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of this ring's device.
    pub unsafe fn wait_for(&mut self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        let work = unsafe { self.device.pending(stream) }?;
        if let Some(lane) = &mut self.lane {
            lane.come_after(work);
        }
        Ok(())
    }

    /// As [`wait_for`](Self::wait_for), for a stream of cudarc's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it is a stream of another device; those of the driver.
    pub fn wait_for_cudarc(&mut self, stream: &CudaStream) -> Result<()> {
        let ordinal = stream.context().ordinal();
        if self.device.info().index.map(|index| index as usize) != Some(ordinal) {
            return Err(Error::invalid(format!(
                "a stream of cuda:{ordinal} for a ring on {}",
                self.device.name()
            )));
        }
        // SAFETY: the borrowed stream lives, on this device.
        unsafe { self.wait_for(stream.cu_stream().cast()) }
    }

    /// Starts the copies of a flight, which on the CPU device are over then.
    fn start<P: Part>(&mut self, mut flight: InFlight<P>) -> Result<InFlight<P>> {
        let checked = self.check(&flight);
        if let Err(error) = checked.and_then(|()| self.lane.as_mut().map_or(Ok(()), Lane::catch_up)) {
            self.put_back(FreeSlot { slot: flight.slot });
            return Err(error);
        }
        let Some(lane) = &self.lane else {
            let start = Instant::now();
            flight.parts.iter_mut().for_each(|part| part.copy_at_once(&mut flight.slot));
            if !flight.parts.is_empty() {
                self.statistics.intervals.push((start, Instant::now()));
            }
            return Ok(flight);
        };
        // SAFETY: `check` found every part inside the slot and on this device. Whatever becomes of the flight, it is
        // kept until its copies are over, or leaked.
        match unsafe { lane.enqueue(&flight) } {
            Ok(()) => Ok(flight),
            Err(error) => {
                // Some of the copies may have been enqueued, and the end event not.
                let settled = lane.settle(flight, self.wait_limit.min(DROP_WAIT_LIMIT));
                self.free.extend(settled.map(|flight| flight.slot));
                Err(error)
            }
        }
    }

    fn check<P: Part>(&self, flight: &InFlight<P>) -> Result<()> {
        self.device.health()?;
        let capacity = flight.slot.capacity();
        if !self.device.is_same(flight.slot.device()) {
            return Err(Error::invalid(format!(
                "a slot of {:?} in a ring of {:?}",
                flight.slot.device(),
                self.device
            )));
        }
        for part in &flight.parts {
            if !self.device.is_same(part.device()) {
                return Err(Error::invalid(format!(
                    "a region of {:?} for a ring of {:?}",
                    part.device(),
                    self.device
                )));
            }
            let (offset, len) = (part.slot_offset(), part.len());
            if (offset as u64).checked_add(len).is_none_or(|end| end > capacity as u64) {
                return Err(Error::invalid(format!("{len} bytes at {offset} of a slot of {capacity} bytes")));
            }
        }
        Ok(())
    }

    /// Waits until the copies of a slot in flight are over. The time it took.
    fn wait(&self, slot: &Slot) -> Result<Duration> {
        let start = Instant::now();
        if let Some(events) = &slot.events {
            let doing = format_args!("waiting for the copies of a slot on {}", self.device.name());
            events.end.wait(self.wait_limit, doing)?;
        }
        Ok(start.elapsed())
    }

    /// Waits for the oldest copy to the device and frees its slot.
    fn retire_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.copying.front() else { return Ok(()) };
        self.statistics.waited += self.wait(&oldest.slot)?;
        let Some(flight) = self.copying.pop_front() else { return Ok(()) };
        let counted = self.count(&flight);
        self.free.push(flight.slot);
        counted
    }

    /// Counts copies that are over.
    fn count<P: Part>(&mut self, flight: &InFlight<P>) -> Result<()> {
        if flight.parts.is_empty() {
            return Ok(());
        }
        self.statistics.bytes_copied += flight.bytes();
        self.statistics.copies += flight.parts.len() as u64;
        if let (Some(lane), Some(events)) = (&self.lane, &flight.slot.events) {
            self.statistics.intervals.push(lane.interval(events)?);
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(lane) = &self.lane else { return };
        if self.copying.is_empty() && self.fetching.is_empty() {
            return;
        }
        let flights = (mem::take(&mut self.copying), mem::take(&mut self.fetching));
        drop(lane.settle(flights, self.wait_limit.min(DROP_WAIT_LIMIT)));
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("device", &self.device)
            .field("free", &self.free.len())
            .field("copying", &self.copying.len())
            .field("fetching", &self.fetching.len())
            .finish_non_exhaustive()
    }
}
