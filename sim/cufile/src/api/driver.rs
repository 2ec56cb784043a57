//! The driver: opening, closing, properties, setters, version, topology.

use std::ffi::{c_char, c_long, c_uint};

use cufile_sys::{
    CU_FILE_BATCH_IO_SUPPORTED, CU_FILE_DYN_ROUTING_SUPPORTED, CU_FILE_INVALID_VALUE,
    CU_FILE_MAX_TARGET_TYPES, CU_FILE_NVME_SUPPORTED, CU_FILE_PARALLEL_IO_SUPPORTED,
    CU_FILE_STREAMS_SUPPORTED, CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, CUfileDrvProps, CUfileDrvProps_nvfs,
};

use crate::call::{Call, api};
use crate::cuda;
use crate::error::Result;
use crate::ffi::{In, Out};
use crate::process::{settings, valid_settings};
use crate::settings::Mode;
use crate::state::{State, compat_allowed, state};

/// The step of direct I/O sizes, in KiB.
const DIRECT_STEP: usize = 64;

/// As in nvidia-fs 2.28.
const NVFS: (c_uint, c_uint) = (2, 28);

/// Bits of `dcontrolflags`.
const POLL: c_uint = 1;
const ALLOW_COMPAT: c_uint = 1 << 1;

fn properties(state: &State) -> Result<CUfileDrvProps> {
    let parameters = &state.parameters;
    let opened = state.driver.opened;
    let size =
        |index: u32, before: usize| parameters.size(index).map(|kib| if kib == 0 { before } else { kib });
    let narrow = |kib: usize| kib as c_uint;
    let forced = opened.is_some_and(|opened| opened.forced);
    let looks_real = settings().as_ref().is_ok_and(|settings| settings.mode != Mode::Compat) && !forced;
    let (major_version, minor_version) = if looks_real && opened.is_some() { NVFS } else { (0, 0) };
    let features = [
        CU_FILE_DYN_ROUTING_SUPPORTED,
        CU_FILE_BATCH_IO_SUPPORTED,
        CU_FILE_STREAMS_SUPPORTED,
        CU_FILE_PARALLEL_IO_SUPPORTED,
    ];
    let poll = if parameters.flag(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE.0) == Some(true) { POLL } else { 0 };
    let compat = if opened.is_none() || compat_allowed(state) { ALLOW_COMPAT } else { 0 };
    Ok(CUfileDrvProps {
        nvfs: CUfileDrvProps_nvfs {
            major_version,
            minor_version,
            poll_thresh_size: size(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB.0, 4)?,
            max_direct_io_size: size(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB.0, 16384)?,
            dstatusflags: if major_version > 0 { 1 << CU_FILE_NVME_SUPPORTED.0 } else { 0 },
            dcontrolflags: if forced { 0 } else { poll | compat },
        },
        fflags: match opened {
            Some(opened) if !opened.forced => {
                features.iter().fold(0, |flags, feature| flags | 1 << feature.0)
            }
            _ => 0,
        },
        max_device_cache_size: narrow(size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB.0, 131_072)?),
        per_buffer_cache_size: narrow(size(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB.0, 0)?),
        max_device_pinned_mem_size: narrow(size(
            CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB.0,
            usize::MAX - 3,
        )?),
        max_batch_io_size: narrow(parameters.batch_size()),
        max_batch_io_timeout_msecs: narrow(parameters.batch_timeout().max(5)),
    })
}

/// Sets a size before opening; afterwards that succeeds and changes nothing.
fn set_before_open(index: u32, value: usize) -> Result {
    let mut state = state();
    if state.driver.opened.is_some() {
        return Ok(());
    }
    state.set_size(index, value)
}

api! {
    fn cuFileDriverOpen() {
        state().open()
    }

    fn cuFileDriverClose() {
        state().close()
    }

    fn cuFileDriverClose_v2() {
        state().close()
    }

    fn cuFileDriverGetProperties(properties: Out<CUfileDrvProps>) {
        properties.set(self::properties(&state())?)
    }

    /// The threshold is in KiB.
    fn cuFileDriverSetPollMode(poll: bool, threshold: usize) {
        state().parameters.set_poll(poll);
        set_before_open(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB.0, threshold)
    }

    /// In KiB, a multiple of 64.
    fn cuFileDriverSetMaxDirectIOSize(size: usize) {
        if size == 0 || !size.is_multiple_of(DIRECT_STEP) {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        set_before_open(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB.0, size)
    }

    /// In KiB.
    fn cuFileDriverSetMaxCacheSize(size: usize) {
        set_before_open(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB.0, size)
    }

    /// In KiB.
    fn cuFileDriverSetMaxPinnedMemSize(size: usize) {
        set_before_open(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB.0, size)
    }

    fn cuFileGetVersion(version: Out<i32>) {
        version.set(valid_settings()?.version_number())
    }

    fn cuFileGetBARSizeInKB(device: i32, kib: Out<usize>) {
        kib.check()?;
        let driver = cuda::driver().ok_or(CU_FILE_INVALID_VALUE)?;
        let device = u32::try_from(device).ok().filter(|&device| device < driver.devices());
        kib.set(driver.bar1(device.ok_or(CU_FILE_INVALID_VALUE)?)? >> 10)
    }

    /// No way of peer-to-peer DMA but nvidia-fs is simulated: the flags of every known target are 0.
    fn cuFileDriverGetP2PFlags(target: u32, flags: Out<u32>) {
        if target >= CU_FILE_MAX_TARGET_TYPES.0 {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        flags.set(0)
    }

    /// Refused, as NVIDIA's does where P2PDMA is not to be had.
    fn cuFileDriverSetP2PFlags(_target: u32, _flags: u32) {
        Err(CU_FILE_INVALID_VALUE.into())
    }

    /// One line per device.
    fn cuFileExportPCIeTopology(path: In<c_char>) {
        let path = path.text()?;
        let devices = cuda::driver().map_or(0, cuda::Cuda::devices);
        let mut text = String::from("// Topology of the simulated devices.\n{\n");
        for device in 0..devices {
            let comma = if device + 1 < devices { "," } else { "" };
            text += &format!("\t\"gpu{device}\" : {{ \"type\" : \"GPU\", \"numa_node\" : 0 }}{comma}\n");
        }
        text += "}\n";
        std::fs::write(&path, text).map_err(|_| CU_FILE_INVALID_VALUE.into())
    }
}

/// Opens that were not closed again.
#[unsafe(no_mangle)]
extern "C" fn cuFileUseCount() -> c_long {
    static CALL: Call = Call::new("cuFileUseCount");
    CALL.infallible(0, || state().driver.uses.cast_signed())
}
