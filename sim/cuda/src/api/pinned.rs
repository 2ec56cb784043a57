//! Pinned host memory.

use crate::call::api;
use crate::code::{INVALID_VALUE, Result};
use crate::ffi::{Address, Out};
use crate::state::{context, driver};

/// `CU_MEMHOSTALLOC_PORTABLE | _DEVICEMAP | _WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 0x07;
/// `CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP | _IOMEMORY | _READ_ONLY`.
const REGISTER_FLAGS: u32 = 0x0F;

fn allocate(address: Out<Address>, len: usize, flags: u32) -> Result {
    let context = context::current()?;
    address.check()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    address.set(driver()?.pins.allocate(context.device, context.handle, len as u64, flags)?)
}

api! {
    fn cuMemHostAlloc(address: Out<Address>, len: usize, flags: u32) {
        allocate(address, len, flags)
    }

    fn cuMemAllocHost_v2(address: Out<Address>, len: usize) {
        allocate(address, len, 0)
    }

    fn cuMemFreeHost(address: Address) {
        driver()?.pins.free(address)
    }

    fn cuMemHostRegister_v2(address: Address, len: usize, flags: u32) {
        let context = context::current()?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        driver()?.pins.register(context.device, context.handle, address, len as u64, flags)
    }

    fn cuMemHostUnregister(address: Address) {
        driver()?.pins.unregister(address)
    }

    /// Under unified addressing the device uses the host's address.
    fn cuMemHostGetDevicePointer_v2(device_address: Out<Address>, address: Address, flags: u32) {
        context::current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        driver()?.pins.find(address).ok_or(INVALID_VALUE)?;
        device_address.set(address)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, address: Address) {
        context::current()?;
        flags.set(driver()?.pins.find(address).ok_or(INVALID_VALUE)?.pin().flags)
    }
}
