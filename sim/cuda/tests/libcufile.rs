//! NVIDIA's libcufile opens in compatibility mode on the simulated driver and reads a file into device memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::env;
use std::ffi::{c_int, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use support::{Driver, child, in_child, library, pattern, run};

/// Tells the child which library to load.
const CUFILE: &str = "LIBCUFILE_OF_THE_TEST";

/// `CUfileError_t`.
#[repr(C)]
struct CuFileError {
    cufile: c_int,
    cuda: c_int,
}

/// `CUfileDescr_t` with a file descriptor (type 1).
#[repr(C)]
struct Description {
    kind: c_int,
    descriptor: *mut c_void,
    operations: *const c_void,
}

/// NVIDIA's library of that version, where it was fetched: `cargo xtask cufile`.
fn fetched(version: &str) -> Option<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let folder = env::var_os("GDS_CUFILE_DIR").map_or_else(|| target.join("cufile"), PathBuf::from);
    let library = folder.join(version).join("lib/libcufile.so.0");
    library.is_file().then_some(library)
}

fn is_ext4(folder: &Path) -> bool {
    let folder = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: an all-zero statfs is a valid value of that C struct; the path is terminated.
    unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        libc::statfs(folder.as_ptr(), &mut facts) == 0 && facts.f_type == libc::EXT4_SUPER_MAGIC
    }
}

/// Counts the test as one that could not run, or fails where it must.
fn not_run(test: &str, reason: &str) {
    let required = env::var("GDS_REQUIRE_CUFILE").is_ok_and(|value| value == "1");
    assert!(!required, "{test}: {reason}");
    println!("{test} could not run: {reason}");
    if let Some(path) = env::var_os("GDS_TESTS_NOT_RUN") {
        let mut list = OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(list, "{test}: {reason}").unwrap();
    }
}

/// Reads the file at `path` into device memory with the library that the environment names.
fn read_into_device_memory(path: &Path, expected: &[u8]) {
    let driver = Driver::load();
    driver.start();
    let device = driver.allocate(expected.len());
    let file = File::open(path).unwrap();
    // SAFETY: NVIDIA's library, loaded as programs load it; the functions have these signatures (cufile.h), and the
    // pointers are valid during the calls.
    unsafe {
        let cufile = libloading::Library::new(env::var_os(CUFILE).unwrap()).unwrap();
        let open = cufile.get::<extern "C" fn() -> CuFileError>("cuFileDriverOpen").unwrap();
        let close = cufile.get::<extern "C" fn() -> CuFileError>("cuFileDriverClose_v2").unwrap();
        type Register = extern "C" fn(*mut *mut c_void, *mut Description) -> CuFileError;
        let register = cufile.get::<Register>("cuFileHandleRegister").unwrap();
        let deregister = cufile.get::<extern "C" fn(*mut c_void)>("cuFileHandleDeregister").unwrap();
        type Read = extern "C" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize;
        let read = cufile.get::<Read>("cuFileRead").unwrap();

        let opened = open();
        assert_eq!((opened.cufile, opened.cuda), (0, 0));
        let descriptor = file.as_raw_fd() as usize as *mut c_void;
        let mut description = Description { kind: 1, descriptor, operations: std::ptr::null() };
        let mut handle = std::ptr::null_mut();
        assert_eq!(register(&mut handle, &mut description).cufile, 0);
        assert_eq!(read(handle, device as *mut c_void, expected.len(), 0, 0), expected.len() as isize);
        assert!(driver.read_back(device, expected.len()) == expected);
        deregister(handle);
        assert_eq!(close().cufile, 0);
        // Unloading it is not something programs should do.
        std::mem::forget(cufile);
    }
    let report = driver.report();
    let of_nvidia = report["alive"]
        .as_array()
        .unwrap()
        .iter()
        .find(|account| account["library"].as_str().unwrap().ends_with("libcufile.so.0"));
    assert!(of_nvidia.is_some_and(|account| account["retains"]["count"].as_u64() > Some(0)), "{report}");
}

fn reads_a_file(test: &str, version: &str) {
    let bytes = pattern(3_000_001);
    if in_child() {
        return read_into_device_memory(Path::new(&env::var_os("FILE_OF_THE_TEST").unwrap()), &bytes);
    }
    let Some(cufile) = fetched(version) else {
        return not_run(
            test,
            &format!("NVIDIA's libcufile {version} is not there; `cargo xtask cufile` fetches it"),
        );
    };
    // The record that the simulator serves is that of an ext4 disk; 1.20 takes tmpfs too, 1.14 does not.
    let folder = match (is_ext4(Path::new(env!("CARGO_MANIFEST_DIR"))), version) {
        (true, _) => tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(),
        (false, "1.20") => tempfile::tempdir_in("/dev/shm").unwrap(),
        (false, _) => {
            return not_run(test, "it needs a file on ext4, and the checkout is on another file system");
        }
    };
    let path = folder.path().join("file");
    fs::write(&path, &bytes).unwrap();
    let settings = [("CUFILE_FORCE_COMPAT_MODE", "true"), ("CUFILE_LOGFILE_PATH", "/dev/null")];
    let mut child = child(test, &settings);
    child.env("LD_PRELOAD", library()).env(CUFILE, cufile).env("FILE_OF_THE_TEST", path);
    let (status, output) = run(&mut child);
    assert!(status.success(), "{output}");
}

#[test]
fn libcufile_1_20_reads_a_file_into_device_memory() {
    reads_a_file("libcufile_1_20_reads_a_file_into_device_memory", "1.20");
}

#[test]
fn libcufile_1_14_reads_a_file_into_device_memory() {
    reads_a_file("libcufile_1_14_reads_a_file_into_device_memory", "1.14");
}
