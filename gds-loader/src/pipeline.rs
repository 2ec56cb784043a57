//! Moves pieces through slots. It knows routes, slots and parts; no path by its name, no tensor.
//!
//! Every worker has a ring of slots with a stream of its own: while the copy out of one slot runs, the next piece is read
//! into another. The rings are bounded, so reads wait when copies lag, and host memory is bounded whatever the model.
//! Pieces are dealt from one queue in file order, so that together the workers read sequentially.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::{Device, FilledSlot, RegionMut, Ring, RingOptions, SlotCopy};

use crate::error::{Error, Result};
use crate::plan::{Landing, Piece, Plan};
use crate::policy::Route;
use crate::report::PathBytes;

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes read and handed to the device so far.
    pub bytes_done: u64,
    /// Bytes of the whole load.
    pub bytes_total: u64,
}

/// What is called after each piece, from the workers' threads.
pub(crate) type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Cancels loads: clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that nothing has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every load that has a clone of this token to stop after the pieces in flight.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream of the caller's, by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerStream(pub(crate) *mut c_void);

// SAFETY: a CUstream is a handle the driver lets any thread use; it is never dereferenced here.
unsafe impl Send for CallerStream {}
// SAFETY: as above: the handle is only copied and passed to the driver.
unsafe impl Sync for CallerStream {}

/// What the workers share.
pub(crate) struct Work<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) routes: &'a [Route],
    pub(crate) device: &'a Device,
    /// Worker threads, at least 1.
    pub(crate) workers: usize,
    /// The ring of each worker; `None` where no piece lands in a slot.
    pub(crate) ring: Option<RingOptions>,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) cancel: CancelToken,
    /// A stream of the caller's whose pending work must end before the destination is written.
    pub(crate) after: Option<CallerStream>,
}

/// What the workers did, added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) paths: PathBytes,
    pub(crate) reads: Vec<(Instant, Instant)>,
    pub(crate) copies: Vec<(Instant, Instant)>,
    /// Host memory pinned, in bytes.
    pub(crate) pinned: u64,
    /// The slowest worker's time to make its ring.
    pub(crate) pin: Duration,
}

impl Tally {
    fn merge(mut self, mut other: Self) -> Self {
        self.paths.merge(&other.paths);
        self.reads.append(&mut other.reads);
        self.copies.append(&mut other.copies);
        self.pinned += other.pinned;
        self.pin = self.pin.max(other.pin);
        self
    }
}

/// Reads every piece of the plan into `parts`, the regions of [`Plan::parts`], and returns when every copy has ended.
///
/// # Errors
/// The first failure of any worker, after all of them have stopped and what was in flight has ended; and
/// [`Error::Incomplete`] where the bytes placed are not the bytes planned.
pub(crate) fn run(work: &Work<'_>, parts: Vec<RegionMut>) -> Result<Tally> {
    let shared = Shared {
        queue: Mutex::new(Queue { next: 0, parts: parts.into_iter() }),
        failure: Mutex::new(None),
        stopped: AtomicBool::new(false),
        placed: AtomicU64::new(0),
    };
    let tally = thread::scope(|scope| {
        let mut handles = Vec::new();
        for index in 0..work.workers {
            let builder = thread::Builder::new().name(format!("gds-load-{index}"));
            match builder.spawn_scoped(scope, || worker(work, &shared)) {
                Ok(handle) => handles.push(handle),
                // Fewer workers are slower, none is a failure.
                Err(error) if handles.is_empty() => shared.fail(Error::Worker { reason: error.to_string() }),
                Err(error) => {
                    tracing::warn!(%error, "a worker thread could not be started; going on with fewer")
                }
            }
        }
        let tallies = handles.into_iter().map(|handle| {
            handle.join().unwrap_or_else(|_| {
                shared.fail(Error::Worker { reason: "it panicked".into() });
                Tally::default()
            })
        });
        tallies.fold(Tally::default(), Tally::merge)
    });
    if let Some(error) = lock(&shared.failure).take() {
        return Err(error);
    }
    let (placed, planned) = (tally.paths.total(), work.plan.bytes);
    if work.cancel.is_cancelled() && placed < planned {
        return Err(Error::Cancelled { placed, planned });
    }
    if placed != planned {
        return Err(Error::Incomplete { placed, planned });
    }
    Ok(tally)
}

struct Shared {
    queue: Mutex<Queue>,
    failure: Mutex<Option<Error>>,
    stopped: AtomicBool,
    placed: AtomicU64,
}

/// The pieces not dealt yet, and the parts they own.
struct Queue {
    next: usize,
    parts: std::vec::IntoIter<RegionMut>,
}

impl Shared {
    /// The next piece and its parts; `None` at the end, and once anything has failed.
    fn take<'p>(&self, plan: &'p Plan) -> Option<(&'p Piece, Vec<RegionMut>)> {
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut queue = lock(&self.queue);
        let piece = plan.pieces.get(queue.next)?;
        queue.next += 1;
        let parts = queue.parts.by_ref().take(piece.parts.len()).collect();
        Some((piece, parts))
    }

    /// Remembers the first failure and stops the workers.
    fn fail(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(error);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn worker(work: &Work<'_>, shared: &Shared) -> Tally {
    let mut tally = Tally::default();
    if let Err(error) = move_pieces(work, shared, &mut tally) {
        shared.fail(error);
    }
    tally
}

fn move_pieces(work: &Work<'_>, shared: &Shared, tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    let mut ring = work.ring.map(|options| work.device.ring(options)).transpose()?;
    tally.pin = start.elapsed();
    if let (Some(ring), Some(stream)) = (&mut ring, work.after) {
        // SAFETY: `Loader::after_stream` made its caller promise a live stream of this device.
        unsafe { ring.wait_for(stream.0) }?;
    }
    while !work.cancel.is_cancelled()
        && let Some((piece, parts)) = shared.take(work.plan)
    {
        let kind = match (piece.landing, &mut ring) {
            (Landing::Straight, _) => read_straight(work, piece, parts, tally)?,
            (Landing::Slot | Landing::Gathered, Some(ring)) => {
                read_through_slot(work, piece, parts, ring, tally)?
            }
            (_, None) => {
                return Err(Error::Worker { reason: "a piece wants a slot and there is no ring".into() });
            }
        };
        tally.paths.add(kind, piece.bytes);
        let done = shared.placed.fetch_add(piece.bytes, Ordering::Relaxed) + piece.bytes;
        if let Some(on_progress) = &work.on_progress {
            on_progress(Progress { bytes_done: done, bytes_total: work.plan.bytes });
        }
    }
    if let Some(mut ring) = ring {
        ring.drain()?;
        let statistics = ring.statistics();
        tally.pinned = statistics.pinned_bytes;
        tally.copies.extend_from_slice(&statistics.intervals);
    }
    Ok(())
}

/// Reads a piece into the destination itself.
fn read_straight(
    work: &Work<'_>,
    piece: &Piece,
    mut parts: Vec<RegionMut>,
    tally: &mut Tally,
) -> Result<crate::PathKind> {
    let route = &work.routes[piece.file as usize];
    let Some(into) = parts.first_mut().and_then(RegionMut::host_bytes_mut) else {
        return Err(Error::Worker { reason: "a straight piece's destination is not host memory".into() });
    };
    let start = Instant::now();
    let (kind, count) = route.read(piece.extent.clone(), into)?;
    tally.reads.push((start, Instant::now()));
    check_arrived(piece, piece.bytes, count)?;
    Ok(kind)
}

/// Reads a piece into a slot and launches the copies that scatter it.
fn read_through_slot(
    work: &Work<'_>,
    piece: &Piece,
    parts: Vec<RegionMut>,
    ring: &mut Ring,
    tally: &mut Tally,
) -> Result<crate::PathKind> {
    let route = &work.routes[piece.file as usize];
    let slot = ring.take()?;
    let mut kind = None;
    let start = Instant::now();
    let filled = slot.fill(|into| {
        let (by, count) = route.read(piece.extent.clone(), into)?;
        kind = Some(by);
        Ok::<_, Error>(count as usize)
    });
    tally.reads.push((start, Instant::now()));
    let (mut filled, Some(kind)) = (filled.map_err(|(_slot, error)| error)?, kind) else {
        return Err(Error::Worker { reason: "a slot was filled by no path".into() });
    };
    let stretches = work.plan.scatter_of(piece);
    let reach = stretches.iter().map(|s| s.offset + s.len).max().unwrap_or(0);
    check_arrived(piece, reach, filled.bytes().len() as u64)?;
    let copies = if piece.landing == Landing::Gathered {
        let slot_offset = gather(work.plan, piece, &mut filled);
        parts.into_iter().map(|to| SlotCopy { slot_offset, to }).collect()
    } else {
        let offsets = stretches.iter().map(|stretch| stretch.offset as usize);
        offsets.zip(parts).map(|(slot_offset, to)| SlotCopy { slot_offset, to }).collect()
    };
    ring.launch(filled, copies)?;
    Ok(kind)
}

/// Puts a piece's stretches side by side, behind the extent in the same slot, as the destination wants them; returns
/// where they begin. The padding between them is zeroed, so that no stale byte reaches the device.
fn gather(plan: &Plan, piece: &Piece, filled: &mut FilledSlot) -> usize {
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

/// The transports promise whole extents; a stretch beyond what arrived would show stale bytes as success.
fn check_arrived(piece: &Piece, wanted: u64, arrived: u64) -> Result<()> {
    if wanted <= arrived {
        return Ok(());
    }
    tracing::error!(?piece, wanted, arrived, "a read returned less than the plan needs");
    Err(Error::Incomplete { placed: arrived, planned: wanted })
}
