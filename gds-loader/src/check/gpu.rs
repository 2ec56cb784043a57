//! The GPUs: seen by the CUDA driver, seen on the PCI bus, and the window each has for others.

use super::finding::{Finding, counted, size};
use super::pci::{PciDevice, linux_address};
use super::probes::{Cuda, CudaDevice, Probes};
use super::surroundings::Surroundings;
use crate::facts::Root;

/// Below this a GPU's window cannot hold the least that the gds path registers.
const LEAST_WINDOW: u64 = 16 << 20;
/// Below this it holds the default window and little else: other processes on the GPU share it.
const SMALL_WINDOW: u64 = 1 << 30;

/// A GPU, as far as driver and bus know it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// Its number in CUDA; None where CUDA does not show it.
    pub index: Option<u32>,
    /// Its name.
    pub name: String,
    /// Its address on the PCI bus.
    pub pci_address: Option<String>,
    /// Bytes of its BAR1, the window through which drives reach its memory; None where neither kernel nor cuFile says.
    pub bar1_bytes: Option<u64>,
    /// The NUMA node nearest to it.
    pub numa_node: Option<u32>,
    /// How many MIG slices it is divided into.
    pub mig_slices: usize,
}

/// Joins what CUDA shows with what is on the bus, in CUDA's order, then those CUDA does not show.
pub(super) fn gather(root: &Root, cuda: &Cuda, on_bus: &[PciDevice]) -> Vec<Gpu> {
    let shown: Vec<(&CudaDevice, Option<String>)> = cuda
        .devices()
        .iter()
        .map(|device| (device, device.pci_address.as_deref().map(linux_address)))
        .collect();
    let of_cuda = shown.iter().map(|(device, address)| {
        let on_bus = on_bus.iter().find(|gpu| address.as_deref() == Some(&gpu.address));
        let gpu = describe(root, Some(device.index), device.name.clone(), address.clone(), on_bus);
        Gpu { bar1_bytes: gpu.bar1_bytes.or(device.bar1_bytes), ..gpu }
    });
    let hidden = on_bus
        .iter()
        .filter(|gpu| !shown.iter().any(|(_, address)| address.as_deref() == Some(&gpu.address)));
    let hidden = hidden.map(|gpu| {
        let name = model(root, &gpu.address).unwrap_or_else(|| "NVIDIA GPU".into());
        describe(root, None, name, Some(gpu.address.clone()), Some(gpu))
    });
    of_cuda.chain(hidden).collect()
}

fn describe(
    root: &Root,
    index: Option<u32>,
    name: String,
    pci_address: Option<String>,
    on_bus: Option<&PciDevice>,
) -> Gpu {
    let minor = pci_address.as_deref().and_then(|address| information(root, address, "Device Minor"));
    let slices = minor.map_or(0, |minor| {
        let entries = root.list(&format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"));
        entries.iter().filter(|name| name.starts_with("gi")).count()
    });
    Gpu {
        index,
        name,
        bar1_bytes: on_bus.and_then(|gpu| gpu.bar1(root)),
        numa_node: on_bus.and_then(|gpu| gpu.node),
        mig_slices: slices,
        pci_address,
    }
}

/// A line of what the nvidia module says of a GPU.
fn information(root: &Root, address: &str, key: &str) -> Option<String> {
    let text = root.read(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
    value.map(|value| value.trim().to_owned())
}

fn model(root: &Root, address: &str) -> Option<String> {
    information(root, address, "Model").filter(|model| !model.is_empty())
}

pub(super) fn findings(gpus: &[Gpu], probes: &Probes, surroundings: Surroundings) -> Vec<Finding> {
    let mut findings = vec![libcuda(&probes.cuda, surroundings)];
    if gpus.is_empty() {
        if matches!(probes.cuda, Cuda::Devices(_) | Cuda::NotAsked) {
            findings.push(none(probes));
        }
        return findings;
    }
    findings.push(list(gpus));
    findings.extend(window(gpus));
    findings.extend(consumer(gpus));
    findings.extend(slices(gpus));
    findings
}

fn libcuda(cuda: &Cuda, surroundings: Surroundings) -> Finding {
    const ID: &str = "gpu.libcuda";
    match cuda {
        Cuda::NotAsked => Finding::info(ID, "the CUDA driver was not asked"),
        Cuda::Devices(devices) => {
            Finding::ok(ID, format!("libcuda works and shows {}", counted(devices.len(), "device")))
        }
        Cuda::Unavailable(reason) => {
            let advice = match (surroundings.container, surroundings.wsl) {
                (true, _) => "pass the GPUs in (docker run --gpus all, with the NVIDIA container toolkit)",
                (_, true) => "install the NVIDIA driver in Windows; it brings libcuda into /usr/lib/wsl/lib",
                _ => "install the NVIDIA driver, and see that nvidia-smi lists the GPUs",
            };
            Finding::failure(ID, format!("CUDA cannot be used: {reason}"))
                .why("there is no GPU memory to load into; gds then loads into host memory (`--device cpu`)")
                .advice(advice)
        }
        Cuda::Silent(limit) => Finding::failure(
            ID,
            format!("the CUDA driver did not answer within {} s", limit.as_secs_f32()),
        )
        .why("what is unknown of it cannot be relied on; every program on this machine would wait as long")
        .advice(
            "look at nvidia-smi and the kernel's log; persistence mode (nvidia-persistenced) makes it fast",
        ),
    }
}

fn none(probes: &Probes) -> Finding {
    let hidden = probes.environment.get("CUDA_VISIBLE_DEVICES");
    let advice = match hidden {
        Some(value) => format!("CUDA_VISIBLE_DEVICES is {value:?}; unset it, or name devices that exist"),
        None => "see that nvidia-smi lists the GPUs".into(),
    };
    Finding::failure("gpu.devices", "no GPU").why("there is no GPU memory to load into").advice(advice)
}

/// The GPUs on one line, those alike together: `8 × NVIDIA H100 80GB HBM3, BAR1 128 GiB, NUMA nodes 0 (4) and 1 (4)`.
fn list(gpus: &[Gpu]) -> Finding {
    let mut kinds: Vec<(String, Vec<&Gpu>)> = Vec::new();
    for gpu in gpus {
        let window = gpu
            .bar1_bytes
            .map_or_else(|| "BAR1 of unknown size".into(), |bytes| format!("BAR1 {}", size(bytes)));
        let hidden = if gpu.index.is_none() { ", not shown by CUDA" } else { "" };
        let kind = format!("{}, {window}{hidden}", gpu.name);
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, members)) => members.push(gpu),
            None => kinds.push((kind, vec![gpu])),
        }
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, members)| match members.as_slice() {
            [gpu] => format!("{kind}{}{}", address(gpu), nodes(members)),
            _ => format!("{} × {kind}{}", members.len(), nodes(members)),
        })
        .collect();
    Finding::info("gpu.devices", kinds.join("; "))
}

fn address(gpu: &Gpu) -> String {
    gpu.pci_address.as_ref().map_or_else(String::new, |address| format!(", at {address}"))
}

fn nodes(gpus: &[&Gpu]) -> String {
    let mut nodes: Vec<(u32, usize)> = Vec::new();
    for node in gpus.iter().filter_map(|gpu| gpu.numa_node) {
        match nodes.iter_mut().find(|(other, _)| *other == node) {
            Some((_, count)) => *count += 1,
            None => nodes.push((node, 1)),
        }
    }
    nodes.sort_unstable();
    match nodes.as_slice() {
        [] => String::new(),
        [(node, _)] => format!(", NUMA node {node}"),
        several => {
            let parts: Vec<String> =
                several.iter().map(|(node, count)| format!("{node} ({count})")).collect();
            format!(", NUMA nodes {}", parts.join(" and "))
        }
    }
}

fn window(gpus: &[Gpu]) -> Option<Finding> {
    const ID: &str = "gpu.bar1";
    let smallest = gpus.iter().filter_map(|gpu| Some((gpu.bar1_bytes?, gpu))).min_by_key(|(bytes, _)| *bytes);
    let (bytes, gpu) = smallest?;
    let which = gpu.pci_address.as_deref().unwrap_or(&gpu.name);
    Some(if bytes < LEAST_WINDOW {
        Finding::failure(ID, format!("the BAR1 of {which} is only {}", size(bytes)))
            .why("drives write GPU memory through it, and the gds path needs 16 MiB of it at the least")
            .advice("enable \"Above 4G decoding\" and resizable BARs in the firmware")
    } else if bytes < SMALL_WINDOW {
        Finding::warning(ID, format!("the BAR1 of {which} is only {}", size(bytes)))
            .why("all processes on the GPU share it for what they register; registration then fails with 5016")
            .advice("enable resizable BARs in the firmware, or run fewer loads at once; gds shrinks its window itself")
    } else {
        Finding::ok(ID, format!("BAR1 has room: {} or more", size(bytes)))
    })
}

fn consumer(gpus: &[Gpu]) -> Option<Finding> {
    let gpu = gpus.iter().find(|gpu| gpu.name.contains("GeForce"))?;
    Some(
        Finding::failure("gpu.class", format!("{} is a consumer GPU", gpu.name))
            .why("NVIDIA's kernel driver does not give out its memory for peer-to-peer transfers, so nothing registers")
            .advice("use a data-centre or workstation GPU for GPUDirect Storage; `--backend auto` serves this one"),
    )
}

fn slices(gpus: &[Gpu]) -> Option<Finding> {
    let divided = gpus.iter().filter(|gpu| gpu.mig_slices > 0).count();
    let slices: usize = gpus.iter().map(|gpu| gpu.mig_slices).sum();
    (divided > 0).then(|| {
        Finding::warning(
            "gpu.mig",
            format!("MIG divides {} into {}", counted(divided, "GPU"), counted(slices, "slice")),
        )
        .why("a process sees one slice only, and all slices of a GPU share its BAR1 and its PCIe link")
        .advice("name the slice in CUDA_VISIBLE_DEVICES (MIG-<uuid>), one process each")
    })
}
