//! The library's life in this process: loading, forks, the end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cufile_sys::CU_FILE_INVALID_VALUE;

use crate::error::Result;
use crate::settings::Settings;
use crate::{faults, report, running, symbols};

static FORKED: AtomicBool = AtomicBool::new(false);

/// The settings; reading them for the first time puts their script in force.
pub(crate) fn settings() -> &'static Result<Settings, String> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut settings = Settings::from_environment();
        if let Ok(settings) = &mut settings {
            faults::set(std::mem::take(&mut settings.script));
        }
        settings
    })
}

/// The settings, for opening the driver; an error in them is told, and an invalid value.
pub(crate) fn valid_settings() -> Result<&'static Settings> {
    settings().as_ref().map_err(|reason| {
        eprintln!("cufile-sim: invalid setting: {reason}");
        CU_FILE_INVALID_VALUE.into()
    })
}

/// Whether this process is the child of a fork of one that had the library loaded.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// # Safety
/// - None: libc's type of such handlers has the word.
unsafe extern "C" fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Runs when the library is loaded, before anyone looks a function of it up.
extern "C" fn on_load() {
    // SAFETY: the handler only stores to an atomic, which is allowed in the child of a fork.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    let _ = std::panic::catch_unwind(|| {
        let Ok(settings) = settings() else { return };
        for name in settings.absent() {
            if let Err(reason) = symbols::hide(name) {
                eprintln!("cufile-sim: {name} could not be made absent: {reason}");
                std::process::abort();
            }
        }
    });
}

/// Runs when the process ends.
extern "C" fn at_exit() {
    if !is_forked() {
        running::end();
        let _ = std::panic::catch_unwind(report::write_at_exit);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
