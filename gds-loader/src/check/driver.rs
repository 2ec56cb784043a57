//! The kernel's side: the nvidia module, and one of the two ways from a drive into GPU memory, nvidia-fs or the
//! kernel's own PCI peer-to-peer DMA.

use super::config::Config;
use super::finding::{Finding, counted};
use super::probes::Probes;
use super::surroundings::Surroundings;
use crate::facts::Root;

const WITHOUT: &str =
    "it leads reads from the drive into GPU memory; without it cuFile copies through host memory";
const NO_MODULES: &str = "nothing: this kernel cannot load it";

/// What the kernel has loaded and offers.
#[derive(Clone, Debug, Default)]
pub(super) struct Driver {
    /// Version and kind of the nvidia module.
    nvidia: Option<Nvidia>,
    pub(super) nvidia_fs: bool,
    /// Whether the kernel has PCI peer-to-peer DMA; None where it does not say.
    kernel_p2p: Option<bool>,
    /// Whether cuFile is configured to use it.
    p2p_configured: bool,
}

#[derive(Clone, Debug)]
struct Nvidia {
    version: String,
    open: bool,
}

impl Driver {
    pub(super) fn of(root: &Root, probes: &Probes, config: &Config) -> Self {
        Self {
            nvidia: nvidia(root),
            nvidia_fs: root.exists("proc/driver/nvidia-fs/version") || is_loaded(root, "nvidia_fs"),
            kernel_p2p: kernel_p2p(root),
            p2p_configured: config.p2pdma() || probes.is_on("CUFILE_USE_PCIP2PDMA"),
        }
    }

    /// Whether cuFile can use the kernel's peer-to-peer DMA, as far as can be seen.
    pub(super) fn p2pdma(&self) -> bool {
        self.p2p_possible() && self.p2p_configured
    }

    /// Whether kernel and nvidia module have what it takes, whatever the configuration says.
    pub(super) fn p2p_possible(&self) -> bool {
        self.kernel_p2p == Some(true) && self.nvidia.as_ref().is_some_and(|nvidia| nvidia.open)
    }

    pub(super) fn findings(&self, root: &Root, surroundings: Surroundings) -> Vec<Finding> {
        let mut findings = Vec::new();
        // In WSL the driver is Windows's, and what is said of it there says it all.
        if surroundings.wsl {
            return findings;
        }
        findings.push(self.nvidia_finding(surroundings));
        findings.push(self.nvidia_fs_finding(root, surroundings));
        if self.nvidia_fs {
            findings.extend([nodes(root, surroundings), storage_drivers(root)]);
            findings.extend(statistics(root));
        }
        findings.push(self.p2p_finding());
        findings
    }

    fn nvidia_finding(&self, surroundings: Surroundings) -> Finding {
        const ID: &str = "driver.nvidia";
        match &self.nvidia {
            Some(Nvidia { version, open }) => {
                let kind = if *open { "open" } else { "proprietary" };
                Finding::ok(ID, format!("the nvidia module {version} is loaded ({kind} kernel module)"))
            }
            None => Finding::failure(ID, "the nvidia kernel module is not loaded")
                .why("without it there is no GPU for CUDA, and nothing to give out its memory to drives")
                .advice(if surroundings.modules {
                    "install NVIDIA's driver (for GDS best its open kernel modules) and load it: modprobe nvidia"
                } else {
                    NO_MODULES
                }),
        }
    }

    fn nvidia_fs_finding(&self, root: &Root, surroundings: Surroundings) -> Finding {
        const ID: &str = "driver.nvidia_fs";
        if self.nvidia_fs {
            let version = root.read("proc/driver/nvidia-fs/version").unwrap_or_default();
            let version = version.strip_prefix("version:").unwrap_or(&version).trim().to_owned();
            return if is_at_least_2_12(&version) == Some(false) {
                Finding::failure(ID, format!("nvidia-fs {version} is loaded, which is too old"))
                    .why("libcufile wants 2.12 or newer")
                    .advice("update the package nvidia-fs-dkms and reload the module")
            } else {
                Finding::ok(ID, format!("nvidia-fs {version} is loaded").replace("  ", " "))
            };
        }
        if self.p2pdma() {
            return Finding::info(
                ID,
                "nvidia-fs is not loaded; NVMe drives do not need it with PCI peer-to-peer DMA",
            );
        }
        if !surroundings.modules {
            return Finding::failure(ID, "nvidia-fs is not loaded").why(WITHOUT).advice(NO_MODULES);
        }
        let where_to = if surroundings.container { ", on the host" } else { "" };
        let advice = if self.p2p_possible() {
            "install nvidia-fs and `modprobe nvidia-fs`, or set use_pci_p2pdma to true in cufile.json: this kernel has it"
                .to_owned()
        } else {
            format!(
                "install the package nvidia-gds (or nvidia-fs-dkms) and run `modprobe nvidia-fs`{where_to}"
            )
        };
        Finding::failure(ID, "nvidia-fs is not loaded")
            .why(
                "it leads reads from the drive into GPU memory; without it cuFile copies through host memory",
            )
            .advice(advice)
    }

    fn p2p_finding(&self) -> Finding {
        const ID: &str = "driver.p2pdma";
        let open = self.nvidia.as_ref().is_some_and(|nvidia| nvidia.open);
        match (self.kernel_p2p, open, self.p2p_configured) {
            (Some(true), true, true) => Finding::ok(
                ID,
                "PCI peer-to-peer DMA: the kernel has it, the nvidia module is an open one, cuFile may use it",
            ),
            (Some(true), true, false) => Finding::info(
                ID,
                "PCI peer-to-peer DMA would be there for NVMe; use_pci_p2pdma is off in cufile.json",
            ),
            (Some(true), false, _) => Finding::info(
                ID,
                "PCI peer-to-peer DMA: the kernel has it; it needs NVIDIA's open kernel module",
            ),
            (Some(false), _, true) => {
                Finding::warning(ID, "use_pci_p2pdma is on, but this kernel has no PCI peer-to-peer DMA")
                    .why("cuFile then falls back to nvidia-fs, or to copying through host memory")
                    .advice("use a kernel of 6.2 or newer with CONFIG_PCI_P2PDMA=y, or turn the setting off")
            }
            (Some(false), _, false) => Finding::info(ID, "this kernel has no PCI peer-to-peer DMA"),
            (None, _, _) => Finding::info(ID, "whether this kernel has PCI peer-to-peer DMA is not known"),
        }
    }
}

/// Whether /proc/modules lists the module.
pub(super) fn is_loaded(root: &Root, module: &str) -> bool {
    let modules = root.read("proc/modules").unwrap_or_default();
    modules.lines().any(|line| line.split_whitespace().next() == Some(module))
}

fn nvidia(root: &Root) -> Option<Nvidia> {
    let text = root.read("proc/driver/nvidia/version")?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let version = line.split_whitespace().find(is_version)?;
    Some(Nvidia { version: version.to_owned(), open: line.contains("Open Kernel Module") })
}

/// Asks the kernel's configuration, where it is kept in /boot, else its list of symbols, as libcufile does.
fn kernel_p2p(root: &Root) -> Option<bool> {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    if let Some(configuration) = root.read(&format!("boot/config-{release}")) {
        return Some(configuration.lines().any(|line| line == "CONFIG_PCI_P2PDMA=y"));
    }
    let symbols = root.bytes("proc/kallsyms").filter(|symbols| !symbols.is_empty())?;
    const SYMBOL: &[u8] = b"p2pdma_pgmap_ops";
    Some(
        symbols
            .split(|byte| *byte == b'\n')
            .any(|line| line.windows(SYMBOL.len()).any(|part| part == SYMBOL)),
    )
}

/// Whether a version is one that libcufile takes; None where it is not two numbers.
fn is_at_least_2_12(version: &str) -> Option<bool> {
    let (major, minor) = version.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?) >= (2, 12))
}

/// nvidia-fs makes its device nodes on the host; a container sees those that were passed in.
fn nodes(root: &Root, surroundings: Surroundings) -> Finding {
    const ID: &str = "driver.nvidia_fs_nodes";
    let nodes = root.list("dev").iter().filter(|name| name.starts_with("nvidia-fs")).count();
    if nodes > 0 {
        return Finding::ok(ID, format!("{} /dev/nvidia-fs*", counted(nodes, "device node")));
    }
    let advice = if surroundings.container {
        "pass the nodes in (docker run --device /dev/nvidia-fs0 and so on, or --env NVIDIA_GDS=enabled)"
    } else {
        "reload the module (modprobe -r nvidia-fs; modprobe nvidia-fs) with udev running"
    };
    Finding::failure(ID, "nvidia-fs is loaded, but there is no /dev/nvidia-fs*")
        .why("libcufile talks to the module through these nodes")
        .advice(advice)
}

/// The storage drivers that told nvidia-fs that they can write GPU memory.
fn storage_drivers(root: &Root) -> Finding {
    const ID: &str = "driver.nvidia_fs_storage";
    let names = registered(root);
    if names.is_empty() {
        return Finding::warning(ID, "no storage driver has registered with nvidia-fs")
            .why("nvidia-fs serves only drivers that are built for it; the kernel's own nvme driver is not")
            .advice("install NVIDIA's DOCA-OFED with its nvme modules, or use PCI peer-to-peer DMA (kernel 6.2 or newer)");
    }
    Finding::ok(ID, format!("registered with nvidia-fs: {}", names.join(", ")))
}

/// The names in `/proc/driver/nvidia-fs/modules`, whose lines are `name: version`.
pub(super) fn registered(root: &Root) -> Vec<String> {
    let text = root.read("proc/driver/nvidia-fs/modules").unwrap_or_default();
    text.lines().filter_map(|line| line.split(':').next()).map(|name| name.trim().to_owned()).collect()
}

/// What nvidia-fs has counted since it was loaded: errors are worth a look.
fn statistics(root: &Root) -> Option<Finding> {
    const ID: &str = "driver.nvidia_fs_statistics";
    let text = root.read("proc/driver/nvidia-fs/stats")?;
    let field = |line: &str, key: &str| {
        let words = text.lines().find(|text| text.starts_with(line))?.split_whitespace();
        words
            .filter_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .find_map(|value| value.parse::<u64>().ok())
    };
    let errors = field("Reads", "err").unwrap_or(0);
    let mapping_errors = field("Bar1-map", "err").unwrap_or(0);
    Some(if errors + mapping_errors > 0 {
        Finding::warning(
            ID,
            format!(
                "nvidia-fs has counted {errors} failed reads and {mapping_errors} failed mappings of BAR1"
            ),
        )
        .why("programs on this machine had to read again by another path, or failed")
        .advice("look for nvidia-fs in the kernel's log (dmesg)")
    } else {
        let mapped = field("Bar1-map", "ok").unwrap_or(0);
        Finding::info(
            ID,
            format!("nvidia-fs has mapped BAR1 {mapped} times since it was loaded, without errors"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_nvidia_fs() {
        assert_eq!(is_at_least_2_12("2.12"), Some(true));
        assert_eq!(is_at_least_2_12("2.17.5"), Some(true));
        assert_eq!(is_at_least_2_12("2.7"), Some(false));
        assert_eq!(is_at_least_2_12("3.0"), Some(true));
        assert_eq!(is_at_least_2_12("new"), None);
    }
}
