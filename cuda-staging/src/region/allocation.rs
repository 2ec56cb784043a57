//! What a region lies in: memory of ours, of the caller's, or none.

use std::ptr;

use crate::cuda::DeviceMemory;
use crate::device::Device;
use crate::memory::HostMemory;

/// An allocation and its device.
pub(crate) struct Allocation {
    /// Before the device, which is then released last.
    memory: Memory,
    device: Device,
}

/// Whose memory it is decides what happens at the end.
pub(crate) enum Memory {
    /// Nothing was asked for.
    Empty,
    /// Device memory of ours.
    Device(DeviceMemory),
    /// Host memory of ours.
    Host(HostMemory),
    /// A vector that the caller gave away.
    Vec { address: u64, _bytes: Vec<u8> },
    /// The caller's own, never freed by us.
    Adopted { address: u64 },
}

impl Memory {
    pub(crate) fn of_vec(mut bytes: Vec<u8>) -> Self {
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        Self::Vec { address, _bytes: bytes }
    }

    fn address(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Device(memory) => memory.address(),
            Self::Host(memory) => memory.as_ptr().addr() as u64,
            Self::Vec { address, .. } | Self::Adopted { address } => *address,
        }
    }
}

impl Allocation {
    pub(crate) fn new(device: Device, memory: Memory) -> Self {
        Self { memory, device }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Host memory of ours.
    pub(super) fn host_memory(&self) -> Option<&HostMemory> {
        match &self.memory {
            Memory::Host(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether it is the caller's.
    pub(super) fn is_adopted(&self) -> bool {
        matches!(self.memory, Memory::Adopted { .. })
    }

    /// Where `len` bytes at `offset` are, if that is host memory. Its bytes are initialised: mappings are zeroed,
    /// vectors are, and the caller vouched for what was adopted.
    pub(super) fn host_slice(&self, offset: u64, len: u64) -> Option<(*mut u8, usize)> {
        if self.device.is_cuda() {
            return None;
        }
        if len == 0 {
            return Some((ptr::dangling_mut(), 0));
        }
        // Host addresses and lengths fit a usize; each kind of memory had its provenance exposed.
        Some((ptr::with_exposed_provenance_mut((self.address() + offset) as usize), len as usize))
    }
}
