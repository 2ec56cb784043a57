//! Why a path could not be opened as a source of weights.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::file::advice;
use crate::format::{Brief, Dtype, FormatError, IndexError, Name, Shape, Shown, list};

/// A path could not be opened as a source of weights, or does not hold what was expected of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Nothing is there.
    #[error("{}: there is no such file or folder", Shown(path))]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// A symbolic link to nothing.
    #[error(
        "{}: is a symbolic link to {}, which does not exist; fetch that file again or remove the link",
        Shown(link),
        Shown(target)
    )]
    DanglingLink {
        /// The link.
        link: PathBuf,
        /// What it points to, as stored in it.
        target: PathBuf,
    },
    /// Symbolic links that lead back to themselves.
    #[error("{}: is a symbolic link to {}, which leads back to itself", Shown(link), Shown(target))]
    LinkLoop {
        /// The link.
        link: PathBuf,
        /// What it points to, as stored in it.
        target: PathBuf,
    },
    /// Something that holds no bytes of its own.
    #[error("{}: expected a regular file, found {found}", Shown(path))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}{}", Shown(path), advice(source))]
    Io {
        /// The path.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// There are too few descriptors left for so many files, even if they are opened in turns.
    #[error(
        "{}: its {files} files cannot be opened: RLIMIT_NOFILE allows {limit} open files at once, and {open} are open \
         already; raise it (ulimit -n) or close some",
        Shown(path)
    )]
    Descriptors {
        /// The path given.
        path: PathBuf,
        /// How many files it has.
        files: usize,
        /// The limit.
        limit: u64,
        /// Files that the process had open.
        open: u64,
    },
    /// A file is not valid safetensors, or could not be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The text of an index is wrong.
    #[error("{}: {fault}", Shown(path))]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        fault: IndexError,
    },
    /// The folder holds no weights.
    #[error("{}: holds no *.safetensors file and no *.safetensors.index.json{hint}", Shown(path))]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// What is there instead, if that is known.
        hint: &'static str,
    },
    /// The folder holds several sets of weights and does not say which is meant.
    #[error(
        "{}: holds {} sets of weights and no index that says which is meant: {}; \
         name one file or index, or keep one set in the folder",
        Shown(path), groups.len(), list(groups, "; ")
    )]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// Each set, by the names of its files.
        groups: Vec<String>,
    },
    /// A numbered set lacks members.
    #[error("{}: the set {set} is incomplete: {missing}; fetch what is missing", Shown(path))]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// The set, as in `model-*-of-00003.safetensors`.
        set: String,
        /// The numbers that are missing or too many.
        missing: String,
    },
    /// A set is replaced again and again while it is being opened.
    #[error(
        "{}: another set was saved there each time this one was being opened; wait until the savers are done",
        Shown(path)
    )]
    Replaced {
        /// The path given.
        path: PathBuf,
    },
    /// A repository folder of the Hugging Face cache that does not say which snapshot is meant.
    #[error("{}: cannot tell which snapshot is meant: {problem}; name the folder of a snapshot", Shown(path))]
    NoSnapshot {
        /// The repository's folder.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// Some files of the set are bad; every one of them is listed.
    #[error(
        "{}: {} of {total} files cannot be loaded ({chosen}):{}",
        Shown(path), faults.len(), Lines(faults)
    )]
    Shards {
        /// The path given.
        path: PathBuf,
        /// Why these files were chosen.
        chosen: String,
        /// How many were.
        total: usize,
        /// What is wrong, one bad file each, in the order of the files.
        faults: Vec<SourceError>,
    },
    /// Without an index, each tensor must be in one file.
    #[error(
        "{}: {} in two files, and there is no index that says which counts:{}",
        Shown(path), plural(duplicates.len(), "tensor is", "tensors are"), Lines(duplicates)
    )]
    DuplicateTensors {
        /// The path given.
        path: PathBuf,
        /// Every tensor met again, with both files.
        duplicates: Vec<Duplicate>,
    },
    /// The index names tensors that the shards it names for them do not hold.
    #[error(
        "{}: {} not in the shards that the index names for them:{}",
        Shown(path), plural(absent.len(), "tensor is", "tensors are"), Lines(absent)
    )]
    AbsentTensors {
        /// The index.
        path: PathBuf,
        /// Every one, with its shard.
        absent: Vec<Absent>,
    },
    /// What the caller expects is not what the source holds.
    #[error(
        "{}: does not hold what is expected: {} missing and {} different:{}{}",
        Shown(path), missing.len(), mismatched.len(), Lines(&names(missing)), Lines(mismatched)
    )]
    Unexpected {
        /// The path given.
        path: PathBuf,
        /// Expected names that are not there.
        missing: Vec<String>,
        /// Tensors that are there with another dtype or shape.
        mismatched: Vec<Mismatch>,
    },
}

/// A tensor that two files hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Its name.
    pub tensor: String,
    /// The file met first.
    pub first: PathBuf,
    /// The other.
    pub second: PathBuf,
}

/// A tensor that is not in the shard an index names for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its name.
    pub tensor: String,
    /// The shard.
    pub shard: PathBuf,
}

/// A tensor that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Its name.
    pub tensor: String,
    /// The dtype expected, where one was.
    pub expected_dtype: Option<Dtype>,
    /// The shape expected, where one was.
    pub expected_shape: Option<Shape>,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
}

impl SourceError {
    /// Whether the data is at fault: what is there would be refused anywhere, until it is replaced.
    ///
    /// A checkpoint that lacks files or tensors of its own is invalid data; a path that is not there is not.
    pub fn is_invalid_data(&self) -> bool {
        match self {
            // Cut off since its length was asked for.
            SourceError::Io { source, .. } => source.kind() == io::ErrorKind::UnexpectedEof,
            SourceError::NotFound { .. } | SourceError::Descriptors { .. } => false,
            SourceError::Format(error) => error.is_invalid_data(),
            SourceError::Shards { faults, .. } => {
                faults.iter().any(|fault| fault.is_invalid_data() || fault.is_not_found())
            }
            _ => true,
        }
    }

    /// Whether the path given is simply not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, SourceError::NotFound { .. })
    }

    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> SourceError {
        SourceError::Io { path: path.to_owned(), doing, source }
    }
}

/// How many items a message lists; the error's fields hold all of them.
const LISTED: usize = 200;

/// Items one a line, below a message.
struct Lines<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in self.0.iter().take(LISTED) {
            write!(formatter, "\n  {item}")?;
        }
        match self.0.len().checked_sub(LISTED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(formatter, "\n  and {more} more"),
        }
    }
}

fn names(names: &[String]) -> Vec<Name<'_>> {
    names.iter().map(|name| Name(name)).collect()
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

impl fmt::Display for Duplicate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` in {} and {}", Name(&self.tensor), Shown(&self.first), Shown(&self.second))
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` in {}", Name(&self.tensor), Shown(&self.shard))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`: expected", Name(&self.tensor))?;
        if let Some(dtype) = self.expected_dtype {
            write!(formatter, " {dtype}")?;
        }
        if let Some(shape) = &self.expected_shape {
            write!(formatter, " {}", Brief(shape))?;
        }
        write!(formatter, ", found {} {}", self.dtype, Brief(&self.shape))
    }
}
