//! What must not stay behind when the user presses Ctrl-C: gigabytes in a temporary folder.
//!
//! `Drop` does not run when a signal ends the process, so temporary folders are also listed here, and a thread that waits for SIGINT,
//! SIGTERM and SIGHUP removes them before it ends the process with the shell's code for that signal. One that the process was
//! started to ignore, as by `nohup` or in the background of a script, stays ignored.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::leftovers;

/// How often the removal of a folder is tried.
const TRIES: u32 = 1000;

/// The shell's convention for a process that a signal ended: this and its number.
const BY_SIGNAL: i32 = 128;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static HANDLER: Once = Once::new();

/// A folder that goes, with all it holds, when this is dropped or the process is interrupted, or, after a kill, by
/// [`leftovers::remove_dead`].
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    // Fields drop in this order: the folder is removed first and unlisted then.
    folder: TempDir,
    _listed: Listed,
    _living: File,
}

impl TemporaryFolder {
    /// Makes a folder of a new name, which begins with `prefix`, in `parent`, for this user alone.
    pub(crate) fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        HANDLER.call_once(|| {
            // Without it a signal keeps its usual meaning: it ends the process, and the folder stays.
            let _ = wait_for_signals();
        });
        loop {
            // Listed as it is made: an interrupt in between would not know of it.
            let mut folders = folders();
            let private = Permissions::from_mode(0o700);
            let folder = tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(parent)?;
            if let Some(living) = leftovers::mark(folder.path())? {
                folders.push(folder.path().to_owned());
                let listed = Listed(folder.path().to_owned());
                return Ok(Self { folder, _listed: listed, _living: living });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// While it lives, an interrupt waits, and so does whoever makes or drops a temporary folder. For what is done whole or not at all.
#[derive(Debug)]
pub(crate) struct HeldOff {
    _folders: MutexGuard<'static, Vec<PathBuf>>,
}

/// Holds off interrupts; for a moment, as a person waits.
pub(crate) fn hold_off() -> HeldOff {
    HeldOff { _folders: folders() }
}

#[derive(Debug)]
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        folders().retain(|folder| *folder != self.0);
    }
}

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread, and returns when a signal finds it waiting.
fn wait_for_signals() -> io::Result<()> {
    let (ready, waiting) = mpsc::channel();
    // Registered by the thread itself: where that cannot be started, nothing else would heed the signals.
    std::thread::Builder::new().name("gds-signals".to_owned()).spawn(move || {
        let ignored = ignored();
        let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let signals = Signals::new(heeded);
        // Nobody who waits goes away before.
        let _ = ready.send(());
        if let Some(signal) = signals.ok().and_then(|mut signals| signals.forever().next()) {
            remove_and_exit(signal);
        }
    })?;
    // An error is the thread's end.
    let _ = waiting.recv();
    Ok(())
}

/// The signals that this process ignores, the first in the lowest bit; none where the kernel does not say.
fn ignored() -> u64 {
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Runs on a thread of its own, not in the signal's context, so it may allocate and touch files.
fn remove_and_exit(signal: i32) {
    // Never let go: no folder is made any more, and who drops one waits here for the end, instead of ending the process another way.
    let folders = folders();
    for folder in folders.iter() {
        // Workers put more files into it meanwhile, until what they put them into has gone.
        for _ in 0..TRIES {
            if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::process::exit(BY_SIGNAL + signal);
}
