//! Moves pieces through slots. It knows routes, slots and parts; no path by its name, no tensor.
//!
//! Every worker has lanes of its own: a ring of pinned slots, and windows of registered device memory where a path wants
//! them. While the copy out of one slot runs, the next piece is read into another. Both are bounded, so reads wait when
//! copies lag, and memory is bounded whatever the model. Pieces are dealt from one queue in file order, so that together the
//! workers read sequentially.

mod batched;
mod bounce;
mod depth;
mod in_flight;
mod lanes;
mod measure;
#[cfg(test)]
#[cfg(feature = "loom")]
mod models;
mod piece;
mod queued;
mod scatter;
mod shared;
mod tally;
mod touch;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use cuda_staging::RegionMut;

use crate::error::{Error, Result};
use crate::sync::thread;
use crate::transport::{PathKind, RegisteredBuffer};

use batched::Batched;
pub(crate) use depth::DepthRange;
use lanes::Lanes;
pub(crate) use lanes::{CallerStream, come_after};
pub use measure::Measure;
use piece::move_piece;
use queued::Queued;
use shared::{Shared, lock};
pub(crate) use tally::{Queues, Tally};
pub(crate) use touch::Touching;
pub use work::{CancelToken, Progress};
pub(crate) use work::{OnProgress, Work};

/// Reads every piece of the plan into `parts`, the regions of [`Plan::parts`](crate::plan::Plan::parts), and returns when every copy has ended.
/// `windows` are the window slots of each worker; none where no path wants them.
///
/// # Errors
/// The first failure of any worker, after all of them have stopped and what was in flight has ended; and
/// [`Error::Incomplete`] where the bytes placed are not the bytes planned.
pub(crate) fn run(
    work: &Work<'_>,
    parts: Vec<RegionMut>,
    windows: Vec<Vec<RegisteredBuffer>>,
) -> Result<Tally> {
    let shared = Shared::new(work, parts, windows);
    let mut tally = thread::scope(|scope| {
        let mut handles = Vec::new();
        for index in 0..work.workers {
            let builder = thread::Builder::new().name(format!("gds-load-{index}"));
            match builder.spawn_scoped(scope, || worker(work, &shared)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, "a worker thread could not be started; going on with fewer")
                }
            }
        }
        let touchers: Vec<_> = work
            .touching
            .iter()
            .flat_map(|touching| {
                let spawn = |index| {
                    let builder = thread::Builder::new().name(format!("gds-touch-{index}"));
                    builder.spawn_scoped(scope, || touching.run(work, &shared))
                };
                // A thread less is first touches by who reads.
                (0..touching.threads()).filter_map(move |index| spawn(index).ok())
            })
            .collect();
        // Fewer workers are slower; where there are none, the caller's thread does it all.
        let alone = handles.is_empty().then(|| catch_unwind(AssertUnwindSafe(|| worker(work, &shared))));
        let ended = handles.into_iter().map(|handle| handle.join()).chain(alone);
        let tallies = ended.map(|ended| {
            ended.unwrap_or_else(|_| {
                shared.fail(Error::Worker { reason: "it panicked".into() });
                Tally::default()
            })
        });
        let mut tally = tallies.fold(Tally::default(), Tally::merge);
        shared.end();
        touchers
            .into_iter()
            .filter_map(|toucher| toucher.join().ok())
            .for_each(|mut touches| tally.touches.append(&mut touches));
        tally
    });
    tally.queues.depth = shared.depth_now.load(Ordering::Relaxed);
    match lock(&shared.failure).take() {
        // Said below: who was cancelled while it waited does not know what the others placed.
        Some(Error::Cancelled { .. }) | None => {}
        Some(error) => return Err(error),
    }
    let (placed, planned) = (tally.placed, work.plan.bytes);
    if work.cancel.is_cancelled() && placed < planned {
        return Err(Error::Cancelled { placed, planned });
    }
    if placed != planned {
        return Err(Error::Incomplete { placed, planned });
    }
    Ok(tally)
}

fn worker(work: &Work<'_>, shared: &Shared) -> Tally {
    let mut tally = Tally::default();
    if let Err(error) = move_pieces(work, shared, &mut tally) {
        shared.fail(error);
    }
    tally
}

fn move_pieces(work: &Work<'_>, shared: &Shared, tally: &mut Tally) -> Result<()> {
    let windows = lock(&shared.windows).pop().unwrap_or_default();
    let mut lanes = Lanes::new(work, windows);
    if !work.measure.reads() {
        measure::copy_pieces(work, shared, &mut lanes, tally)?;
        return lanes.finish(tally);
    }
    let reads = lanes.windows();
    if let Some(mut batch) =
        work.batches.filter(|_| reads > 0).and_then(|driver| Batched::open(driver, reads))
    {
        in_flight::move_pieces(work, shared, &mut lanes, &mut batch, tally)?;
    } else if let Some(depth) = work.queue
        && let Some(mut queue) = Queued::open(work, shared, depth.most, &mut lanes, tally)?
    {
        in_flight::move_pieces(work, shared, &mut lanes, &mut queue, tally)?;
    } else {
        while !work.cancel.is_cancelled()
            && let Some((piece, parts)) = shared.take(work.plan)
        {
            let kind = move_piece(work, piece, parts, &mut lanes, tally)?;
            count(work, shared, tally, Some(kind), piece.bytes);
        }
    }
    lanes.finish(tally)
}

/// Counts a piece that was read, by `kind` if at all, and handed to the device.
fn count(work: &Work<'_>, shared: &Shared, tally: &mut Tally, kind: Option<PathKind>, bytes: u64) {
    kind.into_iter().for_each(|kind| tally.paths.add(kind, bytes));
    tally.placed += bytes;
    let done = shared.placed.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if let Some(on_progress) = &work.on_progress {
        on_progress(Progress { bytes_done: done, bytes_total: work.plan.bytes });
    }
}
