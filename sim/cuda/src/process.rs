//! The driver's life in this process: fresh, initialised, forked, shut down; and the library's own symbols.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Once, OnceLock};

use crate::code::{Code, DEINITIALIZED, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, Result};
use crate::settings::Settings;
use crate::{faults, report, state};

const FRESH: u8 = 0;
const INITIALISED: u8 = 1;
/// The child of a fork of an initialised process: the driver is of no use there.
const FORKED: u8 = 2;
const SHUT_DOWN: u8 = 3;

static PHASE: AtomicU8 = AtomicU8::new(FRESH);

/// The settings; reading them for the first time puts their faults in force.
pub(crate) fn settings() -> &'static Result<Settings, String> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut settings = Settings::from_environment();
        if let Ok(settings) = &mut settings {
            faults::set(std::mem::take(&mut settings.faults));
        }
        settings
    })
}

/// What `cuInit` does.
pub(crate) fn initialise() -> Result {
    match PHASE.load(Ordering::Acquire) {
        FORKED => return Err(NOT_INITIALIZED),
        SHUT_DOWN => return Err(DEINITIALIZED),
        INITIALISED => return Ok(()),
        _ => {}
    }
    let settings = settings().as_ref().map_err(|reason| {
        eprintln!("cuda-sim: invalid setting: {reason}");
        INVALID_VALUE
    })?;
    std::thread::sleep(settings.init);
    if settings.devices.is_empty() {
        return Err(NO_DEVICE);
    }
    state::start(settings)?;
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    let _ = PHASE.compare_exchange(FRESH, INITIALISED, Ordering::AcqRel, Ordering::Acquire);
    Ok(())
}

/// Whether calls are served, and if not, with which code.
pub(crate) fn check() -> Result {
    match PHASE.load(Ordering::Acquire) {
        INITIALISED => Ok(()),
        SHUT_DOWN => Err(DEINITIALIZED),
        _ => Err(NOT_INITIALIZED),
    }
}

/// # Safety
/// - None: libc's type of such handlers has the word.
unsafe extern "C" fn after_fork_in_child() {
    PHASE.store(FORKED, Ordering::Release);
}

/// Runs when the library is torn down at exit: the report is written, later calls get `CUDA_ERROR_DEINITIALIZED`.
extern "C" fn at_exit() {
    if PHASE.compare_exchange(INITIALISED, SHUT_DOWN, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        let _ = std::panic::catch_unwind(report::write_at_exit);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// The address of the exported function `name`.
pub(crate) fn symbol(name: &str) -> Option<*mut c_void> {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        // SAFETY: an all-zero Dl_info is a valid value of that C struct.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is valid for writing, the address is one of this library.
        if unsafe { libc::dladdr(at_exit as *const c_void, &mut info) } == 0 {
            return 0;
        }
        // SAFETY: dladdr gave a terminated path; NOLOAD only looks the loaded library up.
        let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        handle as usize
    });
    let name = CString::new(name).ok()?;
    if library == 0 {
        return None;
    }
    // SAFETY: the handle is this library's own, never closed; the name is terminated.
    let address = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Whether `name`, or a version of it, is an exported function.
pub(crate) fn exports(name: &str) -> bool {
    symbol(name).is_some() || (2..=4).any(|version| symbol(&format!("{name}_v{version}")).is_some())
}

thread_local! {
    /// No destructor, so that it can be read while the process shuts down.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of the program, in which driver calls are not permitted.
pub(crate) fn as_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}

pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// The last operating system error, told on stderr, as a driver code.
pub(crate) fn system_error(doing: &str, code: Code) -> Code {
    eprintln!("cuda-sim: {doing}: {}", std::io::Error::last_os_error());
    code
}
