//! The temporary folder that a checkpoint is written into: the only living one in its destination.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::interrupt::TemporaryFolder;
use crate::leftovers;

const NAME: &str = ".gds-synth-";

/// Looking and making takes milliseconds.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// Makes it, and removes those of the dead.
///
/// # Errors
/// Where another process writes a checkpoint into `folder`: files of two must not be mixed.
pub(super) fn stage(folder: &Path) -> anyhow::Result<TemporaryFolder> {
    let _turn = turn(folder);
    if let Some(living) = leftovers::remove_dead(folder, NAME) {
        bail!(
            "another `gds synth` is writing into {} ({}): wait until it is done, or name another folder",
            folder.display(),
            living.file_name().unwrap_or_default().display()
        );
    }
    TemporaryFolder::new_in(folder, NAME)
        .with_context(|| format!("making a temporary folder in {}", folder.display()))
}

/// Waits until no other process is between looking and making. A lock that is held for longer is held for something else, and stops
/// nobody; nor does a file system without locks.
fn turn(folder: &Path) -> Option<File> {
    let handle = File::open(folder).ok()?;
    let start = Instant::now();
    loop {
        match handle.try_lock() {
            Ok(()) => return Some(handle),
            Err(TryLockError::WouldBlock) if start.elapsed() < LONGEST_TURN => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}
