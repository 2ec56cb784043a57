//! Access between devices: every two different devices can.

use crate::call::api;
use crate::code::{
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
};
use crate::ffi::{Handle, Out};
use crate::state::{context, device};
use crate::sync::lock;

api! {
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let (device, peer) = (device::by_ordinal(device)?, device::by_ordinal(peer)?);
        can.set(i32::from(device.index != peer.index))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) {
        let (device, peer) = (device::by_ordinal(device)?, device::by_ordinal(peer)?);
        if device.index == peer.index {
            return Err(INVALID_DEVICE);
        }
        match attribute {
            // PERFORMANCE_RANK, NATIVE_ATOMIC_SUPPORTED, CUDA_ARRAY_ACCESS_SUPPORTED
            1 | 3 | 4 => value.set(0),
            // ACCESS_SUPPORTED
            2 => value.set(1),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let context = context::current()?;
        let peer = context::find(peer)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer.handle == context.handle {
            return Err(INVALID_CONTEXT);
        }
        if peer.device == context.device {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if lock(&context.peers).insert(peer.handle) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let context = context::current()?;
        context::find(peer)?;
        if lock(&context.peers).remove(&peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }
}
