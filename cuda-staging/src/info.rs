//! What is known of a device.

use uuid::Uuid;

/// What kind of memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// A CUDA device's memory.
    Cuda,
}

impl DeviceKind {
    /// `cpu` or `cuda`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// CPU or CUDA.
    pub kind: DeviceKind,
    /// Its index, as `CUDA_VISIBLE_DEVICES` numbers them. None for the CPU.
    pub index: Option<u32>,
    /// Its name, such as "NVIDIA H200"; "CPU" for the CPU.
    pub name: String,
    /// Its UUID, where it has one.
    pub uuid: Option<Uuid>,
    /// Its place on the PCI bus, such as "0000:04:00.0", where it has one.
    pub pci_bus_id: Option<String>,
    /// Its memory in bytes. None for the CPU.
    pub total_memory: Option<u64>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free now.
    pub free: u64,
    /// In all.
    pub total: u64,
}
