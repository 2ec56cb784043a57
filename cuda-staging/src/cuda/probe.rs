//! Is there a driver? The one place that opens it, and the first CUDA call of the process.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;

use super::api::{Api, Failure, call, code};
use crate::error::{Error, Result};

/// The initialised driver. There is at most one, and it is never closed: closing it under threads or at exit crashes.
pub(crate) struct Driver {
    pub(super) api: Api,
    /// The process that initialised it: in a forked child, its state is not usable.
    process: u32,
}

/// The process that first asked for the driver; 0 for none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The driver, opened and initialised by the first call. The answer, also a failure, is kept for the process.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let this = std::process::id();
    let first = PROCESS.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire);
    let answer = match first {
        // A child: what its parent had by then. What a thread of the parent's had begun, nobody here would ever end.
        Err(first) if first != this => DRIVER.get().ok_or(Error::Forked)?,
        _ => DRIVER.get_or_init(open),
    };
    match answer {
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
            code::STUB_LIBRARY => {
                "the library found is the CUDA toolkit's stub, which is for linking alone: take the folder of stubs off \
                 LD_LIBRARY_PATH, and install the NVIDIA driver where it is missing"
            }
            _ => "look at nvidia-smi and at the kernel's log; in a container, check that the GPU was passed in",
        };
        format!("{} failed with {} ({}): {advice}", failure.call, failure.code, driver.name_of(failure.code))
    })?;
    Ok(driver)
}

/// The names of the driver's library. First the one that the driver has at run time: the other is for linking, and where a
/// toolkit's folder of stubs is on the path, as in images for building, it is a library that only fails.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The functions of the driver's library.
#[cfg(not(all(test, feature = "loom")))]
fn table() -> std::result::Result<Api, String> {
    let mut why = String::new();
    for name in NAMES {
        // SAFETY: opening the driver's library runs its initialisers, which is what opening it is for. It takes no
        // arguments and may run on any thread.
        match unsafe { Library::new(name) } {
            // Never closed: the functions outlive the value.
            Ok(library) => return look_up(&ManuallyDrop::new(library)),
            // Of the first, which says what is missing.
            Err(error) if why.is_empty() => {
                why = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
            }
            Err(_) => {}
        }
    }
    Err(format!("no CUDA driver library ({why}); install the NVIDIA driver, or use the CPU device"))
}

fn look_up(library: &Library) -> std::result::Result<Api, String> {
    Api::look_up(library).map_err(|symbol| {
        format!("the CUDA driver library has no function {symbol}; install a newer NVIDIA driver")
    })
}

/// The functions of the driver that models run on.
#[cfg(all(test, feature = "loom"))]
use crate::models::table;

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
