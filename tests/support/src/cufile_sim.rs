//! The simulated libcufile: tests on it, and what it does on a test's word.
//!
//! `sim/cufile/README.md` has its settings and the grammar of its scripts.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde::Deserialize;

use crate::process;
use crate::simulator::{Outcome, Simulation, is_child};

/// Names the library to those that load it.
const LIBRARY: &str = "GDS_CUFILE_LIBRARY";

/// The library's file. `cargo xtask test` names it in `GDS_SIM_CUFILE`; a test run without it asks
/// `cargo xtask sim --cufile sim --print-env`.
pub fn library() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let given = std::env::var_os(if is_child() { LIBRARY } else { "GDS_SIM_CUFILE" });
        given.map_or_else(ask_xtask, PathBuf::from)
    })
}

fn ask_xtask() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::workspace()).args(["xtask", "sim", "--cufile", "sim", "--print-env"]);
    let output = process::run(&mut cargo, Duration::from_secs(600)).success().stdout;
    let named = output.lines().find_map(|line| line.strip_prefix(LIBRARY)?.strip_prefix('='));
    named.unwrap_or_else(|| panic!("no {LIBRARY} in\n{output}")).into()
}

/// As [`crate::on_simulator`], with the simulated libcufile named in `GDS_CUFILE_LIBRARY`.
///
/// # Panics
/// Where the child fails, hangs or leaves something of ours alive.
#[track_caller]
pub fn on_simulator(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Outcome> {
    let outcome = simulation(test).settings(settings).run(body)?;
    outcome.assert_well();
    Some(outcome)
}

/// The same where how it ends is for the caller to judge.
pub fn simulation(test: &str) -> Simulation {
    // A child neither needs nor knows more than its environment says.
    if is_child() { Simulation::new(test) } else { Simulation::new(test).setting(LIBRARY, library()) }
}

/// What one process did with the library.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// Uses of each exported function.
    pub calls: BTreeMap<String, u64>,
    /// The script's faults.
    pub faults: Vec<Fault>,
    /// Bytes moved.
    pub transfers: Transfers,
    /// The most bytes of device memory that were registered at once.
    pub peak_registered_device_bytes: u64,
    /// What there is still.
    pub alive: Alive,
    /// Opens that were not closed.
    pub use_count: u64,
}

/// One fault.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// As the script has it.
    pub fault: String,
    /// How often it hit.
    pub fired: u64,
}

/// The transfers of every kind.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Transfers {
    /// Reads that began.
    pub reads: u64,
    /// Bytes they moved.
    pub read_bytes: u64,
    /// Writes that began.
    pub writes: u64,
    /// Bytes they moved.
    pub write_bytes: u64,
    /// How many of both failed.
    pub failed: u64,
    /// Bytes that went straight between file and device.
    pub straight_bytes: u64,
    /// Bytes that went through the host.
    pub bounced_bytes: u64,
    /// How many were of memory that is not registered.
    pub unregistered: u64,
}

/// What was made and is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Alive {
    /// Registered files.
    pub handles: u64,
    /// Registered buffers.
    pub buffers: u64,
    /// Their bytes.
    pub registered_bytes: u64,
    /// Those of device memory.
    pub registered_device_bytes: u64,
    /// Batches.
    pub batches: u64,
    /// Their entries that are neither finished nor cancelled.
    pub batch_entries_in_flight: u64,
    /// Registered streams.
    pub streams: u64,
}

impl Report {
    /// Reads a report's text.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("cufile-sim's report: {error}\n{text}"))
    }
}

/// The address of a control symbol of the library, which is loaded if it was not.
fn symbol(name: &CStr) -> *mut c_void {
    let file = CString::new(library().as_os_str().as_encoded_bytes()).expect("a path without a zero byte");
    // SAFETY: the path is a C string; the library's initialisers do no harm. It stays loaded, as nobody closes it.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{file:?} could not be loaded");
    // SAFETY: the handle is open; `name` is a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?}: {file:?} is not the simulated libcufile");
    address
}

fn call(name: &CStr) {
    // SAFETY: the library's functions of this form take and return nothing.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(name)) };
    function();
}

/// From now on no transfer starts; calls that wait for one wait.
pub fn pause_transfers() {
    call(c"cufile_sim_pause_transfers");
}

/// The transfers held back go on.
pub fn resume_transfers() {
    call(c"cufile_sim_resume_transfers");
}

/// Uses of calls and faults count from 0 again.
pub fn reset_counters() {
    call(c"cufile_sim_reset_counters");
}

/// Replaces the faults in force by those of `script`, in the form of `CUFILE_SIM_SCRIPT`; their counts begin now.
pub fn set_script(script: &str) {
    let text = CString::new(script).expect("a script without a zero byte");
    type SetScript = extern "C" fn(*const c_char) -> c_int;
    // SAFETY: the function takes a C string and returns a status.
    let function = unsafe { std::mem::transmute::<*mut c_void, SetScript>(symbol(c"cufile_sim_set_script")) };
    assert_eq!(function(text.as_ptr()), 0, "{script} is no script");
}

/// The report as of now.
pub fn report() -> Report {
    type Write = extern "C" fn(*mut c_char, usize) -> usize;
    // SAFETY: the function takes a buffer and its capacity, and returns the bytes it needs.
    let function = unsafe { std::mem::transmute::<*mut c_void, Write>(symbol(c"cufile_sim_report")) };
    // Room for what other threads add between the two calls.
    let mut bytes = vec![0_u8; function(std::ptr::null_mut(), 0) + 4096];
    function(bytes.as_mut_ptr().cast(), bytes.len());
    Report::parse(&CStr::from_bytes_until_nul(&bytes).expect("a terminated report").to_string_lossy())
}
