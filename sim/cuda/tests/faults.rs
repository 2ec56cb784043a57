//! Injected faults, broken contexts, and the report.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::{Driver, at, child, in_child, isolated, pattern, run};

#[test]
fn a_call_fails_at_its_kth_use_only() {
    isolated(
        "a_call_fails_at_its_kth_use_only",
        &[("CUDA_SIM_FAULT", "cuMemAlloc@2=2,cuInit@1=999")],
        |driver| {
            assert_eq!(driver.cuInit(0), 999);
            driver.start();
            let mut address = 0;
            let codes = [(); 4].map(|()| driver.cuMemAlloc_v2(&mut address, 10));
            assert_eq!(codes, [0, 2, 0, 0]);
            assert_eq!(driver.report()["faults"], json!({"cuInit": 1, "cuMemAlloc_v2": 1}));
        },
    );
}

#[test]
fn a_star_counts_all_calls() {
    isolated("a_star_counts_all_calls", &[], |driver| {
        driver.start();
        assert_eq!(driver.set_fault("*@3=304"), 0);
        let mut value = 0;
        assert_eq!(driver.cuDeviceGetCount(&mut value), 0);
        assert_eq!(driver.cuCtxGetDevice(&mut value), 0);
        assert_eq!(driver.cuDriverGetVersion(&mut value), 304);
        assert_eq!(driver.cuDeviceGetCount(&mut value), 0);
        assert_eq!(driver.set_fault("nonsense"), 1);
    });
}

#[test]
fn corrupt_flips_one_bit_of_the_kth_copy() {
    isolated("corrupt_flips_one_bit_of_the_kth_copy", &[("CUDA_SIM_FAULT", "corrupt@2")], |driver| {
        driver.start();
        let (bytes, stream) = (pattern(10_000), driver.stream());
        let wrong_bits = |device| {
            let landed = driver.read_back(device, bytes.len());
            landed.iter().zip(&bytes).map(|(landed, sent)| (landed ^ sent).count_ones()).sum::<u32>()
        };
        let devices = [(); 3].map(|()| driver.allocate(bytes.len()));
        for device in devices {
            assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(&bytes), bytes.len(), stream), 0);
        }
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(devices.map(wrong_bits), [0, 1, 0]);
        assert_eq!(driver.report()["copies"]["corrupted"], 1);
    });
}

#[test]
fn a_broken_context_stays_broken_until_it_is_reset() {
    isolated("a_broken_context_stays_broken_until_it_is_reset", &[], |driver| {
        driver.start();
        let (device, stream, event) = (driver.allocate(10), driver.stream(), driver.event());
        let bytes = [0u8; 10];
        assert_eq!(driver.set_fault("cuStreamQuery@1=ILLEGAL_ADDRESS"), 0);
        assert_eq!(driver.cuStreamQuery(stream), 700);
        assert_eq!(driver.cuMemcpyHtoD_v2(device, at(&bytes), 10), 700);
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at(&bytes), 10, stream), 700);
        assert_eq!(driver.cuStreamQuery(stream), 700);
        assert_eq!(driver.cuEventRecord(event, stream), 700);
        assert_eq!(driver.cuEventQuery(event), 700);
        assert_eq!(driver.cuCtxSynchronize(), 700);
        // Releases work.
        assert_eq!(driver.cuEventDestroy_v2(event), 0);
        assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
        assert_eq!(driver.cuMemFree_v2(device), 0);
        assert_eq!(driver.cuDevicePrimaryCtxReset_v2(0), 0);
        driver.start();
        driver.allocate(10);
    });
}

#[test]
fn an_error_that_is_not_sticky_breaks_nothing() {
    isolated("an_error_that_is_not_sticky_breaks_nothing", &[], |driver| {
        driver.start();
        let bytes = [0u8; 10];
        let device = driver.allocate(10);
        assert_eq!(driver.set_fault("cuMemcpyHtoD@1=2"), 0);
        assert_eq!(driver.cuMemcpyHtoD_v2(device, at(&bytes), 10), 2);
        assert_eq!(driver.cuMemcpyHtoD_v2(device, at(&bytes), 10), 0);
    });
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_report_at_exit_tells_what_is_alive_and_whose() {
    let name = "the_report_at_exit_tells_what_is_alive_and_whose";
    if in_child() {
        let driver = Driver::load();
        driver.start();
        let (kept, freed) = (driver.allocate(1_000), driver.allocate(500));
        driver.stream();
        driver.event();
        driver.pinned(4_096);
        assert_eq!(driver.cuMemsetD8_v2(kept, 0, 10), 0);
        assert_eq!(driver.cuMemFree_v2(freed), 0);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let setting = folder.path().join("report-%p.json");
    let (status, output) = run(&mut child(name, &[("CUDA_SIM_REPORT", setting.to_str().unwrap())]));
    assert!(status.success(), "{output}");
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("one report is expected: {files:?}") };
    let report = read(file);
    assert_eq!(file.file_name().unwrap().to_str().unwrap(), format!("report-{}.json", report["pid"]));
    assert_eq!(report["calls"]["cuMemAlloc_v2"], 2);
    assert_eq!(report["devices"][0]["used"], 4_096);
    let executable = std::env::current_exe().unwrap().canonicalize().unwrap();
    let [alive] = report["alive"].as_array().unwrap().as_slice() else { panic!("one library: {report}") };
    assert_eq!(alive["library"], executable.to_str().unwrap());
    assert_eq!(alive["allocations"], json!({"count": 1, "bytes": 1_000}));
    assert_eq!(alive["pins"], json!({"count": 1, "bytes": 4_096}));
    for (kind, count) in [("retains", 1), ("streams", 1), ("events", 1), ("contexts", 0), ("pools", 0)] {
        assert_eq!(alive[kind]["count"], count, "{kind}");
    }
}

#[test]
fn a_process_that_does_not_initialise_the_driver_writes_no_report() {
    let name = "a_process_that_does_not_initialise_the_driver_writes_no_report";
    if in_child() {
        let mut version = 0;
        assert_eq!(Driver::load().cuDriverGetVersion(&mut version), 0);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let setting = folder.path().join("report");
    let (status, output) = run(&mut child(name, &[("CUDA_SIM_REPORT", setting.to_str().unwrap())]));
    assert!(status.success(), "{output}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn counters_can_be_set_back() {
    isolated("counters_can_be_set_back", &[], |driver| {
        driver.start();
        driver.allocate(1);
        driver.cuda_sim_reset_counters();
        driver.allocate(1);
        let report = driver.report();
        assert_eq!(report["calls"], json!({"cuMemAlloc_v2": 1}));
        assert_eq!(report["alive"][0]["allocations"]["count"], 2, "what is alive is no counter");
    });
}
