//! Names that a set gets before its commit, and that are taken back if there is none.

use std::ffi::OsString;
use std::sync::Arc;

use super::error::PublishError;
use super::folder::{Folder, Named, uninterrupted};
use super::temp::TempFile;

/// Names given before the commit, taken back on drop.
pub(super) struct Staged<'a> {
    pub(super) folder: &'a Folder,
    /// Whether anything is synced at all.
    pub(super) full: bool,
    /// The index that says of the old file what the folder said without one.
    pub(super) bridge: Option<Named>,
    /// The new shards.
    pub(super) placed: Vec<Named>,
}

impl Staged<'_> {
    /// They are the checkpoint's now.
    pub(super) fn keep(&mut self) {
        self.placed.drain(..).chain(self.bridge.take()).for_each(|mut named| named.keep());
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let Some(bridge) = &mut self.bridge else { return };
        let placed = !self.placed.is_empty();
        self.placed.clear();
        // Without it, a shard that comes back after a power cut would change what the folder means.
        if placed && self.full && self.folder.sync().is_err() {
            bridge.keep();
        }
    }
}

/// Gives a complete shard its name, which must be free. The temporary one stays, to prove whose it is, where the file system can.
pub(super) fn place(
    folder: &Arc<Folder>,
    file: &TempFile,
    temp: &mut Named,
    name: &str,
) -> Result<Named, PublishError> {
    let name: OsString = name.into();
    let system = &folder.system;
    let linked = uninterrupted(|| system.link(folder.fd(), &temp.name, &name));
    if linked.is_ok() || folder.is(&name, file.identity()) {
        return Ok(Named::new(folder, name, file.identity()));
    }
    let renamed = match uninterrupted(|| system.rename_new(folder.fd(), &temp.name, &name)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && folder.stat(&name)?.is_none() => {
            // A file system that cannot refuse to replace. Other savers wait for the folder's lock.
            uninterrupted(|| system.rename(folder.fd(), &temp.name, &name))
        }
        answer => answer,
    };
    match renamed {
        Err(error) if !folder.is(&name, file.identity()) => {
            Err(folder.error(&name, "give the new shard this name", error))
        }
        _ => {
            temp.keep();
            Ok(Named::new(folder, name, file.identity()))
        }
    }
}
