//! Reports in words: what `load`, `save` and `demo` have to say alike.

use gds_loader::bench::CacheState;
use gds_loader::manifest::{Proven, Verified};
use gds_loader::{
    CacheReport, Choice, DeviceReport, Fallback, GdsProof, GdsReport, LoadReport, PathBytes, PathKind,
};

use super::sizes;

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

/// What was found to be as a manifest says, and which bytes those were.
pub(crate) fn verified(verified: &Verified) -> String {
    let which = match verified.proven {
        Proven::Slots => "as they arrived in host memory",
        _ => "as read back from the device",
    };
    let (tensors, bytes) = (sizes::plural(verified.tensors as u64, "tensor"), sizes::bytes(verified.bytes));
    format!("{tensors}, {bytes} {which}: all as the manifest says ({})", sizes::duration(verified.seconds))
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

/// `cold`, `warm`, or what else it was.
pub(crate) fn cache_state(state: CacheState) -> String {
    match state {
        CacheState::Cold => "cold".to_owned(),
        CacheState::Warm => "warm".to_owned(),
        CacheState::Partly(share) => format!("{} in cache", sizes::percent(share)),
        CacheState::Unknown => "unknown".to_owned(),
    }
}

/// Both measurements: `cold: 0% in the page cache before, 100% after`.
pub(crate) fn cache(report: &CacheReport) -> String {
    let share = |share: Option<f64>| share.map_or_else(|| "an unknown share".to_owned(), sizes::percent);
    let (before, after) = (share(report.resident_before), share(report.resident_after));
    match CacheState::before(report) {
        state @ (CacheState::Cold | CacheState::Warm) => {
            format!("{}: held {before} before, {after} after", cache_state(state))
        }
        CacheState::Partly(_) | CacheState::Unknown => format!("held {before} before, {after} after"),
    }
}

/// One line for each path that was chosen and why, however many files it was chosen for.
pub(crate) fn choices(report: &LoadReport) -> Vec<String> {
    let line = |choice: &Choice| {
        let files = match choice.files {
            files if files == report.files => String::new(),
            1 => format!(" ({})", choice.file.display()),
            files => format!(" ({files} files)"),
        };
        format!("{}{files}: {}", choice.path, choice.why)
    };
    report.choices.iter().map(line).collect()
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
