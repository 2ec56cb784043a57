//! Where things are in the workspace, and how commands are run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The root of the checkout: the folder above this package's.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The build folder: `CARGO_TARGET_DIR` where set, else `target` in the root.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The same, whatever folder a command runs in.
pub(crate) fn target_absolute() -> Result<PathBuf> {
    let target = target();
    std::path::absolute(&target).with_context(|| format!("could not make {} absolute", target.display()))
}

/// Builds `package` by a profile of Cargo's; the folder that holds what came out.
pub(crate) fn build(package: &str, profile: &str) -> Result<PathBuf> {
    let target = target_absolute()?;
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--package", package, "--profile", profile, "--target-dir"]);
    check(cargo.arg(&target))?;
    // The profile of development has a folder of another name.
    Ok(target.join(if profile == "dev" { "debug" } else { profile }))
}

/// The cargo that started this program, or the one on the path.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs `command` to its end; an exit status other than 0 is an error that names it.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("could not start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}
