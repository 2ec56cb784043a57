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
    /// It takes BAR1.
    pinned: bool,
}

/// Every registered range.
#[derive(Default)]
pub(crate) struct Buffers {
    by_address: BTreeMap<Address, Buffer>,
    device_bytes: u64,
    peak_device_bytes: u64,
}

impl Buffers {
    /// Registers a range whose place is known. Where there is a limit of so many bytes, device memory is pinned: it takes BAR1.
    pub(crate) fn register(
        &mut self,
        address: Address,
        len: usize,
        place: Place,
        limit: Option<u64>,
    ) -> Result {
        if self.by_address.contains_key(&address) {
            return Err(CU_FILE_MEMORY_ALREADY_REGISTERED.into());
        }
        let mut pinned = false;
        if let Place::Device(device) = place {
            let total = self.device_bytes.saturating_add(len as u64);
            if let Some(limit) = limit {
                let reserve = |driver: &cuda::Cuda| driver.reserve_bar1(device, len).is_ok();
                pinned = total <= limit && cuda::driver().is_some_and(reserve);
                if !pinned {
                    return Err(CU_FILE_INVALID_MAPPING_SIZE.into());
                }
            }
            self.device_bytes = total;
            self.peak_device_bytes = self.peak_device_bytes.max(total);
        }
        self.by_address.insert(address, Buffer { len, place, pinned });
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
        if let Place::Device(device) = buffer.place {
            self.device_bytes = self.device_bytes.saturating_sub(buffer.len as u64);
            if let (true, Some(driver)) = (buffer.pinned, cuda::driver()) {
                driver.release_bar1(device, buffer.len);
            }
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

    /// Pinned bytes of one device.
    pub(crate) fn pinned_bytes(&self, device: u32) -> u64 {
        let of_device = |buffer: &&Buffer| buffer.pinned && buffer.place == Place::Device(device);
        self.by_address.values().filter(of_device).map(|buffer| buffer.len as u64).sum()
    }
}
