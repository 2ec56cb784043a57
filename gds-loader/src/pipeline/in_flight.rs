//! The worker that keeps many reads in flight, instead of waiting for each: one loop for every engine that can.

use std::collections::VecDeque;
use std::time::Instant;

use cuda_staging::RegionMut;

use super::count;
use super::lanes::Lanes;
use super::piece::{Landed, add_to_sums, launch, move_piece, read_piece};
use super::shared::Shared;
use super::tally::Tally;
use super::work::Work;
use crate::error::{Error, Result};
use crate::plan::{Landing, Piece};
use crate::transport::{ReadFailure, Transport};

/// What keeps reads in flight by itself.
pub(super) trait Engine {
    /// Whether it reads files on this path.
    fn takes(&self, transport: &Transport) -> bool;

    /// Whether the read of a piece can begin now. Where nothing is in flight it can, or it is an error.
    fn has_room(&mut self, piece: &Piece, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<bool>;

    /// Begins the read of a piece; what is over at once comes back at once. A part that it reads straight into is taken out of
    /// `read` until then.
    fn begin(
        &mut self,
        key: usize,
        read: &mut Read<'_>,
        lanes: &mut Lanes<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Ended>>;

    /// How many reads are in flight.
    fn in_flight(&self) -> usize;

    /// The reads that ended, waiting for at least one.
    fn wait(&mut self, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<Vec<Ended>>;
}

/// A piece that is being read.
pub(super) struct Read<'p> {
    pub(super) piece: &'p Piece,
    pub(super) parts: Vec<RegionMut>,
    pub(super) transport: Transport,
    /// Length of its file when that was opened, in bytes.
    pub(super) file_len: u64,
    started: Instant,
}

/// How a read ended. What it was read into is with `outcome`, or back where it came from.
pub(super) struct Ended {
    pub(super) key: usize,
    /// The part that it was read straight into.
    pub(super) part: Option<RegionMut>,
    pub(super) outcome: Result<Landed, ReadFailure>,
}

/// Moves pieces until there are none: those that the engine takes by it, the others one by one.
pub(super) fn move_pieces(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    engine: &mut dyn Engine,
    tally: &mut Tally,
) -> Result<()> {
    // The keys of reads are places here.
    let mut reads: Vec<Option<Read<'_>>> = Vec::new();
    // What landed in its place and whose checksum can wait until there are reads in flight to hide behind.
    let mut unsummed: VecDeque<(&Piece, Vec<RegionMut>)> = VecDeque::new();
    let (mut next, mut dealt_out) = (None, false);
    loop {
        if work.cancel.is_cancelled() {
            // Dropping the engine waits for what is in flight.
            return Ok(());
        }
        if next.is_none() && !dealt_out {
            next = shared.take(work.plan);
            dealt_out = next.is_none();
        }
        let Some((piece, parts)) = next.take() else {
            if sum_one(work, &mut unsummed) {
                continue;
            }
            if engine.in_flight() == 0 {
                return Ok(());
            }
            end_some(work, shared, lanes, engine, tally, &mut reads, &mut unsummed)?;
            continue;
        };
        let route = &work.routes[piece.file as usize];
        let transport = route.transport_for(&piece.extent);
        if engine.takes(&transport) {
            if engine.has_room(piece, lanes, tally)? {
                let key = reads.iter().position(Option::is_none).unwrap_or(reads.len());
                let mut read =
                    Read { piece, parts, transport, file_len: route.len(), started: Instant::now() };
                let ended = engine.begin(key, &mut read, lanes, tally)?;
                match reads.get_mut(key) {
                    Some(place) => *place = Some(read),
                    None => reads.push(Some(read)),
                }
                if let Some(ended) = ended {
                    end(work, shared, lanes, tally, &mut reads, &mut unsummed, ended)?;
                }
                continue;
            }
        } else if engine.in_flight() == 0 || piece.landing == Landing::Straight || lanes.has_slot(tally)? {
            let kind = move_piece(work, piece, parts, lanes, tally)?;
            count(work, shared, tally, Some(kind), piece.bytes);
            continue;
        }
        // No room for it yet.
        next = Some((piece, parts));
        if !sum_one(work, &mut unsummed) {
            end_some(work, shared, lanes, engine, tally, &mut reads, &mut unsummed)?;
        }
    }
}

/// Takes the checksum of a piece that waits for it; false where none does.
fn sum_one(work: &Work<'_>, unsummed: &mut VecDeque<(&Piece, Vec<RegionMut>)>) -> bool {
    let Some((piece, parts)) = unsummed.pop_front() else { return false };
    add_to_sums(work, piece, &parts, &Landed::InPlace);
    true
}

/// Waits for reads to end, and ends them.
fn end_some<'p>(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    engine: &mut dyn Engine,
    tally: &mut Tally,
    reads: &mut [Option<Read<'p>>],
    unsummed: &mut VecDeque<(&'p Piece, Vec<RegionMut>)>,
) -> Result<()> {
    let ended = engine.wait(lanes, tally)?;
    ended.into_iter().try_for_each(|ended| end(work, shared, lanes, tally, reads, unsummed, ended))
}

/// Launches the copies of a read that is done; reads the piece of one that failed by another path.
fn end<'p>(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
    reads: &mut [Option<Read<'p>>],
    unsummed: &mut VecDeque<(&'p Piece, Vec<RegionMut>)>,
    ended: Ended,
) -> Result<()> {
    let Ended { key, part, outcome } = ended;
    let Some(Read { piece, mut parts, transport, started, .. }) = reads.get_mut(key).and_then(Option::take)
    else {
        return Err(Error::Worker { reason: "a read ended that was not begun".into() });
    };
    parts.extend(part);
    let now = Instant::now();
    tally.reads.push((started, now));
    let (kind, landed) = match outcome {
        Ok(landed) => {
            shared.read_ended(piece.bytes, now);
            (transport.kind(), landed)
        }
        Err(failure) => {
            let route = &work.routes[piece.file as usize];
            let mut step =
                |transport: &Transport| read_piece(work, piece, transport, &mut parts, lanes, tally);
            // Read again by a call, which can be by way of other memory.
            let again = if failure.is_bad_address() { step(&transport)? } else { Err(failure) };
            match again {
                Ok(landed) => (transport.kind(), landed),
                Err(failure) => route.attempt_after(&transport, failure, &piece.extent, step)?,
            }
        }
    };
    match landed {
        Landed::InPlace if work.sums.is_some() => unsummed.push_back((piece, parts)),
        landed => launch(work, piece, parts, landed, lanes, tally)?,
    }
    count(work, shared, tally, Some(kind), piece.bytes);
    Ok(())
}
