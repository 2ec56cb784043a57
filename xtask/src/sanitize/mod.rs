//! Builds with a sanitizer: programs and simulators alike, in a build folder of their own.
//!
//! The simulators are instrumented as well, since memory that is freed too early is written by them and not by the tests; an
//! uninstrumented library's late store goes unseen. They bring no runtime of the sanitizer: they use that of the program they
//! are loaded into, which `-rdynamic` lets them find.

mod apart;
pub(crate) mod asan;
pub(crate) mod tsan;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::test::Needs;
use crate::{sim, workspace};

/// A toolchain and what it is told for a sanitizer.
struct Instrumented {
    /// As rustup names it.
    toolchain: &'static str,
    /// What it makes programs for.
    host: String,
    /// The build folder.
    target: PathBuf,
    rustflags: &'static str,
    /// Further variables of every build.
    environment: Vec<(&'static str, OsString)>,
    /// Further arguments of cargo.
    arguments: Vec<&'static str>,
}

/// One field of what the compiler of a toolchain says about itself; None where there is no such toolchain.
fn compiler(toolchain: &str, field: &str) -> Option<String> {
    let run = Command::new("rustup").args(["run", toolchain, "rustc", "-vV"]).output().ok()?;
    let text = String::from_utf8(run.stdout).ok().filter(|_| run.status.success())?;
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": ")).map(str::to_owned)
}

/// The machine that the nightly compiler makes programs for, if there is one.
pub(crate) fn nightly_host() -> Option<String> {
    compiler("nightly", "host")
}

/// Says that nothing could be run, for people and for programs.
pub(crate) fn could_not_run(what: &str, why: &str) {
    println!("could not run: {what}: {why}");
    println!("0 passed, 0 failed, 1 skipped");
}

impl Instrumented {
    /// Cargo, for instrumented programs. A target is named so that build scripts and macros are not.
    fn cargo(&self, task: &str) -> Command {
        let mut cargo = Command::new("rustup");
        cargo.current_dir(workspace::root());
        cargo.args(["run", self.toolchain, "cargo", task, "--target", &self.host]).args(&self.arguments);
        cargo.env("CARGO_TARGET_DIR", &self.target).env("RUSTFLAGS", self.rustflags);
        cargo.envs(self.environment.iter().map(|(name, value)| (name, value)));
        cargo
    }

    /// Builds the simulators, and puts them where tests find them.
    fn simulators(&self) -> Result<Needs> {
        let mut cargo = self.cargo("build");
        workspace::check(cargo.args(["--quiet", "--package", "cuda-sim", "--package", "cufile-sim"]))?;
        let built = |name: &str| -> PathBuf { self.target.join(&self.host).join("debug").join(name) };
        let environment = sim::place(&built("libcuda_sim.so"), &self.target.join("sim"), None)?;
        let cufile = sim::place_cufile(&built("libcufile_sim.so"), &self.target.join("sim-cufile"))?;
        Needs::of(&environment, cufile, &self.target.join("tests"))
    }

    /// Writes a file that the sanitizer reads; where it is.
    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.target.join(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(path)
    }
}
