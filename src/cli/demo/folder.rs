//! Where the demo's checkpoint stands: on a real disk if there is one with room, because a folder in memory has no cold reads.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use gds_loader::facts::{FileFacts, FileSystem};

use crate::cli::sizes;
use crate::interrupt::TemporaryFolder;
use crate::leftovers;

const NAME: &str = "gds-demo-";

/// A temporary folder, and what it stands on.
#[derive(Debug)]
pub(super) struct Place {
    folder: TemporaryFolder,
    file_system: FileSystem,
    /// Why it is not the first place that comes to mind.
    instead: Option<String>,
}

impl Place {
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What it stands on, in words, and why there.
    pub(super) fn storage(&self) -> String {
        let kind = match self.file_system {
            FileSystem::Memory => "in memory (tmpfs), so that no load can be cold",
            FileSystem::Network { .. } => "on a network file system",
            FileSystem::Local => "on a disk",
        };
        match &self.instead {
            Some(reason) => format!("{kind} ({reason})"),
            None => kind.to_owned(),
        }
    }
}

/// Makes the folder: in `asked`, else in TMPDIR, /tmp or /var/tmp, the first of them that is not in
/// memory and has `bytes` free. One in memory is taken where no other has room. What dead demos left there is removed.
pub(super) fn choose(asked: Option<&Path>, bytes: u64) -> anyhow::Result<Place> {
    let mut candidates = match asked {
        Some(folder) => vec![folder.to_owned()],
        None => vec![std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")],
    };
    candidates.dedup();
    let mut refused: Vec<String> = Vec::new();
    let mut suitable: Vec<(PathBuf, FileSystem)> = Vec::new();
    for folder in candidates {
        // First, since they may be what there is no room for.
        leftovers::remove_dead(&folder, NAME);
        match examine(&folder, bytes) {
            Ok(file_system) => suitable.push((folder, file_system)),
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    let in_memory = |(_, file_system): &(PathBuf, FileSystem)| *file_system == FileSystem::Memory;
    let passed_over = suitable.first().filter(|first| in_memory(first)).map(|(folder, _)| folder.clone());
    // A stable sort: among folders of one kind the order above stays.
    suitable.sort_by_key(in_memory);
    for (parent, file_system) in suitable {
        match TemporaryFolder::new_in(&parent, NAME) {
            Ok(folder) => {
                let instead = match &passed_over {
                    Some(first) if *first != parent => Some(format!("{} is in memory", first.display())),
                    _ => refused.first().cloned(),
                };
                return Ok(Place { folder, file_system, instead });
            }
            Err(error) => refused.push(format!("{}: {error}", parent.display())),
        }
    }
    bail!(
        "no folder for a checkpoint of {}: {}; name one with --dir, or ask for less with --size",
        sizes::bytes(bytes),
        refused.join("; ")
    )
}

/// The kind of file system below `folder`, if that has `bytes` free.
fn examine(folder: &Path, bytes: u64) -> anyhow::Result<FileSystem> {
    let handle = File::open(folder).with_context(|| folder.display().to_string())?;
    let space = rustix::fs::fstatvfs(&handle).with_context(|| folder.display().to_string())?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < bytes {
        bail!("{} has only {} free", folder.display(), sizes::bytes(free));
    }
    Ok(FileFacts::of(&handle, 0).file_system)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_folder_goes_with_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let place = choose(Some(parent.path()), 1).unwrap();
        let path = place.path().to_owned();
        assert!(path.starts_with(parent.path()) && path.is_dir());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn a_refusal_names_folder_and_reason() {
        let parent = tempfile::tempdir().unwrap();
        let full = choose(Some(parent.path()), u64::MAX).unwrap_err().to_string();
        assert!(full.contains(&*parent.path().to_string_lossy()) && full.contains("free"), "{full}");
        let missing = choose(Some(&parent.path().join("missing")), 1).unwrap_err().to_string();
        assert!(missing.contains("missing") && missing.contains("--dir"), "{missing}");
    }
}
