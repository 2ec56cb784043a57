//! What a file is written by: `direct` and `buffered` from host memory, `gds` from windows of device memory.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::save::durable::PublishError;
use crate::transport::{PathKind, ReadCause};

use super::gds::GdsSink;

/// One open file on one path.
#[derive(Clone, Debug)]
pub(super) enum Sink {
    Host(Arc<dyn HostSink>),
    Window(Arc<GdsSink>),
}

impl Sink {
    pub(super) fn kind(&self) -> PathKind {
        match self {
            Self::Host(sink) => sink.kind(),
            Self::Window(_) => PathKind::Gds,
        }
    }

    /// Whether both are the same open file on the same path.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(a), Self::Host(b)) => Arc::ptr_eq(a, b),
            (Self::Window(a), Self::Window(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// One open file on a path that writes from host memory.
pub(super) trait HostSink: Send + Sync + fmt::Debug {
    /// Which path this is.
    fn kind(&self) -> PathKind;

    /// What offsets, lengths and memory addresses must be multiples of, in bytes: a power of two.
    fn alignment(&self) -> u64;

    /// Writes all of `bytes` at `offset`.
    fn write_all(&self, bytes: &[u8], offset: u64) -> Result<(), PublishError>;
}

/// Whether `sink` can take these bytes from where they are.
pub(super) fn fits(sink: &dyn HostSink, bytes: &[u8], offset: u64) -> bool {
    (bytes.as_ptr().addr() as u64 | offset | bytes.len() as u64).is_multiple_of(sink.alignment())
}

/// What the kernel said in a failure to write, as the policy takes it.
pub(super) fn cause(error: &PublishError) -> Option<ReadCause> {
    match error {
        PublishError::Io { source, .. } | PublishError::NoSpace { source, .. } => {
            source.raw_os_error().map(|code| io::Error::from_raw_os_error(code).into())
        }
        _ => None,
    }
}
