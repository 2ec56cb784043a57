//! Files that a save replaces, on their way out.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use super::clean::Dead;
use super::error::PublishError;
use super::folder::{Folder, Named, uninterrupted};
use super::system::{Identity, Kind};
use super::temp::{self, temp_name};

/// A file of the old checkpoint, or of a save that was cut short.
pub(super) struct Old {
    pub(super) name: OsString,
    identity: Identity,
    /// Its second name, which proves that it is ours to remove.
    pub(super) proof: Option<Named>,
}

impl Old {
    pub(super) fn orphan(dead: Dead) -> Option<Self> {
        Some(Self { name: dead.orphan?, identity: dead.temp.identity, proof: Some(dead.temp) })
    }

    /// Returns whether it was there and was the same file.
    pub(super) fn remove(&mut self, folder: &Folder) -> io::Result<bool> {
        folder.unlink(&self.name, self.identity).inspect_err(|_| self.keep())
    }

    pub(super) fn is_proved_by(&self, other: &Self) -> bool {
        let name = |old: &Self| old.proof.as_ref().map(|proof| proof.name.clone());
        name(self) == name(other)
    }

    pub(super) fn keep(&mut self) {
        if let Some(proof) = &mut self.proof {
            proof.keep();
        }
    }
}

/// Gives files that are about to be replaced a second name each, by which a later save knows them if this one is cut short.
pub(super) fn retire(folder: &Arc<Folder>, names: Vec<String>) -> Result<Vec<Old>, PublishError> {
    let mut old = Vec::new();
    for name in names {
        let name = OsString::from(name);
        let Some(stat) = folder.stat(&name)? else { continue };
        let mut proof = None;
        if stat.kind == Kind::Regular {
            let temp = temp_name(&name, temp::token());
            // Another's file, or a file system without links: it stays if this save is cut short.
            let linked = uninterrupted(|| folder.system.link(folder.fd(), &name, &temp));
            let linked = linked.is_ok() || folder.is(&temp, stat.identity);
            proof = linked.then(|| Named::new(folder, temp, stat.identity));
        }
        if matches!(stat.kind, Kind::Regular | Kind::Link) {
            old.push(Old { name, identity: stat.identity, proof });
        }
    }
    Ok(old)
}
