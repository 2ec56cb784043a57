//! The folder that is saved to, held open for the length of a save.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::PublishError;
use super::system::{How, Identity, Kind, Stat, System};

/// Repeats a call that a signal interrupted.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// A folder, by descriptor and by the path it was opened at.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) system: Arc<dyn System>,
    pub(super) path: PathBuf,
    fd: OwnedFd,
    identity: Identity,
}

impl Folder {
    pub(super) fn open(system: Arc<dyn System>, path: &Path) -> io::Result<Self> {
        // The folder of a bare name. Absolute, since another thread may change the working directory.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let path = &std::path::absolute(path)?;
        let fd = uninterrupted(|| system.open_folder(path))?;
        let identity = uninterrupted(|| system.stat_open(fd.as_fd()))?.identity;
        Ok(Self { system, path: path.to_owned(), fd, identity })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The error of a call about `name`, or about the folder itself.
    pub(super) fn error(&self, name: &OsStr, doing: &'static str, source: io::Error) -> PublishError {
        PublishError::io(&self.path.join(name), doing, None, source)
    }

    /// What is at `name`, if anything.
    pub(super) fn stat(&self, name: &OsStr) -> Result<Option<Stat>, PublishError> {
        match uninterrupted(|| self.system.stat(self.fd(), name)) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error(name, "look at it", error)),
        }
    }

    /// Whether `name` is the file of this identity. Not known is no.
    pub(super) fn is(&self, name: &OsStr, identity: Identity) -> bool {
        self.stat(name).is_ok_and(|stat| stat.is_some_and(|stat| stat.identity == identity))
    }

    /// Refuses to go on where `name` is not the file of this identity, and where that cannot be told.
    pub(super) fn check_is(&self, name: &OsStr, identity: Identity) -> Result<(), PublishError> {
        match self.stat(name)? {
            Some(stat) if stat.identity == identity => Ok(()),
            _ => Err(PublishError::Taken { path: self.path.join(name) }),
        }
    }

    pub(super) fn list(&self) -> Result<Vec<OsString>, PublishError> {
        uninterrupted(|| self.system.list(self.fd()))
            .map_err(|error| self.error("".as_ref(), "list it", error))
    }

    /// The bytes of a file, up to `most` and one; links are followed.
    pub(super) fn read(&self, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
        let file = File::from(uninterrupted(|| self.system.open(self.fd(), name, How::Follow))?);
        let expected = file.metadata()?.len().min(most + 1);
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        // The beginning of an index says nothing about what the rest names.
        if (bytes.len() as u64) < expected {
            let ended = format!("it ended after {} of {expected} bytes", bytes.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ended));
        }
        Ok(bytes)
    }

    /// Refuses what a file must not replace, and what this process may not write; what stands there is returned.
    pub(super) fn replaceable(&self, name: &OsStr) -> Result<Option<Stat>, PublishError> {
        let Some(stat) = self.stat(name)? else { return Ok(None) };
        let found = match stat.kind {
            Kind::Regular => {
                uninterrupted(|| self.system.may_write(self.fd(), name))
                    .map_err(|error| self.error(name, "write to it", error))?;
                return Ok(Some(stat));
            }
            // A set replaces the link, not what it leads to: that may be in a store that others share.
            Kind::Link => return Ok(None),
            Kind::Folder => "a folder",
            Kind::Other => "a device, pipe or socket",
        };
        Err(PublishError::NotAFile { path: self.path.join(name), found })
    }

    /// Waits until every change of names so far is on the disk; false where the file system has no such wait for folders.
    pub(super) fn sync(&self) -> io::Result<bool> {
        sync(&*self.system, self.fd())
    }

    /// Waits until the folder's own name is on the disk, which its maker may not have done. Whoever may not open the folder above
    /// cannot.
    pub(super) fn sync_above(&self) -> Result<(), PublishError> {
        let above = self.path.join("..");
        match uninterrupted(|| self.system.open_folder(&above)) {
            Ok(fd) => sync(&*self.system, fd.as_fd())
                .map(drop)
                .map_err(|error| self.error("".as_ref(), "sync the folder that it is in to the disk", error)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(self.error("".as_ref(), "open the folder that it is in", error)),
        }
    }

    /// Refuses to go on where the path leads elsewhere by now.
    pub(super) fn check_in_place(&self) -> Result<(), PublishError> {
        let now = Self::open(Arc::clone(&self.system), &self.path);
        match now {
            Ok(now) if now.identity == self.identity => Ok(()),
            Ok(_) => Err(PublishError::FolderMoved { path: self.path.clone() }),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(PublishError::FolderMoved { path: self.path.clone() })
            }
            Err(error) => Err(self.error("".as_ref(), "open it again", error)),
        }
    }

    /// Renames; `identity` is what is renamed. A network file system may have done it and yet report an error.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr, identity: Identity) -> Result<(), Refused> {
        let Err(error) = uninterrupted(|| self.system.rename(self.fd(), from, to)) else { return Ok(()) };
        let done = self.stat(to).ok().map(|stat| stat.is_some_and(|stat| stat.identity == identity));
        if done == Some(true) {
            return Ok(());
        }
        Err(Refused { error: self.error(to, "rename the new file to it", error), done })
    }

    /// Removes `name` if it is the file of this identity; returns whether it was.
    pub(super) fn unlink(&self, name: &OsStr, identity: Identity) -> io::Result<bool> {
        match uninterrupted(|| self.system.stat(self.fd(), name)) {
            Ok(stat) if stat.identity == identity => {
                uninterrupted(|| self.system.unlink(self.fd(), name)).map(|()| true)
            }
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A renaming that failed.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: PublishError,
    /// Whether it has been done all the same, where that can be known.
    pub(super) done: Option<bool>,
}

impl From<Refused> for PublishError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

fn sync(system: &dyn System, folder: BorrowedFd<'_>) -> io::Result<bool> {
    match uninterrupted(|| system.sync(folder)) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The syncs of a folder during a save, counted; none where nothing is to be synced.
#[derive(Debug)]
pub(super) struct FolderSyncs<'a> {
    pub(super) folder: &'a Folder,
    pub(super) full: bool,
    pub(super) count: usize,
}

impl FolderSyncs<'_> {
    pub(super) fn try_sync(&mut self) -> io::Result<()> {
        if self.full {
            self.count += usize::from(self.folder.sync()?);
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), PublishError> {
        self.try_sync().map_err(|error| self.folder.error("".as_ref(), "sync the folder to the disk", error))
    }
}

/// A name that a save gave a file, taken back on drop unless kept: only while it still means that file.
#[derive(Debug)]
pub(super) struct Named {
    folder: Arc<Folder>,
    pub(super) name: OsString,
    pub(super) identity: Identity,
    keep: bool,
}

impl Named {
    pub(super) fn new(folder: &Arc<Folder>, name: OsString, identity: Identity) -> Self {
        Self { folder: Arc::clone(folder), name, identity, keep: false }
    }

    /// The name is left alone from here on.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    /// Removes the name unless it is kept; one that means something else by now is left alone.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.keep, true) {
            return Ok(());
        }
        self.folder.unlink(&self.name, self.identity).map(drop)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            let path = self.folder.path.join(&self.name);
            tracing::warn!(file = %path.display(), %error, "could not be removed; the next save to its folder will");
        }
    }
}
