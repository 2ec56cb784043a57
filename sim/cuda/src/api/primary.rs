//! The devices' primary contexts.

use std::sync::atomic::Ordering;

use crate::call::api;
use crate::code::INVALID_VALUE;
use crate::ffi::{Handle, Out};
use crate::state::device;
use crate::sync::lock;

/// Every `CU_CTX_*` flag there is.
pub(super) const KNOWN_FLAGS: u32 = 0xFF;

api! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        let device = device::by_ordinal(device)?;
        context.check()?;
        context.set(device.retain_primary()?.handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        device::by_ordinal(device)?.release_primary()
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        device::by_ordinal(device)?.reset_primary()
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let primary = lock(&device::by_ordinal(device)?.primary);
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some()))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        let mut primary = lock(&device::by_ordinal(device)?.primary);
        if flags & !KNOWN_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }
}
