//! Why a save could not be published.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A checkpoint could not be made visible under its name. Unless it says otherwise, what was there before is untouched and
/// nothing of the save is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}{}", path.display(), Advice(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// There is no room: the disk is full, a quota is used up, or the file system takes no file of this length.
    #[error("{}: {len} bytes do not fit: cannot {doing}: {source}{}", path.display(), Advice(source))]
    NoSpace {
        /// The file that was being written.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The length that it would have, in bytes.
        len: u64,
        /// The answer.
        source: io::Error,
    },
    /// The process may not make files this long.
    #[error(
        "{}: would be {len} bytes long, and this process may make no file longer than {limit}: raise its limit (ulimit -f)",
        path.display()
    )]
    FileSizeLimit {
        /// The file.
        path: PathBuf,
        /// The length that it would have, in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// What stands at the name is nothing that a save replaces.
    #[error("{}: expected a regular file or nothing, found {found}; save under another name", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// A name that no file of a checkpoint can have.
    #[error("{name:?} cannot be the name of a file of a checkpoint: it {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Beside the file lies an index that gives the folder another meaning.
    #[error(
        "{}: beside it lies {index}, by which the folder would go on meaning another checkpoint; \
         save to the folder, which replaces the whole set, or remove that index first",
        path.display()
    )]
    Indexed {
        /// The file that was to be saved.
        path: PathBuf,
        /// The name of the index.
        index: String,
    },
    /// The folder holds weights that belong to nothing this save replaces.
    #[error(
        "{}: holds weights that no index names ({}); beside them a set would be read as one with them: \
         save to a folder of its own, or move them away",
        folder.display(), files.join(", ")
    )]
    OtherWeights {
        /// The folder.
        folder: PathBuf,
        /// Their names.
        files: Vec<String>,
    },
    /// What the folder means without an index cannot be said by one, which would keep it meant until the new checkpoint is.
    #[error(
        "{}: the checkpoint that is there cannot be kept until it is replaced: {reason}; save to a folder of its own, or move it away",
        folder.display()
    )]
    Unsayable {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A file has not the length that it was created for.
    #[error("{}: expected {expected} bytes, found {found}: not all of it was written", path.display())]
    Length {
        /// The temporary file.
        path: PathBuf,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A temporary file was removed or replaced by somebody else.
    #[error(
        "{}: was removed or replaced by another program while it was being saved; save again, and let nobody clean this folder meanwhile",
        path.display()
    )]
    Taken {
        /// The temporary file.
        path: PathBuf,
    },
    /// The folder is not where it was.
    #[error(
        "{}: the folder was moved, removed or replaced while a checkpoint was being saved to it; save again",
        path.display()
    )]
    FolderMoved {
        /// The folder's path.
        path: PathBuf,
    },
    /// Another save, or another program while there was one, kept the folder to itself for too long.
    #[error(
        "{}: for {seconds} s another save to this folder has held the folder's lock, or another program such as flock(1) has \
         while a save was under way; try again when they are done",
        path.display()
    )]
    Busy {
        /// The folder.
        path: PathBuf,
        /// How long it was waited for, in seconds.
        seconds: u64,
    },
    /// The new checkpoint is in place, whole, but may be gone after a power cut; then the old one is there, whole.
    #[error(
        "{}: is in place, but the folder could not be synced: {source}; after a power cut it may be the old checkpoint again: \
         save to another disk",
        path.display()
    )]
    Unsynced {
        /// What was saved.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

impl PublishError {
    /// The error of a call about `path`; `len` is the length that a file would have.
    pub(super) fn io(path: &Path, doing: &'static str, len: Option<u64>, source: io::Error) -> Self {
        let path = path.to_owned();
        let full = source
            .raw_os_error()
            .map(Errno::from_raw_os_error)
            .is_some_and(|error| error == Errno::NOSPC || error == Errno::DQUOT || error == Errno::FBIG);
        match len {
            Some(len) if full => Self::NoSpace { path, doing, len, source },
            _ => Self::Io { path, doing, source },
        }
    }
}

/// What to do about an answer of the operating system.
struct Advice<'a>(&'a io::Error);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(code) = self.0.raw_os_error() else { return Ok(()) };
        f.write_str(match Errno::from_raw_os_error(code) {
            Errno::NOSPC => "; free some space: the old checkpoint is kept until the new one is whole, so there must be room for both",
            Errno::DQUOT => "; the quota is used up: the old checkpoint is kept until the new one is whole, so it must have room for both",
            Errno::FBIG => "; this file system takes no file that long: save in smaller shards",
            Errno::IO => "; the disk failed: look at the kernel's log, and save elsewhere",
            Errno::ROFS => "; the file system is mounted read-only",
            Errno::ACCESS | Errno::PERM => "; this user may not do that there",
            Errno::NAMETOOLONG => "; save under a shorter name",
            Errno::MFILE | Errno::NFILE => "; too many files are open: raise the limit (ulimit -n) or save fewer shards",
            Errno::NOENT => "; is the folder still there?",
            _ => return Ok(()),
        })
    }
}
