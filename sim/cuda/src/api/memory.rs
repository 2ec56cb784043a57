//! Device memory.

use crate::call::api;
use crate::code::{INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::copy::{fill_now, launch_fill};
use crate::ffi::{Address, Handle, Out};
use crate::state::memory::{self, Origin};
use crate::state::{context, device, driver, stream};

api! {
    fn cuMemAlloc_v2(address: Out<Address>, len: usize) {
        let context = context::current()?;
        address.check()?;
        address.set(driver()?.memory.allocate(context.device, context.handle, len as u64, Origin::Device)?)
    }

    fn cuMemAllocManaged(address: Out<Address>, len: usize, flags: u32) {
        let context = context::current()?;
        address.check()?;
        // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST
        if !matches!(flags, 1 | 2) {
            return Err(INVALID_VALUE);
        }
        address.set(driver()?.memory.allocate(context.device, context.handle, len as u64, Origin::Managed)?)
    }

    /// The range is gone at once: a copy still to come to it fails.
    fn cuMemFree_v2(address: Address) {
        if address == 0 {
            return Ok(());
        }
        driver()?.memory.free(address, |allocation| allocation.origin != Origin::Ipc)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let memory = &device::current()?.memory;
        free.set_if_wanted(memory.size().saturating_sub(memory.used()) as usize);
        total.set_if_wanted(memory.size() as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<Address>, len: Out<usize>, address: Address) {
        context::current()?;
        let (start, bytes) = match memory::find(address) {
            Some(allocation) => (allocation.address, allocation.len),
            None => {
                let pin = driver()?.pins.find(address).ok_or(NOT_FOUND)?;
                (pin.pin().address, pin.pin().len)
            }
        };
        base.set_if_wanted(start);
        len.set_if_wanted(bytes as usize);
        Ok(())
    }

    /// There is no dma-buf of simulated memory.
    fn cuMemGetHandleForAddressRange(_handle: Out<i32>, _address: Address, _len: usize, _kind: i32, _flags: u64) {
        Err(NOT_SUPPORTED)
    }

    fn cuMemsetD8_v2(address: Address, value: u8, count: usize) {
        fill_now(&*context::current()?, address, u32::from(value), 1, count)
    }

    fn cuMemsetD16_v2(address: Address, value: u16, count: usize) {
        fill_now(&*context::current()?, address, u32::from(value), 2, count)
    }

    fn cuMemsetD32_v2(address: Address, value: u32, count: usize) {
        fill_now(&*context::current()?, address, value, 4, count)
    }

    fn cuMemsetD8Async(address: Address, value: u8, count: usize, stream: Handle) {
        launch_fill(&*stream::find(stream)?, address, u32::from(value), 1, count)
    }

    fn cuMemsetD16Async(address: Address, value: u16, count: usize, stream: Handle) {
        launch_fill(&*stream::find(stream)?, address, u32::from(value), 2, count)
    }

    fn cuMemsetD32Async(address: Address, value: u32, count: usize, stream: Handle) {
        launch_fill(&*stream::find(stream)?, address, value, 4, count)
    }

    /// Managed memory is where it is: a hint without effect.
    fn cuMemPrefetchAsync_v2(address: Address, _len: usize, _location: u64, _flags: u32, stream: Handle) {
        stream::find(stream)?;
        memory::find(address).filter(|allocation| allocation.is_managed()).map(drop).ok_or(INVALID_VALUE)
    }

    /// Managed memory is where it is: a hint without effect.
    fn cuMemAdvise_v2(address: Address, _len: usize, _advice: i32, _location: u64) {
        context::current()?;
        memory::find(address).filter(|allocation| allocation.is_managed()).map(drop).ok_or(INVALID_VALUE)
    }
}
