//! A folder that is made for a checkpoint.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::error::PublishError;
use super::folder::{Folder, uninterrupted};
use super::system::System;

/// A folder that was made for a save, removed again on drop unless kept.
#[derive(Debug)]
pub(super) struct MadeFolder {
    above: Folder,
    name: OsString,
    keep: bool,
}

impl MadeFolder {
    pub(super) fn make(system: &Arc<dyn System>, path: &Path) -> Result<Self, PublishError> {
        let failed = |doing, error| PublishError::io(path, doing, None, error);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed("open the folder", Errno::NOENT.into()));
        };
        let above = Folder::open(Arc::clone(system), above)
            .map_err(|error| failed("open the folder that it would be in", error))?;
        let keep = match uninterrupted(|| system.make_folder(above.fd(), name)) {
            Ok(()) => false,
            // Somebody else was as quick.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
            Err(error) => return Err(failed("make the folder", error)),
        };
        Ok(Self { above, name: name.to_owned(), keep })
    }

    pub(super) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for MadeFolder {
    fn drop(&mut self) {
        if !self.keep {
            // Fails where somebody else has put something there.
            let removed = uninterrupted(|| self.above.system.remove_folder(self.above.fd(), &self.name));
            tracing::debug!(folder = %self.above.path.join(&self.name).display(), ?removed, "taking back the folder");
        }
    }
}
