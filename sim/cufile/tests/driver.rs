//! The driver's life: use count, parameters, versions, forks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use cufile_sys::*;
use support::{Calls as _, Gpu, MIB, code, failed, file, load, version};
use test_support::cufile_sim::on_simulator;
use test_support::folder::on_disk;

#[test]
fn the_last_close_ends_every_registration() {
    let test = "the_last_close_ends_every_registration";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.close(), api.open(), api.open(), api.use_count()), (5001, 0, 0, 2));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.register_buffer(memory.address, MIB), 0);
        assert_eq!((api.close(), api.use_count()), (0, 1));
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), Ok(4096));
        // Another user of the library closes it for us.
        assert_eq!((api.close(), api.use_count()), (0, 0));
        assert_eq!(api.deregister_buffer(memory.address), 5006);
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), failed(5027));
        // Reading has opened it again.
        assert_eq!((api.use_count(), api.open()), (1, 0));
        assert_eq!(api.read(handle, memory.address, 4096, 0, 0), failed(5027));
        assert_eq!(api.deregister_buffer(memory.address), 5024);
        let again = api.register(&file).unwrap();
        assert_ne!(again, handle);
        assert_eq!(api.read(again, memory.address, 4096, 0, 0), Ok(4096));
    });
}

#[test]
fn parameters_act_only_before_opening() {
    let test = "parameters_act_only_before_opening";
    on_simulator(test, &[], || {
        let (api, _gpu) = (load(), Gpu::new());
        let (direct, batch) =
            (CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
        assert_eq!((api.size(direct), api.set_size(direct, 1024), api.size(direct)), (0, 0, 1024));
        // A size out of its bounds is taken, and dropped at opening.
        assert_eq!((api.set_size(batch, 100_000), api.size(batch)), (0, 100_000));
        assert_eq!(api.set_size(CUFileSizeTConfigParameter_t(99), 1), 5022);
        assert_eq!(api.set_flag(CUFILE_PARAM_PREFER_IO_URING, true), 0);
        // SAFETY: values only.
        let set_pinned = |kib| unsafe { code((api.cuFileDriverSetMaxPinnedMemSize)(kib)) };
        assert_eq!((set_pinned(2048), api.open()), (0, 0));
        assert_eq!((api.size(direct), api.size(batch)), (1024, 128));
        let properties = api.properties();
        assert_eq!((properties.nvfs.max_direct_io_size, properties.max_batch_io_size), (1024, 128));
        assert_eq!(properties.max_device_pinned_mem_size, 2048);
        assert_eq!(
            (api.set_size(direct, 2048), api.set_flag(CUFILE_PARAM_PREFER_IO_URING, false)),
            (5026, 5026)
        );
        assert!(api.flag(CUFILE_PARAM_PREFER_IO_URING));
        // The older setters say nothing, and do nothing.
        assert_eq!((set_pinned(4096), api.properties().max_device_pinned_mem_size), (0, 2048));
        assert_eq!((api.close(), api.set_size(direct, 2048), api.open(), api.size(direct)), (0, 0, 0, 2048));
    });
}

#[test]
fn bounds_slabs_texts_and_topology_come_back() {
    let test = "bounds_slabs_texts_and_topology_come_back";
    on_simulator(test, &[("CUDA_SIM_BAR1", "64MiB")], || {
        let (api, _gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let (mut min, mut max) = (0, 0);
        // SAFETY: every pointer is to a value of this function's, of the length told.
        unsafe {
            let bounds = api.cuFileGetParameterMinMaxValue.unwrap();
            assert_eq!(code(bounds(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &mut min, &mut max)), 0);
            assert_eq!((min, max), (1, 256));
            let set = api.cuFileSetParameterPosixPoolSlabArray.unwrap();
            let get = api.cuFileGetParameterPosixPoolSlabArray.unwrap();
            let (mut sizes, mut counts) = ([0; 3], [0; 3]);
            assert_eq!(code(get(sizes.as_mut_ptr(), counts.as_mut_ptr(), 2)), 5022);
            assert_eq!(code(set([64, 1024].as_ptr(), [3, 4].as_ptr(), 2)), 0);
            assert_eq!(code(get(sizes.as_mut_ptr(), counts.as_mut_ptr(), 3)), 5022);
            assert_eq!(code(get(sizes.as_mut_ptr(), counts.as_mut_ptr(), 2)), 0);
            assert_eq!((sizes, counts), ([64, 1024, 0], [3, 4, 0]));
            let (set, get) = (api.cuFileSetParameterString.unwrap(), api.cuFileGetParameterString.unwrap());
            let mut text = [1; 8];
            assert_eq!(code(set(CUFILE_PARAM_LOG_DIR, c"/tmp".as_ptr())), 0);
            assert_eq!(code(get(CUFILE_PARAM_LOG_DIR, text.as_mut_ptr(), 4)), 5022);
            assert_eq!(code(get(CUFILE_PARAM_LOG_DIR, text.as_mut_ptr(), 8)), 0);
            assert_eq!(std::ffi::CStr::from_ptr(text.as_ptr()), c"/tmp");
            let mut kib = 0;
            let bar = api.cuFileGetBARSizeInKB.unwrap();
            assert_eq!((code(bar(0, &mut kib)), kib), (0, 64 << 10));
            assert_eq!(code(bar(1, &mut kib)), 5022);
            let path = folder.path().join("topology");
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let export = api.cuFileExportPCIeTopology.unwrap();
            assert_eq!(code(export(name.as_ptr())), 0);
            assert!(std::fs::read_to_string(path).unwrap().contains("GPU"));
            assert_eq!(code(export(c"/nonexistent/x".as_ptr())), 5022);
        }
    });
}

#[test]
fn an_older_version_lacks_the_younger_functions() {
    let test = "an_older_version_lacks_the_younger_functions";
    on_simulator(test, &[("CUFILE_SIM_VERSION", "1.14")], || {
        let api = load();
        assert_eq!(version(&api), 1140);
        let absent: Vec<_> = api.absent().into_iter().map(|(name, _)| name).collect();
        let younger = FUNCTIONS.iter().filter(|f| f.since.cufile > (1, 14)).map(|f| f.name);
        assert_eq!(absent, younger.collect::<Vec<_>>());
        assert_eq!(api.open(), 0);
    });
}

#[test]
fn any_function_can_be_missing() {
    let test = "any_function_can_be_missing";
    on_simulator(test, &[("CUFILE_SIM_WITHOUT", "cuFileReadv,cuFileRead")], || {
        let path = std::env::var_os("GDS_CUFILE_LIBRARY").unwrap();
        // SAFETY: the simulated libcufile.
        let error = unsafe { Api::load_from(std::path::Path::new(&path)) }.unwrap_err();
        assert!(matches!(&error, LoadError::MissingSymbol { symbol: "cuFileRead", .. }), "{error}");
    });
}

#[test]
fn statistics_of_1_18_lie_lower() {
    let test = "statistics_of_1_18_lie_lower";
    on_simulator(test, &[("CUFILE_SIM_VERSION", "1.18")], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), Ok(MIB));
        // Read with that version's layout; with the present one the numbers would be others'.
        let statistics = api.statistics().unwrap();
        assert_eq!((statistics.num_gpus, statistics.per_gpu_stats[0].n_posix_reads), (1, 1));
        assert_eq!(statistics.detailed.read_size_kb_hist.iter().sum::<u64>(), 1);
    });
}

#[test]
fn statistics_stop_and_start_as_nvidias() {
    let test = "statistics_stop_and_start_as_nvidias";
    on_simulator(test, &[], || {
        let (api, _gpu) = (load(), Gpu::new());
        // SAFETY: no arguments.
        let [start, stop, reset] = [&api.cuFileStatsStart, &api.cuFileStatsStop, &api.cuFileStatsReset]
            .map(|call| move || code(unsafe { (call.unwrap())() }));
        assert_eq!((start(), stop(), reset()), (5001, 5001, 5001));
        assert_eq!((api.set_level(4), api.set_level(3), api.open()), (5022, 0, 0));
        assert_eq!((start(), api.statistics().is_ok()), (0, true));
        assert_eq!((reset(), stop(), api.statistics().err(), start()), (0, 0, Some(5022), 5030));
        assert_eq!((api.set_level(2), api.statistics().err()), (0, Some(5022)));
        assert_eq!((api.set_level(3), api.statistics().is_ok()), (0, true));
    });
}

#[test]
fn nothing_works_in_the_child_of_a_fork() {
    let test = "nothing_works_in_the_child_of_a_fork";
    on_simulator(test, &[], || {
        let (api, _gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.open(), 0);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        let mut bytes = [0_u8; 16];
        let address = bytes.as_mut_ptr().addr() as u64;
        // SAFETY: the child only makes calls that take no lock, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = api.open() == 5001
                && api.read(handle, address, 16, 0, 0) == failed(5001)
                && api.close() == 5001
                && api.use_count() == 0;
            // SAFETY: ends the process, without handlers.
            unsafe { libc::_exit(if refused { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our child; the place is valid for the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
        assert_eq!(api.read(handle, address, 16, 0, 0), Ok(16));
    });
}
