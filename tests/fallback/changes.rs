//! Files that change while they are loaded.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::{Backend, Error, ErrorKind, Loader, Model, PathKind};
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{folder, not_run, on_simulator, process};

use crate::limits::many_shards;
use crate::program::shards;

/// A file of 1 MiB and some, and a loader of one thread that reads it in small pieces by `kind`.
pub(crate) fn changing(test: &str, device: &Device, kind: PathKind) -> Option<(TempDir, PathBuf, Loader)> {
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    File::new().tensor("a", "F32", &[250_000]).tensor("b", "U8", &[50_001]).write(&path);
    let loader =
        Loader::new().device(device.clone()).backend(Backend::Only(kind)).threads(1).read_size(65_536);
    match loader.load(&path) {
        Err(error @ Error::Unavailable { .. }) => {
            not_run(test, &error.to_string());
            None
        }
        outcome => {
            assert_eq!(outcome.unwrap().get("b").unwrap().to_vec().unwrap(), payload("b", 50_001));
            Some((folder, path, loader))
        }
    }
}

/// Loads while `change` happens after the first piece.
fn load_while(
    loader: &Loader,
    path: &Path,
    change: impl Fn(&Path) + Send + Sync + 'static,
) -> gds_loader::Result<Model> {
    let (done, file) = (AtomicBool::new(false), path.to_owned());
    let loader = loader.clone().on_progress(move |_| {
        if !done.swap(true, Ordering::Relaxed) {
            change(&file);
        }
    });
    loader.load(path)
}

const SERVING: [PathKind; 3] = [PathKind::Buffered, PathKind::Direct, PathKind::Mmap];

fn resize(path: &Path, len: impl Fn(u64) -> u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len(file.metadata().unwrap().len())).unwrap();
}

fn files_that_change(test: &str, device: &Device) {
    for kind in SERVING {
        let free = || device.memory().unwrap().map(|memory| memory.free);
        let before = free();
        for cut in [2, 1000, 100_000, 700_000] {
            let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
            let error = load_while(&loader, &path, move |path| resize(path, |len| len - cut)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{kind}, {cut} bytes cut: {error}");
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            assert_eq!(free(), before, "device memory is back");
        }
        let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
        let error = load_while(&loader, &path, |path| resize(path, |len| len + 1)).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{kind}: {error:?}");
        assert_eq!(error.kind(), ErrorKind::InvalidData);

        // Written to at the same length, as by a download that made the file long first, or by a copy over it.
        for cut in [1, 4096, 700_000] {
            let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
            let error = load_while(&loader, &path, move |path| {
                // File systems keep the time of a write to some milliseconds.
                thread::sleep(Duration::from_millis(20));
                resize(path, |len| len - cut);
                resize(path, |len| len + cut);
            });
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Rewritten { .. } | Error::Read { .. }), "{kind}: {error:?}");
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            assert_eq!(free(), before, "device memory is back");
        }

        // Replaced, as an atomic update does it: what was opened is what is loaded.
        let Some((_folder, path, loader)) = changing(test, device, kind) else { continue };
        let inode = fs::metadata(&path).unwrap().ino();
        let model = load_while(&loader, &path, |path| {
            let other = path.with_extension("new");
            fs::write(&other, b"nothing that was ever a model").unwrap();
            fs::rename(&other, path).unwrap();
        });
        let model = model.unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(model.get("a").unwrap().to_vec().unwrap(), payload("a", 1_000_000));
        assert_eq!(model.get("b").unwrap().to_vec().unwrap(), payload("b", 50_001));
    }
}

#[test]
fn files_that_change_while_loaded() {
    files_that_change("changes::files_that_change_while_loaded", &Device::cpu());
}

#[test]
fn files_that_change_while_loaded_to_a_gpu() {
    let test = "changes::files_that_change_while_loaded_to_a_gpu";
    on_simulator(test, &[("CUDA_SIM_JITTER_US", "300")], || {
        files_that_change(test, &Device::cuda(0).unwrap())
    });
}

/// A file that takes the place of one that was closed in the meantime is not mixed in.
#[test]
fn a_file_replaced_while_it_was_closed_is_not_mixed_in() {
    let test = "changes::a_file_replaced_while_it_was_closed_is_not_mixed_in";
    let folder = folder::on_disk(test);
    many_shards(folder.path(), 64);
    let expected: Vec<PathBuf> = shards(folder.path());
    // In a child of its own, whose limit does not touch the other tests.
    let child = std::env::var_os("GDS_FEW_DESCRIPTORS");
    let Some(path) = child.map(PathBuf::from) else {
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n 32 && exec "$@""#, "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env("GDS_FEW_DESCRIPTORS", folder.path());
        let finished = process::run(&mut command, process::LIMIT);
        assert_eq!(finished.code(), Some(0), "{finished}");
        return;
    };
    for kind in SERVING {
        let victim = path.join(expected[60].file_name().unwrap());
        let loader = Loader::new().device(Device::cpu()).backend(Backend::Only(kind)).threads(1);
        let loaded = load_while(&loader, &path, move |_| {
            // Of the same length, with other bytes.
            let other = victim.with_extension("new");
            fs::write(&other, vec![0x55; fs::metadata(&victim).unwrap().len() as usize]).unwrap();
            fs::rename(&other, &victim).unwrap();
        });
        let error = loaded.unwrap_err();
        if kind == PathKind::Direct && error.kind() == ErrorKind::Unavailable {
            continue;
        }
        assert!(
            error.to_string().contains(&expected[60].file_name().unwrap().to_string_lossy()[..]),
            "{kind}: {error}"
        );
        many_shards(&path, 64);
    }
}
