//! `gds check`: the doctor.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use gds_loader::check::{Options, examine};

use super::exit;
use super::output::Output;

/// Say what GPUDirect Storage needs here, what is missing, and what to do about it
///
/// Looks at kernel modules, GPUs, libcufile, cufile.json, udev, IOMMU and the way from each GPU to each drive; with a PATH also at what it
/// lies on. Needs no privileges and takes no longer than two seconds. Exits with 0 where GPUDirect Storage would work, with 3 where not.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A file or a folder to load from
    path: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print a cufile.json that suits this machine, and nothing else
    #[arg(long, conflicts_with = "json")]
    suggest_config: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut options = Options::default();
    options.path.clone_from(&arguments.path);
    // This process does nothing else with cuFile.
    options.open_cufile = true;
    let checkup = examine(&options);

    let mut out = Output::new();
    if arguments.json {
        out.json(&checkup)?;
    } else if arguments.suggest_config {
        out.line(checkup.suggested_config.trim_end())?;
    } else {
        out.line(checkup.to_string().trim_end())?;
    }
    out.finish()?;
    Ok(if checkup.verdict.gds || arguments.suggest_config { ExitCode::SUCCESS } else { exit::unavailable() })
}
