//! Events.

use crate::call::api;
use crate::code::{CAPTURED_EVENT, INVALID_HANDLE, NOT_READY, Result};
use crate::ffi::{Handle, Out};
use crate::state::event::{self, Event};
use crate::state::{context, driver, stream};

fn record(event: Handle, stream: Handle) -> Result {
    let stream = stream::find(stream)?;
    event::find(event)?.record(&stream)
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Result {
    milliseconds.set(event::find(start)?.milliseconds_until(&*event::find(end)?)?)
}

api! {
    fn cuEventCreate(handle: Out<Handle>, flags: u32) {
        let context = context::current()?;
        handle.check()?;
        handle.set(Event::create(context.handle, flags)?.handle)
    }

    fn cuEventDestroy_v2(handle: Handle) {
        driver()?.events.remove(handle).ok_or(INVALID_HANDLE)?.entry.release();
        Ok(())
    }

    fn cuEventRecord(handle: Handle, stream: Handle) {
        record(handle, stream)
    }

    fn cuEventRecordWithFlags(handle: Handle, stream: Handle, _flags: u32) {
        record(handle, stream)
    }

    fn cuEventQuery(handle: Handle) {
        let event = event::find(handle)?;
        if event.is_captured() {
            return Err(CAPTURED_EVENT);
        }
        let complete = event.is_complete();
        context::find(event.context)?.health.check()?;
        if complete { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize(handle: Handle) {
        let event = event::find(handle)?;
        if event.is_captured() {
            return Err(CAPTURED_EVENT);
        }
        if let Some(completion) = event.completion() {
            completion.wait();
        }
        context::find(event.context)?.health.check()
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }
}
