//! Opening and closing the process's one driver.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cuda_staging::Device;
use cufile_sys::{CUfileError_t, Failure};

use super::{Driver, Inner, Mode, segment};
use crate::bounded::ask;
use crate::cufile::error::{CuFileError, CuFileResult};
use crate::cufile::library::Library;
use crate::cufile::params::BoolParameter;
use crate::cufile::properties;
use crate::cufile::settings::{DriverSettings, set_switch};
use crate::process::Owner;

/// The process that first tried to open the driver. Looked at before the lock, which a fork may have left locked for ever in the
/// child.
static OPENER: Owner = Owner::nobody();

static STATE: Mutex<State> = Mutex::new(State { open: None, timed_out: None, mode_was_set: false });

struct State {
    /// Held for the rest of the process, so that the last handle's end closes nothing.
    open: Option<Arc<Inner>>,
    timed_out: Option<Duration>,
    /// Whether the parameters of compatibility mode are no longer those of the configuration.
    mode_was_set: bool,
}

const OPENING: &str = "opening cuFile's driver";

/// Whether a process that this one was forked from opened the driver: then the library's locks are copies, held perhaps by threads
/// that are not here.
pub(in crate::cufile) fn is_a_parents() -> bool {
    OPENER.is_another()
}

fn lock() -> CuFileResult<MutexGuard<'static, State>> {
    if !OPENER.claim() {
        return Err(CuFileError::Forked);
    }
    Ok(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(super) fn open(mode: Mode, settings: &DriverSettings) -> CuFileResult<Driver> {
    settings.validate()?;
    let library = Library::load()?;
    // For the whole of it: no thread is to be halted by the end of the process while it holds the lock.
    let _entered = library.enter()?;
    let mut state = lock()?;
    if let Some(limit) = state.timed_out {
        return Err(CuFileError::TimedOut { doing: OPENING.into(), limit });
    }
    let device = check_surroundings(settings)?;
    if let Some(inner) = state.open.clone() {
        let driver = Driver { inner, device: device.clone() };
        // A driver that is closed under it is opened again; what was registered with it stays unusable.
        if !driver.is_closed() {
            return share(driver, mode, settings);
        }
        state.open = None;
    }
    let inner = Arc::new(open_new(library, mode, settings, &mut state)?);
    state.open = Some(Arc::clone(&inner));
    Ok(Driver { inner, device })
}

fn share(driver: Driver, mode: Mode, settings: &DriverSettings) -> CuFileResult<Driver> {
    driver.health()?;
    if mode != Mode::Default && mode != driver.mode() {
        return Err(CuFileError::WrongMode { open: driver.mode(), asked: mode });
    }
    settings.verify(driver.library(), true, only_before_open)?;
    Ok(driver)
}

fn only_before_open(setting: String, asked: String, found: String) -> CuFileError {
    CuFileError::OnlyBeforeOpen { setting, asked, found }
}

fn not_taken(setting: String, asked: String, found: String) -> CuFileError {
    CuFileError::NotTaken { setting, asked, found }
}

/// What opening would fail or hang without. The device is the one that works.
fn check_surroundings(settings: &DriverSettings) -> CuFileResult<Device> {
    let device = settings.device.clone().map_or_else(|| Device::cuda(0), Ok);
    let device = device.map_err(|error| match error {
        cuda_staging::Error::Unavailable { reason } => {
            CuFileError::unavailable(format!("it needs a CUDA device: {reason}"))
        }
        cuda_staging::Error::Forked => CuFileError::Forked,
        other => other.into(),
    })?;
    device.make_current()?;
    let modules = Path::new("/proc/modules");
    match File::open(modules) {
        Ok(_) => Ok(device),
        Err(source) if is_shortage(&source) => {
            Err(CuFileError::Shortage { doing: format!("opening {}", modules.display()), source })
        }
        Err(error) => Err(CuFileError::unavailable(format!(
            "{} cannot be opened ({error}), and NVIDIA's library would wait for it for ever; a kernel with support for \
             modules has it",
            modules.display()
        ))),
    }
}

/// Whether what failed may be had a moment later.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN))
}

fn open_new(
    library: Library,
    mode: Mode,
    settings: &DriverSettings,
    state: &mut State,
) -> CuFileResult<Inner> {
    // Open by another library in this process: nothing can be set any more, and setting would only change what is read.
    let shared = library.use_count().is_some_and(|count| count > 0);
    if shared {
        settings.verify(library, true, only_before_open)?;
    } else {
        set_mode(library, mode, state)?;
        settings.apply(library)?;
        settings.verify(library, false, not_taken)?;
        if settings.gathers_statistics() {
            segment::make_room();
        }
    }
    let start = Instant::now();
    call_open(library, mode, settings.open_limit()).inspect_err(|error| {
        if let CuFileError::TimedOut { limit, .. } = error {
            state.timed_out = Some(*limit);
        }
    })?;
    let verified = verify_mode(library, mode, shared)
        .and_then(|ruled_out| settings.verify(library, true, not_taken).map(|()| ruled_out));
    let compat_ruled_out = match verified {
        Ok(ruled_out) => ruled_out,
        Err(error) => {
            call_close(library, settings.open_limit()).ok();
            return Err(error);
        }
    };
    tracing::debug!(?library, %mode, shared, elapsed = ?start.elapsed(), "cuFile's driver is open");
    Ok(Inner {
        library,
        mode,
        compat_ruled_out,
        opened_in: start.elapsed(),
        process: std::process::id(),
        closed: AtomicBool::new(false),
        poison: OnceLock::new(),
    })
}

/// Whether the library has parameters at all (since 1.14).
fn has_parameters(library: Library) -> bool {
    let api = library.api();
    api.cuFileSetParameterBool.is_some() && api.cuFileGetParameterBool.is_some()
}

fn set_mode(library: Library, mode: Mode, state: &mut State) -> CuFileResult<()> {
    let (allow, force) = match mode {
        Mode::Direct => (false, false),
        Mode::Compat => (true, true),
        Mode::Default if state.mode_was_set => (true, false),
        Mode::Default => return Ok(()),
    };
    if !has_parameters(library) {
        return match mode {
            Mode::Compat if !compat_by_environment() => Err(CuFileError::unavailable(format!(
                "{} is older than 1.14 and takes compatibility mode only from the environment: set \
                 CUFILE_FORCE_COMPAT_MODE=true before the program starts",
                library.path().display()
            ))),
            Mode::Direct if compat_by_environment() => {
                Err(CuFileError::unavailable("CUFILE_FORCE_COMPAT_MODE is set in the environment"))
            }
            _ => Ok(()),
        };
    }
    state.mode_was_set = true;
    for (parameter, value) in
        [(BoolParameter::AllowCompatMode, allow), (BoolParameter::ForceCompatMode, force)]
    {
        set_switch(library, parameter, value)?;
        let found = library.switch(parameter)?;
        if found != value {
            return Err(not_taken(parameter.name().into(), value.to_string(), found.to_string()));
        }
    }
    Ok(())
}

/// Whether the environment forces compatibility mode.
fn compat_by_environment() -> bool {
    std::env::var("CUFILE_FORCE_COMPAT_MODE")
        .is_ok_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1" | "yes" | "on"))
}

/// Whether the open driver is in `mode`; true where compatibility mode is known to be off.
fn verify_mode(library: Library, mode: Mode, shared: bool) -> CuFileResult<bool> {
    if !has_parameters(library) {
        let nvfs = properties::read(library)?.nvfs_version;
        if mode == Mode::Direct && nvfs == (0, 0) {
            return Err(CuFileError::unavailable(
                "the library opened without nvidia-fs, and is too old (before 1.14) to rule compatibility mode out",
            ));
        }
        return Ok(false);
    }
    let allow = library.switch(BoolParameter::AllowCompatMode)?;
    let force = library.switch(BoolParameter::ForceCompatMode)?;
    let agrees = match mode {
        Mode::Direct => !allow && !force,
        Mode::Compat => force,
        Mode::Default => true,
    };
    if agrees {
        return Ok(!allow && !force);
    }
    let open = if force { Mode::Compat } else { Mode::Default };
    if shared {
        return Err(CuFileError::WrongMode { open, asked: mode });
    }
    Err(CuFileError::unavailable(format!(
        "it opened with {open} though {mode} was set; look at CUFILE_FORCE_COMPAT_MODE and cufile.json"
    )))
}

fn call_open(library: Library, mode: Mode, limit: Duration) -> CuFileResult<()> {
    const DRIVER_NOT_INITIALIZED: i32 = 5001;
    const ALREADY_OPEN: i32 = 5026;
    let library = library.enter()?;
    let open = library.cuFileDriverOpen;
    // SAFETY: takes nothing; it may run on any thread.
    let answer = bounded(OPENING, limit, move || unsafe { open() })?;
    let Err(failure) = answer.result() else { return Ok(()) };
    let Failure { status, .. } = failure;
    if status.code() == ALREADY_OPEN {
        return Ok(());
    }
    let what = match (status.code(), mode) {
        (DRIVER_NOT_INITIALIZED, Mode::Direct) => {
            "there is no nvidia-fs or P2PDMA to transfer by, so every byte would only have bounced through the host"
        }
        _ => "its driver does not open",
    };
    Err(CuFileError::Unavailable { reason: format!("{what} ({failure})"), failure: Some(failure) })
}

fn call_close(library: Library, limit: Duration) -> CuFileResult<()> {
    const CLOSING: &str = "closing cuFile's driver";
    let library = library.enter()?;
    let (call, close) = match library.cuFileDriverClose_v2 {
        Some(close) => ("cuFileDriverClose_v2", close as unsafe extern "C" fn() -> CUfileError_t),
        None => ("cuFileDriverClose", library.cuFileDriverClose),
    };
    // SAFETY: takes nothing; it may run on any thread.
    let answer = bounded(CLOSING, limit, move || unsafe { close() })?;
    answer.result().map_err(|failure| CuFileError::Call { call, doing: CLOSING.into(), failure })
}

pub(super) fn close(driver: Driver) -> CuFileResult<(), (Driver, CuFileError)> {
    let _entered = match driver.enter() {
        Ok(entered) => entered,
        Err(error) => return Err((driver, error)),
    };
    let mut state = match lock() {
        Ok(state) => state,
        Err(error) => return Err((driver, error)),
    };
    // This handle and the process's own. No other can appear meanwhile: it would be cloned from one that exists, or
    // given out under the lock.
    let is_current = state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, &driver.inner));
    let expected = if is_current { 2 } else { 1 };
    let users = Arc::strong_count(&driver.inner) - expected;
    if users > 0 {
        return Err((driver, CuFileError::InUse { users }));
    }
    state.open = None;
    driver.inner.closed.store(true, Ordering::Release);
    let limit = DriverSettings::new().open_limit();
    call_close(driver.library(), limit).map_err(|error| {
        if let CuFileError::TimedOut { limit, .. } = &error {
            state.timed_out = Some(*limit);
        }
        (driver, error)
    })
}

/// What `work` returns, unless that takes longer than `limit`: then the thread it runs on is left behind. The caller is the one to
/// have entered the library: what never returns is not to be waited for at the end of the process.
pub(in crate::cufile) fn bounded<T: Send + 'static>(
    doing: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> CuFileResult<T> {
    let asked = ask("cufile-driver", work).map_err(|source| CuFileError::Shortage {
        doing: format!("starting a thread for {doing}"),
        source,
    })?;
    asked.within(limit).ok_or_else(|| CuFileError::TimedOut { doing: doing.into(), limit })
}
