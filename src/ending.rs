//! The end of a process in which a library hangs.
//!
//! What hangs while it is loaded has the dynamic linker's lock, and `exit` takes that to run the libraries' destructors: it would wait
//! for ever. `_exit` runs none of them, but nothing else either that is to be done at the end, as removing the shared memory of cuFile's
//! statistics. So it is called by a handler of `exit`. Handlers run before the destructors, and the one installed last runs first.

use std::sync::OnceLock;

use crate::cli::Exit;

/// How the process ends, where without destructors.
static WITHOUT_DESTRUCTORS: OnceLock<Exit> = OnceLock::new();

/// Installs the handler. To be called before libraries are loaded and used, so that it runs after all that they installed.
pub(crate) fn prepare() {
    // SAFETY: the handler takes and returns nothing, and cannot panic. Where there is no room for it, all is as without.
    unsafe { libc::atexit(at_exit) };
}

/// Has the process, once [prepared](prepare), end so and run no destructors of libraries.
pub(crate) fn without_destructors(exit: Exit) {
    WITHOUT_DESTRUCTORS.get_or_init(|| exit);
}

extern "C" fn at_exit() {
    if let Some(exit) = WITHOUT_DESTRUCTORS.get() {
        // SAFETY: takes a number and does not return; what this process had is the kernel's to take back.
        unsafe { libc::_exit(*exit as i32) };
    }
}
