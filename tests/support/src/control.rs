//! What the simulator does on a test's word, from within a child that runs on it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::report::Report;

/// The address of an exported symbol of the preloaded simulator.
///
/// # Panics
/// Where the simulator is not loaded.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string; RTLD_DEFAULT looks through what is loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?}: this process does not run on the simulator");
    address
}

fn call(name: &CStr) {
    // SAFETY: the simulator's functions of this form take and return nothing.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(name)) };
    function();
}

/// From now on no copy starts; calls that wait for one wait.
pub fn pause_copies() {
    call(c"cuda_sim_pause_copies");
}

/// The copies held back go on.
pub fn resume_copies() {
    call(c"cuda_sim_resume_copies");
}

/// Counts of calls, faults and copies begin again.
pub fn reset_counters() {
    call(c"cuda_sim_reset_counters");
}

/// Replaces the faults in force by `faults`, in the form of `CUDA_SIM_FAULT`; their counts begin now.
pub fn set_fault(faults: &str) {
    let text = CString::new(faults).expect("faults without a zero byte");
    // SAFETY: the function takes a C string and returns a status.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_int>(symbol(
            c"cuda_sim_set_fault",
        ))
    };
    assert_eq!(function(text.as_ptr()), 0, "{faults} is no fault");
}

/// The report as of now.
pub fn report() -> Report {
    // SAFETY: the function takes a buffer and its capacity, and returns the bytes it needs.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_char, usize) -> usize>(symbol(
            c"cuda_sim_report",
        ))
    };
    // Room for what other threads add between the two calls.
    let mut bytes = vec![0_u8; function(std::ptr::null_mut(), 0) + 4096];
    function(bytes.as_mut_ptr().cast(), bytes.len());
    Report::parse(&CStr::from_bytes_until_nul(&bytes).expect("a terminated report").to_string_lossy())
}

/// Writes device memory behind the driver's back, as DMA does, unordered with every stream.
pub fn write_device_memory(address: u64, bytes: &[u8]) {
    type Write = extern "C" fn(u64, *const c_void, usize) -> c_int;
    // SAFETY: the function has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Write>(symbol(c"cuda_sim_write_device_memory")) };
    assert_eq!(function(address, bytes.as_ptr().cast(), bytes.len()), 0, "no memory at {address:#x}");
}

/// Reads device memory behind the driver's back, unordered with every stream.
pub fn read_device_memory(address: u64, len: usize) -> Vec<u8> {
    type Read = extern "C" fn(*mut c_void, u64, usize) -> c_int;
    // SAFETY: the function has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Read>(symbol(c"cuda_sim_read_device_memory")) };
    let mut bytes = vec![0; len];
    assert_eq!(function(bytes.as_mut_ptr().cast(), address, len), 0, "no memory at {address:#x}");
    bytes
}
