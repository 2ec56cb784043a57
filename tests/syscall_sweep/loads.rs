//! Loads into host memory.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use cuda_staging::Device;
use gds_loader::{Backend, Engine, Loader, Model, PathKind};
use tempfile::TempDir;
use test_support::fixture::{File, Tensor, write_model};
use test_support::folder;

use crate::operation::{Ended, Operation, assert_holds};

/// A file and a set in a folder of their own.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) folder: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) set: PathBuf,
    pub(crate) of_set: Vec<Tensor>,
}

impl Models {
    pub(crate) fn on_disk(test: &str) -> Rc<Self> {
        // No symbolic link in it, since paths are compared with what the kernel calls a file.
        let folder = folder::on_disk(test);
        let model = file("", 9001);
        let path = folder.path().join("model.safetensors");
        model.write(&path);
        let set = folder.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let shards = [file("first.", 5000), file("second.", 300)];
        write_model(&set, &shards);
        let of_set = shards.iter().flat_map(File::tensors).cloned().collect();
        Rc::new(Self { file: path, tensors: model.tensors().to_vec(), set, of_set, folder })
    }
}

/// Some pieces of 4 KiB, one of them gathered.
pub(crate) fn file(prefix: &str, bytes: u64) -> File {
    let name = |name: &str| format!("{prefix}{name}");
    File::new()
        .tensor(&name("a"), "U8", &[bytes])
        .tensor(&name("b"), "F32", &[5, 7])
        .tensor(&name("c"), "BF16", &[])
        .tensor(&name("d"), "F32", &[3000])
}

pub(crate) fn loader(device: &Device, backend: Backend, engine: Engine, threads: usize) -> Loader {
    let loader =
        Loader::new().device(device.clone()).backend(backend).engine(engine).threads(threads).depth(2);
    loader.slots(3 * threads).slot_size(8192).read_size(4096)
}

/// Loads, holds every byte against what it must be, and lets go of it.
fn load(loader: &Loader, path: &Path, expected: &[Tensor]) -> Ended {
    Ended::of(|| {
        let model = loader.load(path)?;
        assert_holds(&model, expected, |tensor| tensor.host_bytes().unwrap().to_vec());
        assert_eq!(model.digests()?.len(), expected.len());
        Ok(by(&model))
    })
}

/// By which paths and engine a model came.
pub(crate) fn by(model: &Model) -> String {
    let report = model.report();
    assert_eq!(report.paths.total(), report.bytes);
    let engine =
        report.engine.as_ref().map(|engine| (engine.name, engine.registered, engine.registered_files));
    format!("{:?}, {engine:?}", report.paths)
}

fn operations(threads: usize, names: [&'static str; 6]) -> Vec<Operation> {
    let models = Models::on_disk("syscalls_of_loads");
    let only = |path| Backend::Only(path);
    let [buffered, uring, threaded, mmap, cold, set] = names;
    let of_file = |name, backend, engine, cold: bool| {
        let (loader, models) =
            (loader(&Device::cpu(), backend, engine, threads).cold(cold), Rc::clone(&models));
        Operation::reading(name, move || load(&loader, &models.file, &models.tensors))
    };
    let of_set = {
        let (loader, models) =
            (loader(&Device::cpu(), Backend::Auto, Engine::Auto, threads), Rc::clone(&models));
        Operation::reading(set, move || load(&loader, &models.set, &models.of_set))
    };
    vec![
        of_file(buffered, only(PathKind::Buffered), Engine::Auto, false),
        of_file(uring, only(PathKind::Direct), Engine::IoUring, false),
        of_file(threaded, only(PathKind::Direct), Engine::Threads, false),
        of_file(mmap, only(PathKind::Mmap), Engine::Auto, false),
        of_file(cold, Backend::Auto, Engine::Auto, true),
        of_set,
    ]
}

pub(crate) fn by_one_worker() -> Vec<Operation> {
    let names = [
        "load, buffered",
        "load, direct by io_uring",
        "load, direct by threads",
        "load, mmap",
        "load, auto, cold",
        "load of a set, auto",
    ];
    operations(1, names)
}

pub(crate) fn by_many_workers() -> Vec<Operation> {
    let names = [
        "load by 4 workers, buffered",
        "load by 4 workers, direct by io_uring",
        "load by 4 workers, direct by threads",
        "load by 4 workers, mmap",
        "load by 4 workers, auto, cold",
        "load of a set by 4 workers, auto",
    ];
    operations(4, names)
}
