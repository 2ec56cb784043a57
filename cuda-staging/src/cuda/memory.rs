//! Device memory: allocation, and what the driver knows about an address.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::api::{Failure, call, code};
use super::context::Context;
use crate::error::{Error, Result};

/// An allocation of ours. Made with plain `cuMemAlloc`: memory of the stream-ordered pools is not everywhere accepted
/// by cuFile, nor by CUDA IPC.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl DeviceMemory {
    /// Allocates `len` bytes, which must not be 0.
    pub(crate) fn allocate(context: &Arc<Context>, len: u64) -> Result<Self> {
        let size =
            usize::try_from(len).map_err(|_| Error::invalid(format!("an allocation of {len} bytes")))?;
        let doing = format_args!("allocating {len} bytes on {}", context.name());
        let api = context.enter()?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: `address` is writable for the call, and the context is current.
        match unsafe { call!(api, cuMemAlloc_v2(&mut address, size)) } {
            Err(Failure { call, code: code::OUT_OF_MEMORY }) => Err(Error::OutOfMemory {
                call,
                code: code::OUT_OF_MEMORY,
                doing: doing.to_string(),
                requested: len,
                free: memory_info(context).ok().map(|(free, _)| free),
            }),
            outcome => {
                context.check(outcome, doing)?;
                Ok(Self { context: Arc::clone(context), address })
            }
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.release(|api| {
            // SAFETY: allocated in `allocate` and freed once, here. Copies in flight own the region that owns this.
            unsafe { call!(api, cuMemFree_v2(self.address)) }
        });
    }
}

/// Free and total bytes of the device.
pub(crate) fn memory_info(context: &Context) -> Result<(u64, u64)> {
    let api = context.enter()?;
    let (mut free, mut total): (usize, usize) = (0, 0);
    // SAFETY: both are writable for the call, and the context is current.
    let outcome = unsafe { call!(api, cuMemGetInfo_v2(&mut free, &mut total)) };
    context.check(outcome, format_args!("asking {} for its free memory", context.name()))?;
    Ok((free as u64, total as u64))
}

/// Copies device memory to the host and waits for it.
///
/// # Safety
/// - `from..from + into.len()` lies within a live allocation of the context's device that nothing writes meanwhile.
pub(crate) unsafe fn copy_to_host(context: &Context, from: u64, into: &mut [u8]) -> Result<()> {
    let api = context.enter()?;
    // SAFETY: `into` is writable for its length, and the call returns only when it was written; the source is the
    // caller's promise.
    let outcome =
        unsafe { call!(api, cuMemcpyDtoH_v2(into.as_mut_ptr().cast::<c_void>(), from, into.len())) };
    context.check(outcome, format_args!("copying {} bytes from {} to the host", into.len(), context.name()))
}

/// Checks that `address..address + len` is memory of the context's device, every byte of it allocated.
pub(crate) fn check_device_range(context: &Context, address: u64, len: u64) -> Result<()> {
    let end = address
        .checked_add(len)
        .ok_or_else(|| Error::invalid(format!("{len} bytes at {address:#x} exceed the address space")))?;
    let mut covered = address;
    // Usually one allocation; memory mapped piece by piece (the driver's virtual memory API) has several in a row.
    while covered < end {
        check_is_device_memory(context, covered)?;
        let (base, size) = allocation_at(context, covered)?;
        let next = base.saturating_add(size);
        if base > covered || next <= covered {
            return Err(Error::invalid(format!(
                "{len} bytes at {address:#x} are not all allocated on {}: the driver answers {size} bytes at \
                 {base:#x} for {covered:#x}",
                context.name()
            )));
        }
        covered = next;
    }
    Ok(())
}

fn check_is_device_memory(context: &Context, address: u64) -> Result<()> {
    const MEMORY_TYPE: c_uint = 2;
    const DEVICE_ORDINAL: c_uint = 9;
    const DEVICE_MEMORY: c_uint = 2;

    let mut kind: c_uint = 0;
    // SAFETY: this attribute is a C unsigned int.
    unsafe { pointer_attribute(context, ptr::from_mut(&mut kind).cast(), MEMORY_TYPE, address) }?;
    let mut ordinal: c_int = -1;
    // SAFETY: this attribute is a C int.
    unsafe { pointer_attribute(context, ptr::from_mut(&mut ordinal).cast(), DEVICE_ORDINAL, address) }?;
    if kind != DEVICE_MEMORY {
        return Err(Error::invalid(format!(
            "{address:#x} is host memory and not memory of {}",
            context.name()
        )));
    }
    if ordinal != context.ordinal() {
        return Err(Error::invalid(format!(
            "{address:#x} is memory of cuda:{ordinal} and not of {}",
            context.name()
        )));
    }
    Ok(())
}

/// # Safety
/// - `value` points to a writable value of the type that the driver documents for `attribute`.
unsafe fn pointer_attribute(
    context: &Context,
    value: *mut c_void,
    attribute: c_uint,
    address: u64,
) -> Result<()> {
    let api = context.enter()?;
    // SAFETY: the caller's promise; any integer may be asked about.
    let outcome = unsafe { call!(api, cuPointerGetAttribute(value, attribute, address)) };
    known_address(context, outcome, address)
}

/// The allocation (address and length in bytes) that holds `address`.
fn allocation_at(context: &Context, address: u64) -> Result<(u64, u64)> {
    let api = context.enter()?;
    let (mut base, mut size): (CUdeviceptr, usize) = (0, 0);
    // SAFETY: both are writable for the call; any integer may be asked about.
    let outcome = unsafe { call!(api, cuMemGetAddressRange_v2(&mut base, &mut size, address)) };
    known_address(context, outcome, address)?;
    Ok((base, size as u64))
}

/// The driver calls an address it does not know an invalid value, or not found.
fn known_address(context: &Context, outcome: std::result::Result<(), Failure>, address: u64) -> Result<()> {
    if let Err(Failure { call, code: code @ (code::INVALID_VALUE | code::NOT_FOUND) }) = outcome {
        return Err(Error::invalid(format!(
            "the driver knows no allocation at {address:#x} ({call} returned {code}); expected memory of {}",
            context.name()
        )));
    }
    context.check(outcome, format_args!("looking up {address:#x} on {}", context.name()))
}
