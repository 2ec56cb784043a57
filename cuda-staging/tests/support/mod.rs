//! Tests on the simulated driver.
//!
//! A driver is loaded once per process, with its settings; so the test executes itself again, in a child that has the
//! simulator's environment, and runs its body there:
//!
//! ```ignore
//! #[test]
//! fn copies_arrive() {
//!     on_simulator("copies_arrive", &[("CUDA_SIM_JITTER_US", "300")], || { /* Device::cuda(0)... */ });
//! }
//! ```
//!
//! The environment comes from the file named by `GDS_SIM_ENV_FILE`, which `cargo xtask test` sets, or else from
//! `cargo xtask sim --print-env`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed preparation is a failed test")]
#![allow(dead_code, reason = "each test file uses its part of this")]

pub(crate) mod control;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Names, in a child, the test whose body it is to run.
const CHILD: &str = "GDS_SIMULATED_TEST";

/// A child that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `body`, of the test named `test` (with the modules it is in), on a simulated driver with these settings. It
/// must succeed and leave nothing behind.
pub(crate) fn on_simulator(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let run = run_on_simulator(test, settings);
    run.assert_passed();
    assert_eq!(run.left_behind(), Vec::<String>::new(), "{}", run.output);
}

/// Whether this is the child that is to run the body of `test`.
pub(crate) fn is_child(test: &str) -> bool {
    env::var_os(CHILD).is_some_and(|name| name == test)
}

/// Executes `test` of this binary again with the simulator; there, [`is_child`] is true.
pub(crate) fn run_on_simulator(test: &str, settings: &[(&str, &str)]) -> Run {
    let mut variables = simulator().clone();
    variables.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    run(test, &variables)
}

/// Executes `test` of this binary again with these variables.
pub(crate) fn run(test: &str, variables: &[(String, String)]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let file = File::create(&output).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .env(CHILD, test)
        .env("CUDA_SIM_REPORT", folder.path().join("report-%p.json"))
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let report = folder.path().join(format!("report-{}.json", child.id()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{test} hangs with {variables:?}:\n{}", read(&output));
        }
        thread::sleep(Duration::from_millis(1));
    };
    let report = fs::read(report).map_or(Value::Null, |json| serde_json::from_slice(&json).unwrap());
    Run { status, output: read(&output), report }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

/// What a child did.
pub(crate) struct Run {
    pub(crate) status: ExitStatus,
    /// What it printed, both streams.
    pub(crate) output: String,
    /// The simulator's report; null where the driver was never initialised.
    pub(crate) report: Value,
}

impl Run {
    pub(crate) fn assert_passed(&self) {
        let ran = self.status.success() && self.output.contains("1 passed");
        assert!(ran, "the child ended with {}:\n{}", self.status, self.output);
    }

    /// What this binary made and did not release, such as "1 pins of 8192 bytes".
    pub(crate) fn left_behind(&self) -> Vec<String> {
        self.account("alive")
    }

    /// What this binary did not release, and went with its context.
    pub(crate) fn dropped_with_context(&self) -> Vec<String> {
        self.account("dropped_with_context")
    }

    fn account(&self, which: &str) -> Vec<String> {
        let ours = env::current_exe().unwrap().canonicalize().unwrap();
        let accounts = self.report[which].as_array().into_iter().flatten();
        let account = accounts.filter(|account| account["library"] == ours.to_string_lossy().as_ref());
        let tallies = account.flat_map(|account| account.as_object().into_iter().flatten());
        let alive = tallies.filter(|(_, tally)| tally["count"].as_u64().is_some_and(|count| count > 0));
        alive.map(|(kind, tally)| format!("{} {kind} of {} bytes", tally["count"], tally["bytes"])).collect()
    }

    /// How many calls there were, by function.
    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        self.counts("calls")
    }

    /// How many faults fired, by function.
    pub(crate) fn faults(&self) -> BTreeMap<String, u64> {
        self.counts("faults")
    }

    fn counts(&self, which: &str) -> BTreeMap<String, u64> {
        let counts = self.report[which].as_object().into_iter().flatten();
        counts.map(|(call, count)| (call.clone(), count.as_u64().unwrap_or(0))).collect()
    }
}

/// The environment that makes a program run on the simulator.
fn simulator() -> &'static Vec<(String, String)> {
    static SIMULATOR: OnceLock<Vec<(String, String)>> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        let lines = match env::var_os("GDS_SIM_ENV_FILE") {
            Some(file) => fs::read_to_string(&file).unwrap(),
            None => print_env(),
        };
        lines
            .lines()
            .map(|line| line.split_once('=').unwrap_or_else(|| panic!("no KEY=VALUE: {line}")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    })
}

fn print_env() -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let printed = Command::new(cargo)
        .args(["xtask", "sim", "--print-env"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "cargo xtask sim --print-env failed: {stderr}");
    String::from_utf8(printed.stdout).unwrap()
}
