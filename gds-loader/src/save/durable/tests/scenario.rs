//! The saves that every test of a catastrophe goes through.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::super::{Durability, PublishError, Synced, System};
use super::checkpoint::{Checkpoint, Found, INDEX, find, names};

/// What is saved over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    File,
    FileOverFile,
    Set,
    /// Into a folder that is not there yet.
    SetInNewFolder,
    SetOverSet,
    /// Over one of more shards, whose names do not collide.
    SetOverOtherSet,
    SetOverFile,
    /// Into the folder of a repository of the Hugging Face cache.
    SetOverSnapshot,
}

use Scenario::{
    File, FileOverFile, Set, SetInNewFolder, SetOverFile, SetOverOtherSet, SetOverSet, SetOverSnapshot,
};

const FILE: &str = "model.safetensors";
const OLD: u8 = 0x11;
const NEW: u8 = 0x22;

impl Scenario {
    pub(super) const ALL: [Self; 8] =
        [File, FileOverFile, Set, SetInNewFolder, SetOverSet, SetOverOtherSet, SetOverFile, SetOverSnapshot];

    pub(super) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|scenario| format!("{scenario:?}") == name).unwrap()
    }

    fn is_file(self) -> bool {
        matches!(self, File | FileOverFile)
    }

    /// A folder in which the old checkpoint is, by plain means.
    pub(super) fn prepare(self, root: &Path) {
        let folder = self.folder(root);
        if self != SetInNewFolder {
            fs::create_dir(&folder).unwrap();
        }
        match self {
            File | Set | SetInNewFolder => {}
            FileOverFile | SetOverFile => Checkpoint::new(OLD, 1).write_file(&folder.join(FILE)),
            SetOverSet => Checkpoint::new(OLD, 2).write_set(&folder),
            SetOverOtherSet => Checkpoint::new(OLD, 3).write_set(&folder),
            SetOverSnapshot => {
                let revision = "0123456789abcdef0123456789abcdef01234567";
                let snapshot = folder.join("snapshots").join(revision);
                fs::create_dir_all(&snapshot).unwrap();
                fs::create_dir(folder.join("refs")).unwrap();
                fs::write(folder.join("refs/main"), revision).unwrap();
                Checkpoint::new(OLD, 1).write_file(&snapshot.join(FILE));
            }
        }
    }

    pub(super) fn folder(self, root: &Path) -> PathBuf {
        root.join("checkpoint")
    }

    /// The path that is loaded: the file, or the folder.
    pub(super) fn path(self, root: &Path) -> PathBuf {
        let folder = self.folder(root);
        if self.is_file() { folder.join(FILE) } else { folder }
    }

    /// Saves the new checkpoint.
    pub(super) fn save(
        self,
        root: &Path,
        system: Arc<dyn System>,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        self.save_filled(root, NEW, system, durability)
    }

    pub(super) fn save_filled(
        self,
        root: &Path,
        fill: u8,
        system: Arc<dyn System>,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        if self.is_file() {
            Checkpoint::new(fill, 1).save_file(system, &self.path(root), durability)
        } else {
            Checkpoint::new(fill, 2).save_set(system, &self.path(root), durability)
        }
    }

    pub(super) fn before(self) -> Found {
        match self {
            File | Set | SetInNewFolder => Found::Nothing,
            FileOverFile | SetOverFile | SetOverSnapshot => Found::file(Checkpoint::new(OLD, 1)),
            SetOverSet => Found::set(Checkpoint::new(OLD, 2)),
            SetOverOtherSet => Found::set(Checkpoint::new(OLD, 3)),
        }
    }

    pub(super) fn after(self) -> Found {
        self.saved(NEW)
    }

    pub(super) fn saved(self, fill: u8) -> Found {
        if self.is_file() {
            Found::file(Checkpoint::new(fill, 1))
        } else {
            Found::set(Checkpoint::new(fill, 2))
        }
    }

    /// How many names there are where nothing is left over.
    fn files(self) -> usize {
        match self {
            File | FileOverFile => 1,
            // The repository's folders stay.
            SetOverSnapshot => 3 + 2,
            _ => 3,
        }
    }

    /// The next save succeeds, and leaves its checkpoint and nothing else.
    #[track_caller]
    pub(super) fn check_next_save(self, root: &Path, context: &dyn std::fmt::Debug) {
        /// A process that another test is starting has our descriptors until it runs its own program, and so a dead saver's lock.
        const ATTEMPTS: u32 = 5;
        let before = if self.folder(root).exists() { names(&self.folder(root)) } else { Vec::new() };
        let mut attempt = 1;
        let (saved, names) = loop {
            let saved = self.save_filled(root, 0x33, Arc::new(super::super::Kernel), Durability::None);
            let saved = saved.unwrap_or_else(|error| panic!("{self:?} {context:?} {before:?}: {error}"));
            let names = names(&self.folder(root));
            if names.len() == self.files() || attempt == ATTEMPTS {
                break (saved, names);
            }
            attempt += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert_eq!(find(&self.path(root)), self.saved(0x33), "{self:?} {context:?} {before:?} {saved:?}");
        assert_eq!(names.len(), self.files(), "{self:?} {context:?}: {before:?} became {names:?}");
        assert!(self.is_file() || names.contains(&INDEX.to_owned()), "{names:?}");
    }
}

/// An empty folder, in memory where there is such a place: nothing here waits for a disk.
pub(super) fn root(test: &str) -> TempDir {
    test_support::folder::in_memory(test).unwrap_or_else(|| test_support::folder::on_disk(test))
}
