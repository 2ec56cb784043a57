//! Publishing a set of shards and their index.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::bridge::{Bridge, meaning};
use super::clean;
use super::error::PublishError;
use super::folder::{Folder, FolderSyncs, Named, Refused};
use super::lock;
use super::made::MadeFolder;
use super::retire::{Old, retire};
use super::stage::{Staged, place};
use super::standing::Standing;
use super::system::{Stat, System};
use super::target::{check_set, single_file};
use super::temp::{self, TempFile};
use super::{Durability, MakeIndex, Synced, sync};

/// A set to be replaced, or to be new.
#[derive(Debug)]
pub(super) struct SetGoal {
    index: String,
    pub(super) shards: Vec<String>,
    /// A file that will be replaced, whose mode and owner the new shards get.
    pub(super) like: Option<Stat>,
    /// The same for the index.
    like_index: Option<Stat>,
    /// The folder, where it was made for this save.
    made: Option<MadeFolder>,
}

impl SetGoal {
    pub(super) fn look(
        system: Arc<dyn System>,
        path: &Path,
        index: String,
        shards: Vec<String>,
        durability: Durability,
    ) -> Result<(Arc<Folder>, Self), PublishError> {
        check_set(&index, &shards)?;
        let (folder, made) = match Folder::open(Arc::clone(&system), path) {
            Ok(folder) => (folder, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = MadeFolder::make(&system, path)?;
                let folder = Folder::open(system, path);
                (folder.map_err(|error| PublishError::io(path, "open the folder", None, error))?, Some(made))
            }
            Err(error) => return Err(PublishError::io(path, "open the folder", None, error)),
        };
        if durability == Durability::Full {
            folder.sync_above()?;
        }
        let folder = Arc::new(folder);
        let lock = lock::lock(&folder, &[])?;
        let standing = Standing::read(&folder, &index)?;
        clean::dead_temps(&folder, &standing.named);
        standing.refuse_others(&folder, &index)?;
        if !standing.indexed {
            // Said by the commit; whether it can be is known before anything is written.
            meaning(&folder)?;
        }
        let like_index = folder.replaceable(index.as_ref())?;
        let like = standing.like(&folder, &index)?;
        drop(lock);
        Ok((folder, Self { index, shards, like, like_index, made }))
    }

    pub(super) fn commit(
        mut self,
        folder: &Arc<Folder>,
        mut temps: Vec<(TempFile, Named)>,
        durability: Durability,
        token: u64,
        make_index: MakeIndex<'_>,
    ) -> Result<Synced, PublishError> {
        let start = Instant::now();
        let full = durability == Durability::Full;
        self.complete(folder, &temps, full)?;
        folder.check_in_place()?;

        let own: Vec<_> = temps.iter().map(|(file, _)| file.identity()).collect();
        let _lock = lock::lock(folder, &own)?;
        let mut syncs = FolderSyncs { folder, full, count: 0 };
        let standing = Standing::read(folder, &self.index)?;
        let names = standing.free_names(folder, &self.shards, token)?;
        let (index, mut index_name) = self.write_index(folder, token, &make_index(&names), full)?;
        let mut staged = Staged { folder, full, bridge: None, placed: Vec::new() };
        let mut replaced = standing.replaced;
        if !standing.indexed
            && let Some(Bridge { text, files }) = meaning(folder)?
        {
            staged.bridge = Some(self.publish_bridge(folder, &text, full)?);
            replaced.extend(files.into_iter().filter(|file| file == single_file(&self.index)));
        }
        let mut old = retire(folder, replaced)?;
        // From here on, whatever gets or loses a name can be told to be ours, and no shard changes what the folder means.
        syncs.sync()?;
        for ((file, named), name) in temps.iter_mut().zip(&names) {
            staged.placed.push(place(folder, file, named, name)?);
        }
        syncs.sync()?;

        let renamed = folder.rename(&index_name.name, self.index.as_ref(), index.identity());
        let is_done = match renamed {
            Err(Refused { error, done: Some(false) }) => return Err(error),
            Err(Refused { error, .. }) => Err(error),
            Ok(()) => {
                let path = folder.path.join(&self.index);
                syncs.try_sync().map_err(|source| PublishError::Unsynced { path, source })
            }
        };
        index_name.keep();
        staged.keep();
        self.made.iter_mut().for_each(MadeFolder::keep);
        if let Err(error) = is_done {
            // Either index may be the one after a power cut: what proves the other's files ours stays.
            old.iter_mut().for_each(Old::keep);
            temps.iter_mut().for_each(|(_, named)| named.keep());
            return Err(error);
        }

        let named = names.iter().cloned().chain(standing.named).collect();
        let Cleared { removed, left } = clear_away(folder, old, &named, temps, &mut syncs);
        let path = |name: &OsString| folder.path.join(name);
        let files = names.iter().chain([&self.index]);
        Ok(Synced {
            durability,
            files_synced: if full { names.len() + 1 } else { 0 },
            folder_synced: syncs.count,
            files: files.map(|name| folder.path.join(name)).collect(),
            seconds: start.elapsed().as_secs_f64(),
            removed: removed.iter().map(path).collect(),
            left: left.iter().map(path).collect(),
        })
    }

    /// Brings the shards' bytes to the disk.
    fn complete(&self, folder: &Folder, temps: &[(TempFile, Named)], full: bool) -> Result<(), PublishError> {
        for (file, _) in temps {
            file.finish(self.like.as_ref())?;
        }
        if full {
            let files: Vec<_> = temps.iter().map(|(file, _)| file.clone()).collect();
            sync::group(&files)?;
        }
        for (file, named) in temps {
            file.flush()?;
            folder.check_is(&named.name, file.identity())?;
        }
        Ok(())
    }

    fn write_index(
        &self,
        folder: &Arc<Folder>,
        token: u64,
        text: &[u8],
        full: bool,
    ) -> Result<(TempFile, Named), PublishError> {
        let mode = if self.like_index.is_some() { 0o600 } else { 0o666 };
        let (file, named) = TempFile::create(folder, self.index.as_ref(), token, mode, text.len() as u64)?;
        file.write_all_at(text, 0)?;
        file.finish(self.like_index.as_ref())?;
        if full {
            file.sync()?;
        }
        file.flush()?;
        Ok((file, named))
    }

    /// Makes a folder that means something without an index mean the same by one, so that shards can be put beside it.
    fn publish_bridge(&self, folder: &Arc<Folder>, text: &[u8], full: bool) -> Result<Named, PublishError> {
        let (file, mut temp) = self.write_index(folder, temp::token(), text, full)?;
        folder.rename(&temp.name, self.index.as_ref(), file.identity())?;
        temp.keep();
        Ok(Named::new(folder, self.index.as_str().into(), file.identity()))
    }
}

/// What became of the old checkpoint.
struct Cleared {
    removed: Vec<OsString>,
    left: Vec<OsString>,
}

/// Removes what the new checkpoint replaced, then what proved that to be ours. Nothing that fails here is an error: the new
/// checkpoint is there, and the next save tries again.
fn clear_away(
    folder: &Arc<Folder>,
    mut old: Vec<Old>,
    named: &HashSet<String>,
    mut temps: Vec<(TempFile, Named)>,
    syncs: &mut FolderSyncs<'_>,
) -> Cleared {
    for mut orphan in clean::orphans(folder, named).into_iter().filter_map(Old::orphan) {
        if old.iter().any(|old| old.is_proved_by(&orphan)) {
            orphan.keep();
        } else {
            old.push(orphan);
        }
    }
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for old in &mut old {
        match old.remove(folder) {
            Ok(true) => removed.push(old.name.clone()),
            Ok(false) => {}
            Err(_) => left.push(old.name.clone()),
        }
    }
    if !removed.is_empty() && syncs.try_sync().is_err() {
        // They may come back.
        left.extend(old.iter().filter_map(|old| Some(old.proof.as_ref()?.name.clone())));
        old.iter_mut().for_each(Old::keep);
    }
    let proofs = old.iter_mut().filter_map(|old| old.proof.as_mut());
    for name in proofs.chain(temps.iter_mut().map(|(_, named)| named)) {
        if name.remove().is_err() {
            left.push(name.name.clone());
        }
    }
    Cleared { removed, left }
}
