//! The PCI bus: GPUs, NVMe controllers, and how far they are from each other.

use serde::Serialize;

use crate::facts::{Root, is_address};

const DEVICES: &str = "sys/bus/pci/devices";

/// A device on the PCI bus.
#[derive(Clone, Debug)]
pub(super) struct PciDevice {
    /// Domain, bus, device and function: "0000:1b:00.0".
    pub(super) address: String,
    /// The NUMA node nearest to it; None where the machine does not say.
    pub(super) node: Option<u32>,
    /// From the host bridge ("pci0000:15") through every bridge down to the device itself.
    pub(super) chain: Vec<String>,
}

/// NVIDIA's vendor number.
const NVIDIA: u64 = 0x10de;
/// PCI class codes, without the programming interface: VGA and 3D controllers.
const DISPLAY: [u64; 2] = [0x0300, 0x0302];
/// Class code of an NVMe controller, programming interface included.
const NVME: u64 = 0x01_08_02;

/// The machine's GPUs of NVIDIA and its NVMe controllers, each by address.
pub(super) fn gpus_and_drives(root: &Root) -> (Vec<PciDevice>, Vec<PciDevice>) {
    let (mut gpus, mut drives) = (Vec::new(), Vec::new());
    for address in root.list(DEVICES) {
        let Some(class) = root.number(&format!("{DEVICES}/{address}/class")) else { continue };
        if class == NVME {
            drives.push(PciDevice::at(root, address));
        } else if DISPLAY.contains(&(class >> 8))
            && root.number(&format!("{DEVICES}/{address}/vendor")) == Some(NVIDIA)
        {
            gpus.push(PciDevice::at(root, address));
        }
    }
    (gpus, drives)
}

impl PciDevice {
    pub(super) fn at(root: &Root, address: String) -> Self {
        let folder = format!("{DEVICES}/{address}");
        let path = root.resolve(&folder).unwrap_or_default();
        let chain = path.split('/').filter(|part| part.starts_with("pci") || is_address(part));
        Self {
            node: root.number(&format!("{folder}/numa_node")).and_then(|node| u32::try_from(node).ok()),
            chain: chain.map(str::to_owned).collect(),
            address,
        }
    }

    /// The bridges above it.
    pub(super) fn bridges(&self) -> impl Iterator<Item = &str> {
        self.chain.iter().map(String::as_str).filter(|part| is_address(part) && **part != *self.address)
    }

    /// Bytes of the window through which others reach a GPU's memory: BAR1, its largest prefetchable region. Which
    /// number that region has depends on whether the registers' own window is 32 or 64 bits wide.
    pub(super) fn bar1(&self, root: &Root) -> Option<u64> {
        /// `IORESOURCE_MEM` and `IORESOURCE_PREFETCH` of the kernel's `ioport.h`.
        const PREFETCHABLE_MEMORY: u64 = 0x0200 | 0x2000;
        let resources = root.read(&format!("{DEVICES}/{}/resource", self.address))?;
        let hexadecimal = |field: &str| u64::from_str_radix(field.trim_start_matches("0x"), 16).ok();
        // Six base address registers; the lines after them are the ROM and the virtual functions'.
        let sizes = resources.lines().take(6).filter_map(|line| {
            let fields: Vec<u64> = line.split_whitespace().filter_map(hexadecimal).collect();
            let &[start, end, flags] = fields.as_slice() else { return None };
            (flags & PREFETCHABLE_MEMORY == PREFETCHABLE_MEMORY && end > start).then(|| end - start + 1)
        });
        sizes.max()
    }

    /// How far it is to `other`.
    pub(super) fn distance(&self, other: &Self) -> Distance {
        let common = self.chain.iter().zip(&other.chain).take_while(|(mine, its)| mine == its).count();
        match (common, self.node, other.node) {
            (2.., _, _) => Distance::Switch,
            (1, _, _) => Distance::HostBridge,
            (0, Some(mine), Some(its)) if mine == its => Distance::Node,
            (0, Some(_), Some(_)) => Distance::System,
            (0, _, _) => Distance::Unknown,
        }
    }
}

/// How far two PCI devices are from each other, the nearest first. The codes are those of `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Distance {
    /// Behind one PCIe switch: what passes between them never leaves it.
    #[serde(rename = "PXB")]
    Switch,
    /// Below one host bridge of the processor.
    #[serde(rename = "PHB")]
    HostBridge,
    /// At different host bridges of one NUMA node.
    #[serde(rename = "NODE")]
    Node,
    /// At different NUMA nodes: across the link between the sockets.
    #[serde(rename = "SYS")]
    System,
    /// The machine does not say.
    #[serde(rename = "?")]
    Unknown,
}

impl Distance {
    /// The code in tables: `PXB`, `PHB`, `NODE`, `SYS`, `?`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Switch => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }
}

/// The address as Linux writes it: lower case, and a domain of four digits where the driver gives eight.
pub(super) fn linux_address(address: &str) -> String {
    let address = address.to_ascii_lowercase();
    match address.strip_prefix("0000") {
        Some(rest) if is_address(rest) => rest.to_owned(),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(chain: &[&str], node: Option<u32>) -> PciDevice {
        let chain: Vec<String> = chain.iter().map(|part| (*part).to_owned()).collect();
        PciDevice { address: chain.last().cloned().unwrap_or_default(), node, chain }
    }

    #[test]
    fn addresses() {
        assert!(is_address("0000:1b:00.0") && is_address("10000:01:00.0"));
        for other in
            ["pci0000:15", "0000:1b:00", "0000:1b.00.0.1", "nvme0", "", "0000:1b:00:0", "é000:1b:00.0"]
        {
            assert!(!is_address(other), "{other}");
        }
        assert_eq!(linux_address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(linux_address("0000:1b:00.0"), "0000:1b:00.0");
    }

    #[test]
    fn distances_by_what_the_chains_share() {
        let gpu =
            device(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:1b:00.0"], Some(0));
        let beside =
            device(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:1c:00.0"], Some(0));
        let same_bridge = device(&["pci0000:15", "0000:15:02.0", "0000:20:00.0"], Some(0));
        let same_node = device(&["pci0000:37", "0000:37:01.0", "0000:38:00.0"], Some(0));
        let other_node = device(&["pci0000:97", "0000:97:01.0", "0000:98:00.0"], Some(1));
        let nowhere = device(&["pci0000:c7", "0000:c8:00.0"], None);
        let distances =
            [beside, same_bridge, same_node, other_node, nowhere].map(|drive| gpu.distance(&drive));
        assert_eq!(
            distances,
            [Distance::Switch, Distance::HostBridge, Distance::Node, Distance::System, Distance::Unknown]
        );
        assert!(distances.is_sorted());
    }
}
