//! Memory pools and stream-ordered allocation.
//!
//! Memory is taken at the call and given back in the order of the stream; pools keep nothing back.

use std::ffi::c_void;

use crate::call::api;
use crate::code::{INVALID_VALUE, Result};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::memory::Origin;
use crate::state::pool::{self, Pool};
use crate::state::{context, device, driver, stream};
use crate::sync::lock;

/// The start of `CUmemPoolProps`, as far as it matters here.
#[repr(C)]
#[derive(Clone, Copy)]
struct PoolProperties {
    allocation_type: i32,
    handle_types: i32,
    location_type: i32,
    location_id: i32,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: i32 = 1;
const ON_DEVICE: i32 = 1;

/// `CU_MEMPOOL_ATTR_*` of which the value is an `int`; the others up to 8 are 64 bits wide.
const INT_ATTRIBUTES: std::ops::RangeInclusive<i32> = 1..=3;
/// `RELEASE_THRESHOLD`, the last that programs set.
const RELEASE_THRESHOLD: i32 = 4;
/// `RESERVED_MEM_CURRENT`, `_HIGH`, `USED_MEM_CURRENT`, `_HIGH`.
const USAGE: std::ops::RangeInclusive<i32> = 5..=8;

fn allocate(address: Out<Address>, len: usize, pool: Handle, stream: Handle) -> Result {
    let stream = stream::find(stream)?;
    address.check()?;
    let pool = pool::find(pool)?;
    address.set(driver()?.memory.allocate(
        pool.device,
        stream.context.handle,
        len as u64,
        Origin::Pool(pool.handle),
    )?)
}

api! {
    fn cuMemAllocAsync(address: Out<Address>, len: usize, stream: Handle) {
        let device = device::find(stream::find(stream)?.context.device)?;
        allocate(address, len, pool::current_of(device)?, stream)
    }

    fn cuMemAllocFromPoolAsync(address: Out<Address>, len: usize, pool: Handle, stream: Handle) {
        allocate(address, len, pool, stream)
    }

    fn cuMemFreeAsync(address: Address, stream: Handle) {
        let stream = stream::find(stream)?;
        let driver = driver()?;
        driver.memory.find(address).filter(|found| found.address == address).ok_or(INVALID_VALUE)?;
        stream.run(move || driver.memory.free(address, |_| true))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) {
        pool.set(pool::default_of(device::by_ordinal(device)?)?)
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) {
        pool.set(pool::current_of(device::by_ordinal(device)?)?)
    }

    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        pool::choose(device::by_ordinal(device)?, pool)
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>) {
        pool.check()?;
        let properties = properties.get()?;
        if properties.allocation_type != PINNED || properties.location_type != ON_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = device::by_ordinal(properties.location_id)?;
        pool.set(Pool::create(device.index)?.handle)
    }

    fn cuMemPoolDestroy(pool: Handle) {
        // A default pool is the device's own.
        let found = pool::find(pool)?;
        let entry = found.entry.as_ref().ok_or(INVALID_VALUE)?;
        driver()?.pools.remove(pool).ok_or(INVALID_VALUE)?;
        entry.release();
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, _bytes_to_keep: usize) {
        pool::find(pool).map(drop)
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: In<c_void>) {
        let pool = pool::find(pool)?;
        let value = match attribute {
            _ if INT_ATTRIBUTES.contains(&attribute) => value.cast::<u32>().get()?.into(),
            RELEASE_THRESHOLD => value.cast::<u64>().get()?,
            // The high-water marks may be reset, to 0.
            6 | 8 => return if value.cast::<u64>().get()? == 0 { Ok(()) } else { Err(INVALID_VALUE) },
            _ => return Err(INVALID_VALUE),
        };
        lock(&pool.attributes).insert(attribute, value);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: Out<c_void>) {
        let pool = pool::find(pool)?;
        let kept = lock(&pool.attributes).get(&attribute).copied();
        if INT_ATTRIBUTES.contains(&attribute) {
            value.cast().set(kept.unwrap_or(1) as u32)
        } else if attribute == RELEASE_THRESHOLD {
            value.cast().set(kept.unwrap_or(0))
        } else if USAGE.contains(&attribute) {
            value.cast().set(driver()?.memory.bytes_of(Origin::Pool(pool.handle)))
        } else {
            Err(INVALID_VALUE)
        }
    }

    /// Every device may use every pool.
    fn cuMemPoolSetAccess(pool: Handle, _access: In<c_void>, _count: usize) {
        context::current()?;
        pool::find(pool).map(drop)
    }

    fn cuMemPoolGetAccess(flags: Out<i32>, pool: Handle, _location: In<c_void>) {
        pool::find(pool)?;
        // Read and write.
        flags.set(3)
    }
}
