//! What a load did, as data: the JSON of `gds load --json` is this, serialised.

mod choice;
mod engine;
mod intervals;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cuda_staging::Device;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::facts::Residency;
use crate::manifest::Verified;
use crate::transport::PathKind;

pub use choice::Choice;
pub use engine::EngineReport;
pub(crate) use intervals::Intervals;

/// What a load did and how long it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The PATH as given. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "lossily")]
    pub path: PathBuf,
    /// Where the tensors are.
    pub device: DeviceReport,
    /// Files read.
    pub files: usize,
    /// Tensors loaded.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// From the call to the last byte being visible: opening, parsing, allocating and pinning included.
    pub seconds: f64,
    /// `bytes / seconds / 1e9`.
    pub gb_per_s: f64,
    /// User and system time of this process during the load, in seconds over all its threads; what else the process did
    /// meanwhile is in it.
    pub cpu_s: f64,
    /// Bytes by each path; their sum is `bytes`.
    pub paths: PathBytes,
    /// Each change of path, and why.
    pub fallbacks: Vec<Fallback>,
    /// Which paths were chosen, for how many files, and why.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Where the time went.
    pub stages: Stages,
    /// Copies from slots and windows to where tensors belong.
    #[serde(default)]
    pub copies: u64,
    /// The page cache before and after.
    pub cache: CacheReport,
    /// Host memory pinned for slots, in bytes, at its highest.
    pub peak_pinned_bytes: u64,
    /// Who kept the host's reads in flight; absent where it read nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// What became of GPUDirect Storage; absent where it was not considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gds: Option<GdsReport>,
    /// Tensors of the files that the index gives to another shard, or to none.
    pub tensors_not_indexed: usize,
    /// What was as the manifest said; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
    /// SHA-256 of every tensor's bytes as read back from the device, in hex; absent where not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<BTreeMap<String, String>>,
}

/// The device of a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// `cpu` or `cuda`.
    pub kind: String,
    /// The CUDA ordinal; `null` for the CPU.
    pub index: Option<u32>,
    /// The driver's name for it.
    pub name: String,
}

impl DeviceReport {
    /// Of this device.
    pub fn of(device: &Device) -> Self {
        let info = device.info();
        Self { kind: info.kind.as_str().to_owned(), index: info.index, name: info.name.clone() }
    }
}

/// What became of GPUDirect Storage in a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GdsReport {
    /// What cuFile's own statistics say of the bytes that went by `gds`; `null` where no byte went that way.
    pub proof: Option<GdsProof>,
    /// Why it is not verified, or why GPUDirect Storage did not serve at all.
    pub reason: Option<String>,
    /// Device memory registered for window slots, in bytes.
    pub window_bytes: u64,
}

/// What cuFile's own statistics say of a load by `gds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GdsProof {
    /// No read was served by the host.
    Verified,
    /// Some were, and the bytes are counted as `gds-compat`.
    Bounced,
    /// They say nothing.
    Unverified,
}

/// Bytes by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBytes([u64; PathKind::ALL.len()]);

impl PathBytes {
    /// Bytes that went by `kind`.
    pub fn get(&self, kind: PathKind) -> u64 {
        self.0[kind as usize]
    }

    /// Bytes by all paths together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, kind: PathKind, bytes: u64) {
        self.0[kind as usize] += bytes;
    }

    /// Counts what was counted as `from` as `to`.
    pub(crate) fn reassign(&mut self, from: PathKind, to: PathKind) {
        let bytes = std::mem::take(&mut self.0[from as usize]);
        self.add(to, bytes);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        PathKind::ALL.into_iter().for_each(|kind| self.add(kind, other.get(kind)));
    }
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(PathKind::ALL.into_iter().map(|kind| (kind, self.get(kind))))
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut bytes = Self::default();
        BTreeMap::<PathKind, u64>::deserialize(deserializer)?
            .into_iter()
            .for_each(|(kind, count)| bytes.add(kind, count));
        Ok(bytes)
    }
}

/// One change of path.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fallback {
    /// The file. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "lossily")]
    pub file: PathBuf,
    /// Offset of the first extent read by the other path; 0 where the path could not even be opened.
    pub offset: u64,
    /// The path that failed.
    pub from: PathKind,
    /// The path that took over.
    pub to: PathKind,
    /// Why.
    pub reason: String,
}

impl Fallback {
    pub(crate) fn new(file: &Path, offset: u64, from: PathKind, to: PathKind, reason: String) -> Self {
        Self { file: file.to_path_buf(), offset, from, to, reason }
    }
}

/// Where the time of a load went, in seconds. Reading and copying overlap, so the stages do not add up.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stages {
    /// Opening files and parsing headers.
    pub parse_s: f64,
    /// Choosing and opening paths.
    pub open_s: f64,
    /// Planning, and allocating the destination.
    pub allocate_s: f64,
    /// Pinning slots: the slowest worker's.
    pub pin_s: f64,
    /// Time during which pages of a destination in host memory were given memory ahead of the reads into them.
    pub touch_s: f64,
    /// Time during which at least one read was in flight.
    pub read_s: f64,
    /// Time during which at least one copy to the device was in flight.
    pub copy_s: f64,
    /// Share of the time with a copy in flight during which a read was in flight too; `null` where nothing was copied.
    pub copy_hidden: Option<f64>,
}

/// Shares of the files' pages in the page cache, 0.0 to 1.0; `null` where the kernel does not say.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CacheReport {
    /// Before the load.
    pub resident_before: Option<f64>,
    /// After it.
    pub resident_after: Option<f64>,
}

/// A path may hold bytes that JSON cannot; a report of a load that succeeded must not fail for it.
pub(crate) fn lossily<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// The share of several files together: known only where each is known.
pub(crate) fn share_of(files: impl IntoIterator<Item = (u64, Residency)>) -> Option<f64> {
    let (mut resident, mut total) = (0.0, 0.0);
    for (len, residency) in files.into_iter().filter(|(len, _)| *len > 0) {
        resident += residency.share()? * len as f64;
        total += len as f64;
    }
    (total > 0.0).then(|| resident / total)
}

/// User and system time of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// GB/s (GB = 10^9 bytes).
pub(crate) fn gb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn a_path_that_is_not_utf_8_is_reported() {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/models/\xff"));
        let fallback = Fallback::new(path, 0, PathKind::Direct, PathKind::Buffered, "because".into());
        let json = serde_json::to_value(fallback).unwrap();
        assert_eq!(json["file"], "/models/\u{fffd}");
        assert_eq!(json["from"], "direct");
    }

    #[test]
    fn residency_of_several_files_is_known_only_where_each_is() {
        let share = Residency::Share;
        assert_eq!(share_of([(100, share(1.0)), (300, share(0.0)), (0, Residency::Unknown)]), Some(0.25));
        assert_eq!(share_of([(100, share(1.0)), (1, Residency::Unknown)]), None);
        assert_eq!(share_of([]), None);
    }
}
