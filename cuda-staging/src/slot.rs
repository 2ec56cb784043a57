//! Slots: pieces of host memory on their way from storage to a device, with their state in the type.
//!
//! ```text
//! FreeSlot --fill-----------------------> FilledSlot --Ring::launch--> (copying, inside the ring) --> FreeSlot
//!     |------begin_read--> ReadingSlot --complete--^ |--release--> FreeSlot
//! ```
//!
//! A slot is moved from state to state, so that what a state forbids has no method to call. A filled slot cannot be
//! read into:
//!
//! ```compile_fail,E0599
//! # use cuda_staging::{Device, RingOptions};
//! # let mut ring = Device::cpu().ring(RingOptions { slots: 1, slot_size: 4096 })?;
//! let filled = ring.take()?.fill(|bytes| Ok::<_, std::io::Error>(bytes.len())).map_err(|(_, error)| error)?;
//! filled.begin_read();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A slot that is being copied cannot be touched, because the ring has it:
//!
//! ```compile_fail,E0382
//! # use cuda_staging::{Device, RingOptions};
//! # let mut ring = Device::cpu().ring(RingOptions { slots: 1, slot_size: 4096 })?;
//! let mut filled = ring.take()?.fill(|bytes| Ok::<_, std::io::Error>(bytes.len())).map_err(|(_, error)| error)?;
//! ring.launch(filled, vec![])?;
//! filled.bytes_mut()[0] = 1;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! And a slot given to the kernel cannot be looked at before the kernel is done:
//!
//! ```compile_fail,E0599
//! # use cuda_staging::{Device, RingOptions};
//! # let mut ring = Device::cpu().ring(RingOptions { slots: 1, slot_size: 4096 })?;
//! let reading = ring.take()?.begin_read();
//! reading.bytes();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::cuda::{Event, PinnedMemory};
use crate::device::Device;
use crate::memory::HostMemory;

/// The memory of a ring's slots: one mapping, registered once.
pub(crate) enum SlotMemory {
    Pageable(HostMemory),
    Pinned(PinnedMemory),
}

impl SlotMemory {
    fn host(&self) -> &HostMemory {
        match self {
            Self::Pageable(memory) => memory,
            Self::Pinned(memory) => memory.memory(),
        }
    }
}

/// The memory of all slots of a ring, which stays mapped while this value lives: for registering it with an engine, ahead of
/// reads into the slots.
#[derive(Clone)]
pub struct SlotsMemory(pub(crate) Arc<SlotMemory>);

impl SlotsMemory {
    /// Where it starts. Aligned to a page.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.0.host().as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.host().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for SlotsMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotsMemory").field("start", &self.as_mut_ptr()).field("len", &self.len()).finish()
    }
}

/// Two events around a slot's copies.
pub(crate) struct CopyEvents {
    pub(crate) start: Event,
    pub(crate) end: Event,
}

/// A slot in whatever state: the memory and the events that it alone uses.
pub(crate) struct Slot {
    /// Before what follows: events are destroyed first.
    pub(crate) events: Option<CopyEvents>,
    start: NonNull<u8>,
    capacity: usize,
    /// Keeps the mapping.
    _memory: Arc<SlotMemory>,
    device: Device,
}

// SAFETY: the slot's bytes belong to this value alone, as a boxed slice's would.
unsafe impl Send for Slot {}
// SAFETY: as above; `&Slot` allows only reading.
unsafe impl Sync for Slot {}

impl Slot {
    /// The `index`-th piece of `capacity` bytes; None where it lies beyond the end of the memory.
    ///
    /// # Safety
    /// - No other slot of this memory has that index.
    pub(crate) unsafe fn of(
        memory: &Arc<SlotMemory>,
        index: usize,
        capacity: usize,
        events: Option<CopyEvents>,
        device: &Device,
    ) -> Option<Self> {
        let host = memory.host();
        let offset = index.checked_mul(capacity)?;
        offset.checked_add(capacity).filter(|&end| end <= host.len())?;
        let start = NonNull::new(host.as_ptr().wrapping_add(offset))?;
        Some(Self { events, start, capacity, _memory: Arc::clone(memory), device: device.clone() })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `of` keeps the slot inside its mapping, which lives as long as `_memory` and is initialised; only
        // `&mut self` writes it, and no copy is in flight where a `Slot` is in reach.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes this the only access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

fn describe(state: &str, slot: &Slot, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(state)
        .field("device", slot.device())
        .field("address", &slot.as_ptr())
        .field("capacity", &slot.capacity())
        .finish_non_exhaustive()
}

/// A slot that nobody uses. Dropped rather than put back, it is lost to its ring, and its memory stays until the
/// ring's other slots are gone.
#[must_use = "a slot that is not put back is lost to its ring"]
pub struct FreeSlot {
    pub(crate) slot: Slot,
}

impl FreeSlot {
    /// Bytes it can hold: the ring's `slot_size`, in whole pages.
    pub fn capacity(&self) -> usize {
        self.slot.capacity()
    }

    /// Lets `read` write to the slot's memory, which holds what was last in it (at first zeros), and say how many
    /// bytes from the start now count. More than the capacity are taken as the capacity.
    ///
    /// # Errors
    /// The closure's, with the slot.
    pub fn fill<E>(
        mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<FilledSlot, (Self, E)> {
        match read(self.slot.bytes_mut()) {
            Ok(len) => Ok(FilledSlot { len: len.min(self.slot.capacity()), slot: self.slot }),
            Err(error) => Err((self, error)),
        }
    }

    /// Gives the memory to an engine that writes it behind the compiler's back, as the kernel does under io_uring.
    pub fn begin_read(self) -> ReadingSlot {
        ReadingSlot { slot: ManuallyDrop::new(self.slot) }
    }
}

impl fmt::Debug for FreeSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("FreeSlot", &self.slot, f)
    }
}

/// A slot whose memory is the kernel's for now. Dropping it leaks the memory, which may still be written.
#[must_use = "dropping a slot that is being read into leaks its memory"]
pub struct ReadingSlot {
    slot: ManuallyDrop<Slot>,
}

impl ReadingSlot {
    /// Where to read to. Aligned to a page.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.slot.as_ptr()
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.slot.capacity()
    }

    /// Takes the memory back. `len` bytes from the start now count; more than the capacity are taken as the capacity.
    /// After a read that failed: `complete(0)`, then [`FilledSlot::release`].
    ///
    /// # Safety
    /// - Nothing writes the memory any more: every read into it has completed or was never submitted.
    pub unsafe fn complete(self, len: usize) -> FilledSlot {
        let slot = ManuallyDrop::into_inner(self.slot);
        FilledSlot { len: len.min(slot.capacity()), slot }
    }
}

impl fmt::Debug for ReadingSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("ReadingSlot", &self.slot, f)
    }
}

/// A slot with bytes in it.
#[must_use = "a slot that is neither launched nor put back is lost to its ring"]
pub struct FilledSlot {
    pub(crate) slot: Slot,
    pub(crate) len: usize,
}

impl FilledSlot {
    /// The bytes that were read.
    pub fn bytes(&self) -> &[u8] {
        &self.slot.bytes()[..self.len]
    }

    /// The whole capacity, for gathering small pieces into what the read left unused.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.slot.bytes_mut()
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.slot.capacity()
    }

    /// Gives the bytes up.
    pub fn release(self) -> FreeSlot {
        FreeSlot { slot: self.slot }
    }
}

impl fmt::Debug for FilledSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("FilledSlot", &self.slot, f)
    }
}
