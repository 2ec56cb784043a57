//! The steps, what matters most first: correctness, then what only a GPU can tell, then speed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::facts::{self, Library};
use crate::loads::{self, CHECKED, TIMED};
use crate::options::{Options, beside};
use crate::probe::What;
use crate::record::{Findings, Outcome, Record, Weight};
use crate::run::{End, Finished, run};

/// A step is not begun with less than this left.
const LEAST: Duration = Duration::from_secs(2);

/// Runs all steps, prints them as they end, and writes the file. The exit status is 0 where every byte is right.
pub(crate) fn run_all(options: &Options) -> Result<ExitCode> {
    let folder = tempfile::Builder::new()
        .prefix("gpu-check-")
        .tempdir_in(options.folder())
        .with_context(|| format!("could not make a folder in {}", options.folder().display()))?;
    let size = options.size()?;
    let mut steps = Steps {
        gds: options.gds()?,
        library: None,
        log: folder.path().join("cufile.log"),
        start: Instant::now(),
        limit: options.limit(),
        repeat: options.repeat,
        records: Vec::new(),
    };
    println!("data: {} in {}", ByteSize::b(size), folder.path().display());
    steps.all(folder.path(), size, &beside("lib/libcufile.so.0")?)?;

    let correct = steps.records.iter().all(Record::is_well);
    let findings = Findings {
        correct,
        seconds: steps.start.elapsed().as_secs_f64(),
        model_bytes: size,
        steps: &steps.records,
    };
    fs::write(&options.out, serde_json::to_vec_pretty(&findings)?)
        .with_context(|| format!("could not write {}", options.out.display()))?;
    println!("{}", if correct { "All that ran is right" } else { "NOT ALL IS RIGHT" });
    println!("{:.1} s; everything is in {}", findings.seconds, options.out.display());
    Ok(if correct { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Steps {
    gds: PathBuf,
    /// The libcufile of the loads.
    library: Option<Library>,
    /// What libcufile writes down of the step that runs.
    log: PathBuf,
    start: Instant,
    limit: Duration,
    repeat: u16,
    records: Vec<Record>,
}

/// What came of a step: how it ended, a line, and everything.
type Judged = (Outcome, String, Value);

impl Steps {
    fn all(&mut self, folder: &Path, size: u64, carried: &Path) -> Result<()> {
        let facts = facts::machine(folder, size);
        let gpu = facts["gpu"].as_str().unwrap_or_default().to_owned();
        self.add("machine", Weight::Finding, 0.0, (Outcome::Passed, gpu, facts));
        let libraries = facts::libraries(carried);
        self.library = libraries.first().cloned();

        let checked = self.make("data to check with", &folder.join("checked"), Options::checked(size), 3);
        self.doctor(&checked);
        self.check(&checked);
        let shard = checked.join("model-00001-of-00003.safetensors");
        for library in &libraries {
            for what in What::OF_CUFILE {
                self.probe(&format!("{} ({} libcufile)", what.name(), library.name), what, &shard, library);
            }
        }

        let timed = self.make("data to measure with", &folder.join("timed"), size, 4);
        self.time(&timed);
        if let Some(library) = self.library.clone() {
            self.probe("the parts of a load", What::Parts, &timed, &library);
        }
        self.torch(folder, &timed)?;
        let mut bench = Command::new(&self.gds);
        // Of the smaller model, so that every path gets its rounds before the deadline.
        bench.arg("bench").arg(&checked).args(["--device", "cuda:0", "--rounds", "3"]);
        bench.args(["--json", "--progress", "never"]);
        self.step("gds bench", Weight::Finding, 240, bench, |finished| {
            report_of(finished, |_| "in the file".to_owned())
        });
        Ok(())
    }

    /// Makes a model; what depends on it fails where this does.
    fn make(&mut self, step: &str, folder: &Path, size: u64, shards: u16) -> PathBuf {
        let mut synth = Command::new(&self.gds);
        synth.arg("synth").arg(folder).args(["--json", "--progress", "never"]);
        synth.args(["--size", &size.to_string(), "--shards", &shards.to_string()]);
        self.step(step, Weight::Required, 150, synth, |finished| {
            report_of(finished, |made| format!("{} tensors", made["tensors"]))
        });
        folder.to_owned()
    }

    fn doctor(&mut self, model: &Path) {
        let mut check = Command::new(&self.gds);
        check.arg("check").arg(model).arg("--json");
        self.step("gds check", Weight::Finding, 30, check, |finished| {
            // Also says all it knows where GPUDirect Storage would not work, with exit status 3.
            match (serde_json::from_str::<Value>(&finished.stdout), &finished.end) {
                (Ok(found), End::Status(0)) => {
                    (Outcome::Passed, "GPUDirect Storage would work".to_owned(), found)
                }
                (Ok(found), End::Status(_)) => {
                    (Outcome::Refused, "GPUDirect Storage would not work here".to_owned(), found)
                }
                _ => (Outcome::Failed, finished.reason(), Value::Null),
            }
        });
    }

    /// Every path's bytes against those of plain reads into host memory.
    fn check(&mut self, model: &Path) {
        let mut reference = Value::Null;
        let mut load = loads::load(&self.gds, model, "cpu");
        load.args(["--backend", "buffered", "--digest"]);
        self.step("reference: buffered into host memory", Weight::Required, 60, load, |finished| {
            match loads::object(finished) {
                Ok(report) => {
                    reference = report;
                    (Outcome::Passed, loads::speed(&reference), Value::Null)
                }
                Err((outcome, said)) => (outcome, said, Value::Null),
            }
        });
        for way in CHECKED {
            let mut load = loads::load(&self.gds, model, "cuda:0");
            way.apply(load.arg("--digest"));
            if !way.cold {
                read_all(model);
            }
            let step = format!("bytes: {}", way.name());
            self.step(&step, way.weight, 45, load, |finished| match loads::object(finished) {
                Ok(report) => {
                    let (outcome, said) = loads::compare(&reference, &report);
                    (outcome, said, loads::without_digests(report))
                }
                Err((outcome, said)) => (outcome, said, Value::Null),
            });
        }
    }

    fn time(&mut self, model: &Path) {
        for way in TIMED {
            let mut load = loads::load(&self.gds, model, "cuda:0");
            way.apply(load.args(["--repeat", &self.repeat.to_string()]));
            if !way.cold {
                read_all(model);
            }
            let step = format!("speed: {}", way.name());
            self.step(&step, way.weight, 60, load, |finished| {
                report_of(finished, |report| way.speed(report))
            });
        }
    }

    /// Something tried in a process of this program.
    fn probe(&mut self, step: &str, what: What, file: &Path, library: &Library) {
        let Ok(program) = std::env::current_exe() else { return };
        let mut probe = Command::new(program);
        probe.args(["probe", &what.name()]).arg(file).env("GDS_CUFILE_LIBRARY", &library.path);
        self.step(step, Weight::Finding, 60, probe, |finished| {
            let mut found = match loads::object(finished) {
                Ok(found) => found,
                Err((outcome, said)) => return (outcome, said, Value::Null),
            };
            let outcome = match found["outcome"].as_str() {
                Some("passed") => Outcome::Passed,
                Some("wrong") => Outcome::Wrong,
                _ => Outcome::Refused,
            };
            (outcome, found["said"].as_str().unwrap_or_default().to_owned(), found["found"].take())
        });
    }

    /// What PyTorch and safetensors do on the same files, where they are there.
    fn torch(&mut self, folder: &Path, model: &Path) -> Result<()> {
        let script = folder.join("torch_load.py");
        fs::write(&script, include_str!("torch_load.py"))?;
        for mode in ["cold", "warm"] {
            let mut python = Command::new("python3");
            python.arg(&script).arg(model).arg(mode);
            self.step(&format!("torch and safetensors, {mode}"), Weight::Finding, 75, python, |finished| {
                report_of(finished, |found| {
                    let rate = |name: &str| found[name].as_f64().unwrap_or_default();
                    let (load, copy) = (rate("gb_per_s"), rate("pinned_copy_gb_per_s"));
                    format!("{load:.2} GB/s; a pinned copy {copy:.1} GB/s")
                })
            });
        }
        Ok(())
    }

    /// Runs a command for at most `budget` seconds, never beyond the deadline, and records what `judge` makes of it.
    fn step(
        &mut self,
        step: &str,
        weight: Weight,
        budget: u64,
        mut command: Command,
        judge: impl FnOnce(&Finished) -> Judged,
    ) {
        let left = self.limit.saturating_sub(self.start.elapsed());
        if left < LEAST {
            let said = "the deadline is too near".to_owned();
            return self.add(step, weight, 0.0, (Outcome::Skipped, said, Value::Null));
        }
        if let (Some(library), None) = (&self.library, environment_of(&command, "GDS_CUFILE_LIBRARY")) {
            command.env("GDS_CUFILE_LIBRARY", &library.path);
        }
        fs::remove_file(&self.log).ok();
        command.env("CUFILE_LOGFILE_PATH", &self.log);
        let finished = run(&mut command, left.min(Duration::from_secs(budget)));
        let (outcome, said, mut found) = judge(&finished);
        if outcome != Outcome::Passed {
            found = json!({"found": found, "stderr": finished.stderr, "cufile_log": end_of(&self.log)});
        }
        self.add(step, weight, finished.seconds, (outcome, said, found));
    }

    fn add(&mut self, step: &str, weight: Weight, seconds: f64, (outcome, said, found): Judged) {
        let record = Record { step: step.to_owned(), weight, outcome, seconds, said, found };
        println!("{}", record.line());
        self.records.push(record);
    }
}

/// What a command's environment says about a variable, beyond what it inherits.
fn environment_of(command: &Command, name: &str) -> Option<PathBuf> {
    command.get_envs().find(|(variable, _)| *variable == name).and_then(|(_, value)| value.map(PathBuf::from))
}

/// Brings the files of a model into the page cache. What cannot be read fails in the load that follows.
fn read_all(model: &Path) {
    let files = fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.path());
    std::thread::scope(|scope| {
        for file in files {
            scope.spawn(move || {
                fs::File::open(file).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink())).ok()
            });
        }
    });
}

/// The last lines of a log, where there is one.
fn end_of(log: &Path) -> Vec<String> {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].iter().map(|line| (*line).to_owned()).collect()
}

/// A command that prints what it found.
fn report_of(finished: &Finished, line: impl FnOnce(&Value) -> String) -> Judged {
    match loads::object(finished) {
        Ok(found) => (Outcome::Passed, line(&found), found),
        Err((outcome, said)) => (outcome, said, Value::Null),
    }
}
