//! Loads of which only a part is done, to learn what the whole is bound by.

use std::convert::Infallible;

use cuda_staging::{Ring, limits};

use super::count;
use super::lanes::Lanes;
use super::piece::{Landed, launch};
use super::shared::Shared;
use super::tally::Tally;
use super::work::Work;
use crate::error::{Error, Result};
use crate::plan::{Landing, Piece};
use crate::transport::{Landing as DeviceLanding, Transport};

/// How much of a load [`Loader::measure`](crate::Loader::measure) does. Source, paths, plan, slots and the allocation
/// on the device are always those of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Measure {
    /// All of it, as a load does it: reads and copies overlap.
    #[default]
    Pipelined,
    /// All of it with nothing in flight twice: one worker, which waits for each copy before it reads on.
    Serial,
    /// Every piece is read to where the load reads it first; nothing is copied from there.
    ReadAlone,
    /// Every copy out of slots or windows is made; nothing is read, so what is copied is not the model. What the load reads
    /// straight into place is not copied here either.
    CopyAlone,
    /// As [`CopyAlone`](Self::CopyAlone), each tensor by a copy of its own: no tensors side by side, none gathered, and
    /// one longer than a slot in as few copies as slots hold it.
    CopyPerTensor,
}

impl Measure {
    /// Every kind of measurement.
    pub const ALL: [Self; 5] =
        [Self::Pipelined, Self::Serial, Self::ReadAlone, Self::CopyAlone, Self::CopyPerTensor];

    /// Its name in reports: `pipelined`, `serial`, `read-alone`, `copy-alone`, `copy-per-tensor`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined",
            Self::Serial => "serial",
            Self::ReadAlone => "read-alone",
            Self::CopyAlone => "copy-alone",
            Self::CopyPerTensor => "copy-per-tensor",
        }
    }

    /// Whether anything is read.
    pub(crate) fn reads(self) -> bool {
        !matches!(self, Self::CopyAlone | Self::CopyPerTensor)
    }

    /// Whether anything is copied from slots and windows.
    pub(crate) fn copies(self) -> bool {
        self != Self::ReadAlone
    }
}

/// Copies every piece from slots and windows whose contents nobody has read.
pub(super) fn copy_pieces(
    work: &Work<'_>,
    shared: &Shared,
    lanes: &mut Lanes<'_>,
    tally: &mut Tally,
) -> Result<()> {
    if let Some(options) = work.ring {
        touch_slots(lanes.ring(tally)?, options.slots)?;
    }
    while !work.cancel.is_cancelled()
        && let Some((piece, parts)) = shared.take(work.plan)
    {
        match unread(work, piece, lanes, tally)? {
            Landed::InPlace => {}
            landed => {
                launch(work, piece, parts, landed, lanes, tally)?;
                tally.copied_unread += piece.bytes;
            }
        }
        count(work, shared, tally, None, piece.bytes);
    }
    Ok(())
}

/// What a piece is copied from, as if it had been read.
fn unread(work: &Work<'_>, piece: &Piece, lanes: &mut Lanes<'_>, tally: &mut Tally) -> Result<Landed> {
    let landing = match work.routes[piece.file as usize].transport() {
        Transport::Device(gds) => match gds.landing() {
            DeviceLanding::Window => {
                let window = lanes.window()?;
                let none = || Error::Worker { reason: "a worker has no window to copy from".into() };
                return Ok(Landed::Window(window.ok_or_else(none)?));
            }
            // Only what is gathered goes by the host.
            DeviceLanding::Straight if piece.landing != Landing::Gathered => Landing::Straight,
            DeviceLanding::Straight => Landing::Gathered,
        },
        Transport::Host(_) => piece.landing,
    };
    match landing {
        Landing::Straight => Ok(Landed::InPlace),
        Landing::Slot | Landing::Gathered => {
            let slot = lanes.ring(tally)?.take()?;
            match slot.fill(|into| Ok::<_, Infallible>(into.len())) {
                Ok(filled) => Ok(Landed::Slot(filled)),
                Err((_, never)) => match never {},
            }
        }
    }
}

/// Gives every slot pages of its own: memory never written is one page of zeros, which would be copied from the cache.
fn touch_slots(ring: &mut Ring, slots: usize) -> Result<()> {
    let mut touched = Vec::with_capacity(slots);
    for _ in 0..slots {
        let touch = |into: &mut [u8]| {
            into.iter_mut().step_by(limits::page_size()).for_each(|byte| *byte = 1);
            Err::<usize, ()>(())
        };
        if let Err((slot, ())) = ring.take()?.fill(touch) {
            touched.push(slot);
        }
    }
    touched.into_iter().for_each(|slot| ring.put_back(slot));
    Ok(())
}
