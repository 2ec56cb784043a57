//! What the tests of the cuFile API share: children on NVIDIA's library and on the simulated one, files whose every byte
//! tells where it belongs, and looks at device memory behind everybody's back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed preparation is a failed test"
)]
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use cuda_staging::{Device, RegionMut};
use gds_loader::cufile::{Driver, Mode, RegisteredBuffer};
use tempfile::TempDir;
use test_support::{Outcome, Simulation, control, process};

/// Runs `body` in a child on NVIDIA's libcufile 1.20 and the simulated driver. It must end well and leave nothing.
#[track_caller]
pub(crate) fn on_nvidia(test: &str, body: impl FnOnce()) {
    if let Some(simulation) = nvidia(test)
        && let Some(outcome) = simulation.run(body)
    {
        outcome.assert_well();
    }
}

/// A child on NVIDIA's libcufile 1.20; `None` where it has not been fetched.
pub(crate) fn nvidia(test: &str) -> Option<Simulation> {
    let library = test_support::cufile(test, "1.20")?.join("lib/libcufile.so.0");
    let simulation = Simulation::new(test).setting("CUFILE_LOGFILE_PATH", "/dev/null");
    Some(simulation.setting("GDS_CUFILE_LIBRARY", library))
}

/// Runs `body` in a child on the simulated libcufile with these settings. It must end well and leave nothing.
#[track_caller]
pub(crate) fn on_sim(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if let Some(outcome) = sim(test, settings).run(body) {
        outcome.assert_well();
    }
}

/// Runs `body` in a child on the simulated libcufile, which must end well; what it leaves is for the caller to judge.
#[track_caller]
pub(crate) fn on_sim_leaving(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Outcome> {
    let outcome = sim(test, settings).leaving().run(body)?;
    assert!(outcome.finished, "{outcome}");
    Some(outcome)
}

fn sim(test: &str, settings: &[(&str, &str)]) -> Simulation {
    let simulation = Simulation::new(test).setting("GDS_CUFILE_LIBRARY", sim_library());
    simulation.settings(settings)
}

/// The simulated libcufile: the file `GDS_SIM_CUFILE` names, or what `cargo xtask sim` builds.
fn sim_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(library) = std::env::var_os("GDS_SIM_CUFILE") {
            return library.into();
        }
        if test_support::simulator::is_child() {
            return std::env::var_os("GDS_CUFILE_LIBRARY").expect("the child's library").into();
        }
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let arguments = ["xtask", "sim", "--cufile", "sim", "--print-env"];
        cargo.current_dir(test_support::workspace()).args(arguments);
        let printed = process::run(&mut cargo, Duration::from_secs(600)).success().stdout;
        let line = printed.lines().find_map(|line| line.strip_prefix("GDS_CUFILE_LIBRARY="));
        line.expect("the simulated libcufile").into()
    })
}

/// The simulated libcufile in this process, which has it loaded.
fn sim_symbol<F: Copy>(name: &CStr) -> F {
    let path = CString::new(sim_library().to_str().unwrap()).unwrap();
    // SAFETY: C strings both; the library is loaded already and stays so.
    let address = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!address.is_null(), "{name:?}");
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: a function pointer, of the type that the caller knows this symbol to have.
    unsafe { std::mem::transmute_copy(&address) }
}

/// From now on the simulated libcufile starts no transfer.
pub(crate) fn pause_transfers() {
    sim_symbol::<extern "C" fn()>(c"cufile_sim_pause_transfers")();
}

/// Those held back go on.
pub(crate) fn resume_transfers() {
    sim_symbol::<extern "C" fn()>(c"cufile_sim_resume_transfers")();
}

/// Replaces the script of faults.
pub(crate) fn set_script(script: &str) {
    let text = CString::new(script).unwrap();
    let set = sim_symbol::<extern "C" fn(*const c_char) -> c_int>(c"cufile_sim_set_script");
    assert_eq!(set(text.as_ptr()), 0, "{script}");
}

/// `len` bytes of which every four tell their place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(4) as u32).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes());
    words.take(len).collect()
}

/// A file of a test's own, on tmpfs where there is one, with its bytes.
pub(crate) struct Sample {
    pub(crate) bytes: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) folder: TempDir,
}

impl Sample {
    pub(crate) fn of(test: &str, len: usize) -> Self {
        let folder =
            test_support::folder::in_memory(test).unwrap_or_else(|| test_support::folder::on_disk(test));
        let (bytes, path) = (pattern(len), folder.path().join("sample"));
        std::fs::write(&path, &bytes).unwrap();
        Self { bytes, path, folder }
    }
}

/// cuFile in compatibility mode.
pub(crate) fn compat() -> Driver {
    Driver::open(Mode::Compat).unwrap()
}

/// Memory of the first simulated GPU, filled with a byte that no pattern is full of.
pub(crate) fn device_memory(len: u64) -> RegionMut {
    let region = Device::cuda(0).unwrap().allocate(len, 4096).unwrap();
    control::write_device_memory(region.address(), &vec![0xA5; len as usize]);
    region
}

/// Such memory, registered.
pub(crate) fn registered(driver: &Driver, len: u64) -> RegisteredBuffer {
    RegisteredBuffer::register(driver, device_memory(len)).unwrap()
}

/// What is in memory of the simulated GPU.
pub(crate) fn look(address: u64, len: u64) -> Vec<u8> {
    control::read_device_memory(address, len as usize)
}
