//! `cargo xtask sim`: runs a command on the simulated CUDA driver.
//!
//! The driver is built with the release profile whatever profile this program has, so that copies are as fast as memory. It
//! goes into a folder of its own under both names that programs look for, since cudarc tries `libcuda.so` before
//! `libcuda.so.1`; the folder comes first on `LD_LIBRARY_PATH` and the library is preloaded, which also serves the files that
//! NVIDIA's libcufile misses on such machines. Only the command gets these variables.
//!
//! Beside it libcufile is NVIDIA's where that was fetched, or the simulated one, in a folder of its own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use crate::workspace;

/// The driver's name.
const LIBRARY: &str = "libcuda.so.1";
/// The name that cudarc tries first. A link: a second file would be loaded as a second driver beside the preloaded one.
const LINK: &str = "libcuda.so";
/// libcufile's name.
const CUFILE: &str = "libcufile.so.0";

/// Which libcufile a command finds.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum CuFile {
    /// NVIDIA's 1.20, where `cargo xtask cufile` has fetched it
    Nvidia,
    /// The simulated one, which goes wrong where CUFILE_SIM_SCRIPT says so
    Sim,
    /// None but what the environment names
    None,
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which libcufile the command finds
    #[arg(long, value_enum, default_value_t = CuFile::Nvidia)]
    cufile: CuFile,
    /// Print the environment as KEY=VALUE lines instead of running a command
    #[arg(long)]
    print_env: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "print_env")]
    command: Vec<OsString>,
}

/// What a command needs to find the simulated driver.
pub(crate) struct Environment {
    variables: Vec<(&'static str, OsString)>,
}

impl Environment {
    /// The same as NAME=VALUE lines.
    pub(crate) fn lines(&self) -> String {
        self.variables.iter().map(|(name, value)| format!("{name}={}\n", value.display())).collect()
    }

    /// A command that will run on the simulated driver.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Builds the simulated driver and puts it where programs find it, and the libcufile asked for beside it.
pub(crate) fn build(cufile: CuFile) -> Result<Environment> {
    let library = match cufile {
        CuFile::Nvidia => Some(workspace::target_absolute()?.join("cufile/1.20/lib").join(CUFILE))
            .filter(|library| library.is_file()),
        CuFile::Sim => Some(build_cufile()?),
        CuFile::None => None,
    };
    place(&cargo_build("cuda-sim")?, &workspace::target_absolute()?.join("sim"), library)
}

/// Puts a driver that was built into `folder`, under both of its names; what a command needs to find it there, and
/// `cufile`.
pub(crate) fn place(driver: &Path, folder: &Path, cufile: Option<PathBuf>) -> Result<Environment> {
    install(driver, &folder.join(LIBRARY))?;
    link(LIBRARY, &folder.join(LINK))?;
    environment(folder, cufile)
}

/// Puts a libcufile that was built into `folder`, under its name.
pub(crate) fn place_cufile(built: &Path, folder: &Path) -> Result<PathBuf> {
    let library = folder.join(CUFILE);
    install(built, &library)?;
    Ok(library)
}

/// Builds the simulated libcufile.
pub(crate) fn build_cufile() -> Result<PathBuf> {
    place_cufile(&cargo_build("cufile-sim")?, &workspace::target_absolute()?.join("sim-cufile"))
}

/// Builds the library of `package` for speed.
fn cargo_build(package: &str) -> Result<PathBuf> {
    Ok(workspace::build(package, "release")?.join(format!("lib{}.so", package.replace('-', "_"))))
}

/// Copies `from` to `to` in one step, since programs that run now have the old file mapped. A file that is the same stays.
fn install(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("could not read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    }
    let unfinished = to.with_extension(format!("unfinished-{}", process::id()));
    fs::write(&unfinished, new).with_context(|| format!("could not write {}", unfinished.display()))?;
    fs::rename(&unfinished, to).with_context(|| format!("could not make {}", to.display()))
}

/// Makes `to` a symbolic link to `from`, which lies in the same folder, whatever `to` was before.
fn link(from: &str, to: &Path) -> Result<()> {
    if fs::read_link(to).is_ok_and(|target| target == Path::new(from)) {
        return Ok(());
    }
    let unfinished = to.with_extension(format!("unfinished-{}", process::id()));
    symlink(from, &unfinished).with_context(|| format!("could not make {}", unfinished.display()))?;
    fs::rename(&unfinished, to).with_context(|| format!("could not make {}", to.display()))
}

/// The variables, with what they held before at the end.
fn environment(folder: &Path, cufile: Option<PathBuf>) -> Result<Environment> {
    let mut folders = vec![folder.to_owned()];
    folders.extend(cufile.as_deref().and_then(Path::parent).map(Path::to_owned));
    let mut variables = vec![
        ("LD_LIBRARY_PATH", before(folders, "LD_LIBRARY_PATH")?),
        ("LD_PRELOAD", before(vec![folder.join(LIBRARY)], "LD_PRELOAD")?),
    ];
    variables.extend(cufile.map(|library| ("GDS_CUFILE_LIBRARY", library.into_os_string())));
    Ok(Environment { variables })
}

/// The paths followed by what is in the list variable now.
fn before(mut paths: Vec<PathBuf>, variable: &str) -> Result<OsString> {
    let now = std::env::var_os(variable).unwrap_or_default();
    paths.extend(std::env::split_paths(&now).filter(|path| !path.as_os_str().is_empty()));
    std::env::join_paths(&paths)
        .with_context(|| format!("a path for {variable} has a colon in it: {paths:?}"))
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let environment = build(arguments.cufile)?;
    if arguments.print_env {
        print!("{}", environment.lines());
        return Ok(());
    }
    let (program, rest) = arguments.command.split_first().context("no command to run")?;
    let status = environment.command(program).args(rest).status();
    let status = status.with_context(|| format!("could not run {}", program.display()))?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    process::exit(code.with_context(|| format!("{} ended with {status}", program.display()))?);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_in_use_is_replaced_and_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("built.so"), folder.path().join("libcuda.so.1"));
        fs::write(&from, "old").unwrap();
        install(&from, &to).unwrap();
        let in_use = fs::File::open(&to).unwrap();
        fs::write(&from, "new").unwrap();
        install(&from, &to).unwrap();
        assert_eq!(std::io::read_to_string(in_use).unwrap(), "old");
        assert_eq!(fs::read_to_string(&to).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
    }

    #[test]
    fn a_folder_that_cannot_be_in_a_list_is_an_error() {
        assert!(before(vec!["/a:b".into()], "LD_LIBRARY_PATH").is_err());
    }
}
