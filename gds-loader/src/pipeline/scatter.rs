//! From an extent as it was read to the places of its stretches.

use cuda_staging::{FilledSlot, RegionMut, SlotCopy};

use crate::error::Result;
use crate::plan::{Piece, Plan, Scatter};

/// One copy for each stretch of a piece.
pub(super) fn scatter(stretches: &[Scatter], parts: Vec<RegionMut>) -> Vec<SlotCopy> {
    let offsets = stretches.iter().map(|stretch| stretch.offset as usize);
    offsets.zip(parts).map(|(slot_offset, to)| SlotCopy { slot_offset, to }).collect()
}

/// The byte after the last one of an extent that is wanted.
pub(super) fn reach(stretches: &[Scatter]) -> u64 {
    stretches.iter().map(|stretch| stretch.offset + stretch.len).max().unwrap_or(0)
}

/// The places of a gathered piece's stretches, cut out of the one span that holds them and their padding: within a GPU there
/// is no host to gather them.
pub(super) fn cut_span(plan: &Plan, piece: &Piece, parts: Vec<RegionMut>) -> Result<Vec<RegionMut>> {
    let mut places = Vec::with_capacity(piece.scatter.len());
    let mut end = plan.parts[piece.parts.start].start;
    let mut rest = parts.into_iter().next();
    for stretch in plan.scatter_of(piece) {
        let Some(span) = rest.take() else { break };
        let (_padding, after) = span.split_at(stretch.at - end)?;
        let (place, after) = after.split_at(stretch.len)?;
        places.push(place);
        rest = Some(after);
        end = stretch.at + stretch.len;
    }
    Ok(places)
}

/// Puts a piece's stretches side by side, behind the extent in the same slot, as the destination wants them; returns
/// where they begin. The padding between them is zeroed, so that no stale byte reaches the device.
pub(super) fn gather(plan: &Plan, piece: &Piece, filled: &mut FilledSlot) -> usize {
    let span = plan.parts[piece.parts.start].clone();
    let extent = (piece.extent.end - piece.extent.start) as usize;
    let (from, rest) = filled.bytes_mut().split_at_mut(extent);
    let into = &mut rest[..(span.end - span.start) as usize];
    let mut end = 0;
    for stretch in plan.scatter_of(piece) {
        let (at, offset, len) =
            ((stretch.at - span.start) as usize, stretch.offset as usize, stretch.len as usize);
        into[end..at].fill(0);
        into[at..at + len].copy_from_slice(&from[offset..offset + len]);
        end = at + len;
    }
    extent
}
