//! Host memory that the GPU may copy from and to while the CPU goes on.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::api::call;
use super::context::Context;
use crate::error::Result;
use crate::memory::HostMemory;

/// Page-aligned host memory, registered with the driver.
///
/// Registered rather than allocated by the driver: `cuMemHostAlloc` does not promise the page alignment that direct
/// I/O needs, and the write-combined kind is very slow to read back.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    memory: ManuallyDrop<HostMemory>,
}

impl PinnedMemory {
    /// Registers all of `memory`, which comes back where the driver refuses.
    pub(crate) fn register(
        context: &Arc<Context>,
        memory: HostMemory,
    ) -> std::result::Result<Self, (HostMemory, crate::Error)> {
        let outcome = context.enter().and_then(|api| Self::try_register(context, &api, &memory));
        match outcome {
            Ok(()) => Ok(Self { context: Arc::clone(context), memory: ManuallyDrop::new(memory) }),
            Err(error) => Err((memory, error)),
        }
    }

    fn try_register(context: &Context, api: &super::api::Api, memory: &HostMemory) -> Result<()> {
        let start = memory.as_ptr().cast::<c_void>();
        // SAFETY: the range is one mapping, and stays mapped until it is unregistered in `drop`.
        let outcome = unsafe { call!(api, cuMemHostRegister_v2(start, memory.len(), 0)) };
        context.check(outcome, format_args!("pinning {} bytes of host memory", memory.len()))
    }

    pub(crate) fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let start = self.memory.as_ptr().cast::<c_void>();
        // SAFETY: registered in `register` and unregistered once, here. No copy is in flight: each owns its slot, and
        // each slot shares this.
        let unregistered = self.context.release(|api| unsafe { call!(api, cuMemHostUnregister(start)) });
        if unregistered {
            // SAFETY: not used again. Memory that is still registered stays mapped.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
