//! What dead saves left behind: finding it, and removing only what is provably theirs.
//!
//! Proof is: the name is one of a temporary file, with all its digits; it is a regular file, no link, of this user; and its lock is free, which a live
//! saver's is not. What is removed is the name, so that another name of the file loses nothing.
//!
//! Callers hold the folder's lock: under it, a live saver's second names of shards are not seen.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use super::folder::{Folder, Named, uninterrupted};
use super::system::{How, Kind};
use super::target::WEIGHTS;
use super::temp::told_by;

/// A temporary file whose saver is gone.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) temp: Named,
    /// The name it was made for.
    pub(super) told: OsString,
    /// Holds its lock.
    _file: OwnedFd,
}

impl Dead {
    /// Whether the file has the name it was made for, too.
    pub(super) fn has_name(&self, folder: &Folder) -> bool {
        folder.is(&self.told, self.temp.identity)
    }
}

/// Removes what dead saves left, but for shards that no index names: these go when a set is complete, since they may be all that
/// the folder has. What cannot be removed does not stop a save.
pub(super) fn dead_temps(folder: &Arc<Folder>, named: &HashSet<String>) {
    for mut dead in find(folder) {
        if is_orphan(&dead, folder, named) {
            dead.temp.keep();
        } else {
            let file = folder.path.join(&dead.temp.name);
            tracing::info!(file = %file.display(), "left by a save that was cut short: removing it");
        }
    }
}

/// Shards of dead saves that no index names, each with the temporary file that proves it.
pub(super) fn orphans(folder: &Arc<Folder>, named: &HashSet<String>) -> Vec<Dead> {
    let mut orphans = Vec::new();
    for mut dead in find(folder) {
        if is_orphan(&dead, folder, named) {
            orphans.push(dead);
        } else {
            dead.temp.keep();
        }
    }
    orphans
}

fn is_orphan(dead: &Dead, folder: &Folder, named: &HashSet<String>) -> bool {
    let Some(told) = dead.told.to_str() else { return false };
    told.ends_with(WEIGHTS) && !named.contains(told) && dead.has_name(folder)
}

fn find(folder: &Arc<Folder>) -> Vec<Dead> {
    match folder.list() {
        Ok(names) => names.into_iter().filter_map(|name| examine(folder, name)).collect(),
        Err(error) => {
            tracing::debug!(%error, "looking for what dead saves left");
            Vec::new()
        }
    }
}

fn examine(folder: &Arc<Folder>, name: OsString) -> Option<Dead> {
    let told = told_by(&name)?.to_owned();
    let user = rustix::process::geteuid();
    let ours = |uid| user.is_root() || user.as_raw() == uid;
    let stat = folder.stat(&name).ok()??;
    if stat.kind != Kind::Regular || !ours(stat.uid) {
        return None;
    }
    let system = &folder.system;
    let file = uninterrupted(|| system.open(folder.fd(), &name, How::Read)).ok()?;
    let opened = uninterrupted(|| system.stat_open(file.as_fd())).ok()?;
    // Not lockable is not known to be dead.
    let locked = uninterrupted(|| system.lock(file.as_fd())).unwrap_or(false);
    let dead = opened.identity == stat.identity && locked && folder.is(&name, stat.identity);
    dead.then(|| Dead { temp: Named::new(folder, name, stat.identity), told, _file: file })
}
