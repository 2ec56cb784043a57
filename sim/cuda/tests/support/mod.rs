//! The simulated driver as tests see it: loaded like any program would load it, one process per test.
//!
//! Settings are read once per process, and faults, gates and broken contexts are the whole process's, so each test's
//! body runs in a child: the test executable again, with the settings in its environment.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::too_many_arguments, reason = "the driver's functions have many")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::env;
use std::ffi::{c_char, c_void};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Set in children, to the library.
const CHILD: &str = "CUDA_SIM_TEST_CHILD";

/// The simulated driver. Cargo builds no cdylib for a package's tests, so it is built here, in the tests' own profile and
/// folder; a child is told where it is.
pub(crate) fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let executable = env::current_exe().unwrap();
        let profile = executable.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "cuda-sim", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
        profile.join("libcuda_sim.so")
    };
    env::var_os(CHILD).map_or_else(|| BUILT.get_or_init(build).clone(), PathBuf::from)
}

/// Whether this process is the child that runs the test's body.
pub(crate) fn in_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// A command that runs the body of the test `name` in a child.
pub(crate) fn child(name: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, library());
    for (variable, _) in
        env::vars().filter(|(variable, _)| variable.starts_with("CUDA_SIM_") && variable != CHILD)
    {
        command.env_remove(variable);
    }
    command.envs(settings.iter().copied());
    command
}

/// Runs `body` in a child process with these settings.
pub(crate) fn isolated(name: &str, settings: &[(&str, &str)], body: impl FnOnce(&Driver)) {
    if in_child() {
        body(&Driver::load());
        return;
    }
    let (status, output) = run(&mut child(name, settings));
    assert!(status.success(), "the child of {name} ended with {status}:\n{output}");
}

/// Runs a child, at most a minute; how it ended and what it wrote.
pub(crate) fn run(command: &mut Command) -> (ExitStatus, String) {
    let mut output = tempfile::tempfile().unwrap();
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} did not end within a minute");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    (status, text)
}

/// The signal that ended the process.
pub(crate) fn signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The calls that tests use.
        pub(crate) struct Driver {
            pub(crate) library: libloading::Library,
        }

        impl Driver {$(
            pub(crate) fn $name(&self, $($argument: $type),*) -> $result {
                // SAFETY: the exported function of this name has this signature; the tests pass valid pointers.
                unsafe {
                    let function = self.library.get::<unsafe extern "C" fn($($type),*) -> $result>(stringify!($name));
                    (function.unwrap())($($argument),*)
                }
            }
        )*}
    };
}

driver! {
    cuInit(flags: u32) -> i32;
    cuDriverGetVersion(version: &mut i32) -> i32;
    cuGetErrorName(code: i32, name: &mut *const c_char) -> i32;
    cuGetErrorString(code: i32, text: &mut *const c_char) -> i32;
    cuGetProcAddress_v2(name: *const c_char, function: &mut *mut c_void, version: i32, flags: u64, status: &mut i32) -> i32;
    cuGetExportTable(table: &mut *const c_void, id: &[u8; 16]) -> i32;
    cuDeviceGet(device: &mut i32, ordinal: i32) -> i32;
    cuDeviceGetCount(count: &mut i32) -> i32;
    cuDeviceGetName(name: *mut u8, capacity: i32, device: i32) -> i32;
    cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: i32) -> i32;
    cuDeviceGetPCIBusId(text: *mut u8, capacity: i32, device: i32) -> i32;
    cuDeviceTotalMem_v2(bytes: &mut usize, device: i32) -> i32;
    cuDeviceGetAttribute(value: &mut i32, attribute: i32, device: i32) -> i32;
    cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32) -> i32;
    cuDevicePrimaryCtxRetain(context: &mut u64, device: i32) -> i32;
    cuDevicePrimaryCtxRelease_v2(device: i32) -> i32;
    cuDevicePrimaryCtxReset_v2(device: i32) -> i32;
    cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32) -> i32;
    cuCtxCreate_v2(context: &mut u64, flags: u32, device: i32) -> i32;
    cuCtxDestroy_v2(context: u64) -> i32;
    cuCtxGetCurrent(context: &mut u64) -> i32;
    cuCtxSetCurrent(context: u64) -> i32;
    cuCtxPushCurrent_v2(context: u64) -> i32;
    cuCtxPopCurrent_v2(context: &mut u64) -> i32;
    cuCtxGetDevice(device: &mut i32) -> i32;
    cuCtxSynchronize() -> i32;
    cuCtxEnablePeerAccess(peer: u64, flags: u32) -> i32;
    cuMemAlloc_v2(address: &mut u64, len: usize) -> i32;
    cuMemAllocManaged(address: &mut u64, len: usize, flags: u32) -> i32;
    cuMemFree_v2(address: u64) -> i32;
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize) -> i32;
    cuMemGetAddressRange_v2(base: &mut u64, len: &mut usize, address: u64) -> i32;
    cuMemHostAlloc(address: &mut u64, len: usize, flags: u32) -> i32;
    cuMemFreeHost(address: u64) -> i32;
    cuMemHostRegister_v2(address: u64, len: usize, flags: u32) -> i32;
    cuMemHostUnregister(address: u64) -> i32;
    cuMemHostGetDevicePointer_v2(device_address: &mut u64, address: u64, flags: u32) -> i32;
    cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: u64) -> i32;
    cuPointerGetAttributes(count: u32, attributes: *const i32, data: *const *mut c_void, address: u64) -> i32;
    cuMemcpy(to: u64, from: u64, len: usize) -> i32;
    cuMemcpyHtoD_v2(to: u64, from: u64, len: usize) -> i32;
    cuMemcpyDtoH_v2(to: u64, from: u64, len: usize) -> i32;
    cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> i32;
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> i32;
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> i32;
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> i32;
    cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, len: usize) -> i32;
    cuMemcpyBatchAsync_v2(
        to: *const u64, from: *const u64, lengths: *const usize, count: usize, attributes: *const [i32; 6],
        starts: *const usize, attribute_count: usize, stream: u64
    ) -> i32;
    cuMemsetD8_v2(address: u64, value: u8, count: usize) -> i32;
    cuMemsetD32Async(address: u64, value: u32, count: usize, stream: u64) -> i32;
    cuMemAllocAsync(address: &mut u64, len: usize, stream: u64) -> i32;
    cuMemFreeAsync(address: u64, stream: u64) -> i32;
    cuIpcGetMemHandle(handle: &mut [u8; 64], address: u64) -> i32;
    cuIpcOpenMemHandle_v2(address: &mut u64, handle: [u64; 8], flags: u32) -> i32;
    cuIpcCloseMemHandle(address: u64) -> i32;
    cuStreamCreate(stream: &mut u64, flags: u32) -> i32;
    cuStreamDestroy_v2(stream: u64) -> i32;
    cuStreamSynchronize(stream: u64) -> i32;
    cuStreamQuery(stream: u64) -> i32;
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32) -> i32;
    cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) -> i32;
    cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) -> i32;
    cuStreamBeginCapture_v2(stream: u64, mode: i32) -> i32;
    cuStreamEndCapture(stream: u64, graph: &mut u64) -> i32;
    cuStreamIsCapturing(stream: u64, status: &mut i32) -> i32;
    cuThreadExchangeStreamCaptureMode(mode: &mut i32) -> i32;
    cuLaunchHostFunc(stream: u64, function: extern "C" fn(*mut c_void), argument: *mut c_void) -> i32;
    cuEventCreate(event: &mut u64, flags: u32) -> i32;
    cuEventDestroy_v2(event: u64) -> i32;
    cuEventRecord(event: u64, stream: u64) -> i32;
    cuEventQuery(event: u64) -> i32;
    cuEventSynchronize(event: u64) -> i32;
    cuEventElapsedTime(milliseconds: &mut f32, start: u64, end: u64) -> i32;
    cuda_sim_version() -> i32;
    cuda_sim_report(buffer: *mut u8, capacity: usize) -> usize;
    cuda_sim_set_fault(faults: *const c_char) -> i32;
    cuda_sim_reset_counters() -> ();
    cuda_sim_pause_copies() -> ();
    cuda_sim_resume_copies() -> ();
    cuda_sim_device_memory(address: u64, len: usize) -> *mut u8;
    cuda_sim_write_device_memory(to: u64, from: u64, len: usize) -> i32;
    cuda_sim_read_device_memory(to: u64, from: u64, len: usize) -> i32;
    cuda_sim_bar1(device: i32, size: &mut usize, used: &mut usize) -> i32;
    cuda_sim_reserve_bar1(device: i32, bytes: usize) -> i32;
    cuda_sim_release_bar1(device: i32, bytes: usize) -> i32;
}

impl Driver {
    pub(crate) fn load() -> Self {
        // SAFETY: the library's initialisers only store pointers.
        let library = unsafe { libloading::Library::new(library()) };
        Self { library: library.unwrap() }
    }

    /// Starts the driver, with the primary context of device 0 current. Returns the context.
    pub(crate) fn start(&self) -> u64 {
        assert_eq!(self.cuInit(0), 0);
        let mut context = 0;
        assert_eq!(self.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(self.cuCtxSetCurrent(context), 0);
        context
    }

    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let mut address = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut address, len), 0);
        address
    }

    /// A stream that is not ordered with the legacy default stream.
    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    pub(crate) fn event(&self) -> u64 {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, 0), 0);
        event
    }

    /// Pinned host memory of the driver's.
    pub(crate) fn pinned(&self, len: usize) -> &'static mut [u8] {
        let mut address = 0;
        assert_eq!(self.cuMemHostAlloc(&mut address, len, 0), 0);
        // SAFETY: fresh memory that the tests never free while they use it.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
    }

    /// What is in device memory.
    pub(crate) fn read_back(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.cuMemcpyDtoH_v2(at(&bytes), address, len), 0);
        std::hint::black_box(&mut bytes);
        bytes
    }

    pub(crate) fn set_fault(&self, faults: &str) -> i32 {
        let faults = std::ffi::CString::new(faults).unwrap();
        self.cuda_sim_set_fault(faults.as_ptr())
    }

    pub(crate) fn report(&self) -> serde_json::Value {
        let mut buffer = vec![0; self.cuda_sim_report(std::ptr::null_mut(), 0) + 256];
        let needed = self.cuda_sim_report(buffer.as_mut_ptr(), buffer.len());
        buffer.truncate(needed - 1);
        serde_json::from_slice(&buffer).unwrap()
    }
}

/// The address of the first byte.
pub(crate) fn at(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}

/// Bytes of which each place has its own.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}
