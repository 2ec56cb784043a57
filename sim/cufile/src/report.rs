//! The report: calls, faults, transfers, and what is alive, as JSON.

use std::path::{Path, PathBuf};
use std::process;

use serde_json::{Map, Value, json};

use crate::state::state;
use crate::{call, faults};

/// The report as of now.
pub(crate) fn json() -> String {
    let calls: Map<String, Value> =
        call::usage().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let faults: Vec<Value> =
        faults::fired().into_iter().map(|(fault, fired)| json!({"fault": fault, "fired": fired})).collect();
    let settings = crate::process::settings().as_ref().ok();
    let command: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let state = state();
    let (bytes, device_bytes, peak_device_bytes) = state.buffers.bytes();
    let totals = state.statistics.totals;
    let in_flight: usize = state.batches.values().map(|batch| batch.in_flight()).sum();
    let report = json!({
        "format": 1,
        "pid": process::id(),
        "command": command,
        "mode": settings.map(|settings| settings.mode.name()),
        "version": settings.map(|settings| settings.version_number()),
        "use_count": state.driver.uses,
        "calls": calls,
        "faults": faults,
        "transfers": {
            "reads": totals.reads,
            "read_bytes": totals.read_bytes,
            "writes": totals.writes,
            "write_bytes": totals.write_bytes,
            "failed": totals.failed,
            "straight_bytes": totals.straight_bytes,
            "bounced_bytes": totals.bounced_bytes,
            "unregistered": totals.unregistered,
        },
        "peak_registered_device_bytes": peak_device_bytes,
        "alive": {
            "handles": state.files.len(),
            "buffers": state.buffers.len(),
            "registered_bytes": bytes,
            "registered_device_bytes": device_bytes,
            "batches": state.batches.len(),
            "batch_entries_in_flight": in_flight,
            "streams": state.streams.len(),
        },
    });
    format!("{report:#}\n")
}

/// The file of this process's report: `%p` is the process's number, which is appended where there is no `%p`.
fn path(setting: &Path, pid: u32) -> PathBuf {
    let text = setting.to_string_lossy();
    if text.contains("%p") {
        PathBuf::from(text.replace("%p", &pid.to_string()))
    } else {
        PathBuf::from(format!("{text}.{pid}"))
    }
}

/// Writes the report that the settings ask for, where cuFile was used at all.
pub(crate) fn write_at_exit() {
    let Ok(settings) = crate::process::settings() else { return };
    let Some(report) = &settings.report else { return };
    if call::usage().is_empty() {
        return;
    }
    let path = path(report, process::id());
    // First under another name, so that who sees the file sees all of it.
    let unfinished = path.with_extension("unfinished");
    let written = std::fs::write(&unfinished, json()).and_then(|()| std::fs::rename(&unfinished, &path));
    if let Err(error) = written {
        eprintln!("cufile-sim: CUFILE_SIM_REPORT: writing {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_report_of_its_own() {
        assert_eq!(path(Path::new("/tmp/r-%p.json"), 7), Path::new("/tmp/r-7.json"));
        assert_eq!(path(Path::new("/tmp/report"), 7), Path::new("/tmp/report.7"));
    }
}
