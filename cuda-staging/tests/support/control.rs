//! What a test asks of the simulator it runs on, by the symbols of the loaded library.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::ffi::{CString, c_char, c_int};
use std::thread;
use std::time::Duration;

use libloading::{Library, Symbol};

fn simulator() -> Library {
    // SAFETY: it is loaded already; this finds it.
    unsafe { Library::new("libcuda.so.1") }.unwrap()
}

fn call(name: &str) {
    let library = simulator();
    // SAFETY: the named control functions take nothing and return nothing.
    let function: Symbol<'_, unsafe extern "C" fn()> = unsafe { library.get(name) }.unwrap();
    // SAFETY: as above.
    unsafe { function() };
}

/// From now on no copy starts.
pub(crate) fn pause_copies() {
    call("cuda_sim_pause_copies");
}

/// The copies held back go on.
pub(crate) fn resume_copies() {
    call("cuda_sim_resume_copies");
}

/// The copies held back go on after `delay`, whatever this thread does meanwhile.
pub(crate) fn resume_copies_after(delay: Duration) {
    thread::spawn(move || {
        thread::sleep(delay);
        resume_copies();
    });
}

/// Replaces the faults in force; the form is that of `CUDA_SIM_FAULT`.
pub(crate) fn set_fault(faults: &str) {
    let library = simulator();
    // SAFETY: this is the function's signature.
    let function: Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> =
        unsafe { library.get("cuda_sim_set_fault") }.unwrap();
    let faults = CString::new(faults).unwrap();
    // SAFETY: the text is terminated and lives during the call.
    assert_eq!(unsafe { function(faults.as_ptr()) }, 0, "{faults:?}");
}
