//! How GPUs and drives are connected, and what stands between them: IOMMU, ACS, sockets.

use serde::Serialize;

use super::finding::{Finding, counted};
use super::gpu::Gpu;
use super::pci::{Distance, PciDevice};
use crate::facts::Root;

/// How far a GPU is from an NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Route {
    /// The GPU's PCI address.
    pub gpu: String,
    /// The controller's PCI address.
    pub drive: String,
    /// How far, in the codes of `nvidia-smi topo`.
    pub distance: Distance,
}

/// Every GPU of CUDA to every drive, in this order.
pub(super) fn routes(gpus: &[Gpu], on_bus: &[PciDevice], drives: &[PciDevice]) -> Vec<Route> {
    let places = gpus
        .iter()
        .filter_map(|gpu| on_bus.iter().find(|place| gpu.pci_address.as_ref() == Some(&place.address)));
    places
        .flat_map(|gpu| {
            drives.iter().map(|drive| Route {
                gpu: gpu.address.clone(),
                drive: drive.address.clone(),
                distance: gpu.distance(drive),
            })
        })
        .collect()
}

/// `gpus` and `drives` are those between which bytes would go.
pub(super) fn findings(
    root: &Root,
    gpus: &[PciDevice],
    drives: &[PciDevice],
    routes: &[Route],
) -> Vec<Finding> {
    let mut findings = vec![iommu(root, gpus)];
    if !gpus.is_empty() && !drives.is_empty() {
        findings.push(acs(root, gpus, drives));
        findings.push(distance(gpus.len(), drives.len(), routes));
    }
    findings
}

/// An IOMMU translates what devices send each other, on the way through the processor.
fn iommu(root: &Root, gpus: &[PciDevice]) -> Finding {
    const ID: &str = "topology.iommu";
    if root.list("sys/class/iommu").is_empty() {
        return Finding::ok(ID, "no IOMMU is in use");
    }
    let kinds = gpus
        .iter()
        .filter_map(|gpu| root.read(&format!("sys/bus/pci/devices/{}/iommu_group/type", gpu.address)));
    let kinds: Vec<String> = kinds.collect();
    let command_line = root.read("proc/cmdline").unwrap_or_default();
    let passes = command_line.split_whitespace().any(|word| word == "iommu=pt");
    if kinds.iter().all(|kind| kind == "identity") && (passes || !kinds.is_empty()) {
        return Finding::warning(ID, "the IOMMU is on, in pass-through mode (iommu=pt)")
            .why("it translates nothing, but on some platforms still leads peer-to-peer transfers through the processor")
            .advice("if `gds bench` shows gds slower than direct, turn it off in the firmware or boot with iommu=off");
    }
    Finding::warning(ID, "the IOMMU is on and translates")
        .why("transfers between drive and GPU go up to the processor and back, slowly, or fail")
        .advice("turn it off in the firmware, or boot with iommu=off or, where the platform allows, iommu=pt")
}

/// Access control services on a bridge send transfers between devices below it up to the processor.
fn acs(root: &Root, gpus: &[PciDevice], drives: &[PciDevice]) -> Finding {
    const ID: &str = "topology.acs";
    let mut bridges: Vec<&str> = gpus.iter().chain(drives).flat_map(PciDevice::bridges).collect();
    bridges.sort_unstable();
    bridges.dedup();
    // nvidia-fs lists the bridges with ACS on; else their configuration says it, to root alone.
    let listed = root.read("proc/driver/nvidia-fs/bridges");
    let states: Vec<Option<bool>> = bridges
        .iter()
        .map(|bridge| match &listed {
            Some(list) => Some(list.lines().any(|line| line.trim() == *bridge)),
            None => redirects(&root.bytes(&format!("sys/bus/pci/devices/{bridge}/config"))?),
        })
        .collect();
    let on: Vec<&str> = bridges
        .iter()
        .zip(&states)
        .filter(|(_, state)| **state == Some(true))
        .map(|(bridge, _)| *bridge)
        .collect();
    if let Some(first) = on.first() {
        return Finding::warning(ID, format!("ACS is on at {} between GPUs and drives ({first}, ...)", counted(on.len(), "bridge")))
            .why("transfers between drive and GPU then pass through the processor even behind one switch, at a fraction of the speed")
            .advice("turn ACS off in the firmware, or by `setpci -s BRIDGE ECAP_ACS+6.w=0` for each at boot (not where VMs need it)");
    }
    if states.iter().any(Option::is_none) {
        return Finding::info(
            ID,
            "whether ACS is on at the bridges is not known; root, or nvidia-fs, could say",
        );
    }
    Finding::ok(ID, format!("ACS is off at all {} between GPUs and drives", counted(bridges.len(), "bridge")))
}

/// Whether a bridge's configuration space says that ACS redirects transfers between the devices below it. None where
/// the space is cut short, as it is for everyone but root.
fn redirects(configuration: &[u8]) -> Option<bool> {
    /// Extended capability of access control services.
    const ACS: u32 = 0x000d;
    /// Request redirect, completion redirect, upstream forwarding, egress control.
    const REDIRECT: u16 = 0x04 | 0x08 | 0x10 | 0x20;
    /// Of a configuration space with extended capabilities.
    const SIZE: usize = 4096;
    if configuration.len() < SIZE {
        return None;
    }
    let byte = |at: usize| configuration.get(at).copied().unwrap_or(0);
    let mut at = 0x100;
    // Each capability takes eight bytes or more, so a chain of more links than that goes in circles.
    for _ in 0..(SIZE - 0x100) / 8 {
        let header = u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
        if header & 0xffff == ACS {
            return Some(u16::from_le_bytes([byte(at + 6), byte(at + 7)]) & REDIRECT != 0);
        }
        at = (header >> 20) as usize & 0xffc;
        if at < 0x100 {
            break;
        }
    }
    Some(false)
}

fn distance(gpus: usize, drives: usize, routes: &[Route]) -> Finding {
    const ID: &str = "topology.distance";
    let nearest: Vec<Distance> =
        routes.chunks(drives).filter_map(|drives| drives.iter().map(|route| route.distance).min()).collect();
    let farthest = routes.iter().map(|route| route.distance).max().unwrap_or(Distance::Unknown);
    let count = |distance: Distance| nearest.iter().filter(|near| **near == distance).count();
    let who = match gpus {
        1 => "the GPU".to_owned(),
        count => format!("each of the {count} GPUs"),
    };
    let what = match drives {
        1 => "the NVMe drive",
        _ => "an NVMe drive",
    };
    if count(Distance::Unknown) > 0 {
        return Finding::info(ID, "how far GPUs and NVMe drives are from each other is not known");
    }
    if count(Distance::System) == nearest.len() {
        return Finding::warning(ID, format!("{what} is on the other socket, for {who}"))
            .why("transfers cross the link between the sockets, which is slow for them and sometimes not possible")
            .advice("use a drive, or a GPU, on the same socket (the table shows which)");
    }
    let others = match farthest {
        Distance::System if drives > 1 => {
            "; others are across the sockets, so reads from all drives cross over in part"
        }
        _ => "",
    };
    let found = match (count(Distance::Switch) == nearest.len(), count(Distance::System)) {
        (true, _) => format!("{who} has {what} behind the same PCIe switch{others}"),
        (false, 0) => format!("{who} has {what} on its own socket{others}"),
        (false, far) => format!("{far} of the {gpus} GPUs have no NVMe drive on their own socket"),
    };
    if count(Distance::Switch) == nearest.len() { Finding::ok(ID, found) } else { Finding::info(ID, found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with these capabilities: (offset, id, next, control).
    fn configuration(capabilities: &[(usize, u32, u32, u16)]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for &(at, id, next, control) in capabilities {
            bytes[at..at + 4].copy_from_slice(&(id | 1 << 16 | next << 20).to_le_bytes());
            bytes[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn acs_is_found_in_the_chain_of_capabilities() {
        assert_eq!(redirects(&configuration(&[(0x100, 0x1, 0x148, 0), (0x148, 0xd, 0, 0x1d)])), Some(true));
        assert_eq!(redirects(&configuration(&[(0x100, 0x1, 0x148, 0), (0x148, 0xd, 0, 0x01)])), Some(false));
        assert_eq!(redirects(&configuration(&[(0x100, 0x1, 0, 0x1d)])), Some(false));
        assert_eq!(redirects(&configuration(&[(0x100, 0x1, 0x200, 0), (0x200, 0x2, 0x100, 0)])), Some(false));
        assert_eq!(redirects(&configuration(&[])), Some(false));
        assert_eq!(redirects(&[0; 64]), None, "who is not root sees 64 bytes");
    }
}
