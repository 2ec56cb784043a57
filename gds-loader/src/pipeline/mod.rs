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
#[cfg(all(test, feature = "loom"))]
mod models;
mod queued;
mod touch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use cuda_staging::{Device, FilledSlot, RegionMut, RingOptions, SlotCopy};

use crate::cufile::Driver;
use crate::error::{Error, Result};
use crate::manifest::Sums;
use crate::plan::{Landing, Piece, Plan, Scatter};
use crate::policy::Route;
use crate::report::PathBytes;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, thread};
use crate::transport::{
    Landing as DeviceLanding, PathKind, ReadFailure, RegisteredBuffer, Transport, read_extent,
};

use batched::Batched;
use depth::Depth;
pub(crate) use depth::DepthRange;
use lanes::Lanes;
pub(crate) use lanes::{CallerStream, wait_for_caller};
pub use measure::Measure;
use queued::Queued;
pub(crate) use touch::Touching;

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
    /// The driver whose batches keep window reads in flight; `None` for one thread a read.
    pub(crate) batches: Option<&'a Driver>,
    /// How many direct reads io_uring keeps in flight for each worker, to begin with and at most; `None` for one read a worker.
    pub(crate) queue: Option<DepthRange>,
    /// A stream of the caller's whose pending work must end before the destination is written.
    pub(crate) after: Option<CallerStream>,
    /// How much of the load is done. Serial measurements have one worker.
    pub(crate) measure: Measure,
    /// Who touches the destination ahead of the reads.
    pub(crate) touching: Option<Touching>,
    /// Takes the checksums of bytes as they pass, where these are wanted.
    pub(crate) sums: Option<&'a Sums>,
}

/// What the workers did, added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) paths: PathBytes,
    /// Bytes of the pieces that were done, by any path.
    pub(crate) placed: u64,
    /// Bytes of those that were copied without having been read.
    pub(crate) copied_unread: u64,
    pub(crate) reads: Vec<(Instant, Instant)>,
    /// When pages of the destination were touched ahead of their reads.
    pub(crate) touches: Vec<(Instant, Instant)>,
    pub(crate) copies: Vec<(Instant, Instant)>,
    /// Single copies within these intervals.
    pub(crate) copy_calls: u64,
    /// Host memory pinned, in bytes.
    pub(crate) pinned: u64,
    /// The slowest worker's time to make its ring.
    pub(crate) pin: Duration,
    pub(crate) queues: Queues,
}

/// What became of the workers' queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Workers that had one.
    pub(crate) opened: usize,
    /// Those of them whose files, and whose slots, the kernel registered.
    pub(crate) with_files: usize,
    pub(crate) with_slots: usize,
    /// Why a worker had none.
    pub(crate) refused: Option<String>,
    /// Reads in flight for each when the load ended.
    pub(crate) depth: usize,
}

impl Queues {
    fn merge(&mut self, other: Self) {
        self.opened += other.opened;
        self.with_files += other.with_files;
        self.with_slots += other.with_slots;
        self.refused = self.refused.take().or(other.refused);
    }
}

impl Tally {
    fn merge(mut self, mut other: Self) -> Self {
        self.paths.merge(&other.paths);
        self.placed += other.placed;
        self.copied_unread += other.copied_unread;
        self.reads.append(&mut other.reads);
        self.touches.append(&mut other.touches);
        self.copies.append(&mut other.copies);
        self.copy_calls += other.copy_calls;
        self.pinned += other.pinned;
        self.pin = self.pin.max(other.pin);
        self.queues.merge(other.queues);
        self
    }
}

/// Reads every piece of the plan into `parts`, the regions of [`Plan::parts`], and returns when every copy has ended.
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
    let depth = Depth::new(work.queue.unwrap_or(DepthRange::fixed(1)), work.workers);
    let shared = Shared {
        queue: Mutex::new(Queue { next: 0, touched: 0, parts: parts.into_iter() }),
        dealt: Condvar::new(),
        windows: Mutex::new(windows),
        failure: Mutex::new(None),
        stopped: AtomicBool::new(false),
        placed: AtomicU64::new(0),
        depth_now: AtomicUsize::new(depth.now()),
        depth: Mutex::new(depth),
        start: Instant::now(),
    };
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
    if let Some(error) = lock(&shared.failure).take() {
        return Err(error);
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

struct Shared {
    queue: Mutex<Queue>,
    /// Told when a piece is dealt, and at the end, where anybody touches ahead.
    dealt: Condvar,
    /// The window slots of workers that have not begun yet.
    windows: Mutex<Vec<Vec<RegisteredBuffer>>>,
    failure: Mutex<Option<Error>>,
    stopped: AtomicBool,
    placed: AtomicU64,
    /// Reads in flight for each worker: who finds out how many, and how many.
    depth: Mutex<Depth>,
    depth_now: AtomicUsize,
    start: Instant,
}

/// The pieces not dealt yet, and the parts they own.
struct Queue {
    next: usize,
    /// The first piece that nobody has touched ahead.
    touched: usize,
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
        drop(queue);
        self.dealt.notify_all();
        Some((piece, parts))
    }

    /// The workers have ended: nothing is dealt any more.
    fn end(&self) {
        let _queue = lock(&self.queue);
        self.stopped.store(true, Ordering::Relaxed);
        self.dealt.notify_all();
    }

    /// Takes note that a read that was one of many ended.
    fn read_ended(&self, bytes: u64, at: Instant) {
        let mut depth = lock(&self.depth);
        depth.ended(bytes, at.saturating_duration_since(self.start));
        self.depth_now.store(depth.now(), Ordering::Relaxed);
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
    let windows = lock(&shared.windows).pop().unwrap_or_default();
    let mut lanes = Lanes::new(work.device, work.ring, work.after, windows);
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

/// Where a piece's bytes are once they are read.
enum Landed {
    /// In their places.
    InPlace,
    /// In a pinned slot.
    Slot(FilledSlot),
    /// In a window.
    Window(RegisteredBuffer),
}

/// Reads a piece, by whichever path its file is on, and launches the copies that scatter it.
fn move_piece(
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
fn read_piece(
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
fn launch(
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
            Ok(lanes.ring(tally)?.launch(filled, copies)?)
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
fn add_to_sums(work: &Work<'_>, piece: &Piece, parts: &[RegionMut], landed: &Landed) {
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

/// One copy for each stretch of a piece.
fn scatter(stretches: &[Scatter], parts: Vec<RegionMut>) -> Vec<SlotCopy> {
    let offsets = stretches.iter().map(|stretch| stretch.offset as usize);
    offsets.zip(parts).map(|(slot_offset, to)| SlotCopy { slot_offset, to }).collect()
}

/// The byte after the last one of an extent that is wanted.
fn reach(stretches: &[Scatter]) -> u64 {
    stretches.iter().map(|stretch| stretch.offset + stretch.len).max().unwrap_or(0)
}

/// The places of a gathered piece's stretches, cut out of the one span that holds them and their padding: within a GPU there
/// is no host to gather them.
fn cut_span(plan: &Plan, piece: &Piece, parts: Vec<RegionMut>) -> Result<Vec<RegionMut>> {
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
