//! Loads by cuFile: on the simulated library, whose report says what really happened, and on NVIDIA's.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use test_support::cufile_sim::{self, Alive};
use test_support::{Finished, Report, build_folder, folder, not_run};

use crate::program::{OnGpu, digests, gds, json, on_gpu, run, synth};

/// The library's file, for [`load`].
pub(crate) const LIBRARY: &str = "GDS_CUFILE_LIBRARY";

/// A machine on which GPUDirect Storage works.
pub(crate) const REAL: (&str, &str) = ("CUFILE_SIM_MODE", "real");

/// How long a load may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What a run of `gds` on both simulators left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) finished: Finished,
    pub(crate) driver: Option<Report>,
    /// The simulated libcufile's; `None` where it was not loaded.
    pub(crate) cufile: Option<cufile_sim::Report>,
}

impl Run {
    /// What `gds` printed, which succeeded.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        json(&self.finished)
    }

    /// The simulated libcufile's report.
    #[track_caller]
    pub(crate) fn cufile(&self) -> &cufile_sim::Report {
        self.cufile.as_ref().unwrap_or_else(|| panic!("cuFile was not used\n{}", self.finished))
    }

    /// Passes where neither simulator has anything of ours alive, and nothing panicked.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        if let Some(driver) = &self.driver {
            let alive = driver.ours_alive();
            assert!(alive.is_empty(), "alive at the end: {alive:?}\n{}", self.finished);
        }
        if let Some(cufile) = &self.cufile {
            assert_eq!(cufile.alive, Alive::default(), "{}", self.finished);
        }
        assert!(!self.finished.stderr.contains("panicked"), "{}", self.finished);
    }
}

/// Runs `gds` with the words of `line` and `path` on the simulated driver and, unless a setting names another library, the
/// simulated libcufile, in a folder of its own, in which nothing may be left: no log of cuFile's, above all.
#[track_caller]
pub(crate) fn load(line: &str, path: &Path, settings: &[(&str, &str)]) -> Run {
    let folder = TempDir::with_prefix("gds-cufile-").unwrap();
    let here = folder.path().join("here");
    fs::create_dir(&here).unwrap();
    let report = folder.path().join("%p.json");
    let library = cufile_sim::library().to_str().unwrap();
    let mut all = vec![("CUFILE_SIM_REPORT", report.to_str().unwrap()), (LIBRARY, library)];
    all.extend_from_slice(settings);
    let mut command = gds(line, [path]);
    command.current_dir(&here).env_remove("CUFILE_LOGFILE_PATH");
    let OnGpu { finished, report: driver } = on_gpu(command, &all, LIMIT);
    let left = fs::read_dir(&here).unwrap().count();
    assert_eq!(left, 0, "files in the working directory after {line}\n{finished}");
    let mut reports: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    reports.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    assert!(reports.len() <= 1, "{reports:?}");
    let cufile = reports.pop().map(|path| cufile_sim::Report::parse(&fs::read_to_string(path).unwrap()));
    Run { finished, driver, cufile }
}

/// Runs it as [`load`] does and wants success, and nothing left.
#[track_caller]
pub(crate) fn load_well(line: &str, path: &Path, settings: &[(&str, &str)]) -> (Value, Run) {
    let run = load(line, path, settings);
    let report = run.json();
    run.assert_nothing_left();
    (report, run)
}

/// NVIDIA's libcufile of this version; `None` after saying that `test` could not run.
pub(crate) fn nvidia(test: &str, version: &str) -> Option<String> {
    let folder = test_support::cufile(test, version)?;
    Some(folder.join("lib/libcufile.so.0").to_str().unwrap().to_owned())
}

/// A checkpoint and its digests, computed on the CPU.
pub(crate) struct Checkpoint {
    _folder: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) digests: BTreeMap<String, String>,
}

impl Checkpoint {
    pub(crate) fn new(folder: TempDir, options: &str) -> Self {
        let path = synth(folder.path(), options);
        let digests = digests(&json(&run("load --device cpu --backend buffered --digest --json", [&path])));
        Self { _folder: folder, path, digests }
    }

    /// On a disk, since files in memory are nothing that `auto` would read by cuFile; `None` after saying that `test` could
    /// not run.
    pub(crate) fn on_disk(test: &str, options: &str) -> Option<Self> {
        if is_in_memory(&build_folder()) {
            not_run(test, "the build folder is in memory, where nothing is read directly");
            return None;
        }
        Some(Self::new(folder::on_disk(test), options))
    }
}

/// Whether a folder is on tmpfs.
fn is_in_memory(folder: &Path) -> bool {
    // SAFETY: plain data, for which zeros are valid.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: a C string, and memory that is writable.
    assert_eq!(unsafe { libc::statfs(path.as_ptr(), &mut answer) }, 0);
    answer.f_type == libc::TMPFS_MAGIC
}
