//! The worker that keeps many reads into windows in flight by batches, instead of one thread waiting for each.

use std::time::Instant;

use cuda_staging::RegionMut;

use super::{Landed, Lanes, Shared, Tally, Work, count, launch, move_piece, read_piece};
use crate::cufile::Driver;
use crate::error::{Error, Result};
use crate::plan::Piece;
use crate::transport::{Ended, GdsBatch, Landing, Transport};

/// A piece whose read is in flight.
struct Pending<'p> {
    piece: &'p Piece,
    parts: Vec<RegionMut>,
    transport: Transport,
    started: Instant,
}

/// A batch for so many reads; `None` where the library has none to give, which is no reason to leave the path.
pub(super) fn open(driver: &Driver, reads: usize) -> Option<GdsBatch> {
    let batch = GdsBatch::new(driver, reads);
    batch.inspect_err(|error| tracing::warn!(%error, "there are no batches; reads go one by one")).ok()
}

/// Moves pieces until there are none, those of files on windows by batches, the others one by one.
pub(super) fn move_pieces(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    mut batch: GdsBatch,
    tally: &mut Tally,
) -> Result<()> {
    let mut pending: Vec<Option<Pending<'_>>> = Vec::new();
    let mut dealt_out = false;
    while !dealt_out || batch.in_flight() > 0 {
        if !dealt_out && batch.room() > 0 && lanes.has_window(batch.in_flight() == 0)? {
            let next = if work.cancel.is_cancelled() { None } else { shared.take(work.plan) };
            let Some((piece, parts)) = next else {
                dealt_out = true;
                continue;
            };
            let transport = work.routes[piece.file as usize].transport_for(&piece.extent);
            match &transport {
                Transport::Device(gds) if gds.landing() == Landing::Window => {
                    let (key, window) = (pending.len(), lanes.window()?);
                    let gds = gds.clone();
                    pending.push(Some(Pending { piece, parts, transport, started: Instant::now() }));
                    if let Some(ended) = batch.begin(key, &gds, window, &piece.extent) {
                        end(work, shared, lanes, tally, &mut pending, ended)?;
                    }
                }
                _ => {
                    let kind = move_piece(work, piece, parts, lanes, tally)?;
                    count(work, shared, tally, Some(kind), piece.bytes);
                }
            }
            continue;
        }
        for ended in batch.wait().map_err(|error| Error::Worker { reason: error.to_string() })? {
            end(work, shared, lanes, tally, &mut pending, ended)?;
        }
    }
    Ok(())
}

/// Launches the copies of a read that is done; reads the piece of one that failed by another path.
fn end(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
    pending: &mut [Option<Pending<'_>>],
    (key, outcome): Ended,
) -> Result<()> {
    let Some(Pending { piece, mut parts, transport, started }) = pending.get_mut(key).and_then(Option::take)
    else {
        return Err(Error::Worker { reason: "a batch ended a read that was not begun".into() });
    };
    tally.reads.push((started, Instant::now()));
    let (kind, landed) = match outcome {
        Ok(window) => (transport.kind(), Landed::Window(window)),
        Err((window, failure)) => {
            window.into_iter().for_each(|window| lanes.put_back(window));
            let route = &work.routes[piece.file as usize];
            let step = |transport: &Transport| read_piece(work, piece, transport, &mut parts, lanes, tally);
            route.attempt_after(&transport, failure, piece.extent.start, step)?
        }
    };
    launch(work, piece, parts, landed, lanes, tally)?;
    count(work, shared, tally, Some(kind), piece.bytes);
    Ok(())
}
