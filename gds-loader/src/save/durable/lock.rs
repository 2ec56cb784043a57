//! The sole right to change names of checkpoints in a folder, among savers.
//!
//! It is the lock of the folder itself, which anybody may take who may read the folder: `flock DIR gds save ..` does, and so may a
//! stranger. They must not be able to stop saves. What tells savers from them is that a saver with names to change has temporary
//! files there, locked, until it is done. So a lock that is held for long while nobody else has such files is not waited for.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::clean;
use super::error::PublishError;
use super::folder::{Folder, uninterrupted};
use super::system::Identity;

/// Publishing takes milliseconds, on a slow disk a second.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long a saver at most keeps it that only looks and cleans, and has no temporary files yet.
const LOOKING: Duration = Duration::from_secs(1);

/// The right, given back on drop.
#[derive(Debug)]
pub(super) struct FolderLock<'a>(&'a Folder);

/// Takes it, or nothing where it is held.
///
/// # Errors
/// Where the file system has no such locks.
pub(super) fn try_lock(folder: &Folder) -> io::Result<Option<FolderLock<'_>>> {
    let locked = uninterrupted(|| folder.system.lock(folder.fd()))?;
    Ok(locked.then_some(FolderLock(folder)))
}

/// Waits until no other save changes names here. `own` are the temporary files of this one. `None` where the file system has no such
/// locks, and where whoever holds it saves nothing.
pub(super) fn lock<'a>(folder: &'a Folder, own: &[Identity]) -> Result<Option<FolderLock<'a>>, PublishError> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match try_lock(folder) {
            Ok(None) => {}
            answer => return Ok(answer.unwrap_or_default()),
        }
        if start.elapsed() > LOOKING && !clean::is_saved_to(folder, own) {
            tracing::warn!(folder = %folder.path.display(), "locked by a program that saves nothing there: going on");
            return Ok(None);
        }
        if start.elapsed() > LONGEST_WAIT {
            let (path, seconds) = (folder.path.clone(), LONGEST_WAIT.as_secs());
            return Err(PublishError::Busy { path, seconds });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        // Closing the folder would do it too.
        if let Err(error) = uninterrupted(|| self.0.system.unlock(self.0.fd())) {
            tracing::debug!(folder = %self.0.path.display(), %error, "unlocking");
        }
    }
}
