//! One target: built with libFuzzer's instrumentation, run within limits, and what its log says.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::corpus::Corpus;
use crate::test::in_seconds;
use crate::workspace;

/// As cargo-fuzz sets them: the counters and comparisons that libFuzzer learns from, AddressSanitizer, and assertions.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions";

/// Limits: MiB of the process, MiB of one allocation, seconds of one input, bytes of an input.
const LIMITS: [&str; 4] = ["-rss_limit_mb=2048", "-malloc_limit_mb=256", "-timeout=30", "-max_len=4096"];

/// Rayon's threads allocate when they like, which looks like a leak of the input that ran meanwhile.
const ASAN_OPTIONS: &str = "detect_leaks=0";

/// Builds all targets; the folder of their programs.
pub(super) fn build(host: &str) -> Result<PathBuf> {
    let target = workspace::target_absolute()?.join("fuzz");
    let mut cargo = Command::new("rustup");
    cargo.current_dir(workspace::root()).args(["run", "nightly", "cargo", "build", "--quiet", "--release"]);
    cargo.args(["--package", "gds-fuzz", "--bins", "--target", host]);
    // Optimising more makes targets faster, and takes longer than CI fuzzes.
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    workspace::check(cargo.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", RUSTFLAGS))?;
    Ok(target.join(host).join("release"))
}

/// Where inputs that must be files are written, removed at the end.
pub(super) struct Places {
    memory: TempDir,
    disk: TempDir,
}

impl Places {
    pub(super) fn new() -> Result<Self> {
        let target = workspace::target_absolute()?;
        let made = |above: &Path| {
            let folder = tempfile::Builder::new().prefix("gds-fuzz-").tempdir_in(above);
            folder.with_context(|| format!("could not make a folder in {}", above.display()))
        };
        let shm = Path::new("/dev/shm");
        Ok(Self { memory: made(if shm.is_dir() { shm } else { &target })?, disk: made(&target)? })
    }
}

/// One target.
pub(super) struct Target {
    name: String,
    program: PathBuf,
    corpus: Corpus,
}

/// What came of a run.
pub(super) struct Outcome {
    name: String,
    /// Whether an input was found that fails.
    pub(super) found: bool,
    /// What could not run, each line with its reason.
    pub(super) not_run: Vec<String>,
    /// What libFuzzer's log says at the end.
    figures: Figures,
    time: Duration,
    /// The last lines of the log where something was found.
    tail: String,
}

/// The figures of a log.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    executions: u64,
    /// Edges of the program that were reached.
    coverage: u64,
    /// Inputs in the corpus.
    inputs: u64,
}

impl Target {
    pub(super) fn new(name: &str, programs: &Path) -> Self {
        Self { name: name.to_owned(), program: programs.join(name), corpus: Corpus::of(name) }
    }

    /// Runs it for so many seconds, the inputs that were kept first.
    pub(super) fn run(&self, seconds: u64, places: &Places) -> Result<Outcome> {
        let start = Instant::now();
        self.corpus.unpack()?;
        let artifacts = super::folder().join("artifacts").join(&self.name);
        fs::create_dir_all(&artifacts)
            .with_context(|| format!("could not create {}", artifacts.display()))?;
        let log = workspace::target_absolute()?.join("fuzz").join(format!("{}.log", self.name));
        let file = File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
        // In a file of its own: what a command line writes to its standard error is caught.
        let sanitizer = places.disk.path().join(format!("sanitizer-{}", self.name));
        let mut command = self.command(places);
        command.env("ASAN_OPTIONS", format!("{ASAN_OPTIONS}:log_path={}", sanitizer.display()));
        command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(&self.corpus.folder).stdout(file.try_clone()?).stderr(file);
        let mut process =
            command.spawn().with_context(|| format!("could not start {}", self.program.display()))?;
        let status = process.wait().context("waiting for a target")?;
        let mut log = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        // There is one where there was something to say.
        log.push_str(
            &fs::read_to_string(sanitizer.with_extension(process.id().to_string())).unwrap_or_default(),
        );
        let not_run = log.lines().filter(|line| line.starts_with("could not run: "));
        Ok(Outcome {
            name: self.name.clone(),
            found: !status.success(),
            not_run: not_run.map(str::to_owned).collect(),
            figures: Figures::of(&log),
            time: start.elapsed(),
            tail: if status.success() { String::new() } else { tail(&log) },
        })
    }

    /// Keeps the fewest inputs that reach as much as all of the corpus.
    pub(super) fn keep(&self, places: &Places) -> Result<()> {
        let kept = places.disk.path().join(format!("kept-{}", self.name));
        fs::create_dir_all(&kept).with_context(|| format!("could not create {}", kept.display()))?;
        let mut command = self.command(places);
        command.arg("-merge=1").arg(&kept).arg(&self.corpus.folder);
        workspace::check(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()))?;
        self.corpus.pack(&kept)
    }

    fn command(&self, places: &Places) -> Command {
        let mut command = Command::new(&self.program);
        command.args(LIMITS).arg(format!("-dict={}", super::folder().join("json.dict").display()));
        command.arg("-detect_leaks=0").env("ASAN_OPTIONS", ASAN_OPTIONS);
        command.env("GDS_FUZZ_MEMORY", places.memory.path()).env("GDS_FUZZ_DISK", places.disk.path());
        command
    }
}

impl Figures {
    fn of(log: &str) -> Self {
        let word_after = |line: &str, word: &str| -> Option<u64> {
            let rest = line.split_once(word)?.1.trim_start();
            rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
        };
        let last = |word: &str| log.lines().rev().find_map(|line| word_after(line, word)).unwrap_or_default();
        Self {
            executions: last("stat::number_of_executed_units:"),
            coverage: last(" cov: "),
            inputs: last(" corp: "),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { executions, coverage, inputs } = self.figures;
        let verdict = if self.found { "FOUND SOMETHING" } else { "nothing found" };
        write!(
            f,
            "{:<10} {executions:>10} executions  {coverage:>6} edges  {inputs:>5} inputs  {:>9}  {verdict}{}",
            self.name,
            in_seconds(self.time),
            self.tail
        )
    }
}

/// The end of a log, from where something went wrong on.
fn tail(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.iter().position(|line| line.contains("panicked at") || line.contains("ERROR: "));
    let from = from.unwrap_or_else(|| lines.len().saturating_sub(LINES));
    lines[from..].iter().take(LINES).map(|line| format!("\n    {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_end() {
        let log = "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb\n\
                   #99\tDONE   cov: 812 ft: 3031 corp: 84/12Kb lim: 4096 exec/s: 9 rss: 91Mb\n\
                   stat::number_of_executed_units: 991\nstat::average_exec_per_sec:     9\n";
        assert_eq!(Figures::of(log), Figures { executions: 991, coverage: 812, inputs: 84 });
        assert_eq!(Figures::of(""), Figures::default());
    }
}
