//! The driver's side of a ring: its stream, and the events that tell when copies are over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flight::{InFlight, Part};
use crate::cuda::{Context, Event, PinnedMemory, Stream};
use crate::error::Result;
use crate::memory::HostMemory;
use crate::pending::Pending;
use crate::slot::{CopyEvents, SlotMemory};
use crate::statistics::RingStatistics;
use crate::sync;

pub(super) struct Lane {
    stream: Stream,
    /// For questions about the stream as a whole.
    fence: Event,
    /// Recorded when the ring was made; the host's clock then was `epoch_at`.
    epoch: Event,
    epoch_at: Instant,
    /// Work of the caller's that the next copies are to come after.
    after: Vec<Pending>,
    context: Arc<Context>,
}

impl Lane {
    pub(super) fn new(context: &Arc<Context>, wait_limit: Duration) -> Result<Self> {
        let stream = Stream::new(context)?;
        let fence = Event::new(context)?;
        let epoch = Event::new(context)?;
        // The event happens at some time in between; on an idle stream that is a few microseconds.
        let before = Instant::now();
        stream.record(&epoch)?;
        epoch.wait(wait_limit, "waiting for a new stream")?;
        let epoch_at = before + before.elapsed() / 2;
        Ok(Self { stream, fence, epoch, epoch_at, after: Vec::new(), context: Arc::clone(context) })
    }

    /// Two events for one slot.
    pub(super) fn copy_events(&self) -> Result<CopyEvents> {
        Ok(CopyEvents { start: Event::new(&self.context)?, end: Event::new(&self.context)? })
    }

    /// Pins the slots' memory. Where the driver refuses and is otherwise well, they stay pageable: the driver then
    /// copies through pinned memory of its own, and everything but the speed is the same.
    pub(super) fn pin(&self, memory: HostMemory, statistics: &mut RingStatistics) -> Result<SlotMemory> {
        let start = Instant::now();
        let bytes = memory.len() as u64;
        match PinnedMemory::register(&self.context, memory) {
            Ok(pinned) => {
                statistics.pinned_bytes = bytes;
                statistics.pinning = start.elapsed();
                Ok(SlotMemory::Pinned(pinned))
            }
            Err((memory, refusal)) if self.context.health().is_ok() => {
                tracing::warn!(%refusal, "the slots stay pageable; copies will be slower");
                statistics.unpinned = Some(refusal.to_string());
                Ok(SlotMemory::Pageable(memory))
            }
            Err((_, error)) => Err(error),
        }
    }

    /// Enqueues the copies of a flight, between its slot's two events.
    ///
    /// # Safety
    /// - Every part lies within the slot and is memory of this device.
    /// - The flight is kept as it is until its end event or `settle` has said that it is over.
    pub(super) unsafe fn enqueue<P: Part>(&self, flight: &InFlight<P>) -> Result<()> {
        let InFlight { slot, parts } = flight;
        // SAFETY: the caller's promise.
        let copies = |stream: &Stream| unsafe { P::enqueue(parts, slot, stream) };
        match &slot.events {
            Some(events) => self.between(events, copies),
            None => copies(&self.stream),
        }
    }

    /// Enqueues copies between two events.
    pub(super) fn between(
        &self,
        events: &CopyEvents,
        copies: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        self.stream.record(&events.start)?;
        copies(&self.stream)?;
        self.stream.record(&events.end)
    }

    /// When a slot's copies, which are over, began and ended.
    pub(super) fn interval(&self, events: &CopyEvents) -> Result<(Instant, Instant)> {
        let start = self.epoch_at + events.start.since(&self.epoch)?;
        Ok((start, start + events.end.since(&events.start)?))
    }

    /// Has copies come after work of the caller's.
    pub(super) fn come_after(&mut self, work: Pending) {
        self.after.push(work);
    }

    /// Waits for the caller's work that copies are to come after. Before each launch: nothing is enqueued until then.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        while let Some(work) = self.after.last() {
            work.wait(|| true)?;
            self.after.pop();
        }
        Ok(())
    }

    /// Gives `flights` back once everything enqueued is over, whatever failed before. Where that cannot be learnt
    /// within `limit`, leaks them, since the device may still use them, and poisons it.
    pub(super) fn settle<T>(&self, flights: T, limit: Duration) -> Option<T> {
        match self.stream.settle(limit, &self.fence) {
            Ok(()) => Some(flights),
            Err(error) => {
                self.context.poison(&error);
                sync::leak(flights);
                None
            }
        }
    }
}
