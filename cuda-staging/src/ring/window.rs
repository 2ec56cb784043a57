//! Copies out of window slots and into them: device memory that someone else registered for direct reads and writes, on the way
//! to or from its place on the same device.
//!
//! Unlike a [`Ring`](super::Ring), this does not own its slots, since a registration is not this crate's to know. It owns
//! whatever carries a slot (`W`) only while its copies are in flight, and hands it back when they are over.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::time::Instant;

use super::lane::Lane;
use super::{DROP_WAIT_LIMIT, SlotCopy, SlotFetch, WAIT_LIMIT};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::region::RegionMut;
use crate::slot::CopyEvents;
use crate::statistics::RingStatistics;

/// A window that copies may go into, and not only come from.
///
/// # Safety
/// - The value is the only access to the region that [`AsRef::as_ref`] gives, which is the same every time.
pub unsafe trait Window: AsRef<RegionMut> {}

// SAFETY: a `RegionMut` is the only access to its bytes.
unsafe impl Window for RegionMut {}

/// Copies in flight out of windows or into them, on a stream of their own.
///
/// Dropping it waits for what is in flight, for at most [`DROP_WAIT_LIMIT`].
pub struct WindowRing<W> {
    /// The oldest first.
    in_flight: VecDeque<Flight<W>>,
    idle: Vec<CopyEvents>,
    lane: Lane,
    statistics: RingStatistics,
    /// Last: released after all that was made on it.
    device: Device,
}

/// A window and the regions it is copied to or from, owned until the copies are over.
struct Flight<W> {
    window: W,
    parts: Parts,
    events: CopyEvents,
}

/// The regions at the other end of a window's copies.
enum Parts {
    Out(Vec<SlotCopy>),
    In(Vec<SlotFetch>),
}

impl Parts {
    /// Where each copy starts in the window, and its length, in bytes.
    fn places(&self) -> Vec<(usize, u64)> {
        match self {
            Self::Out(copies) => copies.iter().map(|copy| (copy.slot_offset, copy.to.len())).collect(),
            Self::In(fetches) => fetches.iter().map(|fetch| (fetch.slot_offset, fetch.from.len())).collect(),
        }
    }

    fn devices(&self) -> Vec<&Device> {
        match self {
            Self::Out(copies) => copies.iter().map(|copy| copy.to.device()).collect(),
            Self::In(fetches) => fetches.iter().map(|fetch| fetch.from.device()).collect(),
        }
    }

    /// The copies that have bytes, as `(from, to, len)`, for a window at this address.
    fn ranges(&self, window: u64) -> Vec<(u64, u64, usize)> {
        let ranges: Vec<_> = match self {
            Self::Out(copies) => copies
                .iter()
                .map(|copy| (window + copy.slot_offset as u64, copy.to.address(), copy.to.len() as usize))
                .collect(),
            Self::In(fetches) => fetches
                .iter()
                .map(|fetch| {
                    (fetch.from.address(), window + fetch.slot_offset as u64, fetch.from.len() as usize)
                })
                .collect(),
        };
        ranges.into_iter().filter(|(_, _, len)| *len > 0).collect()
    }
}

// A window lives as long as the flight that owns it, which may be leaked: so it must not borrow.
impl<W: AsRef<RegionMut> + 'static> WindowRing<W> {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let context =
            device.context().ok_or_else(|| Error::invalid("windows are memory of a CUDA device"))?;
        Ok(Self {
            in_flight: VecDeque::new(),
            idle: Vec::new(),
            lane: Lane::new(context, WAIT_LIMIT)?,
            statistics: RingStatistics::default(),
            device: device.clone(),
        })
    }

    /// What it did so far.
    pub fn statistics(&self) -> &RingStatistics {
        &self.statistics
    }

    /// How many windows have copies in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Copies from the window to the regions, and returns before that is done; `slot_offset` counts from the window's start.
    ///
    /// The window's bytes must be there already: this stream does not wait for whoever wrote them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a copy reaches beyond the window or goes to another device; those of the driver. The
    /// window is dropped then, once no copy can still read it.
    pub fn launch(&mut self, window: W, copies: Vec<SlotCopy>) -> Result<()> {
        // SAFETY: the copies go to regions that the flight owns.
        unsafe { self.start(window, Parts::Out(copies)) }
    }

    /// Copies from regions into the window, and returns before that is done; `slot_offset` counts from the window's start. The
    /// window comes back from [`take_back`](Self::take_back), with the bytes in it.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    pub fn launch_fetch(&mut self, window: W, fetches: Vec<SlotFetch>) -> Result<()>
    where
        W: Window,
    {
        // SAFETY: the copies go to the window, which by its type is the only access to its bytes.
        unsafe { self.start(window, Parts::In(fetches)) }
    }

    /// Enqueues the copies of a flight.
    ///
    /// # Safety
    /// - What the copies write, the flight has the only access to.
    unsafe fn start(&mut self, window: W, parts: Parts) -> Result<()> {
        // Asked once: what answers by code of the caller's may answer otherwise the next time.
        let region = window.as_ref();
        self.check(region, &parts)?;
        self.lane.catch_up()?;
        let ranges = parts.ranges(region.address());
        let events = match self.idle.pop() {
            Some(events) => events,
            None => self.lane.copy_events()?,
        };
        let flight = Flight { window, parts, events };
        let enqueue = |stream: &cuda::Stream| {
            // SAFETY: `check` found every range inside the window and its other end on this device. The flight owns both,
            // and is kept until its copies are over, or leaked. Nothing else uses what they write: the caller's promise.
            unsafe { stream.copy_within(ranges.into_iter()) }
        };
        match self.lane.between(&flight.events, enqueue) {
            Ok(()) => {
                self.in_flight.push_back(flight);
                Ok(())
            }
            Err(error) => {
                // Some of the copies may have been enqueued, and the end event not.
                drop(self.lane.settle(flight, DROP_WAIT_LIMIT));
                Err(error)
            }
        }
    }

    /// The window whose copies were launched first, once they are over; `None` where nothing is in flight. The regions at their
    /// other end are dropped.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of the driver.
    pub fn take_back(&mut self) -> Result<Option<W>> {
        let Some(oldest) = self.in_flight.front() else { return Ok(None) };
        let start = Instant::now();
        let doing = format_args!("waiting for the copies of a window on {}", self.device.name());
        oldest.events.end.wait(WAIT_LIMIT, doing)?;
        self.statistics.waited += start.elapsed();
        let Some(Flight { window, parts, events }) = self.in_flight.pop_front() else { return Ok(None) };
        let places = parts.places();
        self.statistics.bytes_copied += places.iter().map(|(_, len)| len).sum::<u64>();
        self.statistics.copies += places.len() as u64;
        self.statistics.intervals.push(self.lane.interval(&events)?);
        self.idle.push(events);
        Ok(Some(window))
    }

    /// Has copies launched from now on come after the work that is on the caller's stream now (`CUstream`; null is the
    /// default stream), as [`Ring::wait_for`](super::Ring::wait_for) has.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of this ring's device.
    pub unsafe fn wait_for(&mut self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        let work = unsafe { self.device.pending(stream) }?;
        self.lane.come_after(work);
        Ok(())
    }

    fn check(&self, window: &RegionMut, parts: &Parts) -> Result<()> {
        self.device.health()?;
        for device in parts.devices().into_iter().chain([window.device()]) {
            if !self.device.is_same(device) {
                return Err(Error::invalid(format!(
                    "a region of {device:?} for windows on {:?}",
                    self.device
                )));
            }
        }
        for (offset, len) in parts.places() {
            if (offset as u64).checked_add(len).is_none_or(|end| end > window.len()) {
                let size = window.len();
                return Err(Error::invalid(format!("{len} bytes at {offset} of a window of {size} bytes")));
            }
        }
        Ok(())
    }
}

impl<W> Drop for WindowRing<W> {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() {
            drop(self.lane.settle(mem::take(&mut self.in_flight), DROP_WAIT_LIMIT));
        }
    }
}

impl<W> fmt::Debug for WindowRing<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowRing")
            .field("device", &self.device)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
