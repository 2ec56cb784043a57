//! Memory shared between processes: the other one opens the exporter's memfd through /proc.

use std::fs::OpenOptions;
use std::process;
use std::sync::Arc;

use crate::call::api;
use crate::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use crate::ffi::{Address, Handle, Out};
use crate::state::memory::{self, Origin};
use crate::state::vram::Mapping;
use crate::state::{context, device, driver};

/// `CUipcMemHandle`: 64 bytes, of which these are used.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryHandle {
    magic: u64,
    process: u32,
    descriptor: i32,
    offset: u64,
    mapped: u64,
    len: u64,
    device: u64,
    unused: [u64; 2],
}

const MAGIC: u64 = u64::from_le_bytes(*b"cuda-sim");

/// Maps the exporter's memory.
fn open(handle: &MemoryHandle) -> Result<Mapping> {
    if handle.magic != MAGIC || handle.len > handle.mapped {
        return Err(INVALID_HANDLE);
    }
    if handle.process == process::id() {
        return Err(INVALID_CONTEXT);
    }
    let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        eprintln!("cuda-sim: opening another process's memory, {path}: {error}");
        OPERATING_SYSTEM
    })?;
    Mapping::new(&Arc::new(file), handle.offset, handle.mapped, false)
}

api! {
    fn cuIpcGetMemHandle(handle: Out<MemoryHandle>, address: Address) {
        context::current()?;
        let found = memory::find(address).filter(|found| found.origin == Origin::Device).ok_or(INVALID_VALUE)?;
        handle.set(MemoryHandle {
            magic: MAGIC,
            process: process::id(),
            descriptor: device::find(found.device)?.memory.descriptor()?,
            offset: found.mapping.offset,
            mapped: found.mapping.len,
            len: found.len,
            device: found.device as u64,
            unused: [0; 2],
        })
    }

    fn cuIpcOpenMemHandle_v2(address: Out<Address>, handle: MemoryHandle, _flags: u32) {
        let context = context::current()?;
        address.check()?;
        let mapping = open(&handle)?;
        let device = device::find(handle.device as usize).map_or(context.device, |device| device.index);
        address.set(driver()?.memory.insert(device, context.handle, handle.len, Origin::Ipc, mapping))
    }

    fn cuIpcCloseMemHandle(address: Address) {
        driver()?.memory.free(address, |allocation| allocation.origin == Origin::Ipc)
    }

    /// Events are not shared between processes.
    fn cuIpcGetEventHandle(_handle: Out<[u8; 64]>, _event: Handle) {
        Err(NOT_SUPPORTED)
    }

    /// Events are not shared between processes.
    fn cuIpcOpenEventHandle(event: Out<Handle>, _handle: EventHandle) {
        event.set(0)?;
        Err(NOT_SUPPORTED)
    }
}

/// `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EventHandle([u64; 8]);
