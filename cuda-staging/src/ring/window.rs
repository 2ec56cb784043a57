//! Copies out of window slots: device memory that someone else registered for direct reads, on its way to its place on the
//! same device.
//!
//! Unlike a [`Ring`](super::Ring), this does not own its slots, since a registration is not this crate's to know. It owns
//! whatever carries a slot (`W`) only while copies out of it are in flight, and hands it back when they are over.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::time::Instant;

use super::lane::Lane;
use super::{DROP_WAIT_LIMIT, SlotCopy, WAIT_LIMIT};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::region::RegionMut;
use crate::slot::CopyEvents;
use crate::statistics::RingStatistics;

/// Copies in flight out of windows, on a stream of their own.
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

/// A window and the regions it is copied to, owned until the copies are over.
struct Flight<W> {
    window: W,
    copies: Vec<SlotCopy>,
    events: CopyEvents,
}

impl<W: AsRef<RegionMut>> WindowRing<W> {
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
        self.check(window.as_ref(), &copies)?;
        let events = match self.idle.pop() {
            Some(events) => events,
            None => self.lane.copy_events()?,
        };
        let flight = Flight { window, copies, events };
        let address = flight.window.as_ref().address();
        let ranges = flight.copies.iter().filter(|copy| !copy.to.is_empty());
        let ranges =
            ranges.map(|copy| (address + copy.slot_offset as u64, copy.to.address(), copy.to.len() as usize));
        let enqueue = |stream: &cuda::Stream| {
            // SAFETY: `check` found every range inside the window and its destination on this device. The flight owns both,
            // and is kept until its copies are over, or leaked.
            unsafe { stream.copy_within(ranges) }
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

    /// The window whose copies were launched first, once they are over; `None` where nothing is in flight. The regions they
    /// went to are dropped.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of the driver.
    pub fn take_back(&mut self) -> Result<Option<W>> {
        let Some(oldest) = self.in_flight.front() else { return Ok(None) };
        let start = Instant::now();
        let doing = format_args!("waiting for the copies of a window on {}", self.device.name());
        oldest.events.end.wait(WAIT_LIMIT, doing)?;
        self.statistics.waited += start.elapsed();
        let Some(Flight { window, copies, events }) = self.in_flight.pop_front() else { return Ok(None) };
        self.statistics.bytes_copied += copies.iter().map(|copy| copy.to.len()).sum::<u64>();
        self.statistics.copies += copies.len() as u64;
        self.statistics.intervals.push(self.lane.interval(&events)?);
        self.idle.push(events);
        Ok(Some(window))
    }

    /// Lets copies launched from now on wait for the work that is on the caller's stream now (`CUstream`; null is the
    /// default stream).
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of this ring's device.
    pub unsafe fn wait_for(&mut self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.lane.wait_for(stream.cast()) }
    }

    fn check(&self, window: &RegionMut, copies: &[SlotCopy]) -> Result<()> {
        self.device.health()?;
        for region in copies.iter().map(|copy| &copy.to).chain([window]) {
            if !self.device.is_same(region.device()) {
                let (theirs, ours) = (region.device(), &self.device);
                return Err(Error::invalid(format!("a region of {theirs:?} for windows on {ours:?}")));
            }
        }
        for SlotCopy { slot_offset, to } in copies {
            if (*slot_offset as u64).checked_add(to.len()).is_none_or(|end| end > window.len()) {
                let (len, size) = (to.len(), window.len());
                return Err(Error::invalid(format!(
                    "{len} bytes at {slot_offset} of a window of {size} bytes"
                )));
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
