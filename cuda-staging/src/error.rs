//! What can go wrong, by what a caller can do about it.
//!
//! "Not available here" is a variant of its own, so that a fallback matches on type and never on text. Codes of the
//! CUDA driver stay numbers: one that no table knows is reported as it came.

use std::fmt;
use std::io;
use std::time::Duration;

/// Everything this crate's operations can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for does not exist on this machine: no driver, no such symbol, no such device.
    #[error("CUDA is not available here: {reason}")]
    Unavailable {
        /// Why, and what to do about it.
        reason: String,
    },
    /// The CUDA driver refused or failed a call.
    #[error("{call} failed with {code} ({name}) while {doing}")]
    Driver {
        /// The driver function, under its exported name.
        call: &'static str,
        /// The code it returned (`CUresult`).
        code: i32,
        /// The code's name as the driver gives it, or "unknown code".
        name: String,
        /// What was being done.
        doing: String,
    },
    /// Memory ran out. The device stays usable.
    #[error("out of memory: {call} failed with {} while {doing}: {requested} bytes asked, {} free; ask for less, or free memory first",
        Code { call, code: *code }, free.map_or_else(|| "an unknown number".to_owned(), |free| free.to_string()))]
    OutOfMemory {
        /// The function that refused.
        call: &'static str,
        /// The code it returned: `CUresult`, or errno for the system's own memory.
        code: i32,
        /// What was being done.
        doing: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes free on the device, where it could be asked.
        free: Option<u64>,
    },
    /// A copy did not end in time. What it uses is kept, and the device is poisoned.
    #[error("{doing} did not end within {} s", limit.as_secs_f64())]
    TimedOut {
        /// What was waited for.
        doing: String,
        /// How long.
        limit: Duration,
    },
    /// An earlier failure broke the device's context; nothing more is attempted on it.
    #[error("{device} is unusable after an earlier failure: {first}; only a new process can use it again")]
    Poisoned {
        /// The device.
        device: String,
        /// The first failure.
        first: String,
    },
    /// This process was forked from the one that initialised CUDA; the driver cannot be used in it.
    #[error(
        "CUDA was initialised before this process was forked and cannot be used in the child; open the device after forking"
    )]
    Forked,
    /// The caller asked for something that cannot be.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
}

impl Error {
    /// Whether this says "not available on this machine", so that another path or device may be tried.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether memory ran out, the device being otherwise well.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidArgument(what.into())
    }
}

/// The code of a call, with what the system says about it where it is the system's.
struct Code<'a> {
    call: &'a str,
    code: i32,
}

impl fmt::Display for Code<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver's functions are called so, and no system call is.
        match self.call.starts_with("cu") {
            true => self.code.fmt(f),
            false => io::Error::from_raw_os_error(self.code).fmt(f),
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
