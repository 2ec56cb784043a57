//! Where a case runs, how tensors get into memory, and what must hold after every save.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cuda_staging::{Device, Region, RegionMut};
use gds_loader::format::{Dtype, Header, HeaderLimits};
use gds_loader::{Backend, GdsProof, PathKind, SaveReport, SaveTensor, Saver};
use tempfile::TempDir;
use test_support::fixture::payload;
use test_support::{control, folder, not_run};

use crate::oracle;

/// Copies that start 0.1 to 0.4 ms after they could.
pub(crate) const LATE_COPIES: [(&str, &str); 2] =
    [("CUDA_SIM_COPY_LATENCY_US", "100"), ("CUDA_SIM_JITTER_US", "300")];

/// The paths from the memory of every device.
pub(crate) const HOST_PATHS: &[Backend] =
    &[Backend::Auto, Backend::Only(PathKind::Buffered), Backend::Only(PathKind::Direct)];

/// GPUDirect Storage.
pub(crate) const GDS: &[Backend] = &[Backend::Only(PathKind::Gds)];

/// The CPU.
pub(crate) fn cpu() -> Device {
    Device::cpu()
}

/// The simulated GPU.
pub(crate) fn gpu() -> Device {
    Device::cuda(0).unwrap()
}

/// A tensor's name, dtype and shape; its bytes follow from its name.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
}

impl Described {
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        Self { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let bits = self.shape.iter().product::<u64>() * self.dtype.bits();
        payload(&self.name, (bits / 8) as usize)
    }
}

/// A device, a path and an empty folder.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) device: Device,
    pub(crate) backend: Backend,
    folder: TempDir,
}

impl Bed {
    /// Runs `case` on `device` by each of these paths, on disk and in memory.
    pub(crate) fn each(test: &str, device: &dyn Fn() -> Device, paths: &[Backend], case: impl Fn(&Self)) {
        for &backend in paths {
            for in_memory in [false, true] {
                let short = test.rsplit("::").next().unwrap_or(test);
                let folder = if in_memory { folder::in_memory(short) } else { Some(folder::on_disk(short)) };
                let Some(folder) = folder else { continue };
                let wants_direct = matches!(backend, Backend::Only(PathKind::Direct | PathKind::Gds));
                if wants_direct && !opens_directly(folder.path()) {
                    not_run(test, &format!("{} refuses O_DIRECT", folder.path().display()));
                    continue;
                }
                let bed = Self { device: device(), backend, folder };
                eprintln!("{bed:?}");
                case(&bed);
                bed.check_nothing_open();
            }
        }
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The names in its folder.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }

    /// A saver by its path, with small slots, so that boundaries cost bytes.
    pub(crate) fn saver(&self) -> Saver {
        Saver::new().backend(self.backend).slot_size(4096 * 4)
    }

    /// Memory of its device with these bytes.
    pub(crate) fn memory(&self, bytes: &[u8]) -> RegionMut {
        let mut region = self.device.allocate(bytes.len() as u64, 256).unwrap();
        self.fill(&mut region, bytes);
        region
    }

    /// Changes what is in memory, at once.
    pub(crate) fn fill(&self, region: &mut RegionMut, bytes: &[u8]) {
        match region.host_bytes_mut() {
            Some(into) => into.copy_from_slice(bytes),
            None if bytes.is_empty() => {}
            None => control::write_device_memory(region.address(), bytes),
        }
    }

    /// The tensors in memory of its device.
    pub(crate) fn tensors(&self, described: &[Described]) -> Vec<SaveTensor<'static>> {
        let region = |tensor: &Described| -> Region { self.memory(&tensor.bytes()).freeze() };
        let tensor = |tensor: &Described| {
            SaveTensor::new(tensor.name.as_str(), tensor.dtype, tensor.shape.clone(), region(tensor)).unwrap()
        };
        described.iter().map(tensor).collect()
    }

    /// Saves tensors to one file and compares.
    pub(crate) fn round_trip(&self, described: &[Described]) -> SaveReport {
        let path = self.path("model.safetensors");
        let report = self.saver().save(self.tensors(described), &path).unwrap();
        self.check(&report, described, &[path]);
        report
    }

    /// Whether the files hold what was saved, and nothing else is in their folder; and whether the report is true.
    pub(crate) fn check(&self, report: &SaveReport, described: &[Described], files: &[PathBuf]) {
        let found = oracle::of_files(files);
        assert_eq!(found.len(), described.len());
        for tensor in described {
            let found = &found[&tensor.name];
            assert_eq!(found.dtype, tensor.dtype.as_str(), "{tensor:?}");
            assert_eq!(found.shape, tensor.shape, "{tensor:?}");
            assert!(found.bytes == tensor.bytes(), "{tensor:?}");
        }
        for path in files {
            check_header(path);
        }
        let bytes: u64 = described.iter().map(|tensor| tensor.bytes().len() as u64).sum();
        self.check_report(report, bytes);
        assert_eq!((report.tensors, report.files), (described.len(), files.len()));
        let folder = files[0].parent().unwrap();
        let leftover = names(folder).into_iter().find(|name| name.starts_with('.'));
        assert_eq!(leftover, None, "a temporary file is left");
    }

    /// Whether `report` accounts for `bytes` bytes, by the paths this bed allows.
    pub(crate) fn check_report(&self, report: &SaveReport, bytes: u64) {
        assert_eq!(report.bytes, bytes, "{report:?}");
        assert_eq!(report.paths.total(), bytes, "{report:?}");
        assert!(report.fallbacks.is_empty(), "{report:?}");
        if let Backend::Only(kind) = self.backend {
            assert_eq!(report.paths.get(kind), bytes, "{report:?}");
        }
        if self.backend == Backend::Only(PathKind::Gds) && bytes > 0 {
            let gds = report.gds.as_ref().map(|gds| (gds.proof, gds.window_bytes > 0));
            assert_eq!(gds, Some((Some(GdsProof::Verified), true)), "{report:?}");
        }
        assert!(report.peak_pinned_bytes <= 64 << 20, "{report:?}");
        assert_eq!(report.short_writes, 0, "{report:?}");
    }

    fn check_nothing_open(&self) {
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let open: Vec<PathBuf> = links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .filter(|target| target.starts_with(self.folder.path()))
            .collect();
        assert!(open.is_empty(), "still open: {open:?}");
    }
}

/// The names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether data begin at a page, tensors of whole pages at pages, and all others at multiples of their elements.
fn check_header(path: &Path) {
    let header = Header::read(&fs::File::open(path).unwrap(), path, &HeaderLimits::default()).unwrap();
    assert_eq!(header.data_offset % 4096, 0, "{header:?}");
    for tensor in &header.tensors {
        let alignment = if tensor.len.is_multiple_of(4096) { 4096 } else { tensor.dtype.alignment() };
        assert_eq!(tensor.offset % alignment, 0, "{tensor:?}");
    }
}

/// The metadata of a file.
pub(crate) fn metadata(path: &Path) -> BTreeMap<String, String> {
    Header::read(&fs::File::open(path).unwrap(), path, &HeaderLimits::default()).unwrap().metadata
}

fn opens_directly(folder: &Path) -> bool {
    let probe = folder.join("probe");
    fs::write(&probe, "probe").unwrap();
    let opened = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&probe).is_ok();
    fs::remove_file(&probe).unwrap();
    opened
}
