//! Why a save failed, in the terms a caller can act on. Whatever it is, what was there before the save is there still.

use std::path::PathBuf;

use super::durable::PublishError;
use crate::error::ErrorKind;
use crate::format::{Name, WriteFault};
use crate::transport::{PathKind, ReadCause};

/// Why a save failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A tensor that cannot be meant.
    #[error("tensor `{}`: {reason}", Name(name))]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The tensors cannot be written to a file of the format, or be named by one index. No file was made.
    #[error("{}: {fault}", path.display())]
    Format {
        /// The file it would be.
        path: PathBuf,
        /// Why not.
        fault: WriteFault,
    },

    /// An option that cannot be meant. No file was made.
    #[error("{option}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// The path that was asked for cannot serve here. Falling back is the caller's choice: ask for `auto`.
    #[error("{} cannot be saved by {by}: {reason}; use --backend auto to let another path serve", path.display())]
    Unavailable {
        /// The file.
        path: PathBuf,
        /// The path that was asked for.
        by: PathKind,
        /// Why it cannot serve.
        reason: String,
    },

    /// cuFile could not write the bytes of a file, for a reason that no other path would cure.
    #[error("{}: writing {len} bytes by {by} at offset {offset}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The path they were written by.
        by: PathKind,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Bytes that were to be written there.
        len: u64,
        /// What was said.
        source: ReadCause,
    },

    /// The file system refused, at whatever step.
    #[error(transparent)]
    Publish(#[from] PublishError),

    /// There is no memory for a snapshot.
    #[error(
        "a snapshot needs {needed} bytes of memory beside the tensors{}; save without one, and the tensors come back as they are staged",
        free.map_or_else(String::new, |free| format!(", and {free} are free"))
    )]
    Snapshot {
        /// Bytes needed.
        needed: u64,
        /// Bytes free, where the device says.
        free: Option<u64>,
    },

    /// The device or its driver failed.
    #[error(transparent)]
    Device(#[from] cuda_staging::Error),

    /// The caller cancelled the save.
    #[error("the save was cancelled after {written} of {planned} bytes")]
    Cancelled {
        /// Bytes written by then.
        written: u64,
        /// Bytes of the whole save.
        planned: u64,
    },

    /// The books do not balance: a fault of this library, never shown as success.
    #[error(
        "{written} bytes were written where {planned} were planned; this is a fault of gds-loader: please report it"
    )]
    Incomplete {
        /// Bytes written.
        written: u64,
        /// Bytes planned.
        planned: u64,
    },

    /// A worker thread could not be started or ended in a panic.
    #[error("worker thread: {reason}")]
    Worker {
        /// What happened.
        reason: String,
    },
}

impl SaveError {
    /// The class of this failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Tensor { .. } | Self::Format { .. } | Self::Option { .. } => ErrorKind::Usage,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Device(error) if error.is_unavailable() => ErrorKind::Unavailable,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Publish(
                PublishError::Name { .. }
                | PublishError::NotAFile { .. }
                | PublishError::Indexed { .. }
                | PublishError::OtherWeights { .. }
                | PublishError::Unsayable { .. },
            ) => ErrorKind::Usage,
            Self::Write { .. }
            | Self::Publish(_)
            | Self::Snapshot { .. }
            | Self::Device(_)
            | Self::Incomplete { .. }
            | Self::Worker { .. } => ErrorKind::Failed,
        }
    }
}
