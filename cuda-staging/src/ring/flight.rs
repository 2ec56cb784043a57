//! What is in flight, and what copies to and from a device have in common.

use crate::cuda;
use crate::device::Device;
use crate::error::Result;
use crate::region::{Region, RegionMut};
use crate::slot::Slot;

/// A copy from a filled slot to a device.
#[derive(Debug)]
pub struct SlotCopy {
    /// Where it starts in the slot, in bytes.
    pub slot_offset: usize,
    /// Where it goes, and by its length how many bytes.
    pub to: RegionMut,
}

/// A copy from a device to a slot.
#[derive(Clone, Debug)]
pub struct SlotFetch {
    /// Where it starts in the slot, in bytes.
    pub slot_offset: usize,
    /// Where it comes from, and by its length how many bytes.
    pub from: Region,
}

/// A slot and the regions that its copies use, owned until they are over.
pub(super) struct InFlight<P> {
    pub(super) slot: Slot,
    pub(super) parts: Vec<P>,
}

impl<P: Part> InFlight<P> {
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(P::len).sum()
    }

    /// The end of the last part in the slot. The parts were checked to lie within it.
    pub(super) fn end(&self) -> usize {
        self.parts.iter().map(|part| part.slot_offset() + part.len() as usize).max().unwrap_or(0)
    }
}

/// One copy of a slot's, in either direction.
pub(super) trait Part: Sized {
    fn slot_offset(&self) -> usize;
    fn len(&self) -> u64;
    fn device(&self) -> &Device;

    /// Copies on the CPU device.
    fn copy_at_once(&mut self, slot: &mut Slot);

    /// Enqueues all `parts`.
    ///
    /// # Safety
    /// - Every part lies within the slot and is memory of the stream's device.
    /// - Slot and parts stay as they are until the stream has got past these copies.
    unsafe fn enqueue(parts: &[Self], slot: &Slot, stream: &cuda::Stream) -> Result<()>;
}

impl Part for SlotCopy {
    fn slot_offset(&self) -> usize {
        self.slot_offset
    }

    fn len(&self) -> u64 {
        self.to.len()
    }

    fn device(&self) -> &Device {
        self.to.device()
    }

    fn copy_at_once(&mut self, slot: &mut Slot) {
        if let Some(to) = self.to.host_bytes_mut() {
            to.copy_from_slice(&slot.bytes()[self.slot_offset..][..to.len()]);
        }
    }

    unsafe fn enqueue(parts: &[Self], slot: &Slot, stream: &cuda::Stream) -> Result<()> {
        let copies = parts.iter().filter(|copy| !copy.to.is_empty()).map(|copy| {
            let from = slot.as_ptr().wrapping_add(copy.slot_offset).cast_const();
            (from, copy.to.address(), copy.to.len() as usize)
        });
        // SAFETY: the caller's promise; a `RegionMut` is the only access to its bytes, and a `Slot` to its own.
        unsafe { stream.copy_in(copies) }
    }
}

impl Part for SlotFetch {
    fn slot_offset(&self) -> usize {
        self.slot_offset
    }

    fn len(&self) -> u64 {
        self.from.len()
    }

    fn device(&self) -> &Device {
        self.from.device()
    }

    fn copy_at_once(&mut self, slot: &mut Slot) {
        if let Some(from) = self.from.host_bytes() {
            slot.bytes_mut()[self.slot_offset..][..from.len()].copy_from_slice(from);
        }
    }

    unsafe fn enqueue(parts: &[Self], slot: &Slot, stream: &cuda::Stream) -> Result<()> {
        let copies = parts.iter().filter(|fetch| !fetch.from.is_empty()).map(|fetch| {
            let to = slot.as_ptr().wrapping_add(fetch.slot_offset);
            (fetch.from.address(), to, fetch.from.len() as usize)
        });
        // SAFETY: the caller's promise; nothing writes a frozen `Region`, and a `Slot` is the only access to its own.
        unsafe { stream.copy_out(copies) }
    }
}
