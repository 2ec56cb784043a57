//! The program under test, as a user runs it: watched, and on the simulated driver where asked.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use test_support::{Finished, Report, process, simulator};

/// The program.
pub(crate) const GDS: &str = env!("CARGO_BIN_EXE_gds");

/// `gds` with the words of `line` and then `paths`.
pub(crate) fn gds<P: AsRef<OsStr>>(line: &str, paths: impl IntoIterator<Item = P>) -> Command {
    let mut command = Command::new(GDS);
    command.args(line.split_whitespace()).args(paths).env_remove("RUST_BACKTRACE");
    command
}

/// Runs it to its end.
#[track_caller]
pub(crate) fn run<P: AsRef<OsStr>>(line: &str, paths: impl IntoIterator<Item = P>) -> Finished {
    process::run(&mut gds(line, paths), process::LIMIT)
}

/// What a run on the simulator left: how it ended, and the simulator's report, where the driver was initialised.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(crate) finished: Finished,
    pub(crate) report: Option<Report>,
}

/// Runs `command` on the simulated driver with these settings, for at most `limit`.
#[track_caller]
pub(crate) fn on_gpu(mut command: Command, settings: &[(&str, &str)], limit: Duration) -> OnGpu {
    let folder = TempDir::with_prefix("gds-report-").unwrap();
    simulator::prepare(&mut command);
    command.env("CUDA_SIM_REPORT", folder.path().join("report-%p.json")).envs(settings.iter().copied());
    let finished = process::run(&mut command, limit);
    let mut reports = Report::read_all(folder.path());
    assert!(reports.len() <= 1, "{} processes used the driver", reports.len());
    OnGpu { finished, report: reports.pop() }
}

/// Runs `gds` on the simulated driver with these settings, and wants success and nothing of ours alive afterwards.
#[track_caller]
pub(crate) fn well_on_gpu(line: &str, path: &Path, settings: &[(&str, &str)]) -> (Value, Report) {
    let OnGpu { finished, report } = on_gpu(gds(line, [path]), settings, process::LIMIT);
    let report = report.unwrap_or_else(|| panic!("the driver was not used\n{finished}"));
    let alive = report.ours_alive();
    assert!(alive.is_empty(), "alive at the end: {alive:?}\n{finished}");
    (json(&finished), report)
}

/// The JSON object that a successful run printed.
#[track_caller]
pub(crate) fn json(finished: &Finished) -> Value {
    assert_eq!(finished.code(), Some(0), "{finished}");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// The digests in a report, by tensor.
#[track_caller]
pub(crate) fn digests(report: &Value) -> BTreeMap<String, String> {
    let object = report["digests"].as_object().unwrap_or_else(|| panic!("no digests in {report}"));
    object.iter().map(|(name, digest)| (name.clone(), digest.as_str().unwrap().to_owned())).collect()
}

/// Bytes by each path that took any.
#[track_caller]
pub(crate) fn paths(report: &Value) -> BTreeMap<String, u64> {
    let object = report["paths"].as_object().unwrap_or_else(|| panic!("no paths in {report}"));
    let bytes = object.iter().map(|(path, bytes)| (path.clone(), bytes.as_u64().unwrap()));
    bytes.filter(|(_, bytes)| *bytes > 0).collect()
}

/// The fallbacks in a report, as `(from, to, reason)`.
#[track_caller]
pub(crate) fn fallbacks(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = report["fallbacks"].as_array().unwrap_or_else(|| panic!("no fallbacks in {report}"));
    list.iter().map(|one| (text(&one["from"]), text(&one["to"]), text(&one["reason"]))).collect()
}

/// Makes a checkpoint in `folder`/model and returns its path.
#[track_caller]
pub(crate) fn synth(folder: &Path, options: &str) -> PathBuf {
    let path = folder.join("model");
    run(&format!("synth {options}"), [&path]).success();
    path
}

/// The files of a checkpoint, in order.
pub(crate) fn shards(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    files
}
