//! What every exported driver call shares, in one place: counting, injected faults, the driver's phase, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::code::{NOT_PERMITTED, Result, UNKNOWN};
use crate::state::capture;
use crate::sync::lock;
use crate::{faults, process, state};

/// Declares exported calls. Those in an invocation that starts with `always:` work before `cuInit` and in host functions.
///
/// The body is an expression of type [`Result`] over arguments that are integers or the wrappers of [`crate::ffi`].
macro_rules! api {
    (always: $($calls:tt)*) => { $crate::call::api! { @declare false $($calls)* } };
    (@declare $needs_driver:literal
        $($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            static CALL: $crate::call::Call = $crate::call::Call::new(stringify!($name), $needs_driver);
            CALL.run(|| $body)
        }
    )*};
    ($($calls:tt)*) => { $crate::call::api! { @declare true $($calls)* } };
}
pub(crate) use api;

/// An exported call: its name and how often it was used.
pub(crate) struct Call {
    name: &'static str,
    needs_driver: bool,
    count: AtomicU64,
    faults: AtomicU64,
    listed: AtomicBool,
}

/// The calls used so far.
static USED: Mutex<Vec<&'static Call>> = Mutex::new(Vec::new());

impl Call {
    pub(crate) const fn new(name: &'static str, needs_driver: bool) -> Self {
        Self {
            name,
            needs_driver,
            count: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            listed: AtomicBool::new(false),
        }
    }

    /// Runs the call's body; no panic leaves it.
    pub(crate) fn run(&'static self, body: impl FnOnce() -> Result) -> i32 {
        match catch_unwind(AssertUnwindSafe(|| self.checked(body))) {
            Ok(Ok(())) => 0,
            Ok(Err(code)) => code.0,
            Err(_) => UNKNOWN.0,
        }
    }

    fn checked(&'static self, body: impl FnOnce() -> Result) -> Result {
        if self.needs_driver {
            process::check()?;
            if process::in_host_function() {
                return Err(NOT_PERMITTED);
            }
        }
        // The first call of all reads the settings, and with them the faults. An error in them is `cuInit`'s to report.
        let _ = process::settings();
        self.count.fetch_add(1, Ordering::Relaxed);
        if !self.listed.swap(true, Ordering::Relaxed) {
            lock(&USED).push(self);
        }
        if let Some(code) = faults::at_call(self.name) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            if code.is_sticky() {
                state::poison_current(code);
            }
            return Err(code);
        }
        capture::permit(self.name)?;
        body()
    }
}

/// One call's counts since start or [`reset`].
pub(crate) struct Usage {
    pub(crate) name: &'static str,
    pub(crate) count: u64,
    pub(crate) faults: u64,
}

/// The counts of every call used, by name.
pub(crate) fn usage() -> Vec<Usage> {
    let used = lock(&USED);
    let counts = used.iter().map(|call| Usage {
        name: call.name,
        count: call.count.load(Ordering::Relaxed),
        faults: call.faults.load(Ordering::Relaxed),
    });
    let mut counts: Vec<_> = counts.filter(|usage| usage.count > 0).collect();
    counts.sort_by_key(|usage| usage.name);
    counts
}

/// Sets all counts to 0.
pub(crate) fn reset() {
    for call in lock(&USED).iter() {
        call.count.store(0, Ordering::Relaxed);
        call.faults.store(0, Ordering::Relaxed);
    }
}
