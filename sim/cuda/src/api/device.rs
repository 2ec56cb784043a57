//! Devices and what they can do.

use std::ffi::c_char;

use crate::call::api;
use crate::code::{INVALID_DEVICE, INVALID_VALUE};
use crate::ffi::{In, Out};
use crate::state::device::{self, Device};
use crate::state::driver;

/// The highest attribute number of CUDA 13.
const LAST_ATTRIBUTE: i32 = 161;

/// The value of a device attribute (`CU_DEVICE_ATTRIBUTE_*`). What the simulator cannot do is 0, as is what has no meaning here.
fn attribute(device: &Device, number: i32) -> i32 {
    match number {
        // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y, _Z, MAX_GRID_DIM_X, _Y, _Z
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // MAX_SHARED_MEMORY_PER_BLOCK, TOTAL_CONSTANT_MEMORY, WARP_SIZE, MAX_PITCH, MAX_REGISTERS_PER_BLOCK
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 => 65_536,
        // CLOCK_RATE (kHz), TEXTURE_ALIGNMENT, GPU_OVERLAP, MULTIPROCESSOR_COUNT, CAN_MAP_HOST_MEMORY
        13 => 1_500_000,
        14 => 512,
        15 => 1,
        16 => 108,
        19 => 1,
        // CONCURRENT_KERNELS, ECC_ENABLED, PCI_BUS_ID, TCC_DRIVER
        31 | 32 => 1,
        33 => i32::from(device.pci_bus()),
        35 => 0,
        // MEMORY_CLOCK_RATE (kHz), GLOBAL_MEMORY_BUS_WIDTH (bits), L2_CACHE_SIZE, MAX_THREADS_PER_MULTIPROCESSOR
        36 => 1_200_000,
        37 => 5_120,
        38 => 40 << 20,
        39 => 2_048,
        // ASYNC_ENGINE_COUNT, UNIFIED_ADDRESSING, TEXTURE_PITCH_ALIGNMENT
        40 => 2,
        41 => 1,
        51 => 32,
        // COMPUTE_CAPABILITY_MAJOR, _MINOR, STREAM_PRIORITIES_SUPPORTED
        75 => 8,
        76 => 0,
        78 => 1,
        // MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS, COMPUTE_PREEMPTION, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        83 | 89..=91 => 1,
        // CAN_USE_STREAM_MEM_OPS_V1, HOST_REGISTER_SUPPORTED, READ_ONLY_HOST_REGISTER_SUPPORTED
        92 | 99 | 113 => 1,
        // MEMORY_POOLS_SUPPORTED, GPU_DIRECT_RDMA_SUPPORTED, _FLUSH_WRITES_OPTIONS (host), _WRITES_ORDERING (all devices)
        115..=117 => 1,
        118 => 200,
        // NUMA_ID: the device is no NUMA node of its own. HOST_NUMA_ID is 0.
        131 => -1,
        _ => 0,
    }
}

api! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(driver()?.devices.len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device::by_ordinal(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, capacity: i32, device: i32) {
        name.set_text(device::by_ordinal(device)?.name(), capacity)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(device::by_ordinal(device)?.uuid())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(device::by_ordinal(device)?.uuid())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(device::by_ordinal(device)?.memory.size() as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
        let device = device::by_ordinal(device)?;
        if !(1..=LAST_ATTRIBUTE).contains(&number) {
            return Err(INVALID_VALUE);
        }
        value.set(attribute(device, number))
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let device = device::by_ordinal(device)?;
        major.set(attribute(device, 75))?;
        minor.set(attribute(device, 76))
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, capacity: i32, device: i32) {
        text.set_text(&device::by_ordinal(device)?.pci_bus_id(), capacity)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<c_char>) {
        let text = text.text()?;
        // Domain and function may be left out.
        let wanted = |device: &&Device| {
            let full = device.pci_bus_id();
            full.eq_ignore_ascii_case(&text)
                || full.strip_prefix("0000:").is_some_and(|short| short.eq_ignore_ascii_case(&text))
                || full.strip_suffix(".0").is_some_and(|short| short.eq_ignore_ascii_case(&text))
        };
        let found = driver()?.devices.iter().find(wanted).ok_or(INVALID_DEVICE)?;
        device.set(found.index as i32)
    }
}
