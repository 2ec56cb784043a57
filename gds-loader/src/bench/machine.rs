//! The machine a benchmark ran on, as far as it bears on the figures: asked of the kernel, `None` where it does not say.

use std::fs;
use std::path::Path;

use cuda_staging::{Device, limits};
use serde::{Deserialize, Serialize};

use crate::cufile::Library;
use crate::facts::{BlockDevice, Mount, Root};

/// Facts of a machine. Sizes are bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The processor's model.
    pub cpu: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    /// Size of the processor's last cache.
    pub cpu_cache: Option<u64>,
    /// Whether a hypervisor lies below, whose own cache may hold what is cold here.
    pub virtual_machine: bool,
    /// The machine's memory.
    pub memory: Option<u64>,
    /// What the tightest control group still allows of it.
    pub memory_limit: Option<u64>,
    /// What the page cache holds, of any files.
    pub page_cache: Option<u64>,
    /// The GPU, where the benchmark uses one.
    pub gpu: Option<Gpu>,
    /// Release of NVIDIA's kernel driver.
    pub driver: Option<String>,
    /// Version of libcufile: `1.14`.
    pub cufile: Option<String>,
    /// Where the files are.
    pub storage: Storage,
}

/// A GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its CUDA ordinal.
    pub index: Option<u32>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its place on the PCI bus.
    pub pci_bus_id: Option<String>,
    /// Its memory.
    pub memory: Option<u64>,
    /// Whether it is the simulated driver's: memory and copies are those of the host.
    pub simulated: bool,
}

/// Where files are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Storage {
    /// The file system's type: `ext4`.
    pub file_system: Option<String>,
    /// What is mounted: `/dev/vda`, a server's export.
    pub source: Option<String>,
    /// The block device, in words: `nvme0n1p1 (a partition of nvme0n1)`.
    pub device: Option<String>,
}

impl Machine {
    /// This one. `path` is one of the files to be read, `device` where they go.
    pub fn of(path: &Path, device: &Device) -> Self {
        let root = Root::system();
        let meminfo = root.read("proc/meminfo").unwrap_or_default();
        let cpuinfo = root.read("proc/cpuinfo").unwrap_or_default();
        let kib = |name: &str| field(&meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok();
        let version = Library::load().ok().and_then(Library::version);
        Self {
            kernel: root.read("proc/sys/kernel/osrelease"),
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_cache: last_cache(&root),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory: kib("MemTotal").map(|kib| kib * 1024),
            memory_limit: limits::memory_limit(),
            page_cache: kib("Cached").map(|kib| kib * 1024),
            gpu: device.is_cuda().then(|| Gpu::of(device)),
            driver: root.read("proc/driver/nvidia/version").as_deref().and_then(driver_release),
            cufile: version.map(|version| version.to_string()),
            storage: fs::canonicalize(path).map(|path| Storage::of(&root, &path)).unwrap_or_default(),
        }
    }

    /// Whether the GPU is the simulated driver's.
    pub fn is_simulated(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.simulated)
    }
}

impl Gpu {
    fn of(device: &Device) -> Self {
        let info = device.info();
        Self {
            name: info.name.clone(),
            index: info.index,
            uuid: info.uuid.map(|uuid| uuid.to_string()),
            pci_bus_id: info.pci_bus_id.clone(),
            memory: info.total_memory,
            simulated: info.name == SIMULATED,
        }
    }
}

/// What the simulated driver calls its devices.
const SIMULATED: &str = "Simulated GPU";

impl Storage {
    fn of(root: &Root, path: &Path) -> Self {
        let Some(mount) = path.to_str().and_then(|path| Mount::of(root, path)) else {
            return Self::default();
        };
        Self {
            device: BlockDevice::of(root, &mount.number).map(|device| device.describe()),
            file_system: Some(mount.kind),
            source: Some(mount.source),
        }
    }
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...`
fn driver_release(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_release = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
    };
    line.split_whitespace().find(is_release).map(str::to_owned)
}

/// The largest of the first processor's caches.
fn last_cache(root: &Root) -> Option<u64> {
    (0..8)
        .filter_map(|index| root.read(&format!("sys/devices/system/cpu/cpu0/cache/index{index}/size")))
        .filter_map(|size| size.trim().strip_suffix('K')?.parse::<u64>().ok())
        .max()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::of(Path::new("/proc"), &Device::cpu());
        assert!(machine.kernel.is_some() && machine.cores > 0);
        assert!(machine.memory.is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(machine.storage.file_system.as_deref(), Some("proc"));
        assert!(machine.gpu.is_none() && !machine.is_simulated());
    }

    #[test]
    fn the_drivers_release_is_found_in_both_flavours() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@host)\nGCC version:";
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024";
        assert_eq!(driver_release(open).as_deref(), Some("570.86.15"));
        assert_eq!(driver_release(closed).as_deref(), Some("535.183.01"));
        assert_eq!(driver_release("something else"), None);
    }
}
