//! Direct reads, kept in flight by io_uring.

use std::sync::atomic::Ordering;

use super::in_flight::{Ended, Engine, Read};
use super::lanes::Lanes;
use super::piece::{Landed, check_arrived};
use super::scatter::reach;
use super::shared::Shared;
use super::tally::Tally;
use super::work::Work;
use crate::error::{Error, Result};
use crate::plan::{Landing, Piece};
use crate::transport::{Extent, Place, Queue, QueueEnded, Transport};

/// A queue of io_uring's, for files on a path whose reads it keeps in flight.
pub(super) struct Queued<'w> {
    queue: Queue,
    work: &'w Work<'w>,
    shared: &'w Shared,
}

impl<'w> Queued<'w> {
    /// A queue for at most `depth` reads at once; `None` where the kernel has none for this worker, which then reads alone.
    pub(super) fn open(
        work: &'w Work<'w>,
        shared: &'w Shared,
        depth: usize,
        lanes: &mut Lanes<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Self>> {
        let mut queue = match Queue::open(depth) {
            Ok(queue) => queue,
            Err(error) => {
                tracing::warn!(%error, "a worker has no queue; it reads one by one");
                tally.queues.refused = Some(error.to_string());
                return Ok(None);
            }
        };
        let transports = work.routes.iter().map(|route| route.transport());
        let files = transports.filter_map(|transport| match transport {
            Transport::Host(reads) => reads.queued().cloned(),
            Transport::Device(_) => None,
        });
        let files = queue.register_files(files.collect());
        let files =
            files.inspect_err(|error| tracing::debug!(%error, "files could not be registered")).is_ok();
        // Registering pins all of them, which is wasted where most bytes go straight into place.
        let slots = work.ring.is_some() && work.plan.slot_pieces() == work.plan.pieces.len() && {
            let slots = queue.register_slots(lanes.ring(tally)?.memory());
            slots.inspect_err(|error| tracing::debug!(%error, "slots could not be registered")).is_ok()
        };
        tally.queues.opened += 1;
        tally.queues.with_files += usize::from(files);
        tally.queues.with_slots += usize::from(slots);
        Ok(Some(Self { queue, work, shared }))
    }
}

/// Gives the slot of a read that failed back.
fn landed(ended: QueueEnded, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<Ended> {
    let QueueEnded { key, place, outcome } = ended;
    let (part, outcome) = match place {
        Place::Region(part) => (Some(part), outcome.map(|_| Landed::InPlace)),
        // The bytes are there already.
        Place::Slot(slot) => match slot.fill(|_| outcome.map(|arrived| arrived as usize)) {
            Ok(filled) => (None, Ok(Landed::Slot(filled))),
            Err((slot, failure)) => {
                lanes.ring(tally)?.put_back(slot);
                (None, Err(failure))
            }
        },
    };
    Ok(Ended { key, part, outcome })
}

impl Engine for Queued<'_> {
    fn takes(&self, transport: &Transport) -> bool {
        matches!(transport, Transport::Host(reads) if reads.queued().is_some())
    }

    fn has_room(&mut self, piece: &Piece, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<bool> {
        let in_flight = self.queue.in_flight();
        if in_flight == 0 {
            return Ok(true);
        }
        let depth = self.shared.depth_now.load(Ordering::Relaxed).min(in_flight + self.queue.room());
        if in_flight >= depth {
            return Ok(false);
        }
        if piece.landing == Landing::Straight {
            return Ok(true);
        }
        // A wait for a copy must not keep the copies of reads that are over from being launched.
        let ring = lanes.ring(tally)?;
        Ok(ring.has_free() || (ring.can_take() && !self.queue.has_ended()))
    }

    fn begin(
        &mut self,
        key: usize,
        read: &mut Read<'_>,
        lanes: &mut Lanes<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Ended>> {
        let nonsense = |reason: &str| Error::Worker { reason: reason.into() };
        let Transport::Host(reads) = &read.transport else {
            return Err(nonsense("a queue was given a file that is not the host's"));
        };
        let file = reads.queued().ok_or_else(|| nonsense("a queue was given a file it does not read"))?;
        let extent = Extent::new(&read.piece.extent, read.file_len, reads.alignment());
        let (place, wanted) = match read.piece.landing {
            Landing::Straight => {
                let part = read.parts.pop().ok_or_else(|| nonsense("a straight piece has no part"))?;
                (Place::Region(part), read.piece.bytes)
            }
            Landing::Slot | Landing::Gathered => {
                let wanted = reach(self.work.plan.scatter_of(read.piece));
                (Place::Slot(lanes.ring(tally)?.take()?), wanted)
            }
        };
        check_arrived(read.piece, wanted, extent.expected())?;
        let ended = self.queue.begin(key, file, extent, place);
        ended.map(|ended| landed(ended, lanes, tally)).transpose()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn wait(&mut self, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<Vec<Ended>> {
        let ended = self.queue.wait().map_err(|error| Error::Worker { reason: error.to_string() })?;
        ended.into_iter().map(|ended| landed(ended, lanes, tally)).collect()
    }
}
