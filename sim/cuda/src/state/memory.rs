//! The allocations, by address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use super::vram::{Mapping, Vram};
use super::{device, driver};
use crate::code::{INVALID_VALUE, Result};
use crate::ffi::Address;
use crate::ledger::{Entry, Kind};
use crate::sync::{read, write};

/// Where an allocation came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`: host code may touch it.
    Managed,
    /// `cuMemAllocAsync`, from the pool of that handle.
    Pool(u64),
    /// Another process's, opened by `cuIpcOpenMemHandle`.
    Ipc,
}

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) address: Address,
    /// Bytes asked for.
    pub(crate) len: u64,
    pub(crate) mapping: Mapping,
    pub(crate) origin: Origin,
    /// The device's index.
    pub(crate) device: usize,
    /// The handle of the context it was made in.
    pub(crate) context: u64,
    /// Unique in the process.
    pub(crate) id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(crate) sync_memops: AtomicBool,
    entry: Entry,
}

impl Allocation {
    /// The device memory it is taken from; `None` for another process's.
    fn vram(&self) -> Option<&'static Vram> {
        let own = self.origin != Origin::Ipc;
        own.then(|| device::find(self.device).map(|device| &device.memory).ok()).flatten()
    }

    pub(crate) fn is_managed(&self) -> bool {
        self.origin == Origin::Managed
    }

    /// Where `address`, which must lie inside, is from the start.
    pub(crate) fn offset_of(&self, address: Address) -> u64 {
        address.saturating_sub(self.address)
    }

    /// Where the simulator can reach `address`, which must lie inside.
    pub(crate) fn alias(&self, address: Address) -> Result<*mut u8> {
        Ok(self.mapping.alias()?.wrapping_add(self.offset_of(address) as usize))
    }
}

impl Drop for Allocation {
    /// After the last copy that was using it.
    fn drop(&mut self) {
        self.mapping.unmap();
        if self.origin != Origin::Ipc {
            self.mapping.discard();
        }
    }
}

/// The live allocations.
#[derive(Default)]
pub(crate) struct Memory {
    by_address: RwLock<BTreeMap<Address, Arc<Allocation>>>,
}

impl Memory {
    /// Allocates `len` bytes of the device's memory.
    pub(crate) fn allocate(&self, device: usize, context: u64, len: u64, origin: Origin) -> Result<Address> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = device::find(device)?.memory.allocate(len, origin == Origin::Managed)?;
        Ok(self.insert(device, context, len, origin, mapping))
    }

    /// Adds a mapping made elsewhere.
    pub(crate) fn insert(
        &self,
        device: usize,
        context: u64,
        len: u64,
        origin: Origin,
        mapping: Mapping,
    ) -> Address {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let address = mapping.public;
        let allocation = Allocation {
            address,
            len,
            mapping,
            origin,
            device,
            context,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            sync_memops: AtomicBool::new(false),
            entry: Entry::open(Kind::Allocation, len),
        };
        write(&self.by_address).insert(address, Arc::new(allocation));
        address
    }

    /// The allocation that `address` lies in.
    pub(crate) fn find(&self, address: Address) -> Option<Arc<Allocation>> {
        let by_address = read(&self.by_address);
        let (_, allocation) = by_address.range(..=address).next_back()?;
        (address - allocation.address < allocation.len).then(|| Arc::clone(allocation))
    }

    /// Frees the allocation that starts at `address` and for which `wanted` holds. Its range is gone at once.
    pub(crate) fn free(&self, address: Address, wanted: impl Fn(&Allocation) -> bool) -> Result {
        let mut by_address = write(&self.by_address);
        if !by_address.get(&address).is_some_and(|allocation| wanted(allocation)) {
            return Err(INVALID_VALUE);
        }
        let allocation = by_address.remove(&address);
        drop(by_address);
        if let Some(allocation) = allocation {
            allocation.entry.release();
            retire(&allocation);
        }
        Ok(())
    }

    /// Bytes of the live allocations of that origin.
    pub(crate) fn bytes_of(&self, origin: Origin) -> u64 {
        read(&self.by_address).values().filter(|a| a.origin == origin).map(|a| a.len).sum()
    }

    /// Frees what was allocated in a context that ends.
    pub(crate) fn drop_context(&self, context: u64) {
        let mut by_address = write(&self.by_address);
        let gone: Vec<_> = by_address.values().filter(|a| a.context == context).cloned().collect();
        for allocation in &gone {
            by_address.remove(&allocation.address);
        }
        drop(by_address);
        for allocation in gone {
            allocation.entry.drop_with_context();
            retire(&allocation);
        }
    }
}

/// Takes the allocation's range from the program and its bytes off the device's account.
fn retire(allocation: &Allocation) {
    allocation.mapping.unmap_public();
    if let Some(vram) = allocation.vram() {
        vram.give_back(allocation.mapping.len);
    }
}

/// The live allocation that `address` lies in.
pub(crate) fn find(address: Address) -> Option<Arc<Allocation>> {
    driver().ok()?.memory.find(address)
}
