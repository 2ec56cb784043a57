//! Manifests, written and checked.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use cuda_staging::Device;
use gds_loader::manifest::{Manifest, ManifestError, ManifestMode};
use gds_loader::{Backend, Engine, ErrorKind, PathKind, Verifier, VerifyReport};

use crate::loads::{Models, by, loader};
use crate::operation::{Ended, Operation, assert_holds};

/// A file whose bytes are not those of the manifest.
const DAMAGED: &str = "damaged.safetensors";

fn ended(report: &VerifyReport, bytes: u64) -> Ended {
    if report.differences.is_empty() {
        assert_eq!(report.bytes, bytes, "not all was read");
        return Ended::Right(format!("{:?}", report.paths));
    }
    let said = report.differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Ended::Failed(ErrorKind::Failed, said)
}

fn refused(error: &ManifestError) -> Ended {
    Ended::Failed(ErrorKind::Failed, error.to_string())
}

/// Bytes of a checkpoint's files.
fn length(path: &PathBuf) -> u64 {
    if path.is_file() {
        return fs::metadata(path).unwrap().len();
    }
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub(crate) fn all() -> Vec<Operation> {
    let models = Models::on_disk("syscalls_of_verifying");
    let above = models.folder.path();
    let manifests = above.join("manifests");
    fs::create_dir(&manifests).unwrap();
    let write = |path: &PathBuf, name: &str| {
        let (manifest, _) = Verifier::new().read(path).unwrap();
        manifest.write(above.join(name)).unwrap();
        above.join(name)
    };
    let (of_file, of_set) = (write(&models.file, "file.json"), write(&models.set, "set.json"));
    let damaged = above.join(DAMAGED);
    let mut bytes = fs::read(&models.file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let text = fs::read_to_string(&of_file).unwrap().replace("model.safetensors", DAMAGED);
    let of_damaged = above.join("damaged.json");
    fs::write(&of_damaged, text).unwrap();

    let check = |name, path: &PathBuf, manifest: &PathBuf, backend| {
        let (path, manifest, length) = (path.clone(), manifest.clone(), length(path));
        Operation::reading(name, move || {
            let manifest = match Manifest::read(&manifest) {
                Ok(manifest) => manifest,
                Err(error) => return refused(&error),
            };
            match Verifier::new().backend(backend).check(&path, &manifest) {
                Ok(report) => ended(&report, length),
                Err(error) => Ended::Failed(error.kind(), error.to_string()),
            }
        })
    };
    let checked = [
        check("verify a file, buffered", &models.file, &of_file, Backend::Only(PathKind::Buffered)),
        check("verify a file, direct", &models.file, &of_file, Backend::Only(PathKind::Direct)),
        check("verify a set", &models.set, &of_set, Backend::Auto),
    ];

    // What is damaged never passes, whatever fails besides.
    let never = {
        let checked = check("verify what is damaged", &damaged, &of_damaged, Backend::Auto);
        let run = checked.run;
        Operation::reading(checked.name, move || match run() {
            Ended::Right(_) => panic!("a damaged file passed"),
            Ended::Failed(_, text) if text.contains("checksum") => Ended::Right(String::new()),
            failed => failed,
        })
    };

    let written = {
        let (models, manifests) = (Rc::clone(&models), manifests.clone());
        let target = manifests.join("new.json");
        let (old, new) = ("old".to_owned(), fs::read_to_string(&of_set).unwrap());
        let (place, before) = (target.clone(), old.clone());
        let run = move || match Verifier::new().read(&models.set) {
            Ok((manifest, report)) => match manifest.write(&target) {
                Ok(()) => Ended::Right(format!("{:?}", report.paths)),
                Err(error) => refused(&error),
            },
            Err(error) => Ended::Failed(error.kind(), error.to_string()),
        };
        let mut operation = Operation::reading("read a set and write its manifest", run);
        operation.reset = {
            let place = place.clone();
            Box::new(move || fs::write(&place, &before).unwrap())
        };
        operation.left = Box::new(move |ended| {
            let found = fs::read_to_string(&place).unwrap();
            let expected =
                if matches!(ended, Ended::Right(_)) { found == new } else { found == old || found == new };
            let names = names(&manifests);
            if expected && names == ["new.json"] {
                Ok(())
            } else {
                Err(format!("left {names:?}: {found}, after {ended:?}"))
            }
        });
        operation
    };

    let loaded = {
        let models = Rc::clone(&models);
        let run = move || {
            let manifest = match Manifest::read(&of_file) {
                Ok(manifest) => manifest,
                Err(error) => return refused(&error),
            };
            let loader = loader(&Device::cpu(), Backend::Auto, Engine::Auto, 1);
            Ended::of(|| {
                let model = loader.manifest(manifest, ManifestMode::Device).load(&models.file)?;
                assert_holds(&model, &models.tensors, |tensor| tensor.host_bytes().unwrap().to_vec());
                assert!(model.report().verified.is_some());
                Ok(by(&model))
            })
        };
        Operation::reading("load and hold against a manifest", run)
    };
    checked.into_iter().chain([never, written, loaded]).collect()
}
