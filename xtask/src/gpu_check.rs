//! `cargo xtask gpu-check`: the program for a machine with a GPU, packed, or rehearsed here on the simulated one.
//!
//! The folder is all that such a machine needs: it may have no network, no Rust and no libcufile. It is small, since it has to be
//! carried there. See docs/gpu-check.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{cufile, sim, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only pack: the folder gpu-check in the build folder, to be carried to a machine with a GPU
    #[arg(long)]
    pack: bool,
    /// Cargo's profile to build by
    #[arg(long, default_value = "release")]
    profile: String,
    /// Which libcufile the rehearsal finds; the simulated one plays a machine where GPUDirect Storage works
    #[arg(long, value_enum, default_value_t = sim::CuFile::Nvidia)]
    cufile: sim::CuFile,
    /// Options of the program, for the rehearsal: small data if none are given, on a simulated GPU whose memory has its pages
    /// (CUDA_SIM_RESIDENT)
    #[arg(last = true)]
    options: Vec<String>,
}

/// What the folder may hold at most.
const LARGEST: u64 = 64 << 20;

/// The rehearsal, where nothing else is asked for.
const REHEARSAL: [&str; 6] = ["--size", "256MiB", "--deadline", "300", "--repeat", "1"];

/// The simulated GPU's memory that is there before a load, as a GPU's is: what the rehearsal loads, and some.
const RESIDENT: (&str, &str) = ("CUDA_SIM_RESIDENT", "320MiB");

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let folder = pack(&arguments.profile)?;
    let program = folder.join("gpu-check");
    if arguments.pack {
        println!("{} is all of it: {} --help", folder.display(), program.display());
        return Ok(());
    }
    let mut rehearsal = sim::build(arguments.cufile)?.command(&program);
    if matches!(arguments.cufile, sim::CuFile::Sim) {
        rehearsal.env("CUFILE_SIM_MODE", "real");
    }
    let data = folder.with_file_name("gpu-check-data");
    fs::create_dir_all(&data).with_context(|| format!("could not make {}", data.display()))?;
    rehearsal.arg("--folder").arg(&data).arg("--out").arg(data.join("gpu-check.json"));
    match arguments.options.is_empty() {
        true => rehearsal.args(REHEARSAL).env(RESIDENT.0, RESIDENT.1),
        false => rehearsal.args(&arguments.options),
    };
    workspace::check(&mut rehearsal)
}

/// Builds everything and puts it into one folder.
fn pack(profile: &str) -> Result<PathBuf> {
    let built = [
        workspace::build("gds", profile)?.join("gds"),
        workspace::build("gpu-check", profile)?.join("gpu-check"),
    ];
    let folder = workspace::target_absolute()?.join("gpu-check");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    for program in &built {
        // What debuggers want is the most of it.
        strip(&copy(program, &folder)?)?;
    }
    let library = cufile::fetch()?.v1_20;
    for entry in fs::read_dir(&library).with_context(|| format!("could not read {}", library.display()))? {
        copy(&entry?.path(), &folder.join("lib"))?;
    }
    let size = size_of(&folder)?;
    if size > LARGEST {
        bail!("{} holds {size} bytes, more than {LARGEST} are not carried", folder.display());
    }
    Ok(folder)
}

/// Copies a file into a folder, which is made where it is missing.
fn copy(file: &Path, folder: &Path) -> Result<PathBuf> {
    let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    let to = folder.join(name);
    fs::copy(file, &to).with_context(|| format!("could not copy {} to {}", file.display(), to.display()))?;
    Ok(to)
}

/// Takes the symbols out of a program; the linker's own package brings `strip`.
fn strip(program: &Path) -> Result<()> {
    workspace::check(Command::new("strip").arg("--strip-all").arg(program))
}

/// The bytes of all files below `folder`.
fn size_of(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        size += match entry.file_type()?.is_dir() {
            true => size_of(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_counted_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        fs::write(&file, [0; 100]).unwrap();
        let packed = folder.path().join("packed");
        copy(&file, &packed).unwrap();
        copy(&file, &packed.join("lib")).unwrap();
        assert_eq!(size_of(&packed).unwrap(), 200);
    }
}
