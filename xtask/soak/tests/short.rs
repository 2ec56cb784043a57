//! The short form of the soak: every scenario, one way for each destination, few loads. `cargo xtask soak` is the long one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use test_support::{folder, not_run, process};

/// Runs these scenarios; each row is good, or says why it could not run.
#[track_caller]
fn soak(test: &str, scenarios: &[&str], loads: &str, seconds: &str) {
    let folder = folder::on_disk(test);
    let json = folder.path().join("rows.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_soak"));
    command.args(["--short", "--loads", loads, "--seconds", seconds, "--json"]).arg(&json).args(scenarios);
    let finished = process::run(&mut command, Duration::from_secs(240));
    assert_eq!(finished.code(), Some(0), "{finished}");
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    for name in scenarios {
        let row = rows.iter().find(|row| row["scenario"] == *name);
        assert!(row.is_some(), "{name} has no row: {finished}");
    }
    for row in rows {
        match row["verdict"]["could_not_run"].as_str() {
            Some(reason) => not_run(test, &format!("{}, {}: {reason}", row["scenario"], row["way"])),
            None => assert!(row["verdict"] == "good" && row["loads"].as_u64() >= Some(4), "{row}"),
        }
    }
}

#[test]
fn loads_one_after_the_other_leave_nothing() {
    soak("loads_one_after_the_other_leave_nothing", &["loads", "failing"], "20", "2");
}

#[test]
fn loads_at_once_do_not_mix_and_leave_nothing() {
    soak("loads_at_once_do_not_mix_and_leave_nothing", &["at-once", "processes"], "64", "2");
}

#[test]
fn loads_with_little_of_what_they_need() {
    let scenarios = ["little-memory", "little-memlock", "few-files", "too-few-files", "no-io-uring"];
    soak("loads_with_little_of_what_they_need", &scenarios, "8", "2");
}

#[test]
fn loads_of_files_that_change_are_whole_or_errors() {
    let scenarios = ["dropped-pages", "appended", "truncated", "rewritten", "replaced", "replaced-set"];
    soak("loads_of_files_that_change_are_whole_or_errors", &scenarios, "12", "1");
}
