//! Tests and programs on the simulated CUDA driver.
//!
//! The simulator must be preloaded, so a test on it runs in a child process: the test's own program, started again for
//! that one test. `cargo xtask test` prepares the environment once, in the file `GDS_SIM_ENV_FILE`; a test run without
//! it asks `cargo xtask sim --print-env` itself.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{self, Finished};
use crate::report::Report;
use crate::segment::Segment;

/// Names the folder of a child started by [`Simulation::run`].
const CHILD: &str = "GDS_TEST_CHILD";

/// Runs `body` in a process of its own on the simulated driver, with `settings` (`CUDA_SIM_*`, or any other variables)
/// in its environment. It must end well, with nothing of ours alive.
///
/// `test` is the test's full name, as `cargo test` prints it. The child runs the test from its beginning and stops after this
/// call, in which it returns `None`: `let Some(outcome) = on_simulator(..) else { return };`. So a test prepares what it
/// needs within `body`, and where it calls more than once, it gives the same body and lets the settings differ.
///
/// # Panics
/// Where the child fails, hangs or leaves something of ours alive.
#[track_caller]
pub fn on_simulator(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Outcome> {
    let outcome = Simulation::new(test).settings(settings).run(body)?;
    outcome.assert_well();
    Some(outcome)
}

/// A test on the simulator, where the plain [`on_simulator`] does not do.
#[derive(Debug)]
pub struct Simulation {
    test: String,
    settings: Vec<(OsString, OsString)>,
    limit: Duration,
}

impl Simulation {
    /// Of the test of this full name.
    pub fn new(test: &str) -> Self {
        Self { test: test.to_owned(), settings: Vec::new(), limit: process::LIMIT }
    }

    /// Adds a variable to the child's environment.
    pub fn setting(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Adds variables to the child's environment.
    pub fn settings(mut self, settings: &[(&str, &str)]) -> Self {
        self.settings.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// The child leaves memory of the host behind on purpose. AddressSanitizer, where it runs under that, counts no leaks.
    pub fn leaving(self) -> Self {
        self.setting("ASAN_OPTIONS", "detect_leaks=0")
    }

    /// How long the child may run: [`process::LIMIT`] unless said here.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs `body` in the child; see [`on_simulator`], but how it ends and what it leaves is for the caller to judge.
    ///
    /// # Panics
    /// Where the child hangs, or ran no test.
    #[track_caller]
    pub fn run(self, body: impl FnOnce()) -> Option<Outcome> {
        if let Some(folder) = std::env::var_os(CHILD) {
            let folder = Path::new(&folder);
            fs::write(folder.join("started"), &self.test).expect("a note to the parent");
            // Of a process of this number that was killed: NVIDIA's library would keep no statistics, and say nothing.
            if let Some(left) = Segment::of(std::process::id()) {
                left.remove();
            }
            body();
            fs::write(folder.join("finished"), &self.test).expect("a note to the parent");
            return None;
        }
        let folder = TempDir::with_prefix("gds-simulation-").expect("a folder for the child's notes");
        let mut command = Command::new(std::env::current_exe().expect("this program's path"));
        command.args([self.test.as_str(), "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
        prepare(&mut command);
        command.env(CHILD, folder.path()).env("CUDA_SIM_REPORT", folder.path().join("report-%p.json"));
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let child = process::run(&mut command, self.limit);
        print!("{}", process::marked(&child.stdout));
        eprint!("{}", process::marked(&child.stderr));
        let note = |name: &str| folder.path().join(name).is_file();
        assert!(note("started"), "no test of {:?} called the simulator: a wrong name?\n{child}", self.test);
        Some(Outcome {
            finished: note("finished") && child.status.success(),
            child,
            reports: Report::read_all(folder.path()),
        })
    }
}

/// What a child left.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the body ran to its end and the process ended with 0.
    pub finished: bool,
    /// How the process ended, and what it wrote.
    pub child: Finished,
    /// The simulator's reports: one per process that initialised the driver and did not die of a signal.
    pub reports: Vec<Report>,
}

impl Outcome {
    /// The report of the only process that initialised the driver.
    ///
    /// # Panics
    /// Where there was none, or several.
    #[track_caller]
    pub fn report(&self) -> &Report {
        let [report] = self.reports.as_slice() else {
            panic!("{} processes reported\n{}", self.reports.len(), self.child);
        };
        report
    }

    /// Passes where the child ended well and nothing of ours is alive.
    ///
    /// # Panics
    /// Otherwise.
    #[track_caller]
    pub fn assert_well(&self) {
        assert!(self.finished, "the test's child: {}", self.child);
        self.assert_nothing_alive();
    }

    /// Passes where nothing of ours is alive in any process.
    ///
    /// # Panics
    /// Otherwise.
    #[track_caller]
    pub fn assert_nothing_alive(&self) {
        for report in &self.reports {
            let alive = report.ours_alive();
            assert!(alive.is_empty(), "alive at the end of process {}: {alive:?}\n{self}", report.pid);
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.child.fmt(f)
    }
}

/// Whether this process is the child of a [`Simulation`].
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Lets `command`, any program, run on the simulated driver.
pub fn prepare(command: &mut Command) {
    // A child on the simulator has it already, and hands it on.
    if !is_child() {
        command.envs(environment().iter().map(|(name, value)| (name, value)));
    }
}

/// The variables that put a program on the simulator.
pub fn environment() -> &'static [(String, String)] {
    static ENVIRONMENT: OnceLock<Vec<(String, String)>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let text = match std::env::var_os("GDS_SIM_ENV_FILE") {
            Some(file) => fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}")),
            None => ask_xtask(),
        };
        let pairs = text.lines().filter(|line| !line.is_empty()).map(|line| {
            let pair = line.split_once('=');
            pair.unwrap_or_else(|| panic!("the simulator's environment: {line:?} is not NAME=VALUE"))
        });
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    })
}

fn ask_xtask() -> String {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::workspace()).args(["xtask", "sim", "--print-env"]);
    process::run(&mut cargo, Duration::from_secs(600)).success().stdout
}
