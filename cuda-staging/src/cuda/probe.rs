//! Is there a driver? The one place that opens it, and the first CUDA call of the process.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::api::{Api, Failure, call, code};
use crate::error::{Error, Result};

/// The initialised driver. There is at most one, and it is never closed: closing it under threads or at exit crashes.
pub(crate) struct Driver {
    pub(super) api: Api,
    /// The process that initialised it: in a forked child, its state is not usable.
    process: u32,
}

/// The driver, opened and initialised by the first call. The answer, also a failure, is kept for the process.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    match DRIVER.get_or_init(open) {
        Ok(driver) if driver.is_forked() => Err(Error::Forked),
        Ok(driver) => Ok(driver),
        Err(reason) => Err(Error::Unavailable { reason: reason.clone() }),
    }
}

fn open() -> std::result::Result<Driver, String> {
    let driver = Driver { api: table()?, process: std::process::id() };
    // SAFETY: cuInit takes no pointers; its argument must be 0.
    unsafe { call!(driver.api, cuInit(0)) }.map_err(|failure| {
        let advice = match failure.code {
            code::NO_DEVICE => "the driver sees no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
            code::SYSTEM_DRIVER_MISMATCH => {
                "kernel module and libcuda differ in version: reboot, or reload the nvidia modules after the update"
            }
            _ => "look at nvidia-smi and at the kernel's log; in a container, check that the GPU was passed in",
        };
        format!("{} failed with {} ({}): {advice}", failure.call, failure.code, driver.name_of(failure.code))
    })?;
    Ok(driver)
}

/// The functions of the library that cudarc opens.
#[cfg(not(all(test, feature = "loom")))]
fn table() -> std::result::Result<Api, String> {
    // SAFETY: opening the driver's library runs its initialisers, which is what opening it is for. It takes no
    // arguments and may run on any thread.
    if !unsafe { sys::is_culib_present() } {
        return Err(why_no_library());
    }
    // SAFETY: as above. `culib` panics where no library opens, and one did a moment ago.
    let library = unsafe { sys::culib() };
    Api::look_up(library).map_err(|symbol| {
        format!("the CUDA driver library has no function {symbol}; install a newer NVIDIA driver")
    })
}

/// The functions of the driver that models run on.
#[cfg(all(test, feature = "loom"))]
use crate::models::table;

/// cudarc only says that no library opened; the dynamic linker says why.
fn why_no_library() -> String {
    // SAFETY: the same initialisers as in `open`.
    let why = match unsafe { Library::new("libcuda.so.1") } {
        Ok(_) => "libcuda.so.1 opened only at the second attempt".to_owned(),
        Err(error) => error.source().map_or_else(|| error.to_string(), |source| source.to_string()),
    };
    format!("no CUDA driver library ({why}); install the NVIDIA driver, or use the CPU device")
}

impl Driver {
    /// Whether this process is a child forked from the one that initialised the driver.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// How many devices `CUDA_VISIBLE_DEVICES` leaves.
    pub(crate) fn device_count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable for the call.
        unsafe { call!(self.api, cuDeviceGetCount(&mut count)) }
            .map_err(|failure| self.error(failure, "counting the devices"))?;
        Ok(count.max(0).unsigned_abs())
    }

    /// The error for a failure, with the code's name.
    pub(super) fn error(&self, failure: Failure, doing: impl Display) -> Error {
        Error::Driver {
            call: failure.call,
            code: failure.code,
            name: self.name_of(failure.code),
            doing: doing.to_string(),
        }
    }

    fn name_of(&self, code: i32) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: `name` is writable for the call. Any integer may be asked about.
        let known = unsafe { call!(self.api, cuGetErrorName(code, &mut name)) };
        if known.is_err() || name.is_null() {
            return "unknown code".to_owned();
        }
        // SAFETY: the driver sets a pointer to a NUL-terminated static string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
