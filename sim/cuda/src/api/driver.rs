//! The driver itself: start, version, error names, entry points.

use std::ffi::{c_char, c_void};

use crate::call::api;
use crate::code::{INVALID_VALUE, NOT_FOUND, Result};
use crate::ffi::{In, Out};
use crate::{names, process};

/// CUDA 13.0: the newest whose functions are here.
pub(crate) const VERSION: i32 = 13_000;

/// Functions of which several versions exist: base name, exported name, the CUDA version that brought it. Newest first.
const VERSIONED: &[(&str, &str, i32)] = &[
    ("cuCtxCreate", "cuCtxCreate_v4", 12_050),
    ("cuCtxCreate", "cuCtxCreate_v3", 11_040),
    ("cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11_040),
    ("cuDeviceGetUuid", "cuDeviceGetUuid", 9_020),
    ("cuEventElapsedTime", "cuEventElapsedTime_v2", 12_080),
    ("cuEventElapsedTime", "cuEventElapsedTime", 2_000),
    ("cuGetProcAddress", "cuGetProcAddress_v2", 12_000),
    ("cuGetProcAddress", "cuGetProcAddress", 11_030),
    ("cuMemAdvise", "cuMemAdvise_v2", 12_020),
    ("cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12_020),
    ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", 13_000),
    ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync", 12_080),
    ("cuStreamWaitValue32", "cuStreamWaitValue32_v2", 11_070),
    ("cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11_070),
];

/// `CU_GET_PROC_ADDRESS_SUCCESS`, `_SYMBOL_NOT_FOUND`, `_VERSION_NOT_SUFFICIENT`.
const FOUND: i32 = 0;
const SYMBOL_NOT_FOUND: i32 = 1;
const VERSION_NOT_SUFFICIENT: i32 = 2;

/// The function called `name` in CUDA `version`, or why there is none.
fn entry_point(name: &str, version: i32) -> Result<*mut c_void, i32> {
    let mut versions = VERSIONED.iter().filter(|entry| entry.0 == name).peekable();
    if versions.peek().is_some() {
        let fitting = versions.find(|entry| entry.2 <= version).ok_or(VERSION_NOT_SUFFICIENT)?;
        return process::symbol(fitting.1).ok_or(SYMBOL_NOT_FOUND);
    }
    if name.is_empty() || !name.starts_with("cu") || name.starts_with("cuda_") {
        return Err(SYMBOL_NOT_FOUND);
    }
    // Everything else has the same signature under its base name and its one version.
    process::symbol(&format!("{name}_v2")).or_else(|| process::symbol(name)).ok_or(SYMBOL_NOT_FOUND)
}

api! {
    always:

    /// Starts the driver. A wrong `CUDA_SIM_*` setting is reported on stderr and is an invalid value here.
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        process::initialise()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn cuGetErrorName(code: i32, name: Out<*const c_char>) {
        let found = names::name(code);
        name.set(found.map_or(std::ptr::null(), |name| name.as_ptr()))?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(code: i32, text: Out<*const c_char>) {
        let found = names::description(code);
        text.set(found.map_or(std::ptr::null(), |text| text.as_ptr()))?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetProcAddress(name: In<c_char>, function: Out<*mut c_void>, version: i32, _flags: u64) {
        let found = entry_point(&name.text()?, version);
        function.set(found.unwrap_or(std::ptr::null_mut()))?;
        found.map(drop).map_err(|_| NOT_FOUND)
    }

    fn cuGetProcAddress_v2(
        name: In<c_char>, function: Out<*mut c_void>, version: i32, _flags: u64, status: Out<i32>,
    ) {
        let found = entry_point(&name.text()?, version);
        status.set_if_wanted(found.err().unwrap_or(FOUND));
        function.set(found.unwrap_or(std::ptr::null_mut()))?;
        found.map(drop).map_err(|_| NOT_FOUND)
    }

    /// The CUDA runtime's private tables are not there.
    fn cuGetExportTable(table: Out<*const c_void>, _id: In<[u8; 16]>) {
        table.set(std::ptr::null())?;
        Err(NOT_FOUND)
    }

}

api! {
    fn cuProfilerStart() { Ok(()) }

    fn cuProfilerStop() { Ok(()) }
}
