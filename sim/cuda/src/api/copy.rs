//! Copies. All forms go the same way and are equally fast.

use crate::call::api;
use crate::code::{Code, INVALID_VALUE, Result};
use crate::copy::{Form, launch, launch_during_call, now};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::context;
use crate::state::stream::{self, Stream};

fn copy_now(to: Address, from: Address, len: usize, form: Form) -> Result {
    now(&context::current()?, to, from, len, form)
}

fn copy_async(to: Address, from: Address, len: usize, stream: Handle, form: Form) -> Result {
    launch(&*stream::find(stream)?, to, from, len, form)
}

/// `CUmemcpyAttributes`, whose location hints mean nothing here.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyAttributes {
    source_access_order: i32,
    source_location: [i32; 2],
    destination_location: [i32; 2],
    flags: u32,
}

/// When the source is read (`CU_MEMCPY_SRC_ACCESS_ORDER_*`): when the stream gets there.
const IN_STREAM_ORDER: i32 = 1;
/// It may be changed when the call returns.
const DURING_CALL: i32 = 2;
/// At any time: here as late as possible.
const IN_ANY_ORDER: i32 = 3;

/// The arguments of a batch.
struct Batch {
    to: In<Address>,
    from: In<Address>,
    lengths: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    /// The first copy that each of the attributes is for.
    starts: In<usize>,
    attribute_count: usize,
}

impl Batch {
    /// Launches the copies in order; on failure tells which one failed.
    fn launch(&self, stream: Handle) -> Result<(), (usize, Code)> {
        let everywhere = |code| (usize::MAX, code);
        // The legacy default stream is not allowed.
        if matches!(stream, 0 | 1) || self.count == 0 || !(1..=self.count).contains(&self.attribute_count) {
            return Err(everywhere(INVALID_VALUE));
        }
        let stream = stream::find(stream).map_err(everywhere)?;
        if self.starts.at(0).map_err(everywhere)? != 0 {
            return Err(everywhere(INVALID_VALUE));
        }
        let mut attribute = 0;
        for index in 0..self.count {
            self.launch_one(&stream, index, &mut attribute).map_err(|code| (index, code))?;
        }
        Ok(())
    }

    /// Launches the copy at `index`; `attribute` goes on to the next where that starts here.
    fn launch_one(&self, stream: &Stream, index: usize, attribute: &mut usize) -> Result {
        if *attribute + 1 < self.attribute_count && self.starts.at(*attribute + 1)? == index {
            *attribute += 1;
        }
        let (to, from, len) = (self.to.at(index)?, self.from.at(index)?, self.lengths.at(index)?);
        match self.attributes.at(*attribute)?.source_access_order {
            IN_STREAM_ORDER | IN_ANY_ORDER => launch(stream, to, from, len, Form::Any),
            DURING_CALL => launch_during_call(stream, to, from, len),
            _ => Err(INVALID_VALUE),
        }
    }
}

api! {
    fn cuMemcpy(to: Address, from: Address, len: usize) {
        copy_now(to, from, len, Form::Any)
    }

    fn cuMemcpyHtoD_v2(to: Address, from: Address, len: usize) {
        copy_now(to, from, len, Form::HostToDevice)
    }

    fn cuMemcpyDtoH_v2(to: Address, from: Address, len: usize) {
        copy_now(to, from, len, Form::DeviceToHost)
    }

    fn cuMemcpyDtoD_v2(to: Address, from: Address, len: usize) {
        copy_now(to, from, len, Form::DeviceToDevice)
    }

    fn cuMemcpyAsync(to: Address, from: Address, len: usize, stream: Handle) {
        copy_async(to, from, len, stream, Form::Any)
    }

    fn cuMemcpyHtoDAsync_v2(to: Address, from: Address, len: usize, stream: Handle) {
        copy_async(to, from, len, stream, Form::HostToDevice)
    }

    fn cuMemcpyDtoHAsync_v2(to: Address, from: Address, len: usize, stream: Handle) {
        copy_async(to, from, len, stream, Form::DeviceToHost)
    }

    fn cuMemcpyDtoDAsync_v2(to: Address, from: Address, len: usize, stream: Handle) {
        copy_async(to, from, len, stream, Form::DeviceToDevice)
    }

    fn cuMemcpyPeer(to: Address, to_context: Handle, from: Address, from_context: Handle, len: usize) {
        context::find(to_context)?;
        context::find(from_context)?;
        copy_now(to, from, len, Form::DeviceToDevice)
    }

    fn cuMemcpyPeerAsync(
        to: Address, to_context: Handle, from: Address, from_context: Handle, len: usize, stream: Handle,
    ) {
        context::find(to_context)?;
        context::find(from_context)?;
        copy_async(to, from, len, stream, Form::DeviceToDevice)
    }

    fn cuMemcpyBatchAsync(
        to: In<Address>, from: In<Address>, lengths: In<usize>, count: usize, attributes: In<CopyAttributes>,
        starts: In<usize>, attribute_count: usize, failed: Out<usize>, stream: Handle,
    ) {
        let batch = Batch { to, from, lengths, count, attributes, starts, attribute_count };
        batch.launch(stream).map_err(|(index, code)| {
            failed.set_if_wanted(index);
            code
        })
    }

    fn cuMemcpyBatchAsync_v2(
        to: In<Address>, from: In<Address>, lengths: In<usize>, count: usize, attributes: In<CopyAttributes>,
        starts: In<usize>, attribute_count: usize, stream: Handle,
    ) {
        let batch = Batch { to, from, lengths, count, attributes, starts, attribute_count };
        batch.launch(stream).map_err(|(_, code)| code)
    }
}
