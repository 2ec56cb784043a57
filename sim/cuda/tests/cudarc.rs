//! cudarc runs on the simulated driver, found by name like any driver.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::os::unix::fs::symlink;

use cudarc::driver::{CudaContext, sys};
use support::{child, in_child, library, pattern, run};

#[test]
fn cudarc_copies_both_ways_and_times_it() {
    let name = "cudarc_copies_both_ways_and_times_it";
    if in_child() {
        // SAFETY: the simulated driver may be opened and closed.
        assert!(unsafe { sys::is_culib_present() });
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.name().unwrap(), "Simulated GPU");
        let stream = context.new_stream().unwrap();
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (context.new_event(timed).unwrap(), context.new_event(timed).unwrap());
        let bytes = pattern(1_000_000);
        start.record(&stream).unwrap();
        let device = stream.clone_htod(&bytes).unwrap();
        let again = stream.clone_dtod(&device).unwrap();
        end.record(&stream).unwrap();
        assert!(stream.clone_dtoh(&again).unwrap() == bytes);
        assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
        assert!(
            stream.alloc_zeros::<u32>(100).is_ok_and(|zeros| stream.clone_dtoh(&zeros).unwrap() == [0; 100])
        );
        context.check_err().unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for driver in ["libcuda.so", "libcuda.so.1"] {
        symlink(library(), folder.path().join(driver)).unwrap();
    }
    let report = folder.path().join("report");
    let settings = [("CUDA_SIM_REPORT", report.to_str().unwrap())];
    let (status, output) = run(child(name, &settings).env("LD_LIBRARY_PATH", folder.path()));
    assert!(status.success(), "{output}");
    let reports = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let report = reports.filter(|path| path.to_string_lossy().contains("report.")).map(std::fs::read).next();
    let report: serde_json::Value = serde_json::from_slice(&report.unwrap().unwrap()).unwrap();
    assert_eq!(report["alive"], serde_json::json!([]), "cudarc releases all it made");
}
