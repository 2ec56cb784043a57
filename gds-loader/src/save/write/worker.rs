//! One writing thread: while it writes one extent, the next ones are copied from the device.
//!
//! ```text
//! device --D2H--> pinned slot -----pwrite-----> file      direct, buffered
//! device --D2D--> registered window --cuFile--> file      gds
//! host   -----------------------------pwrite--> file      from where it lies, if the path takes it from there; else by a slot
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cuda_staging::{FilledSlot, Ring, SlotFetch, WindowRing};

use super::extent::{Bytes, Extent, PAGE, Place, Sources};
use super::gds::GdsSink;
use super::sink::{Sink, cause, fits};
use super::{Shared, Tally, Work};
use crate::cufile::{CuFileError, RegisteredBuffer};
use crate::pipeline::Progress;
use crate::policy::may_move_on;
use crate::save::error::SaveError;
use crate::transport::{PathKind, ReadCause};

/// A thread's lanes and what is in them.
pub(super) struct Worker<'w, 'a> {
    work: &'w Work<'w>,
    shared: &'w Shared<'a>,
    ring: Option<Ring>,
    free_slots: usize,
    window_ring: Option<WindowRing<RegisteredBuffer>>,
    idle_windows: Vec<RegisteredBuffer>,
    /// On their way to a slot or window, the oldest first.
    pending: VecDeque<Pending<'a>>,
    /// To be written before any new one: there was no room, or their path failed.
    again: VecDeque<Extent<'a>>,
    tally: Tally,
}

struct Pending<'a> {
    extent: Extent<'a>,
    stage: Stage,
}

enum Stage {
    Slot,
    Window(Arc<GdsSink>),
}

impl<'w, 'a> Worker<'w, 'a> {
    pub(super) fn new(
        work: &'w Work<'w>,
        shared: &'w Shared<'a>,
        idle_windows: Vec<RegisteredBuffer>,
    ) -> Self {
        Self {
            work,
            shared,
            ring: None,
            free_slots: work.ring.slots,
            window_ring: None,
            idle_windows,
            pending: VecDeque::new(),
            again: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// Writes extents until none is left. What it did counts, whether or not it failed; what is in flight then is waited for as
    /// the rings are dropped.
    pub(super) fn run(mut self) -> (Tally, Result<(), SaveError>) {
        let outcome = self.write_all();
        if let Some(ring) = &self.ring {
            self.tally.pinned = ring.statistics().pinned_bytes;
            self.tally.fetches.extend_from_slice(&ring.statistics().intervals);
        }
        if let Some(ring) = &self.window_ring {
            self.tally.fetches.extend_from_slice(&ring.statistics().intervals);
        }
        (self.tally, outcome)
    }

    fn write_all(&mut self) -> Result<(), SaveError> {
        loop {
            while !self.work.cancel.is_cancelled()
                && let Some(extent) = self.again.pop_front().or_else(|| self.shared.take())
            {
                if let Some(extent) = self.begin(extent)? {
                    self.again.push_front(extent);
                    break;
                }
            }
            if self.work.cancel.is_cancelled() {
                return Ok(());
            }
            match self.pending.pop_front() {
                Some(Pending { extent, stage: Stage::Slot }) => self.write_slot(extent)?,
                Some(Pending { extent, stage: Stage::Window(gds) }) => self.write_window(extent, &gds)?,
                None => return Ok(()),
            }
        }
    }

    /// Writes an extent, or starts to copy it to where it can be written from; gives it back where there is no room for it now.
    fn begin(&mut self, extent: Extent<'a>) -> Result<Option<Extent<'a>>, SaveError> {
        let route = &self.work.routes[extent.place.file];
        if let Sink::Window(gds) = route.sink()
            && extent.is_device()
        {
            let Some(window) = self.idle_windows.pop() else { return Ok(Some(extent)) };
            let fetches = fetches(&extent.sources);
            self.window_ring()?.launch_fetch(window, fetches)?;
            self.pending.push_back(Pending { extent, stage: Stage::Window(gds) });
            return Ok(None);
        }
        if let Some(bytes) = extent.in_place()
            && fits(route.host_sink()?.as_ref(), bytes, extent.place.offset)
        {
            // Should the file leave its path meanwhile, it is for one that takes bytes from anywhere.
            self.write_host(extent.place, |_| bytes)?;
            return Ok(None);
        }
        if self.free_slots == 0 {
            return Ok(Some(extent));
        }
        let fetches = fetches(&extent.sources);
        let ring = self.ring()?;
        let slot = ring.take()?;
        ring.launch_fetch(slot, fetches)?;
        self.free_slots -= 1;
        self.pending.push_back(Pending { extent, stage: Stage::Slot });
        Ok(None)
    }

    /// Waits for the oldest slot and writes it.
    fn write_slot(&mut self, Extent { place, sources }: Extent<'a>) -> Result<(), SaveError> {
        let filled = self.ring()?.take_fetched()?;
        let mut filled = filled
            .ok_or_else(|| SaveError::Worker { reason: "a slot that was being filled is gone".into() })?;
        let padded = complete(&mut filled, &sources, place.len);
        // All bytes are in the slot: the tensors' memory is needed no longer.
        drop(sources);
        let bytes = &filled.bytes_mut()[..padded];
        self.write_host(place, |alignment| if alignment > 1 { bytes } else { &bytes[..place.len] })?;
        self.ring()?.put_back(filled.release());
        self.free_slots += 1;
        Ok(())
    }

    /// Waits for the oldest window and writes it; where cuFile cannot, the extent goes by what the file's path is then.
    fn write_window(&mut self, extent: Extent<'a>, gds: &Arc<GdsSink>) -> Result<(), SaveError> {
        let window = self.window_ring()?.take_back()?;
        let window = window
            .ok_or_else(|| SaveError::Worker { reason: "a window that was being filled is gone".into() })?;
        // Whole pages go straight; what they hold beyond the file's end is cut off in the end.
        let padded = (extent.place.len as u64).next_multiple_of(PAGE);
        let start = Instant::now();
        let written = gds.write(&window, 0..padded, extent.place.offset);
        self.tally.write(start);
        self.idle_windows.push(window);
        match written {
            Ok(()) => self.count(extent.place, PathKind::Gds),
            Err(error) => {
                self.leave_gds(extent.place, gds, error)?;
                self.again.push_back(extent);
            }
        }
        Ok(())
    }

    /// Takes a file whose extent cuFile failed to write off its path, if another may serve.
    fn leave_gds(&self, place: Place, gds: &Arc<GdsSink>, error: CuFileError) -> Result<(), SaveError> {
        let route = &self.work.routes[place.file];
        let (reason, cause) = (error.to_string(), ReadCause::CuFile(Box::new(error)));
        if may_move_on(PathKind::Gds, &cause) {
            return route.leave(&Sink::Window(Arc::clone(gds)), place.offset, reason);
        }
        Err(SaveError::Write {
            path: route.path().to_owned(),
            by: PathKind::Gds,
            offset: place.offset,
            len: place.len as u64,
            source: cause,
        })
    }

    /// Writes an extent's bytes, as `bytes` has them for a path of this alignment, by the file's path or, where that cannot, by the
    /// next.
    fn write_host<'b>(&mut self, place: Place, bytes: impl Fn(u64) -> &'b [u8]) -> Result<(), SaveError> {
        let route = &self.work.routes[place.file];
        loop {
            let sink = route.host_sink()?;
            let start = Instant::now();
            let written = sink.write_all(bytes(sink.alignment()), place.offset);
            self.tally.write(start);
            match written {
                Ok(()) => {
                    self.count(place, sink.kind());
                    return Ok(());
                }
                Err(error) => match cause(&error) {
                    Some(cause) if may_move_on(sink.kind(), &cause) => {
                        route.leave(&Sink::Host(sink), place.offset, error.to_string())?;
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    fn count(&mut self, place: Place, kind: PathKind) {
        self.tally.paths.add(kind, place.payload);
        self.tally.extents += 1;
        let done = self.shared.written.fetch_add(place.payload, Ordering::Relaxed) + place.payload;
        if let Some(on_progress) = &self.work.on_progress {
            on_progress(Progress { bytes_done: done, bytes_total: self.work.bytes });
        }
    }

    /// The ring of pinned slots, made when first needed.
    fn ring(&mut self) -> Result<&mut Ring, SaveError> {
        let ring = match self.ring.take() {
            Some(ring) => ring,
            None => {
                let start = Instant::now();
                let ring = self.work.device.ring(self.work.ring)?;
                self.tally.pin = start.elapsed();
                ring
            }
        };
        Ok(self.ring.insert(ring))
    }

    /// The stream of copies into windows, made when first needed.
    fn window_ring(&mut self) -> Result<&mut WindowRing<RegisteredBuffer>, SaveError> {
        let ring = match self.window_ring.take() {
            Some(ring) => ring,
            None => self.work.device.window_ring()?,
        };
        Ok(self.window_ring.insert(ring))
    }
}

/// Copies of what is on the device.
fn fetches(sources: &Sources<'_>) -> Vec<SlotFetch> {
    let fetch = |piece: &super::extent::Piece<'_>| match &piece.bytes {
        Bytes::Region(region) if region.host_bytes().is_none() => {
            Some(SlotFetch { slot_offset: piece.at, from: region.clone() })
        }
        _ => None,
    };
    sources.pieces.iter().filter_map(fetch).collect()
}

/// Adds what is the host's, and zeros up to a whole page; the length with these.
fn complete(filled: &mut FilledSlot, sources: &Sources<'_>, len: usize) -> usize {
    let slot = filled.bytes_mut();
    for piece in &sources.pieces {
        if let Some(bytes) = piece.bytes.host() {
            slot[piece.at..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    let padded = len.next_multiple_of(PAGE as usize).min(slot.len());
    slot[len..padded].fill(0);
    padded
}
