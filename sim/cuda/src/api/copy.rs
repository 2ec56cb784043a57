//! Copies. All forms go the same way and are equally fast.

use crate::call::api;
use crate::code::{Code, INVALID_VALUE, Result};
use crate::copy::{Form, launch, launch_during_call, now};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::{context, stream};

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

/// `CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL`: the source may be changed when the call returns.
const DURING_CALL: i32 = 2;
/// `_STREAM` (1) and `_ANY` (3) are the others.
const ORDERS: std::ops::RangeInclusive<i32> = 1..=3;

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
            let mut one = || {
                if attribute + 1 < self.attribute_count && self.starts.at(attribute + 1)? == index {
                    attribute += 1;
                }
                let order = self.attributes.at(attribute)?.source_access_order;
                if !ORDERS.contains(&order) {
                    return Err(INVALID_VALUE);
                }
                let (to, from, len) = (self.to.at(index)?, self.from.at(index)?, self.lengths.at(index)?);
                if order == DURING_CALL {
                    launch_during_call(&stream, to, from, len)
                } else {
                    launch(&stream, to, from, len, Form::Any)
                }
            };
            one().map_err(|code| (index, code))?;
        }
        Ok(())
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
