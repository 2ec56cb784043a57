//! The driver's life, devices, contexts, entry points and error names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use support::{child, in_child, isolated, run};

#[test]
fn nothing_works_before_the_driver_is_initialised() {
    isolated("nothing_works_before_the_driver_is_initialised", &[], |driver| {
        let mut count = 0;
        assert_eq!(driver.cuDeviceGetCount(&mut count), 3);
        assert_eq!(driver.cuMemFree_v2(0), 3);
        assert_eq!(driver.cuDriverGetVersion(&mut count), 0);
        assert_eq!(driver.cuInit(1), 1);
        assert_eq!(driver.cuInit(0), 0);
        assert_eq!(driver.cuDeviceGetCount(&mut count), 0);
        assert_eq!(count, 1);
    });
}

#[test]
fn a_machine_without_devices() {
    isolated("a_machine_without_devices", &[("CUDA_SIM_DEVICES", "0")], |driver| {
        assert_eq!(driver.cuInit(0), 100);
    });
}

#[test]
fn devices_are_told_apart() {
    isolated("devices_are_told_apart", &[("CUDA_SIM_DEVICES", "3")], |driver| {
        driver.start();
        let mut seen = std::collections::BTreeSet::new();
        for device in 0..3 {
            let (mut uuid, mut bus, mut name) = ([0; 16], [0u8; 16], [1u8; 8]);
            assert_eq!(driver.cuDeviceGetUuid_v2(&mut uuid, device), 0);
            assert_eq!(driver.cuDeviceGetPCIBusId(bus.as_mut_ptr(), 16, device), 0);
            assert_eq!(driver.cuDeviceGetName(name.as_mut_ptr(), 8, device), 0);
            assert_eq!(&name, b"Simulat\0");
            let bus = CStr::from_bytes_until_nul(&bus).unwrap().to_str().unwrap().to_owned();
            let mut number = 0;
            assert_eq!(driver.cuDeviceGetAttribute(&mut number, 33, device), 0);
            assert_eq!(bus, format!("0000:{number:02X}:00.0"));
            seen.insert((uuid, bus));
        }
        assert_eq!(seen.len(), 3);
        let mut value = 0;
        assert_eq!(driver.cuDeviceGet(&mut value, 3), 101);
        assert_eq!(driver.cuDeviceGet(&mut value, -1), 101);
        assert_eq!(driver.cuDeviceGetAttribute(&mut value, 0, 0), 1);
        assert_eq!(driver.cuDeviceGetAttribute(&mut value, 41, 0), 0);
        assert_eq!(value, 1, "unified addressing");
        assert_eq!(driver.cuDeviceCanAccessPeer(&mut value, 0, 1), 0);
        assert_eq!(value, 1);
    });
}

#[test]
fn a_primary_context_lives_while_it_is_retained() {
    isolated("a_primary_context_lives_while_it_is_retained", &[], |driver| {
        assert_eq!(driver.cuInit(0), 0);
        let mut address = 0;
        assert_eq!(driver.cuMemAlloc_v2(&mut address, 10), 201, "no context");
        assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 201);
        let context = driver.start();
        let mut again = 0;
        assert_eq!(driver.cuDevicePrimaryCtxRetain(&mut again, 0), 0);
        assert_eq!(again, context);
        let (address, stream, event) = (driver.allocate(10), driver.stream(), driver.event());
        let (mut flags, mut active) = (0, 0);
        assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
        assert_eq!(driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), 0);
        assert_eq!(active, 1);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);

        assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
        assert_eq!(driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), 0);
        assert_eq!(active, 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 400);
        assert_eq!(driver.cuEventQuery(event), 400);
        assert_eq!(driver.cuMemFree_v2(address), 1);
        assert_eq!(driver.cuCtxSynchronize(), 709);
        assert_eq!(driver.cuCtxSetCurrent(context), 201);
        let report = driver.report();
        assert_eq!(report["dropped_with_context"][0]["allocations"]["count"], 1);
        assert_eq!(report["dropped_with_context"][0]["streams"]["count"], 1);
        assert_eq!(report["alive"], serde_json::json!([]));

        driver.start();
        driver.allocate(10);
    });
}

#[test]
fn contexts_are_stacked_per_thread() {
    isolated("contexts_are_stacked_per_thread", &[("CUDA_SIM_DEVICES", "2")], |driver| {
        assert_eq!(driver.cuInit(0), 0);
        let (mut one, mut two, mut current, mut device) = (0, 0, 0, 9);
        assert_eq!(driver.cuCtxPopCurrent_v2(&mut current), 201);
        assert_eq!(driver.cuCtxCreate_v2(&mut one, 0, 0), 0);
        assert_eq!(driver.cuCtxCreate_v2(&mut two, 0, 1), 0);
        assert_eq!(driver.cuCtxGetCurrent(&mut current), 0);
        assert_eq!(current, two);
        assert_eq!(driver.cuCtxGetDevice(&mut device), 0);
        assert_eq!(device, 1);
        assert_eq!(driver.cuCtxEnablePeerAccess(one, 0), 0);
        assert_eq!(driver.cuCtxEnablePeerAccess(one, 0), 704);
        assert_eq!(driver.cuCtxEnablePeerAccess(two, 0), 201);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut here = 7;
                assert_eq!(driver.cuCtxGetCurrent(&mut here), 0);
                assert_eq!(here, 0);
            });
        });
        assert_eq!(driver.cuCtxPushCurrent_v2(one), 0);
        assert_eq!(driver.cuCtxPopCurrent_v2(&mut current), 0);
        assert_eq!(current, one);

        let (to, from) = (driver.allocate(16), driver.allocate(16));
        assert_eq!(driver.cuMemsetD8_v2(from, 3, 16), 0);
        assert_eq!(driver.cuMemcpyPeer(to, two, from, one, 16), 0);
        assert_eq!(driver.read_back(to, 16), [3; 16]);

        assert_eq!(driver.cuCtxDestroy_v2(two), 0);
        assert_eq!(driver.cuCtxGetCurrent(&mut current), 0);
        assert_eq!(current, one);
        assert_eq!(driver.cuCtxDestroy_v2(two), 201);
        assert_eq!(driver.cuMemFree_v2(to), 1);
    });
}

#[test]
fn events_that_cannot_be_timed_or_are_not_there() {
    isolated("events_that_cannot_be_timed_or_are_not_there", &[], |driver| {
        driver.start();
        let (stream, timed, mut untimed, mut milliseconds) = (driver.stream(), driver.event(), 0, 0.0);
        assert_eq!(driver.cuEventCreate(&mut untimed, 2), 0);
        assert_eq!(driver.cuEventQuery(timed), 0, "never recorded is complete");
        assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, timed, timed), 400);
        assert_eq!(driver.cuEventRecord(timed, stream), 0);
        assert_eq!(driver.cuEventRecord(untimed, stream), 0);
        assert_eq!(driver.cuEventSynchronize(untimed), 0);
        assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, timed, timed), 0);
        assert_eq!(milliseconds, 0.0);
        assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, timed, untimed), 400);
        assert_eq!(driver.cuEventCreate(&mut untimed, 64), 1);
        assert_eq!(driver.cuEventDestroy_v2(timed), 0);
        assert_eq!(driver.cuEventDestroy_v2(timed), 400);
        assert_eq!(driver.cuEventRecord(timed, stream), 400);
        assert_eq!(driver.cuStreamSynchronize(12345), 400);
    });
}

#[test]
fn entry_points_are_found_by_name_and_version() {
    isolated("entry_points_are_found_by_name_and_version", &[], |driver| {
        let find = |name: &str, version| {
            let name = CString::new(name).unwrap();
            let (mut function, mut status) = (null_mut(), -1);
            let code = driver.cuGetProcAddress_v2(name.as_ptr(), &mut function, version, 0, &mut status);
            (code, status, function as usize)
        };
        // SAFETY: only the addresses are compared.
        let symbol = |name: &str| unsafe { *driver.library.get::<usize>(name).unwrap() };
        assert_eq!(find("cuMemAlloc", 12_000), (0, 0, symbol("cuMemAlloc_v2")));
        assert_eq!(find("cuMemcpyBatchAsync", 13_000), (0, 0, symbol("cuMemcpyBatchAsync_v2")));
        assert_eq!(find("cuMemcpyBatchAsync", 12_090), (0, 0, symbol("cuMemcpyBatchAsync")));
        assert_eq!(find("cuMemcpyBatchAsync", 12_000), (500, 2, 0));
        assert_eq!(find("cuLaunchKernel", 12_000), (500, 1, 0));
        assert_eq!(find("cuda_sim_report", 12_000), (500, 1, 0));
        let mut table = null();
        assert_eq!(driver.cuGetExportTable(&mut table, &[0; 16]), 500);
    });
}

#[test]
fn errors_have_names_and_descriptions() {
    isolated("errors_have_names_and_descriptions", &[], |driver| {
        let mut text = null();
        // SAFETY: the driver's strings are terminated and live for ever.
        let read = |text| unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        for (code, name) in
            [(0, "CUDA_SUCCESS"), (2, "CUDA_ERROR_OUT_OF_MEMORY"), (999, "CUDA_ERROR_UNKNOWN")]
        {
            assert_eq!(driver.cuGetErrorName(code, &mut text), 0);
            assert_eq!(read(text), name);
            assert_eq!(driver.cuGetErrorString(code, &mut text), 0);
            assert!(!read(text).is_empty());
        }
        assert_eq!(driver.cuGetErrorName(12_345, &mut text), 1);
        assert!(text.is_null());
    });
}

#[test]
fn the_child_of_a_fork_cannot_use_it() {
    isolated("the_child_of_a_fork_cannot_use_it", &[], |driver| {
        driver.start();
        let address = driver.allocate(10);
        // SAFETY: the child only calls the driver, which allocates nothing there, and leaves at once.
        let fork = unsafe { libc::fork() };
        if fork == 0 {
            let all =
                driver.cuInit(0) == 3 && driver.cuMemFree_v2(address) == 3 && driver.cuCtxSynchronize() == 3;
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!all)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(fork, &mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(driver.cuMemFree_v2(address), 0, "the parent goes on");
    });
}

#[test]
fn an_invalid_setting_is_loud() {
    let name = "an_invalid_setting_is_loud";
    if in_child() {
        assert_eq!(support::Driver::load().cuInit(0), 1);
        return;
    }
    for setting in [("CUDA_SIM_MEMORY", "plenty"), ("CUDA_SIM_FAULT", "cuNoSuchCall@1=2")] {
        let (status, output) = run(&mut child(name, &[setting]));
        assert!(status.success(), "{output}");
        assert!(output.contains(setting.0), "{output}");
    }
}
