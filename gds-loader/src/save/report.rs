//! What a save did, as data: the JSON of `gds save --json` is this, serialised.

use std::path::PathBuf;

use serde::Serialize;

use super::durable::Synced;
use crate::report::{DeviceReport, Fallback, GdsReport, PathBytes, lossily};

/// What a save did and how long it took.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SaveReport {
    /// The PATH as given. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "lossily")]
    pub path: PathBuf,
    /// Where the tensors were.
    pub device: DeviceReport,
    /// Files written, an index not counted.
    pub files: usize,
    /// Tensors saved.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// From the call to the checkpoint being published and synced: laying out, opening, pinning included.
    pub seconds: f64,
    /// `bytes / seconds / 1e9`.
    pub gb_per_s: f64,
    /// Tensors' bytes by each path; their sum is `bytes`. Headers are the host's and are not counted.
    pub paths: PathBytes,
    /// Each change of path, and why.
    pub fallbacks: Vec<Fallback>,
    /// Where the time went.
    pub stages: SaveStages,
    /// The longest that a single write took, waiting for write-back included, in seconds.
    pub longest_stall_s: f64,
    /// Writes that took fewer bytes than they were given, and were continued.
    pub short_writes: u64,
    /// Host memory pinned for slots, in bytes, at its highest.
    pub peak_pinned_bytes: u64,
    /// What became of GPUDirect Storage; absent where it was not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gds: Option<GdsReport>,
    /// What was published, and how safely.
    pub synced: Synced,
}

/// Where the time of a save went, in seconds. Fetching and writing overlap, so the stages do not add up.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SaveStages {
    /// Laying files out, making their headers, copying a snapshot.
    pub plan_s: f64,
    /// Creating the temporary files, reserving their space, choosing paths, registering windows.
    pub open_s: f64,
    /// Pinning slots: the slowest worker's.
    pub pin_s: f64,
    /// Time during which at least one copy from the device was in flight.
    pub fetch_s: f64,
    /// Time during which at least one write was in flight.
    pub write_s: f64,
    /// Share of the time with a copy in flight during which a write was in flight too; `null` where nothing was copied.
    pub fetch_hidden: Option<f64>,
    /// Syncing, from the first sync to the last.
    pub sync_s: f64,
    /// Publishing, syncs included.
    pub commit_s: f64,
}
