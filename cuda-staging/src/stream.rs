//! A stream of its own.

use std::ffi::c_void;
use std::fmt;
use std::time::Duration;

use crate::cuda::{self, Event};
use crate::device::Device;
use crate::error::Result;

/// A stream that is not synchronised with the default stream. On the CPU device everything is done at once, and
/// there is nothing to wait for.
pub struct Stream {
    /// Before the device, which is then released last.
    lane: Option<Lane>,
    device: Device,
}

/// A stream and an event for waiting.
struct Lane {
    stream: cuda::Stream,
    event: Event,
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let lane = match device.context() {
            Some(context) => Some(Lane { stream: cuda::Stream::new(context)?, event: Event::new(context)? }),
            None => None,
        };
        Ok(Self { lane, device: device.clone() })
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's handle (`CUstream`), valid as long as this value; None on the CPU device.
    pub fn raw(&self) -> Option<*mut c_void> {
        self.lane.as_ref().map(|lane| lane.stream.raw().cast())
    }

    /// Waits until all that is enqueued is done, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut), which poisons the device; those of the driver.
    pub fn synchronize(&mut self, limit: Duration) -> Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        lane.stream.record(&lane.event)?;
        lane.event.wait(limit, "waiting for a stream")
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device).field("raw", &self.raw()).finish()
    }
}
