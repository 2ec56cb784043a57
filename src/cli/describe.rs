//! Reports in words: what `load`, `save` and `demo` have to say alike.

use gds_loader::{CacheReport, DeviceReport, Fallback, GdsProof, GdsReport, PathBytes, PathKind};

use super::sizes;

/// At most this share of a file in the page cache counts as cold: a page or two (a header, a readahead) is noise.
const COLD: f64 = 0.01;
/// From this share on it counts as warm.
const WARM: f64 = 0.99;

/// `cuda:0 (NVIDIA H200)`, `cpu`.
pub(crate) fn device(device: &DeviceReport) -> String {
    match device.index {
        Some(index) => format!("{}:{index} ({})", device.kind, device.name),
        None => device.kind.to_owned(),
    }
}

/// The paths that served: `direct`, or each with its bytes where there were several.
pub(crate) fn paths(bytes: &PathBytes) -> String {
    let used: Vec<(PathKind, u64)> = PathKind::ALL
        .into_iter()
        .map(|kind| (kind, bytes.get(kind)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    match used.as_slice() {
        [] => "none needed".to_owned(),
        [(kind, _)] => kind.to_string(),
        several => {
            let parts: Vec<String> =
                several.iter().map(|(kind, bytes)| format!("{kind} {}", sizes::bytes(*bytes))).collect();
            parts.join(", ")
        }
    }
}

/// What became of GPUDirect Storage.
pub(crate) fn gds(report: &GdsReport) -> String {
    let reason = report.reason.as_deref().unwrap_or("no reason was given");
    let window = sizes::bytes(report.window_bytes);
    match report.proof {
        Some(GdsProof::Verified) => {
            format!("verified by cuFile's statistics: the host served nothing; window {window}")
        }
        Some(GdsProof::Bounced) => format!("bounced: {reason}"),
        Some(_) => format!("unverified: {reason}"),
        None => format!("did not serve: {reason}"),
    }
}

/// What the page cache held when a load began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CacheState {
    /// Nothing worth speaking of: the bytes came from storage.
    Cold,
    /// All of it.
    Warm,
    /// This share of it.
    Partly(f64),
    /// The kernel does not say.
    Unknown,
}

impl CacheState {
    pub(crate) fn before(report: &CacheReport) -> Self {
        match report.resident_before {
            None => Self::Unknown,
            Some(share) if share <= COLD => Self::Cold,
            Some(share) if share >= WARM => Self::Warm,
            Some(share) => Self::Partly(share),
        }
    }
}

impl std::fmt::Display for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cold => f.pad("cold"),
            Self::Warm => f.pad("warm"),
            Self::Partly(share) => f.pad(&format!("{} in cache", sizes::percent(*share))),
            Self::Unknown => f.pad("unknown"),
        }
    }
}

/// Both measurements: `cold: 0% in the page cache before, 100% after`.
pub(crate) fn cache(report: &CacheReport) -> String {
    let share = |share: Option<f64>| share.map_or_else(|| "an unknown share".to_owned(), sizes::percent);
    let (before, after) = (share(report.resident_before), share(report.resident_after));
    match CacheState::before(report) {
        state @ (CacheState::Cold | CacheState::Warm) => {
            format!("{state}: held {before} before, {after} after")
        }
        CacheState::Partly(_) | CacheState::Unknown => format!("held {before} before, {after} after"),
    }
}

/// One line for each kind of fallback, however many files or pieces took it.
pub(crate) fn fallbacks(fallbacks: &[Fallback]) -> Vec<String> {
    let mut kinds: Vec<(&Fallback, usize)> = Vec::new();
    for fallback in fallbacks {
        match kinds.iter_mut().find(|(first, _)| {
            (first.from, first.to, &first.reason) == (fallback.from, fallback.to, &fallback.reason)
        }) {
            Some((_, count)) => *count += 1,
            None => kinds.push((fallback, 1)),
        }
    }
    kinds
        .into_iter()
        .map(|(first, count)| {
            let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
            format!("{} instead of {}{times}: {}", first.to, first.from, first.reason)
        })
        .collect()
}
