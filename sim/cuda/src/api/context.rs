//! Contexts and each thread's stack of them.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::primary::KNOWN_FLAGS;
use crate::call::api;
use crate::code::{INVALID_CONTEXT, INVALID_VALUE, Result, UNSUPPORTED_LIMIT};
use crate::ffi::{Handle, In, Out};
use crate::ledger::{Entry, Kind};
use crate::state::context::{self, Context};
use crate::state::{device, thread};

/// Makes a context and makes it current.
fn create(handle: Out<Handle>, flags: u32, device: i32) -> Result {
    let device = device::by_ordinal(device)?;
    handle.check()?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let context = Context::create(device.index, flags, Some(Entry::open(Kind::Context, 0)))?;
    thread::push(context.handle)?;
    handle.set(context.handle)
}

/// The default value of a limit (`CU_LIMIT_*`).
fn default_limit(limit: i32) -> Result<usize> {
    match limit {
        0 => Ok(1 << 10),
        1 => Ok(1 << 20),
        2 => Ok(8 << 20),
        3 => Ok(2),
        4 => Ok(2_048),
        5 => Ok(64),
        6 => Ok(0),
        _ => Err(UNSUPPORTED_LIMIT),
    }
}

api! {
    fn cuCtxCreate_v2(handle: Out<Handle>, flags: u32, device: i32) {
        create(handle, flags, device)
    }

    /// Execution affinity means nothing here.
    fn cuCtxCreate_v3(handle: Out<Handle>, _affinity: In<c_void>, _count: i32, flags: u32, device: i32) {
        create(handle, flags, device)
    }

    /// The parameters, which ask for execution affinity or graphics interoperation, mean nothing here.
    fn cuCtxCreate_v4(handle: Out<Handle>, _parameters: In<c_void>, flags: u32, device: i32) {
        create(handle, flags, device)
    }

    fn cuCtxDestroy_v2(handle: Handle) {
        let context = context::find(handle)?;
        if context.is_primary() {
            return Err(INVALID_CONTEXT);
        }
        if thread::current() == handle {
            thread::pop()?;
        }
        context.destroy()
    }

    fn cuCtxGetCurrent(handle: Out<Handle>) {
        handle.set(thread::current())
    }

    fn cuCtxSetCurrent(handle: Handle) {
        if handle != 0 {
            context::find(handle)?;
        }
        thread::set_current(handle)
    }

    fn cuCtxPushCurrent_v2(handle: Handle) {
        context::find(handle)?;
        thread::push(handle)
    }

    fn cuCtxPopCurrent_v2(handle: Out<Handle>) {
        let popped = thread::pop()?;
        handle.set_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.set(context::current_whatever_its_state()?.device as i32)
    }

    fn cuCtxGetId(handle: Handle, id: Out<u64>) {
        let context = if handle == 0 { context::current_whatever_its_state()? } else { context::find(handle)? };
        id.set(context.handle)
    }

    fn cuCtxSynchronize() {
        context::current()?.synchronize()
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(context::current_whatever_its_state()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        context::current_whatever_its_state()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetApiVersion(handle: Handle, version: Out<u32>) {
        if handle != 0 {
            context::find(handle)?;
        }
        version.set(3_020)
    }

    /// The defaults; nothing here uses them.
    fn cuCtxGetLimit(value: Out<usize>, limit: i32) {
        context::current()?;
        value.set(default_limit(limit)?)
    }

    /// Accepted and forgotten: the limits are about kernels.
    fn cuCtxSetLimit(limit: i32, _value: usize) {
        context::current()?;
        default_limit(limit).map(drop)
    }

    fn cuCtxGetCacheConfig(config: Out<i32>) {
        context::current()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(_config: i32) {
        context::current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        context::current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(super::stream::GREATEST_PRIORITY);
        Ok(())
    }
}
