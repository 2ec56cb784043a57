//! A window: one registration, carved into slots that many reads share.
//!
//! Registered memory is scarce (the GPU's BAR1) and registering is slow, so a load registers one window and reads
//! everything through it: each worker into its slot, from where the bytes are copied on within the GPU.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_staging::Device;

use super::buffer::{RegisteredBuffer, RegistrationBudget};
use super::driver::Driver;
use super::error::{CuFileError, CuFileResult};
use super::file::CuFile;

/// Registered slots of equal length, for reads from several threads.
pub struct RegisteredWindow {
    slots: Vec<Mutex<RegisteredBuffer>>,
    slot_len: u64,
}

impl RegisteredWindow {
    /// Alignment of each slot, in bytes: a page of the GPU's BAR1.
    pub const ALIGNMENT: u64 = 64 << 10;

    /// Allocates `slots` slots of `slot_len` bytes on `device` and registers them together, within `budget`. Lengths that
    /// are no multiple of [`RegisteredWindow::ALIGNMENT`] are rounded up to it in memory.
    ///
    /// # Errors
    /// Those of the allocation and of the registration: where [`CuFileError::is_registration_limit`], a smaller window
    /// may do. What was allocated is freed.
    pub fn new(
        driver: &Driver,
        device: &Device,
        slots: usize,
        slot_len: u64,
        budget: &RegistrationBudget,
    ) -> CuFileResult<Self> {
        let stride = slot_len.checked_next_multiple_of(Self::ALIGNMENT);
        let total = stride.and_then(|stride| stride.checked_mul(slots as u64));
        let (Some(stride), Some(total)) = (stride, total.filter(|total| *total > 0)) else {
            return Err(CuFileError::usage(format!("a window of {slots} slots of {slot_len} bytes")));
        };
        // Before the allocation: a budget that is spent is no reason to fill the GPU.
        let free = budget.limit() - budget.used().min(budget.limit());
        if total > free {
            return Err(CuFileError::OverBudget { asked: total, used: budget.used(), limit: budget.limit() });
        }
        let region = device.allocate(total, Self::ALIGNMENT)?;
        let registered = RegisteredBuffer::register_within(driver, region, budget);
        let mut rest = registered.map_err(|(_, error)| error)?;
        let mut parts = Vec::with_capacity(slots);
        for _ in 0..slots {
            let (whole, after) = rest.split_at(stride)?;
            let (slot, _padding) = whole.split_at(slot_len)?;
            parts.push(Mutex::new(slot));
            rest = after;
        }
        Ok(Self { slots: parts, slot_len })
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Length of each in bytes.
    pub fn slot_len(&self) -> u64 {
        self.slot_len
    }

    /// Reads `len` bytes at `file_offset` into the beginning of a slot: all of them, or an error. Waits while another
    /// thread reads into it or looks at it.
    ///
    /// # Errors
    /// As for [`CuFile::read_exact`].
    pub fn read(&self, file: &CuFile, file_offset: u64, slot: usize, len: u64) -> CuFileResult<()> {
        file.read_exact_at(&mut *self.lock(slot)?, 0..len, file_offset)
    }

    /// Reads up to `len` bytes at `file_offset` into the beginning of a slot: all that the file has.
    ///
    /// # Errors
    /// As for [`CuFile::read_up_to`].
    pub fn read_up_to(&self, file: &CuFile, file_offset: u64, slot: usize, len: u64) -> CuFileResult<u64> {
        file.read_up_to(&mut *self.lock(slot)?, 0..len, file_offset)
    }

    /// Lends a slot: nothing else reads into it meanwhile. Copies out of it must be over at the end of `work`.
    ///
    /// # Errors
    /// [`CuFileError::Usage`] where there is no such slot.
    pub fn with_slot<T>(
        &self,
        slot: usize,
        work: impl FnOnce(&mut RegisteredBuffer) -> T,
    ) -> CuFileResult<T> {
        Ok(work(&mut *self.lock(slot)?))
    }

    /// The slots themselves, to be owned by workers or operations in flight. The registration ends with the last.
    pub fn into_slots(self) -> Vec<RegisteredBuffer> {
        self.slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn lock(&self, slot: usize) -> CuFileResult<MutexGuard<'_, RegisteredBuffer>> {
        let found = self
            .slots
            .get(slot)
            .ok_or_else(|| CuFileError::usage(format!("slot {slot} of a window of {}", self.slots.len())))?;
        Ok(found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for RegisteredWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredWindow")
            .field("slots", &self.slots.len())
            .field("slot_len", &self.slot_len)
            .finish_non_exhaustive()
    }
}
