//! What can go wrong, in the terms a caller can act on.

use std::path::PathBuf;

use crate::cufile::CuFileError;
use crate::format::Shown;
use crate::manifest::Difference;
use crate::source::SourceError;
use crate::transport::{PathKind, ReadCause};

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a load failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's files are not what they should be, or not there.
    #[error(transparent)]
    Source(#[from] SourceError),

    /// The path that was asked for cannot serve here. Falling back is the caller's choice: ask for `auto`.
    #[error("{path} cannot be loaded by {by}: {reason}; use --backend auto to let another path serve", path = Shown(path))]
    Unavailable {
        /// The file, or the model where no path could serve any.
        path: PathBuf,
        /// The path that was asked for.
        by: PathKind,
        /// Why it cannot serve.
        reason: String,
    },

    /// The kernel does not let us have the engine that was asked for.
    #[error("io_uring cannot be had here: {reason}; use --engine auto to let threads read")]
    Engine {
        /// What was refused, and by which error.
        reason: String,
    },

    /// The bytes of a file could not be read.
    #[error(
        "{path}: reading {expected} bytes by {by}: {got} arrived, then at offset {offset}: {cause}",
        path = Shown(path),
        cause = Cause(source.as_ref())
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The path they were read by.
        by: PathKind,
        /// Offset in the file of the call that failed.
        offset: u64,
        /// Bytes of the extent that had arrived.
        got: u64,
        /// Bytes of the extent.
        expected: u64,
        /// What the kernel or cuFile said; `None` where the file ended early.
        source: Option<ReadCause>,
    },

    /// A file changed its length between its header being read and its last byte arriving.
    #[error("{path}: was {expected} bytes long when opened and is {found} now; it changed while being loaded: load it again", path = Shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
        /// Length at opening, in bytes.
        expected: u64,
        /// Length at the end of the load, in bytes.
        found: u64,
    },

    /// A file was written to, at the same length, between its header being read and its last byte arriving.
    #[error("{path}: was written to while being loaded, so its bytes may be of two versions: load it again when its writer is done", path = Shown(path))]
    Rewritten {
        /// The file.
        path: PathBuf,
    },

    /// The device or its driver failed.
    #[error(transparent)]
    Device(#[from] cuda_staging::Error),

    /// An option that cannot be meant.
    #[error("{option}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// A destination of `load_into` does not fit its tensor.
    #[error("destination of tensor {name:?}: {reason}")]
    Destination {
        /// The tensor.
        name: String,
        /// What does not fit.
        reason: String,
    },

    /// The caller cancelled the load. Nothing of it is visible.
    #[error("the load was cancelled after {placed} of {planned} bytes")]
    Cancelled {
        /// Bytes placed by then.
        placed: u64,
        /// Bytes of the whole load.
        planned: u64,
    },

    /// The books do not balance: a fault of this library, never shown as success.
    #[error(
        "{placed} bytes were placed where {planned} were planned; this is a fault of gds-loader: please report it"
    )]
    Incomplete {
        /// Bytes placed.
        placed: u64,
        /// Bytes planned.
        planned: u64,
    },

    /// The model is not the one that its manifest was made from. Nothing of the load is visible.
    #[error("{}: {}", Shown(path), Differences(differences))]
    Manifest {
        /// The model.
        path: PathBuf,
        /// Everything that differs.
        differences: Vec<Difference>,
    },

    /// A worker thread could not be started or ended in a panic.
    #[error("worker thread: {reason}")]
    Worker {
        /// What happened.
        reason: String,
    },
}

/// The classes of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The files are not a model: wrong, truncated, inconsistent or missing.
    InvalidData,
    /// Files or device failed while being used.
    Failed,
    /// What was asked for does not exist on this machine.
    Unavailable,
    /// The request itself makes no sense.
    Usage,
    /// The caller changed their mind.
    Cancelled,
}

impl Error {
    /// The class of this failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source(error) if error.is_invalid_data() => ErrorKind::InvalidData,
            Self::Changed { .. }
            | Self::Rewritten { .. }
            | Self::Read { source: None, .. }
            | Self::Manifest { .. } => ErrorKind::InvalidData,
            Self::Read { source: Some(ReadCause::CuFile(error)), .. }
                if matches!(**error, CuFileError::Short { .. }) =>
            {
                ErrorKind::InvalidData
            }
            Self::Unavailable { .. } | Self::Engine { .. } => ErrorKind::Unavailable,
            Self::Device(error) if error.is_unavailable() => ErrorKind::Unavailable,
            Self::Option { .. } | Self::Destination { .. } => ErrorKind::Usage,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Source(_)
            | Self::Read { .. }
            | Self::Device(_)
            | Self::Incomplete { .. }
            | Self::Worker { .. } => ErrorKind::Failed,
        }
    }
}

/// The last words of a failed read.
struct Cause<'a>(Option<&'a ReadCause>);

impl std::fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(error) => write!(f, "{error}"),
            None => f.write_str(
                "end of file: the file is shorter than when it was opened, so fetch or load it again",
            ),
        }
    }
}

/// What differs from a manifest: all of it, unless it is too much to be read.
struct Differences<'a>(&'a [Difference]);

impl std::fmt::Display for Differences<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MOST: usize = 20;
        write!(f, "not what its manifest says, so fetch or copy it again:")?;
        self.0.iter().take(MOST).try_for_each(|difference| write!(f, "\n  {difference}"))?;
        match self.0.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more; `gds verify` lists all"),
        }
    }
}
