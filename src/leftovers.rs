//! Temporary folders of the dead: a kill or an abort leaves them, with gigabytes in them, and the next command of their kind removes them.
//!
//! In each is a file that its maker holds locked. The lock ends with the maker, however that ends, so one that can be locked is of a
//! dead one. Only who made a folder could put the file there, so that no other folder is removed, whatever name somebody gave it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// How the names of all of these folders and of the files in them begin.
pub(crate) const PREFIX: &str = ".gds-";

const LOCK: &str = ".gds-lock";

/// What a folder's mode lets others than its owner do.
const OF_OTHERS: u32 = 0o077;

/// Says of a new temporary folder that its maker lives, for as long as what is returned is held. `None` where another process has taken
/// it for a dead one's, and removes it.
pub(crate) fn mark(folder: &Path) -> io::Result<Option<File>> {
    hold(File::create_new(folder.join(LOCK))?)
}

fn hold(lock: File) -> io::Result<Option<File>> {
    // Where the file system has no locks, nobody finds this one dead.
    let is_taken = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
    Ok((!is_taken && lock.metadata()?.nlink() > 0).then_some(lock))
}

/// Removes the folders in `parent` whose names begin with `prefix` and whose makers are dead. Returns one whose maker lives, if there is
/// any. What is not this user's, and what cannot be looked at, is left alone.
pub(crate) fn remove_dead(parent: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let of_prefix = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    let folders = entries.map(|entry| entry.path()).filter(of_prefix);
    // What is not provably one of ours, and what is not removed, stops nobody.
    folders.filter(|folder| examine(folder).unwrap_or(false)).last()
}

/// Removes a folder of the dead; whether it is of the living.
fn examine(folder: &Path) -> io::Result<bool> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = File::from(rustix::fs::open(folder, flags, Mode::empty())?);
    let about = handle.metadata()?;
    if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & OF_OTHERS != 0 {
        return Ok(false);
    }
    // Nobody may write there but this user.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let lock = File::from(rustix::fs::openat(&handle, LOCK, flags, Mode::empty())?);
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(true),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    // By the descriptor: by now the path may mean another folder.
    let within = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    for entry in fs::read_dir(&within)? {
        let entry = entry?;
        // Last, since it is what says whose the others are.
        if entry.file_name() != LOCK {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    fs::remove_file(within.join(LOCK))?;
    // Not of what is in it, should it be another folder by now.
    fs::remove_dir(folder)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};

    use super::*;

    const NAME: &str = ".gds-test-";

    fn make(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    #[test]
    fn the_dead_ones_folders_go_and_the_living_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        let (dead, living) = (make(parent.path(), ".gds-test-1"), make(parent.path(), ".gds-test-2"));
        let lock = mark(&living).unwrap().unwrap();
        drop(mark(&dead).unwrap());
        fs::write(dead.join("model.safetensors"), "half").unwrap();
        fs::create_dir(dead.join("within")).unwrap();
        fs::write(dead.join("within/file"), "").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("precious"), "").unwrap();
        symlink(elsewhere.path(), dead.join("link")).unwrap();
        assert_eq!(remove_dead(parent.path(), NAME).as_deref(), Some(&*living));
        assert!(!dead.exists() && living.is_dir() && elsewhere.path().join("precious").exists());
        drop(lock);
        assert_eq!(remove_dead(parent.path(), NAME), None);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_not_made_here_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = make(parent.path(), "elsewhere");
        drop(mark(&elsewhere).unwrap());
        // A name alone proves nothing; nor does the file, where others may have put it.
        make(parent.path(), ".gds-test-unmarked");
        let shared = make(parent.path(), ".gds-test-shared");
        drop(mark(&shared).unwrap());
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o770)).unwrap();
        symlink(&elsewhere, parent.path().join(".gds-test-link")).unwrap();
        let led = make(parent.path(), ".gds-test-led");
        symlink(elsewhere.join(LOCK), led.join(LOCK)).unwrap();
        fs::write(parent.path().join(".gds-test-file"), "").unwrap();
        let names = || fs::read_dir(parent.path()).unwrap().count();
        let before = names();
        assert_eq!(remove_dead(parent.path(), NAME), None);
        assert_eq!(names(), before);
        assert!(elsewhere.join(LOCK).exists() && shared.join(LOCK).exists());
    }

    #[test]
    fn a_folder_that_was_taken_for_dead_before_it_was_marked_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join(LOCK);
        let (ours, theirs) = (File::create_new(&path).unwrap(), File::open(&path).unwrap());
        theirs.lock().unwrap();
        assert!(hold(ours.try_clone().unwrap()).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        drop(theirs);
        assert!(hold(ours).unwrap().is_none());
    }
}
