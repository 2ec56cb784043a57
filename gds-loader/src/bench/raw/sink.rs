//! Where blocks go that were read into the host's memory: nowhere, or on to a device.

use std::ops::Range;

use cuda_staging::{Carved, Device, FilledSlot, FreeSlot, RegionMut, Ring, RingOptions, SlotCopy};

use crate::error::{Error, Result};

/// The slots of one thread, and its part of the device.
pub(super) struct Sink {
    ring: Ring,
    device: Option<Turns>,
}

impl Sink {
    /// Slots of `size` bytes: `reading` that reads are in flight into, and as many again to copy from where the blocks go to a
    /// device.
    pub(super) fn new(device: &Device, reading: usize, size: usize) -> Result<Self> {
        let slots = if device.is_cuda() { 2 * reading } else { reading };
        let ring = device.ring(RingOptions { slots, slot_size: size })?;
        let device = device.is_cuda().then(|| Turns::new(device, slots, size as u64)).transpose()?;
        Ok(Self { ring, device })
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        self.ring.statistics().pinned_bytes
    }

    pub(super) fn take(&mut self) -> Result<FreeSlot> {
        Ok(self.ring.take()?)
    }

    pub(super) fn put_back(&mut self, slot: FreeSlot) {
        self.ring.put_back(slot);
    }

    /// The first `len` bytes of the slot have arrived.
    pub(super) fn accept(&mut self, filled: FilledSlot, len: u64) -> Result<()> {
        let Some(turns) = &mut self.device else {
            self.ring.put_back(filled.release());
            return Ok(());
        };
        let to = turns.next(&mut self.ring)?.split_at(len)?.0;
        Ok(self.ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }])?)
    }

    /// Waits for the copies.
    pub(super) fn finish(&mut self) -> Result<()> {
        Ok(self.ring.drain()?)
    }
}

/// Device memory written over and over. Parts given to copies come back only all together, so there are two halves: one is given
/// out while the other's copies end.
struct Turns {
    ranges: Vec<Range<u64>>,
    parts: Vec<RegionMut>,
    now: Option<Carved>,
    before: Option<Carved>,
}

impl Turns {
    fn new(device: &Device, slots: usize, size: u64) -> Result<Self> {
        let ranges: Vec<_> = (0..slots as u64).map(|slot| slot * size..(slot + 1) * size).collect();
        let half = || Ok::<_, Error>(device.allocate(slots as u64 * size, 1)?.carve(&ranges)?);
        let ((now, parts), (before, _)) = (half()?, half()?);
        Ok(Self { parts, now: Some(now), before: Some(before), ranges })
    }

    fn next(&mut self, ring: &mut Ring) -> Result<RegionMut> {
        if let Some(part) = self.parts.pop() {
            return Ok(part);
        }
        let older = self.before.take().ok_or_else(Self::lost)?;
        let whole = match older.reunite() {
            Ok(whole) => whole,
            Err(older) => {
                ring.drain()?;
                older.reunite().map_err(|_| Self::lost())?
            }
        };
        let (carved, parts) = whole.carve(&self.ranges)?;
        (self.before, self.now, self.parts) = (self.now.take(), Some(carved), parts);
        self.parts.pop().ok_or_else(Self::lost)
    }

    fn lost() -> Error {
        Error::Worker { reason: "device memory of an earlier copy did not come back".into() }
    }
}
