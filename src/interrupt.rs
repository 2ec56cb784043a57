//! What must not stay behind when the user presses Ctrl-C: gigabytes in a temporary folder.
//!
//! `Drop` does not run when a signal ends the process, so temporary folders are also listed here, and a handler (for SIGINT, SIGTERM
//! and SIGHUP) removes them before it ends the process with the shell's code for an interrupt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tempfile::TempDir;

/// The shell's convention for a process that SIGINT ended: 128 + 2.
const INTERRUPTED: i32 = 130;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static HANDLER: Once = Once::new();

/// A folder that goes, with all it holds, when this is dropped or the process is interrupted.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    // Fields drop in this order: the folder is removed first and unlisted then.
    folder: TempDir,
    _listed: Listed,
}

impl TemporaryFolder {
    /// Makes a folder of a new name, which begins with `prefix`, in `parent`.
    pub(crate) fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        HANDLER.call_once(|| {
            // Without a handler the signal keeps its usual meaning: it ends the process, and the folder stays.
            let _ = ctrlc::set_handler(remove_and_exit);
        });
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let listed = Listed::new(folder.path());
        Ok(Self { folder, _listed: listed })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

#[derive(Debug)]
struct Listed(PathBuf);

impl Listed {
    fn new(folder: &Path) -> Self {
        folders().push(folder.to_owned());
        Self(folder.to_owned())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        folders().retain(|folder| *folder != self.0);
    }
}

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs on the handler's own thread, not in the signal's context, so it may allocate and touch files.
fn remove_and_exit() {
    for folder in folders().iter() {
        // A second try for a folder into which a worker put one more file meanwhile.
        if std::fs::remove_dir_all(folder).is_err() && folder.exists() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    std::process::exit(INTERRUPTED);
}
