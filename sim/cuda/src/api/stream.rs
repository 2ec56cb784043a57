//! Streams, host functions, and memory operations in the order of a stream.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::call::api;
use crate::code::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result, STREAM_CAPTURE_ISOLATION,
};
use crate::engine::Work;
use crate::ffi::{Address, Handle, HostFunction, Out};
use crate::state::stream::{self, NON_BLOCKING, Stream};
use crate::state::{context, driver, event, memory};
use crate::{copy, process};

/// Lower numbers are greater priorities. Priorities are kept and reported; every stream has its own thread anyway.
pub(super) const GREATEST_PRIORITY: i32 = -5;

fn create(handle: Out<Handle>, flags: u32, priority: i32) -> Result {
    let context = context::current()?;
    handle.check()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(INVALID_VALUE);
    }
    handle.set(Stream::create(&context, flags, priority.clamp(GREATEST_PRIORITY, 0))?.handle)
}

/// Waits, on the stream's thread, until the 32-bit word at `address` meets the condition `flags` name.
fn wait_value(stream: Handle, address: Address, value: u32, flags: u32) -> Result {
    let stream = stream::find(stream)?;
    let condition: fn(u32, u32) -> bool = match flags & 0x3 {
        0 => |word, value| word.wrapping_sub(value) as i32 >= 0,
        1 => |word, value| word == value,
        2 => |word, value| word & value != 0,
        _ => |word, value| !(word | value) != 0,
    };
    with_word(address, |_| ()).map_err(|_| INVALID_VALUE)?;
    let health = std::sync::Arc::clone(&stream.context.health);
    stream.run(move || {
        while !with_word(address, |word| condition(word.load(Ordering::Acquire), value))? {
            health.check()?;
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    })
}

fn write_value(stream: Handle, address: Address, value: u32) -> Result {
    let stream = stream::find(stream)?;
    with_word(address, |_| ()).map_err(|_| INVALID_VALUE)?;
    stream.run(move || with_word(address, |word| word.store(value, Ordering::Release)))
}

/// Uses the word at `address`, in device or pinned memory.
fn with_word<T>(address: Address, use_it: impl FnOnce(&AtomicU32) -> T) -> Result<T> {
    if !address.is_multiple_of(4) {
        return Err(ILLEGAL_ADDRESS);
    }
    copy::with_known(address, 4, |pointer| {
        // SAFETY: four bytes at `pointer` are kept while this runs, and aligned as the address is.
        use_it(unsafe { AtomicU32::from_ptr(pointer.cast()) })
    })
}

api! {
    fn cuStreamCreate(handle: Out<Handle>, flags: u32) {
        create(handle, flags, 0)
    }

    fn cuStreamCreateWithPriority(handle: Out<Handle>, flags: u32, priority: i32) {
        create(handle, flags, priority)
    }

    /// Returns at once; pending work is finished.
    fn cuStreamDestroy_v2(handle: Handle) {
        driver()?.streams.remove(handle).ok_or(INVALID_HANDLE)?.release();
        Ok(())
    }

    fn cuStreamSynchronize(handle: Handle) {
        stream::find(handle)?.synchronize()
    }

    fn cuStreamQuery(handle: Handle) {
        let stream = stream::find(handle)?;
        if stream.queue.is_idle() { stream.context.health.check() } else { Err(NOT_READY) }
    }

    /// An event never recorded is no reason to wait.
    fn cuStreamWaitEvent(handle: Handle, event: Handle, _flags: u32) {
        let (stream, event) = (stream::find(handle)?, event::find(event)?);
        if event.is_captured() {
            return Err(STREAM_CAPTURE_ISOLATION);
        }
        match event.completion() {
            Some(completion) => stream.submit(Work::Wait(completion)),
            None => Ok(()),
        }
    }

    fn cuStreamGetCtx(handle: Handle, context: Out<Handle>) {
        context.set(stream::find_whatever_its_state(handle)?.context.handle)
    }

    fn cuStreamGetDevice(handle: Handle, device: Out<i32>) {
        device.set(stream::find_whatever_its_state(handle)?.context.device as i32)
    }

    fn cuStreamGetFlags(handle: Handle, flags: Out<u32>) {
        flags.set(stream::find_whatever_its_state(handle)?.flags)
    }

    fn cuStreamGetPriority(handle: Handle, priority: Out<i32>) {
        priority.set(stream::find_whatever_its_state(handle)?.priority)
    }

    fn cuStreamGetId(handle: Handle, id: Out<u64>) {
        id.set(stream::find_whatever_its_state(handle)?.handle)
    }


    fn cuLaunchHostFunc(
        handle: Handle, function: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void,
    ) {
        let stream = stream::find(handle)?;
        let function = HostFunction::new(function, argument)?;
        stream.run(move || {
            process::as_host_function(|| function.call());
            Ok(())
        })
    }

    fn cuStreamWaitValue32(handle: Handle, address: Address, value: u32, flags: u32) {
        wait_value(handle, address, value, flags)
    }

    fn cuStreamWaitValue32_v2(handle: Handle, address: Address, value: u32, flags: u32) {
        wait_value(handle, address, value, flags)
    }

    fn cuStreamWriteValue32(handle: Handle, address: Address, value: u32, _flags: u32) {
        write_value(handle, address, value)
    }

    fn cuStreamWriteValue32_v2(handle: Handle, address: Address, value: u32, _flags: u32) {
        write_value(handle, address, value)
    }

    /// Managed memory can be used by every stream anyway.
    fn cuStreamAttachMemAsync(handle: Handle, address: Address, _len: usize, _flags: u32) {
        stream::find(handle)?;
        memory::find(address).filter(|allocation| allocation.is_managed()).map(drop).ok_or(INVALID_VALUE)
    }
}
