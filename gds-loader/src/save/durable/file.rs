//! Publishing one file.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::clean;
use super::error::PublishError;
use super::folder::{Folder, FolderSyncs, Named};
use super::lock;
use super::standing::Standing;
use super::system::{Kernel, Stat, System};
use super::target::{Target, index_beside, resolve};
use super::temp::{LONGEST_NAME, TempFile};
use super::{Durability, Publication, Synced};

impl Durability {
    /// Makes these bytes the file at `path`: what was there is replaced in one step, or still there.
    pub(crate) fn publish(self, path: &Path, bytes: &[u8]) -> Result<Synced, PublishError> {
        let target = Target::File(path.to_path_buf());
        let mut publication = Publication::begin(Arc::new(Kernel), target, self)?;
        let file = publication.create(0, bytes.len() as u64)?;
        file.write_all_at(bytes, 0)?;
        publication.commit(&|_| Vec::new())
    }
}

/// A file to be replaced, or to be new.
#[derive(Debug)]
pub(super) struct FileGoal {
    pub(super) name: OsString,
    /// The file that is there, whose mode and owner the new one gets.
    pub(super) like: Option<Stat>,
}

impl FileGoal {
    pub(super) fn look(
        system: Arc<dyn System>,
        path: &Path,
        durability: Durability,
    ) -> Result<(Arc<Folder>, Self), PublishError> {
        let (above, name) = resolve(path)?;
        let folder = Folder::open(system, &above)
            .map_err(|error| PublishError::io(&above, "open the folder", None, error))?;
        if durability == Durability::Full {
            folder.sync_above()?;
        }
        let folder = Arc::new(folder);
        // Where somebody keeps the folder to themselves, or something cannot be read, the next save cleans.
        let lock = lock::try_lock(&folder);
        if !matches!(lock, Ok(None))
            && let Ok(Standing { mut named, .. }) = Standing::read(&folder, "")
        {
            // The file that is going to be replaced is no shard.
            named.extend(name.to_str().map(str::to_owned));
            clean::dead_temps(&folder, &named);
        }
        drop(lock);
        let like = folder.replaceable(&name)?;
        refuse_indexed(&folder, &name)?;
        Ok((folder, Self { name, like }))
    }

    pub(super) fn commit(
        self,
        folder: &Arc<Folder>,
        temps: Vec<(TempFile, Named)>,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        let start = Instant::now();
        let path = folder.path.join(&self.name);
        let full = durability == Durability::Full;
        let mut syncs = FolderSyncs { folder, full, count: 0 };
        let own: Vec<_> = temps.iter().map(|(file, _)| file.identity()).collect();
        for (file, mut named) in temps {
            file.finish(self.like.as_ref())?;
            if full {
                file.sync()?;
            }
            file.flush()?;
            // A set may have been saved since the first look, or be about to be published.
            let lock = if index_of(&self.name).is_some() { lock::lock(folder, &own)? } else { None };
            refuse_indexed(folder, &self.name)?;
            folder.check_in_place()?;
            folder.check_is(&named.name, file.identity())?;
            folder.rename(&named.name, &self.name, file.identity())?;
            drop(lock);
            named.keep();
            syncs.try_sync().map_err(|source| PublishError::Unsynced { path: path.clone(), source })?;
        }
        Ok(Synced {
            durability,
            files: vec![path],
            files_synced: usize::from(full),
            folder_synced: syncs.count,
            seconds: start.elapsed().as_secs_f64(),
            removed: Vec::new(),
            left: Vec::new(),
        })
    }
}

/// The index that would give the folder another meaning than the file called `name`. One whose name would be too long there is not.
fn index_of(name: &OsStr) -> Option<String> {
    index_beside(name).filter(|index| index.len() <= LONGEST_NAME)
}

fn refuse_indexed(folder: &Folder, name: &OsStr) -> Result<(), PublishError> {
    match index_of(name) {
        Some(index) if folder.stat(index.as_ref())?.is_some() => {
            Err(PublishError::Indexed { path: folder.path.join(name), index })
        }
        _ => Ok(()),
    }
}
