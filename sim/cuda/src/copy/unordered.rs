//! Memory reached from the host at once, unordered with every stream.

use super::memory::look_up;
use crate::code::Result;
use crate::ffi::Address;

/// Uses `len` bytes of memory that CUDA knows.
pub(crate) fn with_known<T>(address: Address, len: usize, use_it: impl FnOnce(*mut u8) -> T) -> Result<T> {
    let memory = look_up(address, len)?;
    memory.pointer().map(use_it)
}

/// Writes device memory from the host, unordered with every stream.
///
/// # Safety
/// - The `len` bytes at `from` can be read, and stay as they are meanwhile.
pub(crate) unsafe fn write_unordered(to: Address, from: *const u8, len: usize) -> Result {
    // SAFETY: looked up with `len` bytes; the source by the caller's promise.
    unsafe { look_up(to, len)?.write(from, len) }
}

/// Reads device memory from the host, unordered with every stream.
///
/// # Safety
/// - The `len` bytes at `to` can be written, and nothing else uses them meanwhile.
pub(crate) unsafe fn read_unordered(to: *mut u8, from: Address, len: usize) -> Result {
    // SAFETY: looked up with `len` bytes; the destination by the caller's promise.
    unsafe { look_up(from, len)?.read(to, len) }
}
