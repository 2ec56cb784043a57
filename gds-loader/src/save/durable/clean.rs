//! What dead saves left behind: finding it, and removing only what is provably theirs.
//!
//! Proof is: the name is one of a temporary file, with all its digits; it is a regular file, no link, of this user; and its lock is free, which a live
//! saver's is not. What is removed is the name, so that another name of the file loses nothing.
//!
//! Callers hold the folder's lock, or nobody else saves there: so a live saver's second names of shards are not seen.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use super::folder::{Folder, Named, uninterrupted};
use super::system::{How, Identity, Kind};
use super::target::WEIGHTS;
use super::temp::told_by;

/// A temporary file whose saver is gone.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) temp: Named,
    /// The shard that is the same file and that no index names, if there is one.
    pub(super) orphan: Option<OsString>,
    /// Holds its lock.
    _file: Arc<OwnedFd>,
}

/// Removes what dead saves left, but for shards that no index names: these go when a set is complete, since they may be all that
/// the folder has. What cannot be removed does not stop a save.
pub(super) fn dead_temps(folder: &Arc<Folder>, named: &HashSet<String>) {
    for mut dead in find(folder, named) {
        if dead.orphan.is_some() {
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
    for mut dead in find(folder, named) {
        if dead.orphan.is_some() {
            orphans.push(dead);
        } else {
            dead.temp.keep();
        }
    }
    orphans
}

/// Whether another save is writing to the folder: a temporary file that is none of `own` is locked, or may be.
pub(super) fn is_saved_to(folder: &Folder, own: &[Identity]) -> bool {
    let is_alive = |name: &OsString| match folder.stat(name) {
        Ok(None) => false,
        Ok(Some(stat)) if stat.kind != Kind::Regular || own.contains(&stat.identity) => false,
        Ok(Some(stat)) => lock(folder, name, stat.identity).is_none(),
        Err(_) => true,
    };
    folder.list().map_or(true, |names| names.iter().any(|name| told_by(name).is_some() && is_alive(name)))
}

fn find(folder: &Arc<Folder>, named: &HashSet<String>) -> Vec<Dead> {
    let names = folder.list().unwrap_or_else(|error| {
        tracing::debug!(%error, "looking for what dead saves left");
        Vec::new()
    });
    // Two names of one file have one lock.
    let mut locked = HashMap::new();
    names.into_iter().filter_map(|name| examine(folder, name, named, &mut locked)).collect()
}

fn examine(
    folder: &Arc<Folder>,
    name: OsString,
    named: &HashSet<String>,
    locked: &mut HashMap<Identity, Arc<OwnedFd>>,
) -> Option<Dead> {
    let told = told_by(&name)?;
    let user = rustix::process::geteuid();
    let ours = |uid| user.is_root() || user.as_raw() == uid;
    let stat = folder.stat(&name).ok()??;
    if stat.kind != Kind::Regular || !ours(stat.uid) {
        return None;
    }
    let file = match locked.get(&stat.identity) {
        Some(file) => Arc::clone(file),
        None => {
            let file = Arc::new(lock(folder, &name, stat.identity)?);
            locked.insert(stat.identity, Arc::clone(&file));
            file
        }
    };
    // As it was made for, or by the name that such a shard gets where that is taken.
    let orphan = told.names().into_iter().find(|shard| {
        shard.ends_with(WEIGHTS) && !named.contains(shard) && folder.is(shard.as_ref(), stat.identity)
    });
    let orphan = orphan.map(OsString::from);
    folder.is(&name, stat.identity).then(|| Dead {
        temp: Named::new(folder, name, stat.identity),
        orphan,
        _file: file,
    })
}

/// Opens and locks a dead temporary file.
fn lock(folder: &Folder, name: &OsStr, identity: Identity) -> Option<OwnedFd> {
    let system = &folder.system;
    let file = uninterrupted(|| system.open(folder.fd(), name, How::Read)).ok()?;
    let opened = uninterrupted(|| system.stat_open(file.as_fd())).ok()?;
    // Not lockable is not known to be dead.
    let locked = uninterrupted(|| system.lock(file.as_fd())).unwrap_or(false);
    (opened.identity == identity && locked).then_some(file)
}
