//! What somebody else's stream has still to do.

use std::fmt;

use crate::cuda::{Event, RawStream, is_captured};
use crate::device::Device;
use crate::error::{Error, Result};

/// The work that was on a stream of the caller's at one moment.
///
/// How long it takes is the caller's to know: a stream may wait for another process for minutes. So it is waited for here,
/// before anything of ours is enqueued, and never by a stream of ours: a wait that is given up leaves nothing in flight, and
/// the device as it was.
pub struct Pending {
    event: Event,
    /// Last: released after what was made on it.
    device: Device,
}

impl Pending {
    /// # Safety
    /// - `stream` is null or a live stream of this device.
    pub(crate) unsafe fn on(device: &Device, stream: RawStream) -> Result<Self> {
        let context =
            device.context().ok_or_else(|| Error::invalid("the CPU device has no streams to wait for"))?;
        // SAFETY: the caller's promise.
        if unsafe { is_captured(context, stream) }? {
            return Err(Error::invalid(
                "the stream to wait for is being captured for a graph: what is captured does not run; end the capture first",
            ));
        }
        let event = Event::new(context)?;
        // SAFETY: the caller's promise.
        unsafe { event.record(stream) }?;
        Ok(Self { event, device: device.clone() })
    }

    /// Waits until the work is over, however long that takes, or until `go_on`, which is asked many times a second, says
    /// false. Whether it is over.
    ///
    /// # Errors
    /// Those of the driver. That the wait was given up is none.
    pub fn wait(&self, mut go_on: impl FnMut() -> bool) -> Result<bool> {
        let well = || self.device.health().is_ok();
        let over =
            self.event.is_over(|| well() && go_on(), "waiting for the work on a stream of the caller's")?;
        self.device.health().map(|()| over)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("device", &self.device).finish_non_exhaustive()
    }
}
