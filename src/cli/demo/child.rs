//! One path in a process of its own: cuFile has one mode for a whole process, fixed by its first use.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use cuda_staging::Device;
use gds_loader::PathKind;

use super::{Stand, Tried};
use crate::cli::output::Output;
use crate::cli::progress::ProgressMode;
use crate::synthetic::Layout;

/// Has a process of this same program load the checkpoint of `size` bytes by `kind` onto the first GPU.
pub(super) fn spawn(
    size: u64,
    checkpoint: &Path,
    kind: PathKind,
    progress: ProgressMode,
) -> anyhow::Result<Tried> {
    let program = env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("demo").args([
        "--size",
        &size.to_string(),
        "--by",
        kind.as_str(),
        "--progress",
        progress.as_str(),
    ]);
    command.arg("--checkpoint").arg(checkpoint).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("starting a process to load by {kind}"))?;
    if !output.status.success() {
        bail!("the process that loads by {kind} ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what the process that loads by {kind} printed"))
}

/// What that process does.
pub(super) fn run(
    layout: &Layout,
    checkpoint: &Path,
    kind: PathKind,
    progress: ProgressMode,
) -> anyhow::Result<()> {
    let device = Device::cuda(0)?;
    let tried = Stand { layout, checkpoint, device: &device, kind, progress }.load_cold_and_warm()?;
    let mut out = Output::new();
    out.json(&tried)?;
    out.finish()
}
