//! Faults, and the report.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use cufile_sys::*;
use support::{Calls as _, Gpu, KIB, MIB, REAL, expected, failed, file, load};
use test_support::cufile_sim::{Report, on_simulator, report, reset_counters, set_script, simulation};
use test_support::folder::on_disk;

#[test]
fn transfers_fail_as_told() {
    let test = "transfers_fail_as_told";
    let script = "read@2=-1:5027,read@3=short:2,read@4=-5,read@5=5999;read@6=bytes:100,read@7=hang:60ms,read@8=corrupt,\
                  write=-1:28,readv=short";
    on_simulator(test, &[("CUFILE_SIM_SCRIPT", script)], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        let read = || api.read(handle, memory.address, 8192, 4096, 0);
        assert_eq!((read(), read()), (Ok(8192), failed(5027)));
        support::fill(&memory, &vec![7; 8192]);
        assert_eq!(read(), Ok(4096));
        assert_eq!((memory.bytes(0, 4096), memory.bytes(4096, 4096)), (expected(4096, 4096), vec![7; 4096]));
        assert_eq!((read(), read(), read()), (Err(TransferError::Os(5)), failed(5999), Ok(100)));
        let began = Instant::now();
        assert_eq!(read(), Ok(8192));
        assert!(began.elapsed() >= Duration::from_millis(60));
        assert_eq!(read(), Ok(8192));
        let wrong = memory.bytes(0, 8192).iter().zip(expected(4096, 8192)).filter(|(a, b)| **a != *b).count();
        assert_eq!((wrong, read()), (1, Ok(8192)));
        assert_eq!(api.write(handle, memory.address, 10, 0, 0), failed(libc::ENOSPC));
        assert_eq!(api.readv(handle, &[(memory.address, 1000), (memory.address, 500)], 0), Ok(750));
        let fired: u64 = report().faults.iter().map(|fault| fault.fired).sum();
        assert_eq!((fired, report().faults.len(), report().calls["cuFileRead"]), (9, 9, 9));
        reset_counters();
        assert_eq!((read(), read()), (Ok(8192), failed(5027)));
    });
}

#[test]
fn registrations_fail_by_size_and_by_file() {
    let test = "registrations_fail_by_size_and_by_file";
    let script =
        "buf_register>16MiB=5016, handle_register[shard-2]=5030, read[shard-3]@2=-5, driver_open@2=5011/719";
    on_simulator(test, &[REAL, ("CUFILE_SIM_SCRIPT", script)], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.open(), 0);
        // SAFETY: no arguments.
        let failure = unsafe { (api.cuFileDriverOpen)() }.result().unwrap_err();
        assert_eq!((failure.status.code(), failure.cuda), (5011, Some(719)));
        let memory = gpu.allocate(64 * MIB);
        assert_eq!(api.register_buffer(memory.address, 64 * MIB), 5016);
        assert_eq!(api.register_buffer(memory.address, 16 * MIB), 0);
        let files = [1, 2, 3].map(|number| file(&folder.path().join(format!("shard-{number}")), 4096, 0));
        let handles = files.each_ref().map(|file| api.register(file));
        assert_eq!(handles[1], Err(5030));
        let (first, third) = (handles[0].unwrap(), handles[2].unwrap());
        let read = |handle| api.read(handle, memory.address, 4096, 0, 0);
        assert_eq!((read(first), read(third), read(first)), (Ok(4096), Ok(4096), Ok(4096)));
        assert_eq!((read(third), read(third)), (Err(TransferError::Os(5)), Ok(4096)));
    });
}

/// In real mode: who trusts the mode and not the statistics takes these bytes for straight ones.
#[test]
fn single_transfers_can_bounce_in_real_mode() {
    let test = "single_transfers_can_bounce_in_real_mode";
    on_simulator(test, &[REAL, ("CUFILE_SIM_SCRIPT", "read@2=posix")], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        for _ in 0..3 {
            assert_eq!(api.read(handle, memory.address, 64 * KIB, 0, 0), Ok(64 * KIB));
        }
        let gpu = api.statistics().unwrap().per_gpu_stats[0];
        assert_eq!((gpu.n_nvfs_reads, gpu.n_posix_reads), (2, 1));
    });
}

#[test]
fn a_hang_ends_never() {
    let test = "a_hang_ends_never";
    let run = simulation(test).settings(&[("CUFILE_SIM_SCRIPT", "open@1=hang")]).run(|| {
        let opened = std::thread::spawn(|| load().open());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!opened.is_finished());
        // Others go on, and the process can end.
        assert_eq!(load().open(), 0);
    });
    if let Some(outcome) = run {
        assert!(outcome.finished, "{outcome}");
    }
}

/// As NVIDIA's library, which takes down what its functions use; there it is seen by chance.
#[test]
fn what_runs_at_the_end_of_the_process_aborts_it() {
    let test = "what_runs_at_the_end_of_the_process_aborts_it";
    for (script, told) in [("open=hang:50ms", "cuFileDriverOpen"), ("use_count=hang:50ms", "cuFileUseCount")]
    {
        let run = simulation(test).settings(&[("CUFILE_SIM_SCRIPT", script)]).run(|| {
            let api = load();
            std::thread::spawn(move || {
                loop {
                    api.open();
                    // SAFETY: no arguments.
                    unsafe { (api.cuFileUseCount.unwrap())() };
                }
            });
            std::thread::sleep(Duration::from_millis(75));
        });
        let Some(outcome) = run else { return };
        assert_eq!(outcome.child.status.signal(), Some(libc::SIGABRT), "{outcome}");
        assert!(outcome.child.stderr.contains(told), "{outcome}");
    }
}

#[test]
fn a_wrong_setting_is_told_and_refused() {
    let test = "a_wrong_setting_is_told_and_refused";
    let wrong = [
        ("CUFILE_SIM_SCRIPT", "reed@1=-5"),
        ("CUFILE_SIM_MODE", "fast"),
        ("CUFILE_SIM_VERSION", "9"),
        ("CUFILE_SIM_WITHOUT", "cuFileReed"),
    ];
    for (name, value) in wrong {
        let run = simulation(test).settings(&[(name, value)]).run(|| {
            let (api, folder) = (load(), on_disk(test));
            assert_eq!(api.open(), 5022);
            let file = file(&folder.path().join("data"), 16, 0);
            assert_eq!(api.register(&file), Err(5022));
        });
        let Some(outcome) = run else { return };
        outcome.assert_well();
        assert!(outcome.child.stderr.contains(name), "{outcome}");
    }
}

#[test]
fn a_script_can_be_replaced() {
    let test = "a_script_can_be_replaced";
    on_simulator(test, &[("CUFILE_SIM_SCRIPT", "open=5001")], || {
        let api = load();
        assert_eq!(api.open(), 5001);
        set_script("");
        assert_eq!(api.open(), 0);
    });
}

#[test]
fn the_report_is_written_at_exit() {
    let test = "the_report_is_written_at_exit";
    let folder = on_disk(test);
    let name = folder.path().join("report-%p.json");
    let run = simulation(test).setting("CUFILE_SIM_REPORT", name).run(|| {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.open(), 0);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        assert_eq!(api.register_buffer(memory.address, MIB), 0);
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), Ok(4096));
        assert_eq!(api.write(handle, memory.address, 100, 0, 0), Ok(100));
    });
    let Some(outcome) = run else { return };
    outcome.assert_well();
    let reports: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [path] = reports.as_slice() else { panic!("{reports:?}") };
    let report = Report::parse(&std::fs::read_to_string(path).unwrap());
    assert_eq!((report.calls["cuFileRead"], report.calls["cuFileWrite"], report.use_count), (1, 1, 1));
    assert_eq!((report.transfers.read_bytes, report.transfers.write_bytes), (4096, 100));
    assert_eq!((report.alive.handles, report.alive.registered_bytes), (1, MIB as u64));
    assert_eq!(report.peak_registered_device_bytes, MIB as u64);
}
