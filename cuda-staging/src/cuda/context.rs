//! One device's primary context: what every other object of the driver belongs to.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Display};
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUcontext, CUdevice, CUuuid};
use uuid::Uuid;

use super::api::{Api, Failure, call, code};
use super::capture::Relaxed;
use super::probe::Driver;
use crate::error::{Error, Result};

/// What is being done where a thread's mode is set.
const CAPTURE_MODE: &str = "keeping calls out of a graph that is being captured";

/// What can be asked of a device before its context is made.
pub(crate) struct Attributes {
    device: CUdevice,
    pub(crate) name: String,
    pub(crate) uuid: Option<Uuid>,
    pub(crate) pci_bus_id: Option<String>,
    pub(crate) total_memory: u64,
}

impl Attributes {
    pub(crate) fn read(driver: &Driver, index: u32) -> Result<Self> {
        let error = |failure| driver.error(failure, format_args!("reading the attributes of cuda:{index}"));
        // An attribute the driver does not have is absent; any other failure is a failure.
        let optional = |outcome| match outcome {
            Err(Failure { code: code::NOT_SUPPORTED, .. }) => Ok(false),
            Err(failure) => Err(error(failure)),
            Ok(()) => Ok(true),
        };
        let ordinal = c_int::try_from(index).map_err(|_| Error::invalid(format!("device index {index}")))?;
        let mut device: CUdevice = 0;
        // SAFETY: `device` is writable for the call.
        unsafe { call!(driver.api, cuDeviceGet(&mut device, ordinal)) }.map_err(error)?;

        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer is writable for the length given.
        unsafe { call!(driver.api, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)) }
            .map_err(error)?;

        let mut total: usize = 0;
        // SAFETY: `total` is writable for the call.
        unsafe { call!(driver.api, cuDeviceTotalMem_v2(&mut total, device)) }.map_err(error)?;

        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is writable for the call.
        let uuid = optional(unsafe { call!(driver.api, cuDeviceGetUuid_v2(&mut uuid, device)) })?
            .then(|| Uuid::from_bytes(uuid.bytes.map(|byte| byte as u8)));

        let mut bus = [0 as c_char; 32];
        // SAFETY: the buffer is writable for the length given.
        let bus_id =
            unsafe { call!(driver.api, cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, device)) };
        let pci_bus_id = optional(bus_id)?.then(|| text(&bus));

        Ok(Self { device, name: text(&name), uuid, pci_bus_id, total_memory: total as u64 })
    }
}

/// The text of a buffer that a C function wrote, up to its NUL or to its end.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).into_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// A retained primary context, released when the last object made in it is gone.
pub(crate) struct Context {
    driver: &'static Driver,
    device: CUdevice,
    raw: CUcontext,
    name: String,
    /// The text of the first failure that broke the context.
    poison: OnceLock<String>,
}

// SAFETY: a context is a handle that the driver lets any thread use and release; `raw` is never dereferenced here.
unsafe impl Send for Context {}
// SAFETY: as above; every driver call is thread-safe, and the only state of ours is a `OnceLock`.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .field("poison", &self.poison)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Retains the primary context of the device of `attributes`, which were read before: a failure to read them
    /// has nothing to release.
    pub(crate) fn retain(driver: &'static Driver, attributes: &Attributes, index: u32) -> Result<Arc<Self>> {
        let mut raw: CUcontext = ptr::null_mut();
        // Where that is refused, the call says what it is worth.
        let _relaxed = Relaxed::begin(&driver.api);
        // SAFETY: `raw` is writable for the call, and the device is one that the driver gave.
        unsafe { call!(driver.api, cuDevicePrimaryCtxRetain(&mut raw, attributes.device)) }
            .map_err(|failure| driver.error(failure, format_args!("making the context of cuda:{index}")))?;
        let device = attributes.device;
        Ok(Arc::new(Self { driver, device, raw, name: format!("cuda:{index}"), poison: OnceLock::new() }))
    }

    /// The device's number among those visible.
    pub(crate) fn ordinal(&self) -> CUdevice {
        self.device
    }

    /// `cuda:N`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the context may still be used: not in a forked child, not after a failure that broke it.
    pub(crate) fn health(&self) -> Result<()> {
        if self.driver.is_forked() {
            return Err(Error::Forked);
        }
        match self.poison.get() {
            Some(first) => Err(Error::Poisoned { device: self.name.clone(), first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Makes the context current on this thread, for others to find it there.
    pub(crate) fn make_current(&self) -> Result<()> {
        self.enter().map(|_| ())
    }

    /// Makes the context current on this thread, whose calls are no part of a capture until what is returned is dropped.
    /// Every call but a release comes through here first, because workers, and callers with contexts of their own, share
    /// the process.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        self.health()?;
        // SAFETY: `raw` is retained until `self` is dropped.
        let current = unsafe { call!(self.driver.api, cuCtxSetCurrent(self.raw)) };
        self.check(current, format_args!("making {} current on this thread", self.name))?;
        let relaxed = match Relaxed::begin(&self.driver.api) {
            // A refusal matters only where there is a capture, and the calls meet that then.
            Err(failure) if failure.leaves_the_context_sound() => None,
            begun => Some(self.check(begun, CAPTURE_MODE)?),
        };
        Ok(Entered { context: self, relaxed })
    }

    /// The error for a failure.
    pub(super) fn error(&self, failure: Failure, doing: impl Display) -> Error {
        self.driver.error(failure, doing)
    }

    /// Turns a failure into an error, and poisons the context if the code may mean that it is broken.
    pub(super) fn check<T>(
        &self,
        outcome: std::result::Result<T, Failure>,
        doing: impl Display,
    ) -> Result<T> {
        outcome.map_err(|failure| {
            let error = self.error(failure, doing);
            if !failure.leaves_the_context_sound() {
                self.poison(&error);
            }
            error
        })
    }

    /// Records that the context is not to be used any more. The first reason stays. A forked child has no need of it.
    pub(crate) fn poison(&self, reason: &Error) {
        if !self.driver.is_forked() && self.poison.set(reason.to_string()).is_ok() {
            tracing::error!(device = self.name, %reason, "the device is poisoned");
        }
    }

    /// Makes the context current for a release: also when poisoned, but not in a forked child. Where the driver
    /// refuses, the release is tried all the same: the context is nearly always current already.
    pub(super) fn enter_to_release(&self) -> Option<Entered<'_>> {
        if self.driver.is_forked() {
            return None;
        }
        // SAFETY: `raw` is retained until `self` is dropped.
        if let Err(failure) = unsafe { call!(self.driver.api, cuCtxSetCurrent(self.raw)) } {
            tracing::warn!(device = self.name, code = failure.code, "{} failed", failure.call);
        }
        Some(Entered { context: self, relaxed: Relaxed::begin(&self.driver.api).ok() })
    }

    /// Releases something made in this context, from a `Drop`; never panics. False where it was not released: the
    /// failure is recorded, and only that thing is left.
    pub(super) fn release(&self, release: impl FnOnce(&Api) -> std::result::Result<(), Failure>) -> bool {
        let Some(api) = self.enter_to_release() else { return false };
        release(&api)
            .inspect_err(|failure| {
                tracing::warn!(
                    device = self.name,
                    code = failure.code,
                    "{} failed; it is left behind",
                    failure.call
                );
            })
            .is_ok()
    }
}

/// The driver's functions, with a context current on this thread.
pub(super) struct Entered<'c> {
    context: &'c Context,
    /// `None` where the driver refused.
    relaxed: Option<Relaxed<'c>>,
}

impl Deref for Entered<'_> {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.context.driver.api
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let ended = self.relaxed.as_mut().map_or(Ok(()), Relaxed::end);
        // Poisons where that may mean a broken context; else there is nothing to tell anybody.
        drop(self.context.check(ended, CAPTURE_MODE));
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.is_forked() {
            return;
        }
        let _relaxed = Relaxed::begin(&self.driver.api);
        // SAFETY: retained once in `retain` and released once, here; nothing made in it is left, since each holds it.
        if let Err(failure) = unsafe { call!(self.driver.api, cuDevicePrimaryCtxRelease_v2(self.device)) } {
            tracing::warn!(device = self.name, code = failure.code, "{} failed", failure.call);
        }
    }
}
