//! A model that people use, and Python's own safetensors package as the oracle.
//!
//! Both come from PyPI by pip, into the build folder, once. Where that fails the test cannot run, which with `GDS_REQUIRE_CUFILE=1`,
//! as in CI, is a failure: nothing may be skipped there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;
mod pypi;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gds_loader::format::Dtype;
use program::{digests, gds, json, on_gpu, paths, run, well_on_gpu};
use pypi::{Failed, checked, model, pip, weights};
use test_support::fixture::File;
use test_support::{build_folder, folder, not_run, process, tool};

/// SHA-256 of the bytes of each tensor, as Python's package hands them out.
const ORACLE: &str = r#"
import hashlib, json, sys
from safetensors import deserialize
with open(sys.argv[1], "rb") as file:
    tensors = deserialize(file.read())
print(json.dumps({name: hashlib.sha256(bytes(tensor["data"])).hexdigest() for name, tensor in tensors}))
"#;

/// Python with the safetensors package.
fn interpreter(python: &Path) -> Result<PathBuf, Failed> {
    // Made in its place: an environment of Python's names its own folder. So the tests here, and other runs, take turns.
    let environment = build_folder().join("safetensors-python");
    let interpreter = environment.join("bin/python");
    fs::create_dir_all(build_folder()).unwrap();
    let turn = fs::File::create(environment.with_extension("lock")).unwrap();
    turn.lock().unwrap();
    if !environment.join("complete").exists() {
        checked(Command::new(python).args(["-m", "venv"]).arg(&environment))?;
        checked(pip(&interpreter).args(["install", "safetensors"]))?;
        fs::write(environment.join("complete"), "").unwrap();
    }
    Ok(interpreter)
}

/// The model's file and Python, or `None` after saying why `test` could not run.
fn prepared(test: &str) -> Option<(PathBuf, PathBuf)> {
    let python = tool(test, "python3")?;
    match model(&python).and_then(|model| Ok((model, interpreter(&python)?))) {
        Ok((model, interpreter)) => Some((weights(&model).unwrap(), interpreter)),
        Err(reason) => {
            assert!(std::env::var_os("GDS_REQUIRE_CUFILE").is_none_or(|value| value != "1"), "{reason}");
            not_run(test, &reason);
            None
        }
    }
}

/// The digests that Python's package gives for a file.
fn by_python(interpreter: &Path, file: &Path) -> BTreeMap<String, String> {
    let oracle = checked(Command::new(interpreter).args(["-c", ORACLE]).arg(file)).unwrap();
    serde_json::from_str(&oracle.stdout).unwrap()
}

#[test]
fn a_real_model_and_every_dtype_saved_are_equal_in_python() {
    let Some((file, interpreter)) = prepared("a_real_model_and_every_dtype_saved_are_equal_in_python") else {
        return;
    };
    let folder = folder::on_disk("saved");
    let dtypes = folder.path().join("dtypes.safetensors");
    let every = Dtype::ALL.into_iter().fold(File::new().metadata("format", "pt"), |file, dtype| {
        file.tensor(dtype.as_str(), dtype.as_str(), &[3, 8]).tensor(
            &format!("empty {dtype}"),
            dtype.as_str(),
            &[0],
        )
    });
    every.write(&dtypes);
    for source in [&file, &dtypes] {
        let expected = by_python(&interpreter, source);
        for (device, backend) in [("cpu", "auto"), ("cpu", "buffered"), ("cuda:0", "auto")] {
            let saved = folder.path().join("saved.safetensors");
            let line = format!("save --json --device {device} --backend {backend}");
            let command = gds(&line, [source, &saved]);
            let finished = match device {
                "cpu" => process::run(&mut { command }, process::LIMIT),
                _ => on_gpu(command, &[("CUDA_SIM_JITTER_US", "300")], process::LIMIT).finished,
            };
            assert_eq!(json(&finished)["tensors"], expected.len());
            assert_eq!(by_python(&interpreter, &saved), expected, "{line}");
        }
    }
}

#[test]
fn every_tensor_of_a_real_model_by_every_path() {
    let test = "every_tensor_of_a_real_model_by_every_path";
    let Some((file, interpreter)) = prepared(test) else { return };
    let expected = by_python(&interpreter, &file);
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
