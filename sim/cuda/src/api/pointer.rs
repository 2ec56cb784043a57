//! What CUDA knows about an address.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::call::api;
use crate::code::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::memory::{self, Allocation, Origin};
use crate::state::pins::PinInUse;
use crate::state::{context, driver};

/// What an address belongs to.
enum Owner {
    Allocation(Arc<Allocation>),
    Pin(PinInUse),
}

/// `CU_MEMORYTYPE_HOST` and `_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

impl Owner {
    fn of(address: Address) -> Result<Option<Self>> {
        Ok(match memory::find(address) {
            Some(allocation) => Some(Self::Allocation(allocation)),
            None => driver()?.pins.find(address).map(Self::Pin),
        })
    }

    fn context(&self) -> Handle {
        match self {
            Self::Allocation(allocation) => allocation.context,
            Self::Pin(pin) => pin.pin().context,
        }
    }

    fn device(&self) -> usize {
        match self {
            Self::Allocation(allocation) => allocation.device,
            Self::Pin(pin) => pin.pin().device,
        }
    }

    fn range(&self) -> (Address, u64) {
        match self {
            Self::Allocation(allocation) => (allocation.address, allocation.len),
            Self::Pin(pin) => (pin.pin().address, pin.pin().len),
        }
    }

    /// Writes the attribute (`CU_POINTER_ATTRIBUTE_*`) in the type it has.
    fn write(&self, attribute: i32, address: Address, data: Out<c_void>) -> Result {
        let (start, len) = self.range();
        let allocation = match self {
            Self::Allocation(allocation) => Some(allocation),
            Self::Pin(_) => None,
        };
        let managed = allocation.is_some_and(|allocation| allocation.is_managed());
        let device_memory = allocation.is_some();
        match attribute {
            // CONTEXT
            1 => data.cast().set(self.context()),
            // MEMORY_TYPE
            2 => data.cast().set(if device_memory { DEVICE } else { HOST }),
            // DEVICE_POINTER
            3 => data.cast().set(address),
            // HOST_POINTER: device memory has none.
            4 if managed || !device_memory => data.cast().set(address),
            4 => Err(INVALID_VALUE),
            // SYNC_MEMOPS
            6 => {
                data.cast().set(u32::from(allocation.is_some_and(|a| a.sync_memops.load(Ordering::Relaxed))))
            }
            // BUFFER_ID
            7 => data.cast().set(allocation.map_or(start, |allocation| allocation.id)),
            // IS_MANAGED: one byte, in C a bool
            8 => data.cast().set(managed),
            // DEVICE_ORDINAL
            9 => data.cast().set(self.device() as i32),
            // IS_LEGACY_CUDA_IPC_CAPABLE
            10 => data.cast().set(allocation.is_some_and(|allocation| allocation.origin == Origin::Device)),
            // RANGE_START_ADDR, RANGE_SIZE
            11 => data.cast().set(start),
            12 => data.cast().set(len),
            // MAPPED
            13 => data.cast().set(true),
            // ALLOWED_HANDLE_TYPES: none
            14 => data.cast().set(0u64),
            // IS_GPU_DIRECT_RDMA_CAPABLE
            15 => data.cast().set(device_memory && !managed),
            // ACCESS_FLAGS: read and write
            16 => data.cast().set(3i32),
            // MEMPOOL_HANDLE
            17 => data.cast().set(match allocation.map(|allocation| allocation.origin) {
                Some(Origin::Pool(pool)) => pool,
                _ => 0,
            }),
            // MAPPING_SIZE, MAPPING_BASE_ADDR
            18 => data.cast().set(allocation.map_or(len, |allocation| allocation.mapping.len)),
            19 => data.cast().set(start),
            // MEMORY_BLOCK_ID
            20 => data.cast().set(allocation.map_or(start, |allocation| allocation.id)),
            // IS_HW_DECOMPRESS_CAPABLE
            21 => data.cast().set(false),
            // P2P_TOKENS
            5 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// What `cuPointerGetAttributes` writes for an address that CUDA does not know.
fn write_unknown(attribute: i32, data: Out<c_void>) -> Result {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => data.cast().set(0u64),
        2 | 6 | 16 => data.cast().set(0u32),
        8 | 10 | 13 | 15 | 21 => data.cast().set(false),
        // DEVICE_ORDINAL: CU_DEVICE_INVALID
        9 => data.cast().set(-2i32),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    /// Ordinary host memory is an invalid value.
    fn cuPointerGetAttribute(data: Out<c_void>, attribute: i32, address: Address) {
        context::current()?;
        Owner::of(address)?.ok_or(INVALID_VALUE)?.write(attribute, address, data)
    }

    /// Ordinary host memory is no error: its attributes are zeros.
    fn cuPointerGetAttributes(count: u32, attributes: In<i32>, data: In<Out<c_void>>, address: Address) {
        context::current()?;
        let owner = Owner::of(address)?;
        for index in 0..count as usize {
            let (attribute, data) = (attributes.at(index)?, data.at(index)?);
            match &owner {
                Some(owner) => owner.write(attribute, address, data)?,
                None => write_unknown(attribute, data)?,
            }
        }
        Ok(())
    }

    /// Of the attributes only SYNC_MEMOPS can be set. It is kept and reported; nothing here needs it.
    fn cuPointerSetAttribute(value: In<u32>, attribute: i32, address: Address) {
        context::current()?;
        if attribute != 6 {
            return Err(INVALID_VALUE);
        }
        let value = value.get()?;
        memory::find(address).ok_or(INVALID_VALUE)?.sync_memops.store(value != 0, Ordering::Relaxed);
        Ok(())
    }
}
