//! Where a case runs, and what must hold after every load.

use std::fs;
use std::path::{Path, PathBuf};

use cuda_staging::{Device, Region};
use gds_loader::{Backend, Engine, Error, GdsProof, LoadReport, Loader, Model, PathKind, Tensor};
use tempfile::TempDir;
use test_support::{IoUring, Simulation, control, cufile_sim, folder, not_run, without_io_uring};

use crate::oracle::{self, Tensors};

/// Copies that start 0.1 to 0.4 ms after they could.
pub(crate) const LATE_COPIES: [(&str, &str); 2] =
    [("CUDA_SIM_COPY_LATENCY_US", "100"), ("CUDA_SIM_JITTER_US", "300")];

/// The paths into the memory of every device.
pub(crate) const HOST_PATHS: &[Backend] = &[
    Backend::Auto,
    Backend::Only(PathKind::Buffered),
    Backend::Only(PathKind::Direct),
    Backend::Only(PathKind::Mmap),
];

/// GPUDirect Storage.
pub(crate) const GDS: &[Backend] = &[Backend::Only(PathKind::Gds)];

/// cuFile in compatibility mode.
pub(crate) const GDS_COMPAT: &[Backend] = &[Backend::Only(PathKind::GdsCompat)];

/// The CPU.
pub(crate) fn cpu() -> Device {
    Device::cpu()
}

/// The simulated GPU.
pub(crate) fn gpu() -> Device {
    Device::cuda(0).unwrap()
}

/// A child on NVIDIA's libcufile 1.20; `None` after saying that `test` could not run.
pub(crate) fn on_nvidia(test: &str) -> Option<Simulation> {
    let library = test_support::cufile(test, "1.20")?.join("lib/libcufile.so.0");
    let simulation = Simulation::new(test).settings(&LATE_COPIES).setting("GDS_CUFILE_LIBRARY", library);
    Some(simulation.setting("CUFILE_LOGFILE_PATH", "/dev/null"))
}

/// The paths that read directly, if they can.
const DIRECT: &[Backend] = &[Backend::Auto, Backend::Only(PathKind::Direct)];

/// A device, a path, who keeps its direct reads in flight, and an empty folder.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) device: Device,
    pub(crate) backend: Backend,
    engine: Engine,
    /// What the report's engine is where files are read directly.
    expected_engine: Engine,
    folder: TempDir,
    in_memory: bool,
}

impl Bed {
    /// Runs `case` on `device` by each of these paths, on disk and in memory.
    pub(crate) fn each(test: &str, device: &dyn Fn() -> Device, paths: &[Backend], case: impl Fn(&Self)) {
        for bed in Self::all(test, device, paths, &[Engine::IoUring, Engine::Threads]) {
            eprintln!("{bed:?}");
            case(&bed);
        }
    }

    /// As [`Bed::each`] on the CPU, by the paths that read directly, where the kernel refuses io_uring.
    pub(crate) fn each_without_io_uring(test: &str, case: impl Fn(&Self) + Sync) {
        for how in [IoUring::Forbidden, IoUring::Unknown] {
            let ran = without_io_uring(how, || {
                for mut bed in Self::all(test, &cpu, DIRECT, &[Engine::Auto]) {
                    bed.expected_engine = Engine::Threads;
                    eprintln!("{bed:?}, io_uring {how:?}");
                    case(&bed);
                }
            });
            if ran.is_none() {
                not_run(test, "the kernel takes no seccomp filter");
            }
        }
    }

    /// As [`Bed::each`] on the simulated GPU, by a path of the simulated libcufile, which has nothing left in the end.
    pub(crate) fn each_by_cufile(test: &str, paths: &[Backend], case: impl Fn(&Self)) {
        Self::each(test, &gpu, paths, case);
        let report = cufile_sim::report();
        assert_eq!(report.alive, cufile_sim::Alive::default());
        let transfers = report.transfers;
        let unwanted = if paths == GDS { transfers.bounced_bytes } else { transfers.straight_bytes };
        assert_eq!(unwanted, 0, "{transfers:?}");
    }

    /// A bed for each path, on disk and in memory; where it may read directly, by each engine.
    fn all(test: &str, device: &dyn Fn() -> Device, paths: &[Backend], engines: &[Engine]) -> Vec<Self> {
        let mut beds = Vec::new();
        for &backend in paths {
            let engines = if DIRECT.contains(&backend) { engines } else { &[Engine::Auto] };
            let each = engines.iter().flat_map(|&engine| [(engine, false), (engine, true)]);
            for (engine, in_memory) in each {
                let short = test.rsplit("::").next().unwrap_or(test);
                let folder = if in_memory { folder::in_memory(short) } else { Some(folder::on_disk(short)) };
                let Some(folder) = folder else { continue };
                if backend == Backend::Only(PathKind::Direct) && !opens_directly(folder.path()) {
                    not_run(test, &format!("{} refuses O_DIRECT", folder.path().display()));
                    continue;
                }
                if engine == Engine::IoUring
                    && let Some(reason) = refusal(folder.path())
                {
                    not_run(test, &reason);
                    continue;
                }
                let device = device();
                beds.push(Self { device, backend, engine, expected_engine: engine, folder, in_memory });
            }
        }
        beds
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A loader for its device by its path.
    pub(crate) fn loader_by_defaults(&self) -> Loader {
        Loader::new().device(self.device.clone()).backend(self.backend).engine(self.engine)
    }

    /// The same with small pieces, so that boundaries cost bytes.
    pub(crate) fn loader(&self) -> Loader {
        self.loader_by_defaults().read_size(4096 * 4).slot_size(4096 * 8)
    }

    /// Writes `file`, loads it and compares.
    pub(crate) fn round_trip(&self, file: &test_support::fixture::File) -> Model {
        let path = self.path("model.safetensors");
        file.write(&path);
        self.load(&self.loader(), &path, &oracle::of_file(&path))
    }

    /// Loads `path` and compares what arrived with `expected`.
    pub(crate) fn load(&self, loader: &Loader, path: &Path, expected: &Tensors) -> Model {
        let model = loader.load(path).unwrap();
        self.check(&model, expected);
        model
    }

    /// Whether `model` holds `expected`, aligned, and its report is true.
    pub(crate) fn check(&self, model: &Model, expected: &Tensors) {
        // First of all, lest copies that nobody waited for end meanwhile.
        for tensor in model.tensors() {
            assert!(self.bytes_of(tensor.region()) == expected[tensor.name()].bytes, "{tensor:?}");
        }
        assert_eq!(model.len(), expected.len());
        for (name, expected) in expected {
            let tensor = model.get(name).unwrap_or_else(|| panic!("{name} is not there"));
            assert_eq!(tensor.dtype().as_str(), expected.dtype, "{name}");
            assert_eq!(tensor.shape(), expected.shape, "{name}");
            self.check_alignment(&tensor);
        }
        self.check_report(model.report(), expected.values().map(|tensor| tensor.bytes.len() as u64).sum());
        assert_eq!(model.report().tensors, expected.len());
        self.check_descriptors();
    }

    /// The bytes of a region as they are now, whatever copies are in flight.
    pub(crate) fn bytes_of(&self, region: &Region) -> Vec<u8> {
        match region.host_bytes() {
            Some(bytes) => bytes.to_vec(),
            None if region.is_empty() => Vec::new(),
            None => control::read_device_memory(region.address(), region.len() as usize),
        }
    }

    fn check_alignment(&self, tensor: &Tensor) {
        let alignment = if self.device.is_cuda() { 256 } else { tensor.dtype().alignment() };
        if !tensor.is_empty() {
            assert_eq!(tensor.device_address() % alignment, 0, "{tensor:?} is not aligned to {alignment}");
        }
    }

    /// Whether `report` accounts for `bytes` bytes, by the paths this bed allows.
    pub(crate) fn check_report(&self, report: &LoadReport, bytes: u64) {
        assert_eq!(report.bytes, bytes, "{report:?}");
        assert_eq!(report.paths.total(), bytes, "{report:?}");
        assert!(report.fallbacks.is_empty(), "{report:?}");
        let allowed: &[PathKind] = match self.backend {
            Backend::Only(kind) => &[kind],
            Backend::Auto if self.in_memory => &[PathKind::Buffered],
            Backend::Auto => &[PathKind::Direct, PathKind::Buffered],
        };
        let by_these: u64 = allowed.iter().map(|&kind| report.paths.get(kind)).sum();
        assert_eq!(by_these, bytes, "{report:?}");
        assert_eq!(report.device.kind, if self.device.is_cuda() { "cuda" } else { "cpu" });
        match self.backend {
            Backend::Only(PathKind::Gds) => {
                assert_eq!(report.peak_pinned_bytes, 0, "{report:?}");
                let gds = report.gds.as_ref().map(|gds| (gds.proof, gds.window_bytes > 0));
                let proven = (bytes > 0).then_some((Some(GdsProof::Verified), true));
                assert_eq!(gds, proven, "{report:?}");
            }
            // Only what is gathered on the host goes through its memory.
            Backend::Only(PathKind::GdsCompat) => assert!(report.gds.is_none(), "{report:?}"),
            _ => assert_eq!(report.peak_pinned_bytes > 0, self.device.is_cuda() && bytes > 0, "{report:?}"),
        }
        assert!(report.peak_pinned_bytes <= 64 << 20, "{report:?}");
        let by_host = [PathKind::Direct, PathKind::Buffered, PathKind::Mmap];
        let by_host: u64 = by_host.iter().map(|&kind| report.paths.get(kind)).sum();
        assert_eq!(report.engine.is_some(), by_host > 0, "{report:?}");
        if let Some(engine) = &report.engine {
            let direct = report.paths.get(PathKind::Direct) > 0;
            let expected = if direct { self.expected_engine } else { Engine::Threads };
            assert_eq!(engine.name, expected, "{report:?}");
            assert_eq!(engine.reason.is_some(), expected == Engine::Threads, "{report:?}");
            if direct && self.engine == Engine::Auto {
                let reason = engine.reason.as_deref().unwrap_or_default();
                assert!(reason.contains("not permitted") || reason.contains("not implemented"), "{report:?}");
            }
        }
    }

    /// Passes where no file of its folder is open.
    pub(crate) fn check_descriptors(&self) {
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let open: Vec<PathBuf> = links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .filter(|target| target.starts_with(self.folder.path()))
            .collect();
        assert!(open.is_empty(), "still open: {open:?}");
    }

    /// Bytes of device memory in use; 0 on the CPU.
    pub(crate) fn memory_in_use(&self) -> u64 {
        self.device.memory().unwrap().map_or(0, |memory| memory.total - memory.free)
    }
}

/// Why io_uring cannot be had for files in this folder.
fn refusal(folder: &Path) -> Option<String> {
    let path = folder.join("probe.safetensors");
    test_support::fixture::File::new().tensor("a", "U8", &[1]).write(&path);
    let loader = Loader::new().device(cpu()).engine(Engine::IoUring).backend(Backend::Only(PathKind::Direct));
    let outcome = loader.load(&path);
    fs::remove_file(&path).unwrap();
    match outcome {
        Err(error @ Error::Engine { .. }) => Some(error.to_string()),
        _ => None,
    }
}

fn opens_directly(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;
    let probe = folder.join("probe");
    fs::write(&probe, "probe").unwrap();
    let opened = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&probe).is_ok();
    fs::remove_file(&probe).unwrap();
    opened
}
