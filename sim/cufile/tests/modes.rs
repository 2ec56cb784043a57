//! What opening decides, and what proves by which way bytes went.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use cufile_sys::*;
use support::{Calls as _, Gpu, KIB, MIB, REAL, expected, file, load};
use test_support::cufile_sim::{on_simulator, report, simulation};
use test_support::folder::on_disk;

const ALLOW: CUFileBoolConfigParameter_t = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;

/// Opens with compatibility mode not allowed, reads 64 KiB into registered device memory and checks them; the statistics.
fn read_strictly(test: &str) -> CUfileStatsLevel3 {
    let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
    assert_eq!((api.set_flag(ALLOW, false), api.set_level(3), api.open()), (0, 0, 0));
    let memory = gpu.allocate(MIB);
    let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
    let handle = api.register(&file).unwrap();
    assert_eq!(api.register_buffer(memory.address, memory.len), 0);
    assert_eq!(api.read(handle, memory.address, 64 * KIB, 8192, 4096), Ok(64 * KIB));
    assert_eq!(memory.bytes(4096, 64 * KIB), expected(8192, 64 * KIB));
    let statistics = api.statistics().unwrap();
    assert_eq!((api.deregister_buffer(memory.address), api.close()), (0, 0));
    statistics
}

#[test]
fn compat_mode_opens_and_bounces() {
    let test = "compat_mode_opens_and_bounces";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open(), api.use_count()), (0, 0, 1));
        assert_eq!(api.properties().nvfs.major_version, 0);
        assert!(api.flag(ALLOW) && !api.flag(CUFILE_PARAM_FORCE_COMPAT_MODE));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), Ok(MIB));
        assert_eq!(memory.bytes(0, MIB), expected(0, MIB));
        let gpu = api.statistics().unwrap().per_gpu_stats[0];
        assert_eq!((gpu.n_posix_reads, gpu.n_nvfs_reads, gpu.read_bytes), (1, 0, MIB as u64));
        let transfers = report().transfers;
        assert_eq!((transfers.bounced_bytes, transfers.straight_bytes), (MIB as u64, 0));
    });
}

/// Refused once, NVIDIA's forgets why: a registration, or the next open, opens in compatibility mode after all.
#[test]
fn a_refusal_holds_once() {
    let test = "a_refusal_holds_once";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(
            (api.set_flag(ALLOW, false), api.set_level(3), api.open(), api.use_count()),
            (0, 0, 5001, 0)
        );
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        assert_eq!((api.register_buffer(memory.address, MIB), api.use_count()), (0, 1));
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), Ok(4096));
        assert_eq!((api.open(), api.use_count(), api.flag(ALLOW)), (0, 2, true));
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), Ok(4096));
        assert_eq!(api.statistics().unwrap().per_gpu_stats[0].n_posix_reads, 2);
        assert_eq!(api.set_flag(ALLOW, false), 5026);
    });
}

#[test]
fn real_mode_needs_no_compat_and_the_statistics_prove_it() {
    let test = "real_mode_needs_no_compat_and_the_statistics_prove_it";
    on_simulator(test, &[REAL], || {
        let statistics = read_strictly(test);
        let gpu = statistics.per_gpu_stats[0];
        assert_eq!((gpu.n_posix_reads, gpu.n_nvfs_reads, gpu.n_total_reads), (0, 1, 1));
        assert_eq!((gpu.read_bytes, gpu.reg_bytes), (64 * KIB as u64, MIB as u64));
        assert_eq!((statistics.num_gpus, statistics.detailed.basic.read_ops.ok), (1, 1));
        assert!(gpu.uuid.iter().any(|byte| *byte != 0));
    });
}

#[test]
fn a_library_that_lies_is_caught_by_its_statistics_alone() {
    let test = "a_library_that_lies_is_caught_by_its_statistics_alone";
    on_simulator(test, &[("CUFILE_SIM_MODE", "lying")], || {
        let gpu = read_strictly(test).per_gpu_stats[0];
        assert_eq!((gpu.n_posix_reads, gpu.n_nvfs_reads), (1, 0));
    });
}

/// Per GPU nothing is counted where the level comes after opening and nobody starts it: zeros there prove nothing.
#[test]
fn a_level_set_after_opening_does_not_count_per_gpu() {
    let test = "a_level_set_after_opening_does_not_count_per_gpu";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.open(), api.set_level(3)), (0, 0));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), Ok(MIB));
        let statistics = api.statistics().unwrap();
        assert_eq!(
            (statistics.detailed.basic.read_ops.ok, statistics.per_gpu_stats[0].n_total_reads),
            (1, 0)
        );
        // Closing forgets the level.
        assert_eq!(api.close(), 0);
        assert_eq!((api.open(), api.statistics().err()), (0, Some(5022)));
    });
}

#[test]
fn forced_compat_mode_bounces_in_real_mode_too() {
    let test = "forced_compat_mode_bounces_in_real_mode_too";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.set_flag(CUFILE_PARAM_FORCE_COMPAT_MODE, true), 0);
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        // Parameters are then accepted, without effect on the mode.
        assert_eq!((api.set_flag(ALLOW, false), api.flag(ALLOW)), (0, false));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), Ok(4096));
        assert_eq!(api.statistics().unwrap().per_gpu_stats[0].n_posix_reads, 1);
    });
}

/// As since 1.7: whole blocks go straight, the rest bounces.
#[test]
fn without_direct_io_only_whole_blocks_go_straight() {
    let test = "without_direct_io_only_whole_blocks_go_straight";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, 8192, 4096, 0), Ok(8192));
        assert_eq!(api.read(handle, memory.address, 8192, 4097, 8192), Ok(8192));
        assert_eq!(api.read(handle, memory.address, 100, 0, 16384), Ok(100));
        let gpu = api.statistics().unwrap().per_gpu_stats[0];
        assert_eq!((gpu.n_nvfs_reads, gpu.n_posix_reads, gpu.n_unaligned_reads), (1, 2, 2));
    });
}

#[test]
fn without_a_driver_host_memory_is_served_from_1_15_on() {
    let test = "without_a_driver_host_memory_is_served_from_1_15_on";
    for (version, opened) in [("1.20", 0), ("1.14", 5033)] {
        let settings = [
            ("LD_PRELOAD", ""),
            ("LD_LIBRARY_PATH", ""),
            ("CUFILE_SIM_VERSION", version),
            ("OPENED", &*opened.to_string()),
        ];
        let run = simulation(test).settings(&settings).run(|| {
            let (api, folder) = (load(), on_disk(test));
            let opened: i32 = std::env::var("OPENED").unwrap().parse().unwrap();
            assert_eq!(api.open(), opened);
            if opened == 0 {
                let file = file(&folder.path().join("data"), MIB, 0);
                let handle = api.register(&file).unwrap();
                let mut bytes = vec![0_u8; 4096];
                assert_eq!(api.read(handle, bytes.as_mut_ptr().addr() as u64, 4096, 100, 0), Ok(4096));
                assert_eq!(bytes, expected(100, 4096));
            }
        });
        let Some(outcome) = run else { return };
        assert!(outcome.finished, "{version}: {outcome}");
    }
}
