//! Preloaded, the library serves the files that libcufile misses, and leaves all others alone.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use support::{child, in_child, library, run};

/// Runs the test's body in a child that has the library preloaded.
fn preloaded(name: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if in_child() {
        body();
        return;
    }
    let (status, output) = run(child(name, settings).env("LD_PRELOAD", library()));
    assert!(status.success(), "{output}");
}

/// `/proc/modules` in the child, whether or not this machine has one.
#[test]
fn proc_modules_can_be_read() {
    preloaded("proc_modules_can_be_read", &[], || {
        let modules = fs::read_to_string("/proc/modules").unwrap();
        assert!(modules.lines().all(|line| line.split(' ').count() >= 6), "{modules}");
        // SAFETY: both strings are terminated; the stream is closed once.
        unsafe {
            let stream = libc::fopen(c"/proc/modules".as_ptr(), c"r".as_ptr());
            assert!(!stream.is_null());
            assert_eq!(libc::access(c"/proc/modules".as_ptr(), libc::R_OK), 0);
            libc::fclose(stream);
        }
        let error = fs::OpenOptions::new().write(true).create(true).truncate(true).open("/proc/modules");
        if !Path::new("/proc/self/../modules").exists() {
            assert!(error.is_err(), "only reading is served");
        }
    });
}

#[test]
fn serving_can_be_turned_off() {
    let off = [("CUDA_SIM_PROC_MODULES", "0"), ("CUDA_SIM_UDEV", "0")];
    preloaded("serving_can_be_turned_off", &off, || {
        // The long way round is served to nobody, so it tells what is really there.
        assert_eq!(fs::read("/proc/modules").is_ok(), fs::read("/proc/self/../modules").is_ok());
    });
}

#[test]
fn the_udev_record_of_a_disk_can_be_read_and_that_of_no_disk_cannot() {
    preloaded("the_udev_record_of_a_disk_can_be_read_and_that_of_no_disk_cannot", &[], || {
        let device = fs::metadata("/").unwrap().st_dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        if Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists() {
            let record = fs::read_to_string(format!("/run/udev/data/b{major}:{minor}")).unwrap();
            assert!(record.contains("E:ID_FS_USAGE=filesystem"), "{record}");
        }
        for path in
            ["/run/udev/data/b0:99999", "/run/udev/data/b", "/run/udev/data/b1:1/../x", "/nowhere/at all"]
        {
            assert_eq!(fs::read(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        }
    });
}

#[test]
fn other_files_are_opened_as_ever() {
    preloaded("other_files_are_opened_as_ever", &[], || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // The third argument of open is handed on.
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = fs::OpenOptions::new().write(true).create_new(true).open(&path).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(folder.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(fs::File::open(folder.path()).is_ok());
        // SAFETY: a terminated string.
        let refused = unsafe { libc::access(c"/nowhere".as_ptr(), libc::F_OK) };
        assert_eq!((refused, Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    });
}
