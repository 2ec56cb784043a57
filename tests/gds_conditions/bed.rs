//! A model on disk, and loads of it by cuFile on both simulators.

use std::path::{Path, PathBuf};

use cuda_staging::Device;
use gds_loader::{Backend, GdsProof, LoadReport, Loader, Model, PathKind};
use tempfile::TempDir;
use test_support::cufile_sim::{self, Alive};
use test_support::fixture::{File, payload};
use test_support::{control, folder};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) const REAL: (&str, &str) = ("CUFILE_SIM_MODE", "real");

/// Late copies at random times: a window read into while it is still copied from would bring wrong bytes.
pub(crate) const LATE_COPIES: [(&str, &str); 2] =
    [("CUDA_SIM_COPY_LATENCY_US", "300"), ("CUDA_SIM_JITTER_US", "700")];

/// Runs `body` on both simulators; nothing of ours, and nothing of the library's, may be left.
#[track_caller]
pub(crate) fn on_both(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    cufile_sim::on_simulator(test, &[&[REAL], settings].concat(), || {
        body();
        assert_eq!(cufile_sim::report().alive, Alive::default());
    });
}

/// A model of two files on disk.
pub(crate) struct Sample {
    pub(crate) folder: TempDir,
    pub(crate) names: [(&'static str, u64); 4],
}

impl Sample {
    pub(crate) fn new(test: &str) -> Self {
        let folder = folder::on_disk(test);
        let names = [("a", 3 * MIB + 1), ("b", 2 * MIB + 4095), ("c", 5 * MIB), ("d", 4097)];
        let file = |range: &[(&str, u64)]| {
            range.iter().fold(File::new(), |file, (name, len)| file.tensor(name, "U8", &[*len]))
        };
        file(&names[..2]).write(&folder.path().join("model-00001-of-00002.safetensors"));
        file(&names[2..]).write(&folder.path().join("model-00002-of-00002.safetensors"));
        Self { folder, names }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn shard(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("model-0000{number}-of-00002.safetensors"))
    }

    /// Whether every byte of the model is right now, whatever is in flight.
    #[track_caller]
    pub(crate) fn check(&self, model: &Model) {
        for tensor in model.tensors() {
            let found = control::read_device_memory(tensor.device_address(), tensor.len() as usize);
            assert!(found == payload(tensor.name(), found.len()), "{tensor:?}");
        }
        assert_eq!(model.len(), self.names.len());
        assert_eq!(model.report().paths.total(), self.names.iter().map(|(_, len)| len).sum::<u64>());
    }
}

pub(crate) fn gpu() -> Device {
    Device::cuda(0).unwrap()
}

/// Small pieces, in the order of the files.
pub(crate) fn loader(backend: Backend) -> Loader {
    Loader::new().device(gpu()).backend(backend).threads(1).read_size(256 << 10)
}

pub(crate) fn forced() -> Loader {
    loader(Backend::Only(PathKind::Gds))
}

/// The same, calling `change` once, after the first piece.
pub(crate) fn with(loader: &Loader, change: impl FnOnce() + Send + 'static) -> Loader {
    let change = std::sync::Mutex::new(Some(change));
    loader.clone().on_progress(move |_| {
        if let Some(change) = change.lock().unwrap().take() {
            change();
        }
    })
}

pub(crate) fn proof(report: &LoadReport) -> Option<GdsProof> {
    report.gds.as_ref().and_then(|gds| gds.proof)
}

pub(crate) fn reasons(report: &LoadReport) -> Vec<&str> {
    report.fallbacks.iter().map(|fallback| fallback.reason.as_str()).collect()
}

/// A call of the library that takes nothing, as another user of it in this process makes it.
pub(crate) fn as_another_user(function: &str) {
    let name = std::ffi::CString::new(function).unwrap();
    let file = std::ffi::CString::new(cufile_sim::library().to_str().unwrap()).unwrap();
    // SAFETY: C strings; the library is loaded already, and these functions of it take nothing.
    unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "{function}");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(address)();
    }
}
