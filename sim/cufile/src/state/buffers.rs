//! Registered memory, by the address it was registered at: only that counts as the registered buffer afterwards.

use std::collections::BTreeMap;

use cufile_sys::{
    CU_FILE_INVALID_MAPPING_SIZE, CU_FILE_INVALID_VALUE, CU_FILE_MEMORY_ALREADY_REGISTERED,
    CU_FILE_MEMORY_NOT_REGISTERED,
};

use crate::cuda::{self, Place};
use crate::error::Result;
use crate::ffi::Address;

/// One registered range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) len: usize,
    pub(crate) place: Place,
}

/// Every registered range.
#[derive(Default)]
pub(crate) struct Buffers {
    by_address: BTreeMap<Address, Buffer>,
    device_bytes: u64,
    peak_device_bytes: u64,
}

impl Buffers {
    /// Registers a range whose place is known. Device memory takes BAR1, and at most `limit` bytes in all.
    pub(crate) fn register(&mut self, address: Address, len: usize, place: Place, limit: u64) -> Result {
        if self.by_address.contains_key(&address) {
            return Err(CU_FILE_MEMORY_ALREADY_REGISTERED.into());
        }
        if let Place::Device(device) = place {
            let total = self.device_bytes.saturating_add(len as u64);
            let reserved = total <= limit
                && cuda::driver().is_some_and(|driver| driver.reserve_bar1(device, len).is_ok());
            if !reserved {
                return Err(CU_FILE_INVALID_MAPPING_SIZE.into());
            }
            self.device_bytes = total;
            self.peak_device_bytes = self.peak_device_bytes.max(total);
        }
        self.by_address.insert(address, Buffer { len, place });
        Ok(())
    }

    pub(crate) fn deregister(&mut self, address: Address) -> Result {
        if address == 0 {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        let buffer = self.by_address.remove(&address).ok_or(CU_FILE_MEMORY_NOT_REGISTERED)?;
        self.release(buffer);
        Ok(())
    }

    fn release(&mut self, buffer: Buffer) {
        if let (Place::Device(device), Some(driver)) = (buffer.place, cuda::driver()) {
            driver.release_bar1(device, buffer.len);
            self.device_bytes = self.device_bytes.saturating_sub(buffer.len as u64);
        }
    }

    /// Deregisters all.
    pub(crate) fn clear(&mut self) {
        for buffer in std::mem::take(&mut self.by_address).into_values() {
            self.release(buffer);
        }
    }

    /// The buffer registered at exactly `address`.
    pub(crate) fn get(&self, address: Address) -> Option<Buffer> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// All registered bytes, those of device memory now, and at most.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        let all = self.by_address.values().map(|buffer| buffer.len as u64).sum();
        (all, self.device_bytes, self.peak_device_bytes)
    }

    /// Registered bytes of one device.
    pub(crate) fn bytes_of(&self, device: u32) -> u64 {
        let of_device = self.by_address.values().filter(|buffer| buffer.place == Place::Device(device));
        of_device.map(|buffer| buffer.len as u64).sum()
    }
}
