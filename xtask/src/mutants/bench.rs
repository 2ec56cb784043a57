//! The copy of the project on which mutants are tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::patch::{Mutant, Program, Test};
use crate::results::{self, Outcome, Results};
use crate::test::Needs;
use crate::workspace;

/// What came of a mutant.
pub(super) enum Verdict {
    Caught,
    /// Its test passed, or proved nothing: why.
    Missed(String),
    /// Its test cannot run on this machine: why.
    NotTried(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Caught => "caught",
            Self::Missed(_) => "MISSED",
            Self::NotTried(_) => "not tried",
        })
    }
}

/// How long the tests of one program may take, in seconds, before they count as hanging. Building is not part of it.
const LIMIT_SECONDS: &str = "300";

/// How often a test is asked that once passed in spite of a mutant: to tell chance from blindness. Either is a miss.
const ASKED_AFTER_A_MISS: u32 = 3;

/// A copy of the project, and what its tests need.
pub(super) struct Bench {
    /// Every file of the project as it was at the start, whoever goes on editing it.
    project: BTreeMap<PathBuf, Vec<u8>>,
    tree: PathBuf,
    target: PathBuf,
    needs: Needs,
    /// How often each test is asked at least.
    times: u32,
}

impl Bench {
    /// So many copies, each with a build folder of its own.
    pub(super) fn set_up(count: usize, times: u32) -> Result<Vec<Self>> {
        let needs = Needs::prepare()?;
        let project = project()?;
        let set_up = |name: String| {
            let folder = std::path::absolute(workspace::target().join("mutants").join(&name))?;
            let (tree, target) = (folder.join("tree"), folder.join("target"));
            let bench = Self { project: project.clone(), tree, target, needs: needs.apart(&name), times };
            bench.restore()?;
            Ok(bench)
        };
        (0..count).map(|index| set_up(index.to_string())).collect()
    }

    /// Makes the copy equal to the project. Only what differs is written, so that only what depends on it is built again.
    fn restore(&self) -> Result<()> {
        for (file, content) in &self.project {
            let path = self.tree.join(file);
            if fs::read(&path).is_ok_and(|old| old == *content) {
                continue;
            }
            fs::create_dir_all(path.parent().unwrap_or(&self.tree))?;
            fs::write(&path, content).with_context(|| format!("could not write {}", path.display()))?;
        }
        remove_others(&self.tree, &self.tree, &self.project)
    }

    fn cargo(&self) -> Command {
        let mut cargo = workspace::cargo();
        cargo.current_dir(&self.tree);
        cargo.env("CARGO_TARGET_DIR", &self.target);
        // A mutant is built once and run once.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "none");
        self.needs.give(&mut cargo);
        cargo
    }

    /// Builds the tests of `program`; returns what the compiler said where that does not compile. Before an integration test the
    /// package too, because it may build that itself and fail over what is no test failure.
    fn build(&self, program: &Program) -> Result<Option<String>> {
        let mut package = self.cargo();
        package.args(["build", "--quiet", "--package", &program.package]);
        let mut tests = self.cargo();
        tests.args(["test", "--quiet", "--no-run"]).args(program.selection());
        let package = program.is_integration().then_some(package);
        for mut cargo in package.into_iter().chain([tests]) {
            let output = cargo.output().with_context(|| format!("could not start {cargo:?}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                // Warnings about what a fault left unused come first.
                let errors = said.find("\nerror").map_or(&*said, |at| &said[at..]);
                return Ok(Some(errors.trim().to_owned()));
            }
        }
        Ok(None)
    }

    /// Runs tests of one program, which is built. Returns what they said, in two forms, and whether they hung.
    fn run(&self, program: &Program, tests: &[&str]) -> Result<Run> {
        let mut cargo = self.cargo();
        let inner = cargo.get_program().to_owned();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_SECONDS]).arg(inner);
        command.current_dir(&self.tree);
        for (name, value) in cargo.get_envs() {
            command.envs(value.map(|value| (name, value)));
        }
        cargo.args(["test", "--no-fail-fast"]).args(program.selection()).args(["--", "--exact"]).args(tests);
        command.args(cargo.get_args()).stderr(Stdio::null());
        let mut run = Run::default();
        let status = results::stream(&mut command, |line| {
            run.results.read(line);
            run.text.push_str(line);
            run.text.push('\n');
        })?;
        // 124 is what `timeout` ends with.
        run.hung = matches!(status.code(), Some(124 | 137)) || run.text.contains("watchdog: ");
        Ok(run)
    }

    /// Fails unless every named test runs and passes on the copy as it is.
    pub(super) fn check_unmutated(&self, mutants: &[Mutant]) -> Result<()> {
        let mut programs: BTreeMap<&Program, BTreeSet<&str>> = BTreeMap::new();
        for test in mutants.iter().flat_map(|mutant| &mutant.tests) {
            programs.entry(&test.program).or_default().insert(&test.name);
        }
        for (program, names) in programs {
            if let Some(errors) = self.build(program)? {
                bail!("{program:?} does not compile unmutated:\n{errors}");
            }
            let names: Vec<_> = names.into_iter().collect();
            let run = self.run(program, &names)?;
            for name in names {
                ensure!(
                    run.results.tests.get(name) == Some(&Outcome::Passed),
                    "test {name:?} of {program:?} does not pass unmutated:\n{}",
                    run.text
                );
            }
        }
        // Each mutant will be told again.
        self.needs.not_run().map(drop)
    }

    /// Plants one fault, asks its tests, and takes it out again.
    pub(super) fn try_mutant(&self, mutant: &Mutant) -> Result<Verdict> {
        let verdict = match self.apply(mutant)? {
            None => self.judge(mutant),
            Some(refusal) => Ok(Verdict::Missed(format!("the patch does not apply any more:\n{refusal}"))),
        };
        self.restore()?;
        verdict
    }

    /// Returns what git said where the patch does not apply.
    fn apply(&self, mutant: &Mutant) -> Result<Option<String>> {
        let mut git = Command::new("git");
        // The copy lies within a repository, which would make git look for the files elsewhere.
        git.current_dir(&self.tree).env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        git.args(["apply", "-C1"]).arg(&mutant.path);
        let output = git.output().context("could not start git")?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    fn judge(&self, mutant: &Mutant) -> Result<Verdict> {
        for test in &mutant.tests {
            if let Some(errors) = self.build(&test.program)? {
                return Ok(Verdict::Missed(format!("it does not compile:\n{errors}")));
            }
            let (mut asked, mut noticed) = (0, 0);
            while asked < self.times || (noticed < asked && asked < ASKED_AFTER_A_MISS) {
                match self.ask(test, mutant.may_hang)? {
                    Answer::Noticed => noticed += 1,
                    Answer::Passed => {}
                    Answer::Verdict(verdict) => return Ok(verdict),
                }
                asked += 1;
            }
            if noticed < asked {
                let name = &test.name;
                return Ok(Verdict::Missed(format!("{name} notices it {noticed} times of {asked}")));
            }
        }
        Ok(Verdict::Caught)
    }

    /// Asks one test, which is built, once.
    fn ask(&self, Test { program, name }: &Test, may_hang: bool) -> Result<Answer> {
        let run = self.run(program, &[name])?;
        let reasons: Vec<_> = self.needs.not_run()?.into_iter().map(|(_, reason)| reason).collect();
        if run.hung && !may_hang {
            return Ok(Answer::Verdict(Verdict::Missed(format!("{name} hangs:\n{}", run.text))));
        }
        Ok(match run.results.tests.get(name) {
            // A program that died has no line for its test.
            Some(Outcome::Failed) | None => Answer::Noticed,
            Some(_) if reasons.is_empty() => Answer::Passed,
            Some(_) => Answer::Verdict(Verdict::NotTried(reasons.join("; "))),
        })
    }
}

/// What a test says of a mutant.
enum Answer {
    Noticed,
    Passed,
    /// It cannot say: what that means for the mutant.
    Verdict(Verdict),
}

/// What a run of tests said.
#[derive(Default)]
struct Run {
    results: Results,
    text: String,
    hung: bool,
}

/// The files that git tracks, or would if they were added, by their paths in the project.
fn project() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().context("could not start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file's name")?;
    let mut files = BTreeMap::new();
    for path in names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from) {
        let from = workspace::root().join(&path);
        // A tracked file may have been removed.
        if from.is_file() {
            let content = fs::read(&from).with_context(|| format!("could not read {}", from.display()))?;
            files.insert(path, content);
        }
    }
    Ok(files)
}

/// Removes the files below `folder` that are not in `keep`, whose paths begin at `root`.
fn remove_others(root: &Path, folder: &Path, keep: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, keep)?;
        } else if !path.strip_prefix(root).is_ok_and(|relative| keep.contains_key(relative)) {
            fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
        }
    }
    Ok(())
}
