//! `cargo xtask mutants`: every known fault, planted in a copy of the project, must turn the test named in it red.
//!
//! A mutant is a file `tests/mutants/NAME.patch`: lines of a header, then a unified diff.
//!
//! ```text
//! # What is wrong with it, in a line or more.
//! # test: PACKAGE::TARGET NAME      the test that must fail, TARGET being "lib" or an integration test's name
//! # hang                            only where the fault is one that makes the test wait for ever
//! ```
//!
//! There is one copy and one build folder for all, so that a mutant costs one incremental build of what it touches. Every
//! named test must first pass on the copy as it is: a test that fails anyway proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::results::{self, Outcome, Results};
use crate::test::{Needs, in_seconds};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these mutants: file names without ".patch"
    names: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let mutants = read_all(&workspace::root().join("tests/mutants"), &arguments.names)?;
    let bench = Bench::set_up()?;
    bench.check_unmutated(&mutants)?;
    println!("\nevery named test passes unmutated, after {}\n", in_seconds(start.elapsed()));

    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let mut missed = Vec::new();
    for mutant in &mutants {
        let began = Instant::now();
        let verdict = bench.try_mutant(mutant)?;
        let tests = mutant.tests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        println!("{:width$}  {:>7}  {verdict:<8}  {tests}", mutant.name, in_seconds(began.elapsed()));
        if let Verdict::Missed(why) = verdict {
            println!("{:width$}  {why}", "");
            missed.push(mutant.name.as_str());
        }
    }
    println!("\n{} mutants, {} missed, in {}", mutants.len(), missed.len(), in_seconds(start.elapsed()));
    ensure!(missed.is_empty(), "not caught: {}", missed.join(", "));
    Ok(())
}

/// A fault and the tests that must notice it.
#[derive(Debug)]
struct Mutant {
    name: String,
    path: PathBuf,
    tests: Vec<Test>,
    /// Whether a test that hangs has noticed it.
    may_hang: bool,
}

/// A test, by the program it is in and its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    program: Program,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    package: String,
    /// "lib", "bin", or an integration test.
    target: String,
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{} {}", self.program.package, self.program.target, self.name)
    }
}

impl Mutant {
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let header = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
        let mut mutant = Self { name, path: path.to_owned(), tests: Vec::new(), may_hang: false };
        for line in header {
            if let Some(test) = line.strip_prefix("test:") {
                mutant.tests.push(Test::parse(test.trim())?);
            } else if line == "hang" {
                mutant.may_hang = true;
            }
        }
        ensure!(!mutant.tests.is_empty(), "no line \"# test: PACKAGE::TARGET NAME\"");
        Ok(mutant)
    }
}

impl Test {
    fn parse(text: &str) -> Result<Self> {
        let parts =
            text.split_once(' ').and_then(|(program, name)| Some((program.split_once("::")?, name.trim())));
        let Some(((package, target), name)) = parts else {
            bail!("{text:?} is not PACKAGE::TARGET NAME");
        };
        let program = Program { package: package.to_owned(), target: target.to_owned() };
        Ok(Self { program, name: name.to_owned() })
    }
}

/// The mutants in `folder`, or those of these names, in an order that changes one crate after the other.
fn read_all(folder: &Path, names: &[String]) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("patch")) {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        let mutant = Mutant::parse(&path, &text).with_context(|| path.display().to_string())?;
        if names.is_empty() || names.contains(&mutant.name) {
            let changed = text.lines().find(|line| line.starts_with("+++ ")).unwrap_or_default().to_owned();
            mutants.push((changed, mutant));
        }
    }
    mutants.sort_by(|(changed, mutant), (other, than)| (changed, &mutant.name).cmp(&(other, &than.name)));
    let mutants: Vec<_> = mutants.into_iter().map(|(_, mutant)| mutant).collect();
    if let Some(name) = names.iter().find(|name| mutants.iter().all(|mutant| mutant.name != **name)) {
        bail!("there is no mutant {name:?} in {}", folder.display());
    }
    Ok(mutants)
}

enum Verdict {
    Caught,
    Missed(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Caught => "caught",
            Self::Missed(_) => "MISSED",
        })
    }
}

/// How long the tests of one program may take, in seconds, before they count as hanging. Building is not part of it.
const LIMIT_SECONDS: &str = "300";

/// The copy of the project, and what its tests need.
struct Bench {
    tree: PathBuf,
    target: PathBuf,
    needs: Needs,
}

impl Bench {
    fn set_up() -> Result<Self> {
        let needs = Needs::prepare()?;
        let folder = std::path::absolute(workspace::target().join("mutants"))?;
        let bench = Self { tree: folder.join("tree"), target: folder.join("target"), needs };
        bench.restore()?;
        Ok(bench)
    }

    /// Makes the copy equal to the tracked files as they are now. Only what differs is written, so that only what
    /// depends on it is built again.
    fn restore(&self) -> Result<()> {
        let tracked = tracked_files()?;
        for file in &tracked {
            let (from, to) = (workspace::root().join(file), self.tree.join(file));
            let new = fs::read(&from).with_context(|| format!("could not read {}", from.display()))?;
            if fs::read(&to).is_ok_and(|old| old == new) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&self.tree))?;
            fs::write(&to, new).with_context(|| format!("could not write {}", to.display()))?;
            fs::set_permissions(&to, from.metadata()?.permissions())?;
        }
        remove_others(&self.tree, &self.tree, &tracked)
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

    /// Builds the tests of `program`; returns what the compiler said where it does not compile.
    fn build(&self, program: &Program) -> Result<Option<String>> {
        let mut cargo = self.cargo();
        cargo.args(["test", "--quiet", "--no-run"]).args(program.selection());
        let output = cargo.output().with_context(|| format!("could not start {cargo:?}"))?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
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
    fn check_unmutated(&self, mutants: &[Mutant]) -> Result<()> {
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
        let not_run = self.needs.not_run()?;
        ensure!(not_run.is_empty(), "tests that mutants name could not run: {not_run:?}");
        Ok(())
    }

    /// Plants one fault, asks its tests, and takes it out again.
    fn try_mutant(&self, mutant: &Mutant) -> Result<Verdict> {
        self.apply(mutant)?;
        let verdict = self.judge(mutant);
        self.restore()?;
        verdict
    }

    fn apply(&self, mutant: &Mutant) -> Result<()> {
        let mut git = Command::new("git");
        // The copy lies within a repository, which would make git look for the files elsewhere.
        git.current_dir(&self.tree).env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        git.args(["apply", "--recount", "-C1"]).arg(&mutant.path);
        let output = git.output().context("could not start git")?;
        ensure!(
            output.status.success(),
            "mutant {} does not apply any more: bring {} up to date\n{}",
            mutant.name,
            mutant.path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn judge(&self, mutant: &Mutant) -> Result<Verdict> {
        for Test { program, name } in &mutant.tests {
            if let Some(errors) = self.build(program)? {
                return Ok(Verdict::Missed(format!("it does not compile:\n{errors}")));
            }
            let run = self.run(program, &[name])?;
            let not_run = self.needs.not_run()?;
            if run.hung && !mutant.may_hang {
                return Ok(Verdict::Missed(format!("{name} hangs:\n{}", run.text)));
            }
            // A program that died has no line for its test.
            let failed = matches!(run.results.tests.get(name), Some(Outcome::Failed) | None);
            if !failed || !not_run.is_empty() {
                return Ok(Verdict::Missed(format!("{name} passes in spite of it {not_run:?}")));
            }
        }
        Ok(Verdict::Caught)
    }
}

/// What a run of tests said.
#[derive(Default)]
struct Run {
    results: Results,
    text: String,
    hung: bool,
}

impl Program {
    /// The arguments that select it.
    fn selection(&self) -> Vec<&str> {
        let mut arguments = vec!["--package", &self.package];
        match self.target.as_str() {
            "lib" => arguments.push("--lib"),
            "bin" => arguments.push("--bins"),
            test => arguments.extend(["--test", test]),
        }
        arguments
    }
}

/// The files git tracks, relative to the root, of which a change may have removed some.
fn tracked_files() -> Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    let output = git.current_dir(workspace::root()).args(["ls-files", "-z"]).output();
    let output = output.context("could not start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a tracked file's name")?;
    let paths = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(paths.filter(|path| workspace::root().join(path).is_file()).collect())
}

/// Removes the files below `folder` that are not in `keep`, which is relative to `root`.
fn remove_others(root: &Path, folder: &Path, keep: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, keep)?;
        } else if !path.strip_prefix(root).is_ok_and(|relative| keep.contains(relative)) {
            fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_tests() {
        let text = "# It forgets.\n# hang\n# test: gds::conformance a::b\n# test: cuda-staging::lib c\n--- a/x\n# test: no::no no\n";
        let mutant = Mutant::parse(Path::new("x/forgets.patch"), text).unwrap();
        assert_eq!(mutant.name, "forgets");
        assert!(mutant.may_hang);
        assert_eq!(mutant.tests[0].to_string(), "gds::conformance a::b");
        assert_eq!(mutant.tests[1].program.selection(), ["--package", "cuda-staging", "--lib"]);
        assert_eq!(mutant.tests.len(), 2);
    }

    #[test]
    fn a_mutant_without_a_test_is_refused() {
        assert!(Mutant::parse(Path::new("x.patch"), "# It forgets.\n--- a/x\n").is_err());
        assert!(Mutant::parse(Path::new("x.patch"), "# test: gds name\n").is_err());
    }
}
