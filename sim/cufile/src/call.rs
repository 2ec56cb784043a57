//! What every exported call shares, in one place: counting, injected faults, forks, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cufile_sys::{CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_INTERNAL_ERROR, CUfileError};

use crate::error::{Errno, Failure, Result};
use crate::faults::{self, Effect, Subject};
use crate::running::Running;
use crate::{lock, process};

/// Declares exported calls that return a `CUfileError_t` and of which faults ask nothing more.
///
/// The body is an expression of type [`Result`] over arguments that are integers or the wrappers of [`crate::ffi`].
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> cufile_sys::CUfileError {
            static CALL: $crate::call::Call = $crate::call::Call::new(stringify!($name));
            CALL.status(Default::default, || $body)
        }
    )*};
}
pub(crate) use api;

/// An exported call: its name and how often it was used.
pub(crate) struct Call {
    name: &'static str,
    count: AtomicU64,
    listed: AtomicBool,
}

/// The calls used so far.
static USED: Mutex<Vec<&'static Call>> = Mutex::new(Vec::new());

impl Call {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, count: AtomicU64::new(0), listed: AtomicBool::new(false) }
    }

    /// Runs a call that returns a `CUfileError_t`.
    pub(crate) fn status(
        &'static self,
        subject: impl FnOnce() -> Subject,
        body: impl FnOnce() -> Result,
    ) -> CUfileError {
        self.launch(subject, |effect| {
            if let Some(Effect::Hang(duration)) = effect {
                faults::hang(duration);
            }
            body()
        })
    }

    /// Runs a call that returns a `CUfileError_t` and does its work later: what hits that is for the body to heed.
    pub(crate) fn launch(
        &'static self,
        subject: impl FnOnce() -> Subject,
        body: impl FnOnce(Option<Effect>) -> Result,
    ) -> CUfileError {
        let checked = || {
            let _running = self.enter()?;
            match faults::at(self.name, subject) {
                Some(Effect::Fail(failure)) => Err(failure),
                effect => body(effect),
            }
        };
        match catch_unwind(AssertUnwindSafe(checked)) {
            Ok(Ok(())) => CUfileError::default(),
            Ok(Err(failure)) => failure.into(),
            Err(_) => Failure::from(CU_FILE_INTERNAL_ERROR).into(),
        }
    }

    /// Runs a call that returns a count. `errno` is stale after success, and made to look so.
    pub(crate) fn transfer(
        &'static self,
        subject: impl FnOnce() -> Subject,
        body: impl FnOnce(Option<Effect>) -> Result<isize, Errno>,
    ) -> isize {
        let checked = || {
            let _running = self.enter().map_err(Errno::from)?;
            body(faults::at(self.name, subject))
        };
        let (count, errno) = match catch_unwind(AssertUnwindSafe(checked)) {
            Ok(Ok(count)) => (count, libc::ENOENT),
            Ok(Err(Errno(errno))) => (-1, errno),
            Err(_) => (-1, Errno::from(CU_FILE_INTERNAL_ERROR).0),
        };
        // SAFETY: the address of the calling thread's own errno.
        unsafe { *libc::__errno_location() = errno };
        count
    }

    /// Runs a call that cannot fail; in the child of a fork, or where it panics, it returns `otherwise`.
    pub(crate) fn infallible<T>(&'static self, otherwise: T, body: impl FnOnce() -> T) -> T {
        let checked = || {
            let _running = self.enter().ok()?;
            if let Some(Effect::Hang(duration)) = faults::at(self.name, Subject::default) {
                faults::hang(duration);
            }
            Some(body())
        };
        catch_unwind(AssertUnwindSafe(checked)).ok().flatten().unwrap_or(otherwise)
    }

    /// Counts the call. In the child of a fork nothing works, and no lock may be taken.
    fn enter(&'static self) -> Result<Running> {
        if process::is_forked() {
            return Err(CU_FILE_DRIVER_NOT_INITIALIZED.into());
        }
        let running = Running::begin(self.name);
        // The first call of all reads the settings, and with them the script.
        let _ = process::settings();
        self.count.fetch_add(1, Ordering::Relaxed);
        if !self.listed.swap(true, Ordering::Relaxed) {
            lock(&USED).push(self);
        }
        Ok(running)
    }
}

/// How often each call was used since start or [`reset`].
pub(crate) fn usage() -> Vec<(&'static str, u64)> {
    let mut usage: Vec<_> =
        lock(&USED).iter().map(|call| (call.name, call.count.load(Ordering::Relaxed))).collect();
    usage.retain(|(_, count)| *count > 0);
    usage.sort_unstable();
    usage
}

/// Sets all counts to 0.
pub(crate) fn reset() {
    for call in lock(&USED).iter() {
        call.count.store(0, Ordering::Relaxed);
    }
}
