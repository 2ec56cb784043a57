//! One row: a model made, a child under pressure, its files meddled with, its findings judged.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tempfile::TempDir;
use test_support::{Finished, Report, cufile_sim, process, simulator};

use crate::cgroup::Cgroup;
use crate::child::warm_up;
use crate::meddle::{Meddling, meddle};
use crate::model::Model;
use crate::pressure::{Pressure, put_on};
use crate::scenario::{CuFile, Scenario, Way};
use crate::spec::{Errors, Findings, Spec};
use crate::verdict::{self, Verdict};

/// How much of it there is to be.
pub(crate) struct Plan {
    pub(crate) folder: PathBuf,
    pub(crate) loads: u64,
    pub(crate) seconds: f64,
    pub(crate) short: bool,
}

/// What came out.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) way: &'static str,
    pub(crate) errors_expected: &'static str,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    pub(crate) verdict: Verdict,
}

/// The figures of a row; of several processes, sums, and of what is not to be added the largest.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) loads: u64,
    pub(crate) bytes_compared: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) paths: BTreeMap<String, u64>,
    pub(crate) versions: BTreeMap<u32, u64>,
    /// How often somebody meddled with the files.
    pub(crate) meddled: u64,
    /// Before the first load, after the warm-up, at the end, in bytes.
    pub(crate) rss_anon: [u64; 3],
    /// Bytes a load, after the warm-up.
    pub(crate) slope: f64,
    /// After the warm-up, at the end.
    pub(crate) descriptors: [u64; 2],
    pub(crate) threads: [u64; 2],
    pub(crate) pinned: u64,
    pub(crate) seconds: f64,
}

impl Row {
    pub(crate) fn name(&self) -> String {
        format!("{}, {}", self.scenario, self.way)
    }

    /// The row for who waits for the table.
    pub(crate) fn line(&self) -> String {
        let verdict = match &self.verdict {
            Verdict::Good => "good".to_owned(),
            verdict => verdict.problems().collect::<Vec<_>>().join("\n    "),
        };
        format!("{}: {} loads in {:.1} s: {verdict}", self.name(), self.figures.loads, self.figures.seconds)
    }
}

/// Runs a scenario one way.
pub(crate) fn run(scenario: &Scenario, way: &Way, plan: &Plan) -> Row {
    let mut row = Row {
        scenario: scenario.name,
        way: way.name,
        errors_expected: match (scenario.errors)() {
            Errors::None => "none",
            Errors::MayChange => "may",
            Errors::Provoked => "known",
        },
        figures: Figures::default(),
        verdict: Verdict::Good,
    };
    row.verdict = fill(scenario, way, plan, &mut row.figures)
        .unwrap_or_else(|error| Verdict::Bad(vec![format!("{error:#}")]));
    row
}

fn fill(scenario: &Scenario, way: &Way, plan: &Plan, figures: &mut Figures) -> Result<Verdict> {
    let library = match library(way.cufile) {
        Ok(library) => library,
        Err(reason) => return Ok(Verdict::CouldNotRun(reason)),
    };
    let group = match scenario.pressure {
        Pressure::Memory(bytes) => match Cgroup::with_memory(scenario.name, bytes) {
            Ok(group) => Some(group),
            Err(reason) => return Ok(Verdict::CouldNotRun(reason)),
        },
        _ => None,
    };
    let folder = tempfile::Builder::new().prefix("gds-soak-").tempdir_in(&plan.folder)?;
    // The user without privileges reads it, too.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let models = models(scenario, folder.path());
    models.iter().try_for_each(Model::make).context("making the models")?;
    let spec = Spec {
        models,
        gpu: way.gpu,
        backend: way.backend.to_owned(),
        engine: way.engine,
        batches: way.batches,
        foreign_threads: way.cufile == CuFile::Nvidia,
        no_io_uring: scenario.pressure == Pressure::IoUring,
        loads: plan.loads.div_ceil(scenario.processes as u64),
        // Loads are quick, and are to meet what others do to their files.
        least_seconds: if scenario.meddling == Meddling::Nothing { 0.0 } else { plan.seconds / 2.0 },
        seconds: plan.seconds * if scenario.many { 4.0 } else { 1.0 },
        errors: (scenario.errors)(),
    };
    let reports = TempDir::new_in(folder.path())?;
    // Whoever the child is, it may leave its reports.
    fs::set_permissions(reports.path(), Permissions::from_mode(0o777))?;
    let command = || -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--child").arg(serde_json::to_string(&spec)?);
        if way.gpu {
            simulator::prepare(&mut command);
            command.env("CUDA_SIM_REPORT", reports.path().join("cuda-%p.json"));
            command.env("CUFILE_SIM_REPORT", reports.path().join("cufile-%p.txt"));
            command.env("CUFILE_SIM_MODE", "real").env("CUFILE_LOGFILE_PATH", "/dev/null");
            command.env("GDS_CUFILE_LIBRARY", &library);
            if way.backend == "gds-compat" {
                command.env("CUFILE_SIM_MODE", "compat");
            }
        }
        put_on(&mut command, scenario.pressure, group.as_ref().map(Cgroup::procs));
        Ok(command)
    };
    let limit = Duration::from_secs_f64(spec.seconds * 4.0 + 60.0);
    let commands = (0..scenario.processes).map(|_| command()).collect::<Result<Vec<_>>>()?;
    let (ended, meddled) = with_meddling(scenario.meddling, &spec.models, || all(commands, limit))?;
    if let (Pressure::Memlock(_), [Err(reason)]) = (scenario.pressure, ended.as_slice())
        && reason.contains("Permission denied")
    {
        return Ok(Verdict::CouldNotRun(format!("another user may not run this program: {reason}")));
    }
    figures.meddled = meddled;
    let mut problems = judge_children(&ended, figures, &spec);
    problems.extend(
        group
            .as_ref()
            .filter(|group| group.killed() > 0)
            .map(|group| format!("the kernel killed {} processes for want of memory", group.killed())),
    );
    problems.extend(left_behind(reports.path()));
    if scenario.meddling != Meddling::Nothing && meddled == 0 {
        problems.push("nobody meddled with the files".to_owned());
    }
    Ok(Verdict::of(problems))
}

fn models(scenario: &Scenario, folder: &Path) -> Vec<Model> {
    let model = |number: usize| Model {
        path: match scenario.shards {
            1 => folder.join(format!("model-{number}.safetensors")),
            _ => folder.join(format!("model-{number}")),
        },
        number: number as u64,
        shards: scenario.shards,
        shard_bytes: scenario.shard_bytes,
        versions: scenario.meddling.versions(),
    };
    (0..scenario.models).map(model).collect()
}

/// The libcufile of a row, or why there is none.
fn library(cufile: CuFile) -> Result<PathBuf, String> {
    match cufile {
        CuFile::None => Ok("/nonexistent/libcufile.so.0".into()),
        CuFile::Sim => Ok(cufile_sim::library().to_owned()),
        CuFile::Nvidia => {
            let fetched = std::env::var_os("GDS_CUFILE_DIR").map(PathBuf::from);
            let folder = fetched.unwrap_or_else(|| test_support::build_folder().join("cufile"));
            let library = folder.join("1.20/lib/libcufile.so.0");
            match library.is_file() {
                true => Ok(library),
                false => Err("NVIDIA's libcufile has not been fetched (cargo xtask cufile)".to_owned()),
            }
        }
    }
}

/// Runs all at once to their ends; what went wrong with each that did not get there.
fn all(commands: Vec<Command>, limit: Duration) -> Vec<Result<Finished, String>> {
    let run = |mut command: Command| {
        // A hang is a panic with all that is known.
        catch_unwind(AssertUnwindSafe(|| process::run(&mut command, limit))).map_err(|panic| {
            panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a child could not be run".to_owned())
        })
    };
    thread::scope(|scope| {
        let running: Vec<_> = commands.into_iter().map(|command| scope.spawn(move || run(command))).collect();
        let lost = || Err("the thread that waited for a child panicked".to_owned());
        running.into_iter().map(|child| child.join().unwrap_or_else(|_| lost())).collect()
    })
}

/// Does `during` while somebody meddles with the first of `models`; how often they did.
fn with_meddling<T>(what: Meddling, models: &[Model], during: impl FnOnce() -> T) -> Result<(T, u64)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let meddler = scope.spawn(|| models.first().map_or(Ok(0), |model| meddle(what, model, &stop)));
        let done = during();
        stop.store(true, Ordering::Relaxed);
        let meddled = meddler.join().map_err(|_| anyhow::anyhow!("who meddles panicked"))?;
        Ok((done, meddled.context("meddling with the files")?))
    })
}

/// Adds what the children found to the figures; what is wrong.
fn judge_children(ended: &[Result<Finished, String>], figures: &mut Figures, spec: &Spec) -> Vec<String> {
    let mut problems = Vec::new();
    let mut sum = Findings::default();
    for child in ended {
        let findings = match child {
            Ok(finished) if finished.code() == Some(0) => {
                serde_json::from_str::<Findings>(&finished.stdout).map_err(|error| error.to_string())
            }
            Ok(finished) => Err(finished.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        match findings {
            Ok(findings) => {
                problems.extend(verdict::flatness(&findings, spec.foreign_threads));
                figures.look(&findings);
                sum.add(findings);
            }
            Err(reason) => problems.push(reason),
        }
    }
    let few = 5.min(sum.problems.len());
    let more = sum.problems.len() - few;
    problems.extend(sum.problems.drain(..few));
    problems.extend((more > 0).then(|| format!("and {more} more loads")));
    let failed: u64 = sum.errors.values().sum();
    if sum.loads > 0 && failed == sum.loads {
        problems.push("no load was whole".to_owned());
    }
    if spec.errors == Errors::Provoked && failed != sum.loads / 2 {
        problems.push(format!("{failed} errors in {} loads, every second of which was to fail", sum.loads));
    }
    (figures.loads, figures.bytes_compared) = (sum.loads, sum.compared);
    (figures.errors, figures.paths, figures.versions) = (sum.errors, sum.paths, sum.versions);
    (figures.pinned, figures.seconds) = (sum.pinned, sum.seconds);
    problems
}

/// What the simulators say is alive still, of ours.
fn left_behind(reports: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for report in Report::read_all(reports) {
        let alive = report.ours_alive();
        if !alive.is_empty() {
            problems.push(format!("alive on the GPU at the end: {alive:?}"));
        }
    }
    for entry in fs::read_dir(reports).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "txt") {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let alive = cufile_sim::Report::parse(&text).alive;
            if alive != cufile_sim::Alive::default() {
                problems.push(format!("alive in cuFile at the end: {alive:?}"));
            }
        }
    }
    problems
}

impl Figures {
    /// Takes a child's memory, descriptors and threads where they are more than another's.
    fn look(&mut self, findings: &Findings) {
        let (Some(start), Some(warm), Some(end)) = (&findings.start, findings.warm(), &findings.end) else {
            return;
        };
        let after = &findings.samples[warm_up(findings.samples.len() as u64) as usize - 1..];
        if end.rss_anon >= self.rss_anon[2] {
            self.rss_anon = [start.rss_anon, warm.rss_anon, end.rss_anon];
            self.slope = verdict::slope(after);
        }
        let most = |old: [u64; 2], new: [u64; 2]| if new[1] >= old[1] { new } else { old };
        self.descriptors = most(self.descriptors, [warm.descriptors, end.descriptors]);
        self.threads = most(self.threads, [verdict::steady_threads(after), end.threads]);
    }
}
