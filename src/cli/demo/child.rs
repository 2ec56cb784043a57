//! One path in a process of its own: cuFile has one mode for a whole process, fixed by its first use.

use std::ffi::OsStr;
use std::path::Path;

use cuda_staging::Device;
use gds_loader::PathKind;

use super::{Stand, Tried};
use crate::cli::child::{self, Child, Words};
use crate::cli::progress::ProgressMode;
use crate::synthetic::Layout;

/// Has a process of this same program load the checkpoint of `size` bytes by `kind` onto the first GPU.
pub(super) fn spawn(
    size: u64,
    checkpoint: &Path,
    kind: PathKind,
    progress: ProgressMode,
) -> anyhow::Result<Tried> {
    let size = size.to_string();
    let options = ["demo", "--size", &size, "--by", kind.as_str(), "--progress", progress.as_str()];
    let arguments =
        options.map(OsStr::new).into_iter().chain([OsStr::new("--checkpoint"), checkpoint.as_os_str()]);
    Child::start(format!("loads by {kind}"), arguments, Words::Shown)?.ask(&())
}

/// What that process does.
pub(super) fn run(
    layout: &Layout,
    checkpoint: &Path,
    kind: PathKind,
    progress: ProgressMode,
) -> anyhow::Result<()> {
    let device = Device::cuda(0)?;
    let stand = Stand { layout, checkpoint, device: &device, kind, progress };
    child::serve(|(): ()| stand.load_cold_and_warm())
}
