//! Memory pools: names for where stream-ordered allocations come from. Nothing is cached in them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::device::Device;
use super::driver;
use crate::code::{INVALID_VALUE, Result};
use crate::ledger::{Entry, Kind};
use crate::sync::lock;

/// A pool.
pub(crate) struct Pool {
    pub(crate) handle: u64,
    /// The device's index.
    pub(crate) device: usize,
    /// Attributes as the program set them.
    pub(crate) attributes: Mutex<BTreeMap<i32, u64>>,
    /// `None` for devices' default pools.
    pub(crate) entry: Option<Entry>,
}

impl Pool {
    pub(crate) fn create(device: usize) -> Result<Arc<Self>> {
        Self::new(device, Some(Entry::open(Kind::Pool, 0)))
    }

    fn new(device: usize, entry: Option<Entry>) -> Result<Arc<Self>> {
        let attributes = Mutex::default();
        Ok(driver()?.pools.insert(|handle| Self { handle, device, attributes, entry }))
    }
}

/// The pool of that handle.
pub(crate) fn find(handle: u64) -> Result<Arc<Pool>> {
    driver()?.pools.get(handle).ok_or(INVALID_VALUE)
}

/// The device's default pool.
pub(crate) fn default_of(device: &Device) -> Result<u64> {
    let mut primary = lock(&device.primary);
    if let Some(handle) = primary.default_pool {
        return Ok(handle);
    }
    let handle = Pool::new(device.index, None)?.handle;
    primary.default_pool = Some(handle);
    Ok(handle)
}

/// The pool that `cuMemAllocAsync` takes from.
pub(crate) fn current_of(device: &Device) -> Result<u64> {
    let chosen = lock(&device.primary).chosen_pool;
    match chosen {
        Some(handle) if find(handle).is_ok() => Ok(handle),
        _ => default_of(device),
    }
}

/// Makes `pool` the one that `cuMemAllocAsync` takes from.
pub(crate) fn choose(device: &Device, pool: u64) -> Result {
    if find(pool)?.device != device.index {
        return Err(INVALID_VALUE);
    }
    lock(&device.primary).chosen_pool = Some(pool);
    Ok(())
}
