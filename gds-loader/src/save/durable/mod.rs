//! Making a checkpoint visible, whole, and keeping the old one until then.
//!
//! A save writes temporary files into the target's own folder and renames them when they are complete:
//!
//! - **One file**: its bytes are synced, it is renamed, the folder is synced.
//! - **A set**: all shards are synced as a group; then, one saver at a time in a folder: the shards get their names, none of which an index in the
//!   folder uses; the folder is synced; the renaming of the index is the only commit; the folder is synced; the shards of the old index go.
//!
//! So after a power cut, a kill or an error at any point, the old checkpoint is there, whole, or the new one is. What else
//! may be left:
//!
//! - Temporary files. The next save to the folder, whatever it saves, removes those whose saver is gone.
//! - Shards that no index names, of a set whose save was cut short. While a shard, new or old, could become one, it also has a temporary
//!   name, which is the proof that it is ours: the next save of a set removes a file that no index names if a dead
//!   temporary file made for that name is the same file. File systems without hard links give no such proof; there it stays.
//!
//! Two things about folders:
//!
//! - A folder that means a file, or a snapshot below it, and has no index means something else as soon as a shard is in it. So before
//!   the first shard gets its name, an index that names the old files is published. Where none can, the save is refused.
//! - A single file beside an index of its name would be overlooked by readers of the folder. It is refused.
//!
//! What durable means, and what it costs, is in `docs/saving.md`.

mod bridge;
mod clean;
mod error;
mod file;
mod folder;
mod lock;
mod made;
mod retire;
mod set;
mod stage;
mod standing;
mod sync;
mod system;
mod target;
mod temp;
#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use error::PublishError;
pub(crate) use system::{Kernel, System};
pub(super) use target::misread;
pub(crate) use target::{Target, unique};
pub(crate) use temp::TempFile;

use folder::{Folder, Named};
use set::SetGoal;

/// What a save waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Durability {
    /// Until bytes and names are on the disk: after the save, the new checkpoint survives a power cut, and a power cut during
    /// it leaves the old or the new one, whole.
    #[default]
    Full,
    /// Nothing. The new checkpoint still appears at once and whole, whatever happens to this process; but a power cut within the next
    /// minute or so may leave neither it nor the old one. For caches, and for what can be made again.
    None,
}

/// What a save has published, and how safely.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Synced {
    /// What was waited for.
    pub durability: Durability,
    /// The files of the checkpoint, in the order they were created; an index last.
    pub files: Vec<PathBuf>,
    /// How many of them were synced to the disk.
    pub files_synced: usize,
    /// How often the folder was.
    pub folder_synced: usize,
    /// Seconds from the first sync to the last.
    pub seconds: f64,
    /// Files of the checkpoint that was there, removed.
    pub removed: Vec<PathBuf>,
    /// Files that could not be removed, which the next save to the folder will try again.
    pub left: Vec<PathBuf>,
}

/// One save on its way to being visible. Dropped without [`Publication::commit`], it leaves nothing.
#[derive(Debug)]
pub(crate) struct Publication {
    // Dropped in this order: names before the folder they are in.
    temps: Vec<Option<(TempFile, Named)>>,
    goal: Goal,
    durability: Durability,
    /// In the names of its temporary files, and of its shards where theirs are taken.
    token: u64,
    folder: Arc<Folder>,
}

#[derive(Debug)]
enum Goal {
    File(file::FileGoal),
    Set(SetGoal),
}

/// Makes the text of an index out of the shards' names, in the order of the target's.
pub(crate) type MakeIndex<'a> = &'a dyn Fn(&[String]) -> Vec<u8>;

impl Publication {
    /// Looks at the target, refuses what cannot be saved there, and removes what dead saves left. Nothing is created but a missing
    /// folder of a set.
    pub(crate) fn begin(
        system: Arc<dyn System>,
        target: Target,
        durability: Durability,
    ) -> Result<Self, PublishError> {
        let (folder, goal, files) = match target {
            Target::File(path) => {
                let (folder, goal) = file::FileGoal::look(system, &path, durability)?;
                (folder, Goal::File(goal), 1)
            }
            Target::Set { folder, index, shards } => {
                let files = shards.len();
                let (folder, goal) = SetGoal::look(system, &folder, index, shards, durability)?;
                (folder, Goal::Set(goal), files)
            }
        };
        let temps = std::iter::repeat_with(|| None).take(files).collect();
        Ok(Self { temps, goal, durability, token: temp::token(), folder })
    }

    /// Creates the file at `index` of the target's (0 for a single file), `len` bytes long.
    pub(crate) fn create(&mut self, index: usize, len: u64) -> Result<TempFile, PublishError> {
        let (name, like) = match &self.goal {
            Goal::File(goal) => (goal.name.as_os_str(), goal.like.as_ref()),
            Goal::Set(goal) => (goal.shards[index].as_ref(), goal.like.as_ref()),
        };
        // What others may read is settled when it is complete.
        let mode = if like.is_some() { 0o600 } else { 0o666 };
        let (file, named) = TempFile::create(&self.folder, name, self.token, mode, len)?;
        self.temps[index] = Some((file.clone(), named));
        Ok(file)
    }

    /// Publishes what was created, which must be all of it. `index` makes the text of a set's index.
    pub(crate) fn commit(self, index: MakeIndex<'_>) -> Result<Synced, PublishError> {
        let Self { temps, goal, durability, token, folder } = self;
        if temps.iter().any(Option::is_none) {
            let error =
                io::Error::other("not every file of it was written: please report this fault of gds-loader");
            return Err(PublishError::io(&folder.path, "publish the checkpoint", None, error));
        }
        let temps: Vec<_> = temps.into_iter().flatten().collect();
        match goal {
            Goal::File(goal) => goal.commit(&folder, temps, durability),
            Goal::Set(goal) => goal.commit(&folder, temps, durability, token, index),
        }
    }
}
