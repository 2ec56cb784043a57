//! Publishing a set of shards and their index.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::clean::{self, Dead};
use super::error::PublishError;
use super::folder::{Folder, Named, uninterrupted};
use super::standing::{Standing, meaning};
use super::system::{Identity, Kind, Stat, System};
use super::target::{check_set, single_file};
use super::temp::{self, TempFile, temp_name};
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
                let made = MadeFolder::make(&system, path, durability)?;
                let folder = Folder::open(system, path);
                (folder.map_err(|error| PublishError::io(path, "open the folder", None, error))?, Some(made))
            }
            Err(error) => return Err(PublishError::io(path, "open the folder", None, error)),
        };
        let folder = Arc::new(folder);
        let lock = folder.lock()?;
        let standing = Standing::read(&folder, &index)?;
        clean::dead_temps(&folder, &standing.named);
        standing.refuse_others(&folder, &index)?;
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
        let mut folder_synced = 0;
        let mut sync_folder = || -> io::Result<()> {
            if full {
                folder.sync()?;
                folder_synced += 1;
            }
            Ok(())
        };
        let failed = |error| folder.error("".as_ref(), "sync the folder to the disk", error);

        for (file, _) in &temps {
            file.finish(self.like.as_ref())?;
        }
        if full {
            let files: Vec<_> = temps.iter().map(|(file, _)| file.clone()).collect();
            sync::group(&files)?;
        }
        for (file, named) in &temps {
            file.flush()?;
            if !folder.is(&named.name, file.identity()) {
                return Err(PublishError::Taken { path: file.path() });
            }
        }

        folder.check_in_place()?;
        let _lock = folder.lock()?;
        let standing = Standing::read(folder, &self.index)?;
        let names = standing.free_names(folder, &self.shards, token)?;
        let text = make_index(&names);
        let (index, mut index_name) = self.write_index(folder, token, &text, full)?;
        let mut staged = Staged { folder, full, bridge: None, placed: Vec::new() };
        let mut replaced = standing.replaced;
        if !standing.indexed
            && let Some((text, files)) = meaning(folder)
        {
            staged.bridge = Some(self.publish_bridge(folder, &text, full)?);
            replaced.extend(files.into_iter().filter(|file| file == single_file(&self.index)));
        }
        let mut old = retire(folder, replaced)?;
        // From here on, whatever gets or loses a name can be told to be ours, and no shard changes what the folder means.
        sync_folder().map_err(failed)?;
        for ((file, named), name) in temps.iter_mut().zip(&names) {
            staged.placed.push(place(folder, file, named, name)?);
        }
        sync_folder().map_err(failed)?;
        folder.rename(&index_name.name, self.index.as_ref(), index.identity())?;
        index_name.keep();
        staged.keep();
        if let Some(made) = &mut self.made {
            made.keep();
        }
        if let Err(source) = sync_folder() {
            // Either index may be the one after a power cut: what proves the other's files ours stays.
            old.iter_mut().for_each(Old::keep);
            temps.iter_mut().for_each(|(_, named)| named.keep());
            return Err(PublishError::Unsynced { path: folder.path.join(&self.index), source });
        }

        // The old checkpoint goes.
        let named = names.iter().cloned().chain(standing.named).collect();
        for mut orphan in clean::orphans(folder, &named).into_iter().filter_map(Old::orphan) {
            if old.iter().any(|old| old.is_proved_by(&orphan)) {
                orphan.keep();
            } else {
                old.push(orphan);
            }
        }
        let mut left: Vec<OsString> = Vec::new();
        let mut removed = Vec::new();
        for old in &mut old {
            match old.remove(folder) {
                Ok(true) => removed.push(old.name.clone()),
                Ok(false) => {}
                Err(_) => left.push(old.name.clone()),
            }
        }
        if !removed.is_empty() && sync_folder().is_err() {
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
        let path = |name: &OsString| folder.path.join(name);
        Ok(Synced {
            durability,
            files: names
                .iter()
                .map(|name| folder.path.join(name))
                .chain([folder.path.join(&self.index)])
                .collect(),
            files_synced: if full { names.len() + 1 } else { 0 },
            folder_synced,
            seconds: start.elapsed().as_secs_f64(),
            removed: removed.iter().map(path).collect(),
            left: left.iter().map(path).collect(),
        })
    }

    fn write_index(
        &self,
        folder: &Arc<Folder>,
        token: u64,
        text: &[u8],
        full: bool,
    ) -> Result<(TempFile, Named), PublishError> {
        let mode = self.like_index.as_ref().map_or(0o666, |like| like.mode & 0o600);
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

/// Gives a complete shard its name, which must be free. The temporary one stays, to prove whose it is, where the file system can.
fn place(folder: &Arc<Folder>, file: &TempFile, temp: &mut Named, name: &str) -> Result<Named, PublishError> {
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

/// Names given before the commit, taken back on drop.
struct Staged<'a> {
    folder: &'a Folder,
    full: bool,
    bridge: Option<Named>,
    placed: Vec<Named>,
}

impl Staged<'_> {
    fn keep(&mut self) {
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

/// A file of the old checkpoint, or of a save that was cut short.
struct Old {
    name: OsString,
    identity: Identity,
    /// Its second name, which proves that it is ours to remove.
    proof: Option<Named>,
}

impl Old {
    fn orphan(dead: Dead) -> Option<Self> {
        Some(Self { name: dead.orphan?, identity: dead.temp.identity, proof: Some(dead.temp) })
    }

    /// Returns whether it was there and was the same file.
    fn remove(&mut self, folder: &Folder) -> io::Result<bool> {
        folder.unlink(&self.name, self.identity).inspect_err(|_| self.keep())
    }

    fn is_proved_by(&self, other: &Self) -> bool {
        let name = |old: &Self| old.proof.as_ref().map(|proof| proof.name.clone());
        name(self) == name(other)
    }

    fn keep(&mut self) {
        if let Some(proof) = &mut self.proof {
            proof.keep();
        }
    }
}

/// Gives files that are about to be replaced a second name each, by which a later save knows them if this one is cut short.
fn retire(folder: &Arc<Folder>, names: Vec<String>) -> Result<Vec<Old>, PublishError> {
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

/// A folder that was made for a save, removed again on drop unless kept.
#[derive(Debug)]
struct MadeFolder {
    above: Folder,
    name: OsString,
    keep: bool,
}

impl MadeFolder {
    fn make(system: &Arc<dyn System>, path: &Path, durability: Durability) -> Result<Self, PublishError> {
        let failed = |doing, error| PublishError::io(path, doing, None, error);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed("open the folder", io::ErrorKind::NotFound.into()));
        };
        let above = Folder::open(Arc::clone(system), above)
            .map_err(|error| failed("open the folder that it would be in", error))?;
        match uninterrupted(|| system.make_folder(above.fd(), name)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make the folder", error)),
        }
        let made = Self { above, name: name.to_owned(), keep: false };
        if durability == Durability::Full {
            made.above.sync().map_err(|error| failed("sync the folder that it is in to the disk", error))?;
        }
        Ok(made)
    }

    fn keep(&mut self) {
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
