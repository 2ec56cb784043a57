//! `cargo xtask peers`: the loaders that a user would pick instead, timed beside ours.
//!
//! The measuring is Python's, in `xtask/peers`, since the peers are Python's. This brings all that it needs: the peers, each
//! pinned, in a virtual environment in the build folder; `gds`; the simulated driver; a model.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::{sim, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A folder of .safetensors files of your own; without one a model of 2 GiB is made in the build folder
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Rounds in which each runs once
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// cold, warm or both
    #[arg(long, default_value = "cold,warm")]
    modes: String,
    /// cpu, sim (the simulated GPU, beside kvikio) or both
    #[arg(long, default_value = "cpu,sim")]
    device: String,
    /// Only these peers of safetensors, fastsafetensors, runai and kvikio, comma separated
    #[arg(long)]
    peers: Option<String>,
    /// Runs of each setting that a peer is tried with before the rounds; 0 leaves them at their first
    #[arg(long, default_value_t = 2)]
    tries: u32,
    /// So many loaders at once of the same cold files, instead
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What one line of requirements.txt is needed for.
const NEEDED: [(&str, &[&str]); 6] = [
    ("torch", &["safetensors", "fastsafetensors", "runai"]),
    ("numpy", &["safetensors", "fastsafetensors", "runai", "kvikio"]),
    ("safetensors", &["safetensors"]),
    ("fastsafetensors", &["fastsafetensors"]),
    ("runai-model-streamer", &["runai"]),
    ("kvikio-cu13", &["kvikio"]),
];

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let sources = workspace::root().join("xtask/peers");
    let folder = workspace::target_absolute()?.join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let gds = workspace::build("gds", "release")?.join("gds");
    let simulator = folder.join("simulator.env");
    fs::write(&simulator, sim::build(sim::CuFile::Nvidia)?.lines())?;
    let model = match &arguments.dir {
        Some(dir) => dir.clone(),
        None => make_model(&gds, &folder.join("model"))?,
    };
    let (python, missing) = install(&sources.join("requirements.txt"), &folder.join("venv"))?;

    let mut measure = Command::new(python);
    measure.arg("-B").arg(sources.join("peers.py")).arg(model);
    measure.arg("--gds").arg(gds).arg("--simulator").arg(simulator);
    measure.args(missing.iter().map(|(peer, reason)| format!("--missing={peer}={reason}")));
    workspace::check(measure.args(passed_on(&arguments)))
}

/// The options that the measurement knows itself.
fn passed_on(arguments: &Arguments) -> Vec<OsString> {
    let mut options = vec![
        format!("--rounds={}", arguments.rounds),
        format!("--tries={}", arguments.tries),
        format!("--modes={}", arguments.modes),
        format!("--device={}", arguments.device),
    ];
    options.extend(arguments.peers.as_ref().map(|peers| format!("--peers={peers}")));
    options.extend(arguments.processes.map(|processes| format!("--processes={processes}")));
    options.extend(arguments.json.then(|| "--json".to_owned()));
    options.into_iter().map(OsString::from).collect()
}

/// 2 GiB in four files, once.
fn make_model(gds: &Path, folder: &Path) -> Result<PathBuf> {
    if !folder.join("model.safetensors.index.json").is_file() {
        let mut synth = Command::new(gds);
        synth.args(["synth", "--size", "2GiB", "--shards", "4", "--force"]).arg(folder);
        workspace::check(synth.stdout(Stdio::null()))?;
    }
    Ok(folder.to_owned())
}

/// The Python that has the peers, and the peers that it could not be given, each with the reason.
fn install(requirements: &Path, venv: &Path) -> Result<(PathBuf, Vec<(&'static str, String)>)> {
    let python = venv.join("bin/python");
    if !python.is_file() {
        workspace::check(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    }
    let wanted = fs::read_to_string(requirements)
        .with_context(|| format!("could not read {}", requirements.display()))?;
    let list = venv.join("installed.txt");
    let mut installed = fs::read_to_string(&list).unwrap_or_default();
    let mut missing = Vec::new();
    for line in wanted.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if installed.lines().any(|done| done == line) {
            continue;
        }
        eprintln!("installing {line}");
        match pip_install(&python, requirements, line) {
            Ok(()) => installed += &format!("{line}\n"),
            Err(reason) => missing.extend(peers_without(line).map(|peer| (peer, reason.to_string()))),
        }
    }
    fs::write(&list, installed).with_context(|| format!("could not write {}", list.display()))?;
    Ok((python, missing))
}

/// Installs one line of `requirements`; what else it brings keeps to the others' versions.
fn pip_install(python: &Path, requirements: &Path, line: &str) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint"]);
    let run = pip.arg(requirements).arg(line).output().context("could not start pip")?;
    let said = String::from_utf8_lossy(&run.stderr);
    anyhow::ensure!(
        run.status.success(),
        "{line} could not be installed: {}",
        said.lines().last().unwrap_or_default()
    );
    Ok(())
}

/// The peers that need a line of the requirements.
fn peers_without(line: &str) -> impl Iterator<Item = &'static str> {
    let package = line.split("==").next().unwrap_or(line);
    let needed = NEEDED.iter().filter(move |(name, _)| *name == package);
    needed.flat_map(|(_, peers)| peers.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_known_to_be_needed_for_something() {
        let text = fs::read_to_string(workspace::root().join("xtask/peers/requirements.txt")).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(peers_without(line).next().is_some(), "{line}");
        }
    }

    /// Python's own tests, of what turns runs into figures.
    #[test]
    fn the_figures_are_right() {
        let mut python = Command::new("python3");
        python.args(["-B", "-W", "error", "-m", "unittest", "discover", "--start-directory"]);
        let run = python.arg(workspace::root().join("xtask/peers")).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}
