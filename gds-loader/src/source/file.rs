//! How the files of a source stay within reach: all open for good or, where there are more files than descriptors, each opened again
//! for every use.
//!
//! Trade-off: a file that stays open is the one whose header was read, whatever happens to its name. One that is opened again is known
//! by its inode, length and time of change; where these differ, its uses fail, and nothing is read of what took its place. Such files
//! do without what needs a descriptor that lasts: io_uring, cuFile, the watch for other loads, and dropping afterwards what was
//! brought into the page cache.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::error::SourceError;
use super::reopen::reopen;
use super::resolve::entries;
use crate::limits::descriptors;

/// Descriptors that a load may need besides those of its files: its queues, and the device, whose driver opens some dozens.
const OTHERS: u64 = 48;

/// With fewer than this left, files cannot even take turns.
const LEAST: u64 = 8;

/// A regular file of a source, open for reading or to be opened again.
#[derive(Debug, Clone)]
pub struct ShardFile(Reach);

#[derive(Debug, Clone)]
enum Reach {
    Kept(Arc<File>),
    Again(Arc<Again>),
}

/// What it takes to open the same file again.
#[derive(Debug)]
struct Again {
    path: PathBuf,
    identity: Identity,
    flags: i32,
    turns: Arc<Turns>,
}

impl ShardFile {
    /// A file that stays open.
    pub(crate) fn kept(file: File) -> Self {
        Self(Reach::Kept(Arc::new(file)))
    }

    /// The file, open until what is returned is dropped. Waits while too many others are.
    ///
    /// # Errors
    /// Those of opening it; [`io::ErrorKind::StaleNetworkFileHandle`] where it is not any more what it was.
    pub fn open(&self) -> io::Result<OpenFile> {
        match &self.0 {
            Reach::Kept(file) => Ok(OpenFile { file: Arc::clone(file), _turn: None }),
            Reach::Again(again) => again.open(),
        }
    }

    /// The same, for the file at `path`, with an error that names it.
    pub(crate) fn open_at(&self, path: &Path) -> Result<OpenFile, SourceError> {
        self.open().map_err(|error| SourceError::io(path, "open it again", error))
    }

    /// The file, where it stays open.
    pub(crate) fn as_kept(&self) -> Option<&Arc<File>> {
        match &self.0 {
            Reach::Kept(file) => Some(file),
            Reach::Again(_) => None,
        }
    }

    /// The same file for reads past the page cache; `path` is where it was found.
    ///
    /// # Errors
    /// `EINVAL` where the file system refuses `O_DIRECT`; as for [`ShardFile::open`] where the path now leads to another file, of
    /// which no byte may be mixed in.
    pub(crate) fn direct(&self, path: &Path) -> io::Result<Self> {
        match &self.0 {
            Reach::Kept(first) => Ok(Self::kept(reopen(path, first, libc::O_DIRECT)?)),
            Reach::Again(again) => {
                let Again { path, identity, turns, .. } = &**again;
                let turns = Arc::clone(turns);
                let again = Again { path: path.clone(), identity: *identity, flags: libc::O_DIRECT, turns };
                again.open()?;
                Ok(Self(Reach::Again(Arc::new(again))))
            }
        }
    }
}

impl Again {
    fn open(&self) -> io::Result<OpenFile> {
        let turn = Turns::take(&self.turns);
        // A pipe that took the file's place must not block. Reads of a regular file heed the flag in io_uring alone, which is not
        // given such files.
        let flags = self.flags | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(&self.path)?;
        if Identity::of(&file.metadata()?) != self.identity {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(OpenFile { file: Arc::new(file), _turn: Some(turn) })
    }
}

/// What tells a file from any that takes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: (u64, u64),
    len: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// An open file, as [`ShardFile::open`] gives it.
#[derive(Debug)]
pub struct OpenFile {
    file: Arc<File>,
    // After the file: the next one in turn opens when this one is closed.
    _turn: Option<Turn>,
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// Bounds how many files are open at once.
#[derive(Debug)]
struct Turns {
    left: Mutex<u64>,
    given_back: Condvar,
}

#[derive(Debug)]
struct Turn(Arc<Turns>);

impl Turns {
    fn take(turns: &Arc<Self>) -> Turn {
        let left = turns.left.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = turns.given_back.wait_while(left, |left| *left == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Turn(Arc::clone(turns))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.given_back.notify_one();
    }
}

/// Whether the files of a source can all stay open.
#[derive(Debug)]
pub(crate) struct Keeping(Option<Arc<Turns>>);

impl Keeping {
    /// For so many files, each of which may be opened twice, of the source at `path`.
    ///
    /// # Errors
    /// [`SourceError::Descriptors`] where they can neither stay open nor take turns.
    pub(crate) fn of(path: &Path, files: usize) -> Result<Self, SourceError> {
        match (descriptors(), open_descriptors()) {
            (Some(limit), open) => Self::within(path, files, limit, open),
            (None, _) => Ok(Self(None)),
        }
    }

    fn within(path: &Path, files: usize, limit: u64, open: u64) -> Result<Self, SourceError> {
        let (wanted, left) = (files as u64, limit.saturating_sub(open));
        if wanted * 2 + OTHERS <= left {
            return Ok(Self(None));
        }
        if left < LEAST && wanted > left {
            return Err(SourceError::Descriptors { path: path.to_owned(), files, limit, open });
        }
        tracing::info!(files, limit, open, "too few descriptors to keep all files open; they take turns");
        Ok(Self(Some(Arc::new(Turns { left: Mutex::new((left / 2).max(1)), given_back: Condvar::new() }))))
    }

    /// Does something with each new file before others get their turn: so many can be open at once.
    pub(crate) fn turn(&self) -> impl Sized {
        self.0.as_ref().map(Turns::take)
    }

    /// `file`, open now and found at `path`, for later use.
    ///
    /// # Errors
    /// Where the kernel does not say which file it is.
    pub(crate) fn keep(&self, file: File, path: &Path) -> io::Result<ShardFile> {
        let Some(turns) = &self.0 else { return Ok(ShardFile::kept(file)) };
        // The path as it is now, wherever the working directory is later.
        let (path, identity) = (std::path::absolute(path)?, Identity::of(&file.metadata()?));
        let turns = Arc::clone(turns);
        Ok(ShardFile(Reach::Again(Arc::new(Again { path, identity, flags: 0, turns }))))
    }
}

/// Files that the process has open; where the kernel does not say, those that every process has.
fn open_descriptors() -> u64 {
    // One of them is the listing's own.
    entries("/proc/self/fd".as_ref()).map_or(3, |entries| entries.len().saturating_sub(1) as u64)
}

/// What to do about an error, where there are too many open files or one was cut off.
pub(crate) fn advice(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "; it is shorter than when it was opened: load it again when its writer is done".to_owned();
    }
    match (error.raw_os_error(), descriptors()) {
        (Some(libc::EMFILE), Some(limit)) => {
            format!("; RLIMIT_NOFILE allows {limit} at once: raise it (ulimit -n)")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn within(files: usize, limit: u64, open: u64) -> Result<Option<u64>, SourceError> {
        let keeping = Keeping::within(Path::new("model"), files, limit, open)?;
        Ok(keeping.0.map(|turns| *turns.left.lock().unwrap()))
    }

    #[test]
    fn files_stay_open_take_turns_or_are_too_many() {
        assert_eq!(within(64, 1024, 3).unwrap(), None);
        assert_eq!(within(64, 24, 3).unwrap(), Some(10));
        assert_eq!(within(1, 8, 3).unwrap(), Some(2));
        for (files, limit, open) in [(64, 8, 3), (6, 8, 3), (1, 8, 8), (2, 8, 9)] {
            let error = within(files, limit, open).unwrap_err();
            assert!(matches!(error, SourceError::Descriptors { .. }) && !error.is_invalid_data(), "{error}");
            assert!(error.to_string().contains("ulimit -n"), "{error}");
        }
    }

    /// Two files that take turns, of which one is open at a time.
    fn pair(folder: &Path) -> [(PathBuf, ShardFile); 2] {
        let turns = Arc::new(Turns { left: Mutex::new(1), given_back: Condvar::new() });
        let keeping = Keeping(Some(turns));
        ["a", "b"].map(|name| {
            let path = folder.join(name);
            fs::write(&path, name.repeat(100)).unwrap();
            let file = keeping.keep(File::open(&path).unwrap(), &path).unwrap();
            (path, file)
        })
    }

    #[test]
    fn one_waits_until_the_other_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let [(_, first), (_, second)] = pair(folder.path());
        let open = first.open().unwrap();
        thread::scope(|scope| {
            let (send, opened) = mpsc::channel();
            scope.spawn(move || send.send(second.open().map(|file| file.metadata().unwrap().len())));
            assert!(opened.recv_timeout(Duration::from_millis(50)).is_err(), "both are open");
            drop(open);
            assert_eq!(opened.recv_timeout(Duration::from_secs(20)).unwrap().unwrap(), 100);
        });
    }

    #[test]
    fn only_the_same_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let [(path, file), _] = pair(folder.path());
        let mut bytes = [0; 4];
        file.open().unwrap().read_exact_at(&mut bytes, 96).unwrap();
        assert_eq!(&bytes, b"aaaa");
        assert!(file.as_kept().is_none());
        let gone = path.with_extension("gone");
        fs::rename(&path, &gone).unwrap();
        assert_eq!(file.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "b".repeat(100)).unwrap();
        assert_eq!(file.open().unwrap_err().raw_os_error(), Some(libc::ESTALE));
        fs::rename(&gone, &path).unwrap();
        file.open().unwrap();
        File::options().append(true).open(&path).unwrap().set_len(99).unwrap();
        assert_eq!(file.open().unwrap_err().raw_os_error(), Some(libc::ESTALE), "it was cut");
    }
}
