//! What one worker moves bytes with: a ring of pinned slots, and windows of registered device memory.
//!
//! The ring is made when a piece first needs it: a load that goes by windows, or straight into place, pins nothing.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use cuda_staging::{Device, Ring, RingOptions, SlotCopy, WindowRing};

use super::piece::Landed;
use super::tally::Tally;
use crate::error::{Error, Result};
use crate::transport::RegisteredBuffer;

/// A stream of the caller's, by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerStream(pub(crate) *mut c_void);

// SAFETY: a CUstream is a handle the driver lets any thread use; it is never dereferenced here.
unsafe impl Send for CallerStream {}
// SAFETY: as above: the handle is only copied and passed to the driver.
unsafe impl Sync for CallerStream {}

/// How long work of the caller's that a load must come after may take.
const CALLER_LIMIT: Duration = Duration::from_secs(60);

/// Waits until the work pending on the caller's stream is over: for reads that no stream puts in order.
pub(crate) fn wait_for_caller(device: &Device, stream: CallerStream) -> cuda_staging::Result<()> {
    let mut ours = device.stream()?;
    // SAFETY: `Loader::after_stream` made its caller promise a live stream of this device.
    unsafe { ours.wait_for(stream.0) }?;
    ours.synchronize(CALLER_LIMIT)
}

/// The lanes of one worker.
pub(super) struct Lanes<'w> {
    device: &'w Device,
    options: Option<RingOptions>,
    after: Option<CallerStream>,
    ring: Option<Ring>,
    /// Windows nobody uses.
    idle: Vec<RegisteredBuffer>,
    window_ring: Option<WindowRing<RegisteredBuffer>>,
}

impl<'w> Lanes<'w> {
    pub(super) fn new(
        device: &'w Device,
        options: Option<RingOptions>,
        after: Option<CallerStream>,
        windows: Vec<RegisteredBuffer>,
    ) -> Self {
        Self { device, options, after, ring: None, idle: windows, window_ring: None }
    }

    /// The ring of pinned slots, made and pinned now where it does not exist yet.
    pub(super) fn ring(&mut self, tally: &mut Tally) -> Result<&mut Ring> {
        if self.ring.is_none() {
            let no_slots = || Error::Worker { reason: "a piece wants a slot and the plan has none".into() };
            let start = Instant::now();
            let mut ring = self.device.ring(self.options.ok_or_else(no_slots)?)?;
            if let Some(stream) = self.after {
                // SAFETY: `Loader::after_stream` made its caller promise a live stream of this device.
                unsafe { ring.wait_for(stream.0) }?;
            }
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

    /// Copies out of a window, which has it until that is over.
    pub(super) fn launch_window(&mut self, window: RegisteredBuffer, copies: Vec<SlotCopy>) -> Result<()> {
        let ring = match &mut self.window_ring {
            Some(ring) => ring,
            none => {
                let mut ring = self.device.window_ring()?;
                if let Some(stream) = self.after {
                    // SAFETY: `Loader::after_stream` made its caller promise a live stream of this device.
                    unsafe { ring.wait_for(stream.0) }?;
                }
                none.insert(ring)
            }
        };
        Ok(ring.launch(window, copies)?)
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
