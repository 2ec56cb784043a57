//! The modelled driver's functions: those that this crate calls, for one device.
//!
//! # Safety
//! - For every function here: its pointers are as the driver's function of that place in the table asks.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};

use super::gpu::INVALID_VALUE;
use super::{gpu, on, quietly};
use crate::cuda::api::{Api, code};

/// The table that `cuda::driver` finds in a library elsewhere.
pub(crate) fn table() -> std::result::Result<Api, String> {
    Ok(Api {
        cuInit: init,
        cuGetErrorName: name_of_code,
        cuDeviceGetCount: device_count,
        cuDeviceGet: device,
        cuDeviceGetName: device_name,
        cuDeviceGetUuid_v2: device_uuid,
        cuDeviceGetPCIBusId: device_bus,
        cuDeviceTotalMem_v2: total_memory,
        cuDevicePrimaryCtxRetain: retain,
        cuDevicePrimaryCtxRelease_v2: release,
        cuCtxSetCurrent: set_current,
        cuThreadExchangeStreamCaptureMode: exchange_mode,
        cuMemAlloc_v2: allocate,
        cuMemFree_v2: free,
        cuMemGetInfo_v2: memory_info,
        cuMemGetAddressRange_v2: address_range,
        cuPointerGetAttribute: pointer_attribute,
        cuMemHostRegister_v2: pin,
        cuMemHostUnregister: unpin,
        cuMemcpyHtoDAsync_v2: copy_in,
        cuMemcpyDtoHAsync_v2: copy_out,
        cuMemcpyDtoH_v2: copy_out_now,
        cuMemcpyDtoDAsync_v2: copy_within,
        cuStreamCreate: make_stream,
        cuStreamDestroy_v2: destroy_stream,
        cuStreamIsCapturing: is_capturing,
        cuEventCreate: make_event,
        cuEventRecord: record,
        cuEventQuery: query,
        cuEventElapsedTime: elapsed,
        cuEventDestroy_v2: destroy_event,
    })
}

/// Writes through a pointer of the caller's.
///
/// # Safety
/// - `to` is writable.
unsafe fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    0
}

unsafe extern "C" fn init(_: c_uint) -> c_int {
    0
}

unsafe extern "C" fn name_of_code(_: c_int, _: *mut *const c_char) -> c_int {
    INVALID_VALUE
}

unsafe extern "C" fn device_count(count: *mut c_int) -> c_int {
    // SAFETY: the driver's contract, as for every pointer that this module writes through.
    unsafe { put(count, 1) }
}

unsafe extern "C" fn device(device: *mut CUdevice, _: c_int) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(device, 0) }
}

unsafe extern "C" fn device_name(name: *mut c_char, _: c_int, _: CUdevice) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(name, 0) }
}

unsafe extern "C" fn device_uuid(_: *mut CUuuid, _: CUdevice) -> c_int {
    code::NOT_SUPPORTED
}

unsafe extern "C" fn device_bus(_: *mut c_char, _: c_int, _: CUdevice) -> c_int {
    code::NOT_SUPPORTED
}

unsafe extern "C" fn total_memory(bytes: *mut usize, _: CUdevice) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(bytes, 1 << 30) }
}

unsafe extern "C" fn retain(context: *mut CUcontext, _: CUdevice) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(context, ptr::without_provenance_mut(1)) }
}

unsafe extern "C" fn release(_: CUdevice) -> c_int {
    0
}

unsafe extern "C" fn set_current(_: CUcontext) -> c_int {
    0
}

unsafe extern "C" fn exchange_mode(_: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn allocate(address: *mut CUdeviceptr, len: usize) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(address, quietly(|state| state.allocate(len))) }
}

unsafe extern "C" fn free(address: CUdeviceptr) -> c_int {
    quietly(|state| state.free(address))
}

unsafe extern "C" fn memory_info(_: *mut usize, _: *mut usize) -> c_int {
    code::NOT_SUPPORTED
}

unsafe extern "C" fn address_range(_: *mut CUdeviceptr, _: *mut usize, _: CUdeviceptr) -> c_int {
    code::NOT_SUPPORTED
}

unsafe extern "C" fn pointer_attribute(_: *mut c_void, _: c_uint, _: CUdeviceptr) -> c_int {
    code::NOT_SUPPORTED
}

unsafe extern "C" fn pin(start: *mut c_void, len: usize, _: c_uint) -> c_int {
    quietly(|state| state.pin(start.addr(), len));
    0
}

unsafe extern "C" fn unpin(start: *mut c_void) -> c_int {
    quietly(|state| state.unpin(start.addr()))
}

unsafe extern "C" fn copy_in(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream) -> c_int {
    on(stream.addr(), |state| state.copy_in(from.expose_provenance(), to, len, stream.addr()))
}

unsafe extern "C" fn copy_out(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream) -> c_int {
    on(stream.addr(), |state| state.copy_out(from, to.expose_provenance(), len, stream.addr()))
}

unsafe extern "C" fn copy_out_now(to: *mut c_void, from: CUdeviceptr, len: usize) -> c_int {
    quietly(|state| {
        // SAFETY: the driver's contract: `to` is writable for the length.
        unsafe { ptr::copy_nonoverlapping(state.device(from, len).as_ptr(), to.cast(), len) };
        0
    })
}

unsafe extern "C" fn copy_within(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) -> c_int {
    on(stream.addr(), |state| state.copy_within(from, to, len, stream.addr()))
}

unsafe extern "C" fn make_stream(stream: *mut CUstream, _: c_uint) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(stream, ptr::without_provenance_mut(gpu().stream())) }
}

unsafe extern "C" fn destroy_stream(stream: CUstream) -> c_int {
    gpu().close(stream.addr());
    0
}

unsafe extern "C" fn is_capturing(_: CUstream, status: *mut c_int) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(status, 0) }
}

unsafe extern "C" fn make_event(event: *mut CUevent, _: c_uint) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(event, ptr::without_provenance_mut(quietly(|state| state.make_event()))) }
}

unsafe extern "C" fn record(event: CUevent, stream: CUstream) -> c_int {
    on(stream.addr(), |state| state.record(event.addr(), stream.addr()))
}

unsafe extern "C" fn query(event: CUevent) -> c_int {
    gpu().query(event.addr())
}

unsafe extern "C" fn elapsed(milliseconds: *mut f32, _: CUevent, _: CUevent) -> c_int {
    // SAFETY: as in `device_count`.
    unsafe { put(milliseconds, 0.0) }
}

unsafe extern "C" fn destroy_event(event: CUevent) -> c_int {
    quietly(|state| state.destroy_event(event.addr()));
    0
}
