//! The driver: opened once per process, in one mode, and shared.
//!
//! The library keeps one driver per process, whose mode is fixed when it opens. So the first use decides, later ones
//! share it, and it stays open until somebody says [`Driver::close`]: closing it from a destructor at exit, with CUDA
//! torn down already, has crashed programs. What it would leave on the machine then is removed without it (`segment`).
//!
//! Opening is the one call that is known not to return (NVIDIA's 1.20 where `/proc/modules` is missing), so it is looked
//! at first whether it can, and it runs on a thread of its own with a limit. A time-out is remembered: that thread spins
//! on, and a second attempt would only spin too.

mod open;
mod segment;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_staging::Device;
use cufile_sys::{Failure, Status};

use super::error::{CuFileError, CuFileResult};
use super::library::{Entered, Library};
use super::settings::DriverSettings;

pub(super) use open::{bounded, is_a_parents};
pub(super) use segment::make_room;

/// How the driver moves bytes, for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Compatibility mode is not allowed: bytes go straight between storage and GPU, or opening fails. The library may
    /// still serve single requests by the host; only its statistics tell.
    Direct,
    /// Compatibility mode is forced: every byte bounces through the host.
    Compat,
    /// As the library's configuration says; where the driver is open already, in the mode it is in.
    Default,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "compatibility mode not allowed",
            Self::Compat => "compatibility mode forced",
            Self::Default => "the mode of its configuration",
        })
    }
}

/// cuFile's driver, open. Cheap to clone; every file, buffer, batch and stream holds one.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
    /// The device whose context is current where host memory is transferred: the library pins it there.
    device: Device,
}

struct Inner {
    library: Library,
    mode: Mode,
    /// Whether the library said that compatibility mode is off.
    compat_ruled_out: bool,
    opened_in: Duration,
    /// The process that opened it.
    process: u32,
    /// Somebody else closed it: what was registered is registered no more.
    closed: AtomicBool,
    poison: OnceLock<String>,
}

impl Driver {
    /// Opens the driver in `mode`, or shares the one that is open.
    ///
    /// # Errors
    /// - [`CuFileError::Unavailable`] where there is no library, no CUDA driver or device, no `/proc/modules`, or opening
    ///   fails: with code 5001 where direct mode was asked for and the machine has no GPUDirect Storage.
    /// - [`CuFileError::WrongMode`] where it is open in another mode.
    /// - [`CuFileError::TimedOut`] where opening did not end in time, now or before; [`CuFileError::Poisoned`] after an
    ///   operation that never ended; [`CuFileError::Forked`] in the child of a process that opened it.
    pub fn open(mode: Mode) -> CuFileResult<Self> {
        Self::open_with(mode, &DriverSettings::new())
    }

    pub(super) fn open_with(mode: Mode, settings: &DriverSettings) -> CuFileResult<Self> {
        open::open(mode, settings)
    }

    /// Closes the driver, if this is the last handle to it and nothing else holds one. A later opening may choose
    /// another mode. Not needed at the end of a process.
    ///
    /// # Errors
    /// [`CuFileError::InUse`] where other handles, files, buffers, batches or streams exist, with this handle back; those
    /// of the library, after which the driver counts as closed.
    pub fn close(self) -> CuFileResult<(), (Self, CuFileError)> {
        open::close(self)
    }

    /// The library.
    pub fn library(&self) -> Library {
        self.inner.library
    }

    /// The mode it was opened in.
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Whether compatibility mode was switched off by parameter. A library before 1.14 has no such parameter: its direct
    /// mode only means that nvidia-fs answered.
    pub fn is_compat_ruled_out(&self) -> bool {
        self.inner.compat_ruled_out
    }

    /// Why no statistics are kept though they were asked for, where that can be seen.
    pub(crate) fn obstacle_to_statistics(&self) -> Option<String> {
        segment::obstacle()
    }

    /// How long opening took.
    pub fn opened_in(&self) -> Duration {
        self.inner.opened_in
    }

    /// Whether the driver can be used: not in a forked child, not after an operation that never ended, not once it was
    /// closed.
    ///
    /// # Errors
    /// [`CuFileError::Forked`], [`CuFileError::Poisoned`] and [`CuFileError::Closed`].
    pub fn health(&self) -> CuFileResult<()> {
        self.enter().map(|_| ())
    }

    /// The functions, for calls, if the driver can be used.
    pub(super) fn enter(&self) -> CuFileResult<Entered> {
        let inner = &self.inner;
        if inner.is_forked() {
            return Err(CuFileError::Forked);
        }
        if let Some(first) = inner.poison.get() {
            return Err(CuFileError::Poisoned { first: first.clone() });
        }
        let library = inner.library.enter()?;
        // Asked each time, though it costs a call: a read with a closed driver opens it again, in whatever mode.
        if self.is_closed() {
            return Err(CuFileError::Closed { doing: "using cuFile".into(), status: None });
        }
        Ok(library)
    }

    /// The functions, on a thread where the device's context is current: the library looks for it there. For host memory
    /// it is that of the driver's own device.
    pub(super) fn enter_on(&self, device: Option<&Device>) -> CuFileResult<Entered> {
        let library = self.enter()?;
        device.filter(|device| device.is_cuda()).unwrap_or(&self.device).make_current()?;
        Ok(library)
    }

    /// The functions for releasing something from a `Drop`: none where nothing may be called, or where the driver was
    /// closed, which released everything.
    pub(super) fn enter_to_release(&self) -> Release {
        if self.inner.is_forked() || self.inner.poison.get().is_some() {
            return Release::Leak;
        }
        if self.is_closed() {
            return Release::Released;
        }
        self.inner.library.enter().map_or(Release::Leak, Release::By)
    }

    /// Whether somebody else closed the driver. Asks the library.
    fn is_closed(&self) -> bool {
        if self.inner.library.use_count() == Some(0) {
            self.inner.closed.store(true, Ordering::Release);
        }
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Where `status` may mean it (handle not registered, driver not open or closing) and the library confirms it: the
    /// error for a driver that another user closed.
    pub(super) fn closed_by_another(
        &self,
        status: Status,
        doing: impl FnOnce() -> String,
    ) -> Option<CuFileError> {
        let suspicious = matches!(status.code(), 5001 | 5006 | 5024 | 5027);
        (suspicious && self.is_closed()).then(|| CuFileError::Closed { doing: doing(), status: Some(status) })
    }

    /// The error for a refused control function.
    pub(super) fn refused(&self, call: &'static str, failure: Failure, doing: String) -> CuFileError {
        self.closed_by_another(failure.status, || doing.clone()).unwrap_or(CuFileError::Call {
            call,
            doing,
            failure,
        })
    }

    /// Records that something in flight never ended. The first reason stays.
    pub(super) fn poison(&self, reason: impl Into<String>) {
        let reason = reason.into();
        if !self.inner.is_forked() && self.inner.poison.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "cuFile is poisoned");
        }
    }
}

/// What a `Drop` does about the library.
pub(super) enum Release {
    /// Call it.
    By(Entered),
    /// Nothing: it holds nothing of this any more.
    Released,
    /// Nothing, and what it may still use stays.
    Leak,
}

impl Inner {
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("mode", &self.inner.mode)
            .field("library", &self.inner.library)
            .field("poison", &self.inner.poison)
            .finish_non_exhaustive()
    }
}
