//! What a verification found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::stream::Stream;
use crate::manifest::{Builder, Difference, Proven};
use crate::report::{CacheReport, Fallback, PathBytes, gb_per_s, lossily};

/// What was read, and what differs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The PATH as given. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "lossily")]
    pub path: PathBuf,
    /// Files read.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Bytes read, headers and indexes included.
    pub bytes: u64,
    /// From the call to the last checksum.
    pub seconds: f64,
    /// `bytes / seconds / 1e9`.
    pub gb_per_s: f64,
    /// Bytes by each path.
    pub paths: PathBytes,
    /// Each change of path, and why.
    pub fallbacks: Vec<Fallback>,
    /// The page cache before and after: what it held was not read from storage.
    pub cache: CacheReport,
    /// Which bytes were compared.
    pub proven: Proven,
    /// Everything that is not as the manifest says, in its order; empty where all is, and where there was none.
    pub differences: Vec<Difference>,
}

impl VerifyReport {
    pub(super) fn new(
        path: &Path,
        builder: &Builder,
        stream: Stream,
        time: Duration,
        differences: Vec<Difference>,
    ) -> Self {
        let bytes = stream.paths.total();
        Self {
            path: path.to_path_buf(),
            files: builder.files().len(),
            tensors: builder.files().iter().map(|file| file.tensors.len()).sum(),
            bytes,
            seconds: time.as_secs_f64(),
            gb_per_s: gb_per_s(bytes, time),
            paths: stream.paths,
            fallbacks: stream.fallbacks,
            cache: stream.cache,
            proven: Proven::Slots,
            differences,
        }
    }
}
