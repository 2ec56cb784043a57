//! A stream of its own, and streams of others.

use std::ffi::c_void;
use std::fmt;
use std::time::Duration;

use crate::cuda::{self, Event};
use crate::device::Device;
use crate::error::{Error, Result};

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

    /// Lets what is enqueued from now on wait for the work that is on another stream now (`CUstream`; null is the default
    /// stream).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on the CPU device; those of the driver.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of this device.
    pub unsafe fn wait_for(&mut self, stream: *mut c_void) -> Result<()> {
        match &self.lane {
            // SAFETY: the caller's promise.
            Some(lane) => unsafe { lane.stream.wait_for(stream.cast(), &lane.event) },
            None => Err(Error::invalid("the CPU device has no streams to wait for")),
        }
    }

    /// Waits until all that is enqueued is done, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of the driver; either poisons the device.
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
