//! What one worker moves bytes with: a ring of pinned slots, and windows of registered device memory.
//!
//! The ring is made when a piece first needs it: a load that goes by windows, or straight into place, pins nothing.

use std::ffi::c_void;
use std::time::Instant;

use cuda_staging::{Device, FilledSlot, Pending, Ring, SlotCopy, WindowRing};

use super::piece::Landed;
use super::tally::Tally;
use super::work::{CancelToken, Work};
use crate::error::{Error, Result};
use crate::transport::RegisteredBuffer;

/// A stream of the caller's, by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerStream(pub(crate) *mut c_void);

// SAFETY: a CUstream is a handle the driver lets any thread use; it is never dereferenced here.
unsafe impl Send for CallerStream {}
// SAFETY: as above: the handle is only copied and passed to the driver.
unsafe impl Sync for CallerStream {}

impl CallerStream {
    /// The work that is on it now. On the thread of the call that was given it: some handles mean another stream on
    /// another thread.
    pub(crate) fn pending(self, device: &Device) -> cuda_staging::Result<Pending> {
        // SAFETY: `after_stream` made its caller promise a live stream of this device.
        unsafe { device.pending(self.0) }
    }
}

/// Waits until the caller's work is over, however long that takes, or `cancel` is cancelled.
///
/// # Errors
/// [`Error::Cancelled`], of a load that has placed nothing; those of the driver.
pub(crate) fn come_after(pending: &Pending, cancel: &CancelToken, planned: u64) -> Result<()> {
    match pending.wait(|| !cancel.is_cancelled())? {
        true => Ok(()),
        false => Err(Error::Cancelled { placed: 0, planned }),
    }
}

/// The lanes of one worker.
pub(super) struct Lanes<'w> {
    work: &'w Work<'w>,
    ring: Option<Ring>,
    /// Windows nobody uses.
    idle: Vec<RegisteredBuffer>,
    window_ring: Option<WindowRing<RegisteredBuffer>>,
}

impl<'w> Lanes<'w> {
    pub(super) fn new(work: &'w Work<'w>, windows: Vec<RegisteredBuffer>) -> Self {
        Self { work, ring: None, idle: windows, window_ring: None }
    }

    /// The ring of pinned slots, made and pinned now where it does not exist yet.
    pub(super) fn ring(&mut self, tally: &mut Tally) -> Result<&mut Ring> {
        if self.ring.is_none() {
            let no_slots = || Error::Worker { reason: "a piece wants a slot and the plan has none".into() };
            let start = Instant::now();
            let ring = self.work.device.ring(self.work.ring.ok_or_else(no_slots)?)?;
            tally.pin = start.elapsed();
            self.ring = Some(ring);
        }
        self.ring.as_mut().ok_or_else(|| Error::Worker { reason: "the ring is gone".into() })
    }

    /// Whether there is a slot to take, if need be after a wait for copies.
    pub(super) fn has_slot(&mut self, tally: &mut Tally) -> Result<bool> {
        Ok(self.ring(tally)?.can_take())
    }

    /// A window that nothing uses: where all are being copied out of, the oldest once it is over. None where cuFile has kept
    /// all of them.
    pub(super) fn window(&mut self) -> Result<Option<RegisteredBuffer>> {
        Ok(if self.has_window()? { self.idle.pop() } else { None })
    }

    /// How many windows nothing uses.
    pub(super) fn windows(&self) -> usize {
        self.idle.len()
    }

    /// Whether there is a window that nothing uses. Where all are being copied out of, the oldest is waited for; where
    /// reads have all of them, there is none.
    pub(super) fn has_window(&mut self) -> Result<bool> {
        if self.idle.is_empty() {
            let oldest = self.window_ring.as_mut().map(WindowRing::take_back).transpose()?.flatten();
            self.idle.extend(oldest);
        }
        Ok(!self.idle.is_empty())
    }

    /// Gives a window back unused.
    pub(super) fn put_back(&mut self, window: RegisteredBuffer) {
        self.idle.push(window);
    }

    /// Gives a slot or window back whose bytes nobody copies.
    pub(super) fn release(&mut self, landed: Landed, tally: &mut Tally) -> Result<()> {
        match landed {
            Landed::InPlace => {}
            // By way of the ring, as if it were copied: the same slot again and again would be read into within the CPU's caches.
            Landed::Slot(filled) => self.ring(tally)?.launch(filled, Vec::new())?,
            Landed::Window(window) => self.put_back(window),
        }
        Ok(())
    }

    /// Copies out of a slot, which the ring has until that is over.
    pub(super) fn launch_slot(
        &mut self,
        slot: FilledSlot,
        copies: Vec<SlotCopy>,
        tally: &mut Tally,
    ) -> Result<()> {
        self.come_after_caller()?;
        Ok(self.ring(tally)?.launch(slot, copies)?)
    }

    /// Copies out of a window, which has it until that is over.
    pub(super) fn launch_window(&mut self, window: RegisteredBuffer, copies: Vec<SlotCopy>) -> Result<()> {
        self.come_after_caller()?;
        let ring = match &mut self.window_ring {
            Some(ring) => ring,
            none => none.insert(self.work.device.window_ring()?),
        };
        Ok(ring.launch(window, copies)?)
    }

    /// Waits for the work of the caller's that no destination is written before. What was read until then stays where it
    /// is: a copy that waited on the device could not be called back.
    fn come_after_caller(&self) -> Result<()> {
        let Work { after, cancel, plan, .. } = self.work;
        after.as_ref().map_or(Ok(()), |pending| come_after(pending, cancel, plan.bytes))
    }

    /// Waits for every copy.
    pub(super) fn drain(&mut self) -> Result<()> {
        if let Some(ring) = &mut self.ring {
            ring.drain()?;
        }
        if let Some(ring) = &mut self.window_ring {
            while let Some(window) = ring.take_back()? {
                self.idle.push(window);
            }
        }
        Ok(())
    }

    /// Waits for every copy, and adds up what the lanes did.
    pub(super) fn finish(mut self, tally: &mut Tally) -> Result<()> {
        self.drain()?;
        if let Some(ring) = &self.ring {
            tally.pinned = ring.statistics().pinned_bytes;
            tally.copies.extend_from_slice(&ring.statistics().intervals);
            tally.copy_calls += ring.statistics().copies;
        }
        if let Some(ring) = &self.window_ring {
            tally.copy_calls += ring.statistics().copies;
            tally.copies.extend_from_slice(&ring.statistics().intervals);
        }
        Ok(())
    }
}
