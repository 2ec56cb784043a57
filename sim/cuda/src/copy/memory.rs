//! The two ends of a copy: whose memory an address is at the call, and where its bytes are when the copy runs.

use std::ptr;
use std::sync::Arc;

use crate::code::{ILLEGAL_ADDRESS, INVALID_VALUE, Result};
use crate::ffi::Address;
use crate::state::memory::Allocation;
use crate::state::pins::PinInUse;
use crate::state::{driver, memory};

/// What the function called requires of its two addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Any,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Device,
    /// Managed or pinned: host and device may use it.
    Shared,
    Pageable,
}

/// Whose memory the range is; an invalid value where it runs over the end of what CUDA knows.
pub(super) fn place(address: Address, len: usize) -> Result<Place> {
    let end = address.checked_add(len as u64).filter(|_| address != 0).ok_or(INVALID_VALUE)?;
    let (range_end, place) = match memory::find(address) {
        Some(found) => {
            (found.address + found.len, if found.is_managed() { Place::Shared } else { Place::Device })
        }
        None => match driver()?.pins.find(address) {
            Some(found) => (found.pin().address + found.pin().len, Place::Shared),
            None => return Ok(Place::Pageable),
        },
    };
    if end > range_end { Err(INVALID_VALUE) } else { Ok(place) }
}

/// Both ends of a copy, checked against its form.
pub(super) fn places(to: Address, from: Address, len: usize, form: Form) -> Result<(Place, Place)> {
    let (to, from) = (place(to, len)?, place(from, len)?);
    let allowed = match form {
        Form::Any => true,
        Form::HostToDevice => to != Place::Pageable && from != Place::Device,
        Form::DeviceToHost => from != Place::Pageable && to != Place::Device,
        Form::DeviceToDevice => to != Place::Pageable && from != Place::Pageable,
    };
    if allowed { Ok((to, from)) } else { Err(INVALID_VALUE) }
}

/// One end of a copy, until it runs.
pub(super) enum End {
    /// Memory that CUDA knows, to be looked up then.
    Known(Address),
    /// Pageable memory of a call that waits.
    Waiting(Address),
    /// The contents at the time of the call.
    Staged(Box<[u8]>),
}

/// One end of a copy as it runs, kept until it is done.
pub(super) enum Memory {
    Device(Arc<Allocation>, Address),
    Pinned(*mut u8, #[expect(dead_code, reason = "kept so that the pin is not taken away")] PinInUse),
    Host(*mut u8),
}

impl End {
    pub(super) fn new(place: Place, address: Address) -> Self {
        if place == Place::Pageable { Self::Waiting(address) } else { Self::Known(address) }
    }

    /// The `len` bytes as they are now.
    pub(super) fn look_up(&self, len: usize) -> Result<Memory> {
        match self {
            Self::Known(address) => look_up(*address, len),
            Self::Waiting(address) => Ok(Memory::Host(*address as *mut u8)),
            Self::Staged(bytes) => Ok(Memory::Host(bytes.as_ptr().cast_mut())),
        }
    }
}

/// Memory that CUDA knows; an illegal address where it does not (any more).
pub(super) fn look_up(address: Address, len: usize) -> Result<Memory> {
    let end = address.checked_add(len as u64).ok_or(ILLEGAL_ADDRESS)?;
    let (range_end, memory) = match memory::find(address) {
        Some(found) => (found.address + found.len, Memory::Device(found, address)),
        None => {
            let found = driver()?.pins.find(address).ok_or(ILLEGAL_ADDRESS)?;
            (found.pin().address + found.pin().len, Memory::Pinned(address as *mut u8, found))
        }
    };
    if end > range_end { Err(ILLEGAL_ADDRESS) } else { Ok(memory) }
}

impl Memory {
    /// Where the simulator can reach it.
    pub(super) fn pointer(&self) -> Result<*mut u8> {
        match self {
            Self::Device(allocation, address) => allocation.alias(*address),
            Self::Pinned(pointer, _) | Self::Host(pointer) => Ok(*pointer),
        }
    }

    /// Writes `len` bytes from `from` into it.
    ///
    /// # Safety
    /// - It is `len` bytes long.
    /// - The `len` bytes at `from` stay as they are meanwhile.
    pub(super) unsafe fn write(&self, from: *const u8, len: usize) -> Result {
        if let Self::Device(allocation, address) = self {
            // SAFETY: handed on.
            return unsafe { allocation.mapping.write(allocation.offset_of(*address), from, len) };
        }
        // SAFETY: handed on; pinned memory is kept, other host memory is that of a call that waits.
        unsafe { ptr::copy(from, self.pointer()?, len) };
        Ok(())
    }

    /// Reads `len` bytes of it into `to`.
    ///
    /// # Safety
    /// - It is `len` bytes long.
    /// - Nothing else uses the `len` bytes at `to` meanwhile.
    pub(super) unsafe fn read(&self, to: *mut u8, len: usize) -> Result {
        if let Self::Device(allocation, address) = self {
            // SAFETY: handed on.
            return unsafe { allocation.mapping.read(allocation.offset_of(*address), to, len) };
        }
        // SAFETY: handed on; pinned memory is kept, other host memory is that of a call that waits.
        unsafe { ptr::copy(self.pointer()?, to, len) };
        Ok(())
    }
}
