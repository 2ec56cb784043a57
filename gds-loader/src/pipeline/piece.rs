//! One piece: the read, to wherever its path and its plan want the bytes to land, and the copies that scatter it from there.

use std::time::Instant;

use cuda_staging::{FilledSlot, RegionMut, SlotCopy};

use super::bounce;
use super::lanes::Lanes;
use super::measure::Measure;
use super::scatter::{cut_span, gather, reach, scatter};
use super::tally::Tally;
use super::work::Work;
use crate::error::{Error, Result};
use crate::plan::{Landing, Piece, Scatter};
use crate::transport::{
    Landing as DeviceLanding, PathKind, ReadFailure, RegisteredBuffer, Transport, read_extent,
};

/// Where a piece's bytes are once they are read.
pub(super) enum Landed {
    /// In their places.
    InPlace,
    /// In a pinned slot.
    Slot(FilledSlot),
    /// In a window.
    Window(RegisteredBuffer),
}

/// Reads a piece, by whichever path its file is on, and launches the copies that scatter it.
pub(super) fn move_piece(
    work: &Work<'_>,
    piece: &Piece,
    mut parts: Vec<RegionMut>,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
) -> Result<PathKind> {
    let route = &work.routes[piece.file as usize];
    let step = |transport: &Transport| read_piece(work, piece, transport, &mut parts, lanes, tally);
    let (kind, landed) = route.attempt(&piece.extent, step)?;
    launch(work, piece, parts, landed, lanes, tally)?;
    if work.measure == Measure::Serial {
        lanes.drain()?;
    }
    Ok(kind)
}

/// Reads a piece by one path, to wherever that path and the piece want its bytes to land.
pub(super) fn read_piece(
    work: &Work<'_>,
    piece: &Piece,
    transport: &Transport,
    parts: &mut [RegionMut],
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
) -> Result<Result<Landed, ReadFailure>> {
    let (extent, len) = (piece.extent.clone(), work.routes[piece.file as usize].len());
    match (transport, piece.landing) {
        (Transport::Host(reads), Landing::Straight) => {
            let Some(into) = parts.first_mut().and_then(RegionMut::host_bytes_mut) else {
                return Err(Error::Worker {
                    reason: "a straight piece's destination is not host memory".into(),
                });
            };
            match timed(tally, || read_extent(reads.as_ref(), into, extent, len)) {
                Ok(arrived) => check_arrived(piece, piece.bytes, arrived).map(|()| Ok(Landed::InPlace)),
                Err(failure) if failure.is_bad_address() => {
                    match timed(tally, || bounce::read(reads.as_ref(), into, piece.extent.clone(), len))? {
                        Ok(arrived) => {
                            check_arrived(piece, piece.bytes, arrived).map(|()| Ok(Landed::InPlace))
                        }
                        Err(failure) => Ok(Err(failure)),
                    }
                }
                Err(failure) => Ok(Err(failure)),
            }
        }
        (Transport::Host(reads), Landing::Slot | Landing::Gathered) => {
            fill_slot(work, piece, lanes, tally, |into| read_extent(reads.as_ref(), into, extent, len))
        }
        (Transport::Device(gds), landing) => match (gds.landing(), landing) {
            (DeviceLanding::Straight, Landing::Gathered) => {
                fill_slot(work, piece, lanes, tally, |into| gds.read_host(into, extent))
            }
            (DeviceLanding::Straight, Landing::Slot | Landing::Straight) => {
                let mut places = work.plan.scatter_of(piece).iter().zip(parts);
                let read = timed(tally, || {
                    places.try_for_each(|(stretch, part)| {
                        gds.read_straight(part, extent.start + stretch.offset)
                    })
                });
                Ok(read.map(|()| Landed::InPlace))
            }
            (DeviceLanding::Window, _) => {
                let Some(mut window) = lanes.window()? else {
                    return Ok(Err(gds.without_window(&extent)));
                };
                match timed(tally, || gds.read_window(&mut window, extent)) {
                    Ok(arrived) => {
                        check_arrived(piece, reach(work.plan.scatter_of(piece)), arrived)?;
                        Ok(Ok(Landed::Window(window)))
                    }
                    Err(failure) => {
                        lanes.put_back(window);
                        Ok(Err(failure))
                    }
                }
            }
        },
    }
}

/// Launches the copies that scatter a piece from where it landed.
pub(super) fn launch(
    work: &Work<'_>,
    piece: &Piece,
    parts: Vec<RegionMut>,
    landed: Landed,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
) -> Result<()> {
    let stretches = work.plan.scatter_of(piece);
    add_to_sums(work, piece, &parts, &landed);
    match landed {
        Landed::InPlace => Ok(()),
        landed if !work.measure.copies() => lanes.release(landed, tally),
        Landed::Slot(mut filled) => {
            let copies = if piece.landing == Landing::Gathered {
                let slot_offset = gather(work.plan, piece, &mut filled);
                parts.into_iter().map(|to| SlotCopy { slot_offset, to }).collect()
            } else {
                scatter(stretches, parts)
            };
            lanes.launch_slot(filled, copies, tally)
        }
        Landed::Window(window) => {
            let parts = match piece.landing {
                Landing::Gathered => cut_span(work.plan, piece, parts)?,
                Landing::Slot | Landing::Straight => parts,
            };
            lanes.launch_window(window, scatter(stretches, parts))
        }
    }
}

/// Adds a piece's bytes to the checksums, where these are wanted and the bytes are in host memory: not those in a window or
/// read straight into a GPU.
pub(super) fn add_to_sums(work: &Work<'_>, piece: &Piece, parts: &[RegionMut], landed: &Landed) {
    let (Some(sums), stretches) = (work.sums, work.plan.scatter_of(piece)) else { return };
    let add = |stretch: &Scatter, bytes: &[u8]| {
        sums.add(piece.file, piece.extent.start + stretch.offset, bytes);
    };
    match landed {
        Landed::InPlace => {
            for (stretch, part) in stretches.iter().zip(parts) {
                part.host_bytes().into_iter().for_each(|bytes| add(stretch, bytes));
            }
        }
        Landed::Slot(filled) => stretches.iter().for_each(|stretch| {
            let (start, len) = (stretch.offset as usize, stretch.len as usize);
            add(stretch, &filled.bytes()[start..start + len]);
        }),
        Landed::Window(_) => {}
    }
}

/// Does a read, and notes when it was in flight.
fn timed<T>(tally: &mut Tally, read: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = read();
    tally.reads.push((start, Instant::now()));
    outcome
}

/// Reads a piece's extent into a pinned slot.
fn fill_slot(
    work: &Work<'_>,
    piece: &Piece,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
    read: impl FnOnce(&mut [u8]) -> Result<u64, ReadFailure>,
) -> Result<Result<Landed, ReadFailure>> {
    let slot = lanes.ring(tally)?.take()?;
    match timed(tally, || slot.fill(|into| read(into).map(|count| count as usize))) {
        Ok(filled) => {
            check_arrived(piece, reach(work.plan.scatter_of(piece)), filled.bytes().len() as u64)?;
            Ok(Ok(Landed::Slot(filled)))
        }
        Err((slot, failure)) => {
            lanes.ring(tally)?.put_back(slot);
            Ok(Err(failure))
        }
    }
}

/// The transports promise whole extents; a stretch beyond what arrived would show stale bytes as success.
pub(super) fn check_arrived(piece: &Piece, wanted: u64, arrived: u64) -> Result<()> {
    if wanted <= arrived {
        return Ok(());
    }
    tracing::error!(?piece, wanted, arrived, "a read returned less than the plan needs");
    Err(Error::Incomplete { placed: arrived, planned: wanted })
}
