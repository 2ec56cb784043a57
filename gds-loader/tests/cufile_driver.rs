//! The driver of the safe cuFile API, on NVIDIA's own library on the simulated GPU: modes, settings, statistics, other
//! users, forks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;

use std::time::Duration;

use cufile_support::{Sample, compat, device_memory, nvidia, on_nvidia, registered};
use gds_loader::cufile::{
    BoolParameter, CuFile, CuFileError, CuFileErrorKind, Driver, DriverSettings, Library, Mode, P2pFlags,
    RegisteredBuffer, SizeParameter, Slab, SlabPool, StorageKind, StringParameter,
};

#[test]
fn the_library_tells_what_it_is() {
    on_nvidia("the_library_tells_what_it_is", || {
        let library = Library::load().unwrap();
        assert_eq!(library.version().unwrap().to_string(), "1.20");
        assert_eq!(library.missing(), []);
        assert_eq!(library.use_count(), Some(0));
        assert!(library.path().ends_with("1.20/lib/libcufile.so.0"));
        let driver = compat();
        assert_eq!((driver.mode(), library.use_count()), (Mode::Compat, Some(1)));
        assert!(!driver.is_compat_ruled_out() && driver.opened_in() > Duration::ZERO);
        let properties = driver.properties().unwrap();
        assert_eq!((properties.nvfs_version, properties.max_direct_io_kib), ((0, 0), 16384));
        assert!(properties.allows_compat && !properties.polls && properties.max_batch_size == 128);
        assert!(StorageKind::ALL.iter().all(|kind| !properties.serves(*kind)));
    });
}

#[test]
fn the_first_use_decides_the_mode() {
    on_nvidia("the_first_use_decides_the_mode", || {
        let driver = compat();
        assert_eq!(Driver::open(Mode::Compat).unwrap().mode(), Mode::Compat);
        assert_eq!(Driver::open(Mode::Default).unwrap().mode(), Mode::Compat, "whatever is open");
        let error = Driver::open(Mode::Direct).unwrap_err();
        assert!(
            matches!(error, CuFileError::WrongMode { open: Mode::Compat, asked: Mode::Direct }),
            "{error}"
        );
        assert!(error.is_unavailable());

        // It closes only when nothing holds it, and another mode can be had then.
        let sample = Sample::of("modes", 4096);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let (driver, error) = driver.close().unwrap_err();
        assert!(matches!(error, CuFileError::InUse { users: 1 }), "{error}");
        drop(file);
        driver.close().unwrap();
        assert_eq!(Library::load().unwrap().use_count(), Some(0));
        let error = Driver::open(Mode::Direct).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert_eq!(error.status().map(|status| status.code()), Some(5001));
        let driver = compat();
        CuFile::open(&driver, &sample.path).unwrap();
    });
}

#[test]
fn direct_mode_is_unavailable_here_and_says_why() {
    on_nvidia("direct_mode_is_unavailable_here_and_says_why", || {
        let error = Driver::open(Mode::Direct).unwrap_err();
        assert_eq!((error.kind(), error.status().unwrap().code()), (CuFileErrorKind::Unavailable, 5001));
        assert!(error.to_string().contains("bounced"), "{error}");
        // Default is the library's own choice: compatibility allowed, not forced.
        let driver = Driver::open(Mode::Default).unwrap();
        assert!(driver.library().switch(BoolParameter::AllowCompatMode).unwrap());
        assert!(!driver.library().switch(BoolParameter::ForceCompatMode).unwrap());
    });
}

#[test]
fn a_handle_of_a_closed_driver_answers_closed() {
    on_nvidia("a_handle_of_a_closed_driver_answers_closed", || {
        let sample = Sample::of("closed", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        file.read_exact(&mut buffer, 0).unwrap();

        // Another user of the library closes the driver.
        let api = cufile_sys::Api::get().unwrap();
        // SAFETY: takes nothing.
        unsafe { api.cuFileDriverClose_v2.unwrap()() }.result().unwrap();
        let error = file.read_exact(&mut buffer, 0).unwrap_err();
        assert!(matches!(error, CuFileError::Closed { .. }), "{error}");
        assert_eq!(error.kind(), CuFileErrorKind::Environment);
        assert_eq!(
            driver.library().use_count(),
            Some(0),
            "the library was not asked to read, and so opens nothing"
        );
        assert!(matches!(driver.health(), Err(CuFileError::Closed { .. })));
        assert!(matches!(CuFile::open(&driver, &sample.path), Err(CuFileError::Closed { .. })));

        // It can be opened again; the old file and buffer stay unusable, and are released without harm.
        let again = compat();
        assert!(file.read_exact(&mut buffer, 0).is_err());
        let fresh = CuFile::open(&again, &sample.path).unwrap();
        drop(file);
        let mut memory = buffer.into_region();
        fresh.read_exact(&mut memory, 0).unwrap();
        assert!(cufile_support::look(memory.address(), 65536) == sample.bytes);
    });
}

#[test]
fn a_driver_opened_by_another_user_is_shared_where_its_mode_fits() {
    on_nvidia("a_driver_opened_by_another_user_is_shared_where_its_mode_fits", || {
        let api = cufile_sys::Api::get().unwrap();
        // SAFETY: takes nothing.
        unsafe { (api.cuFileDriverOpen)() }.result().unwrap();
        for mode in [Mode::Direct, Mode::Compat] {
            let error = Driver::open(mode).unwrap_err();
            assert!(matches!(error, CuFileError::WrongMode { open: Mode::Default, .. }), "{error}");
        }
        assert_eq!(Library::load().unwrap().use_count(), Some(1));
        let settings = DriverSettings::new().size(SizeParameter::IoBatchSize, 17);
        let error = settings.open(Mode::Default).unwrap_err();
        assert!(matches!(error, CuFileError::OnlyBeforeOpen { .. }), "{error}");
        let driver = Driver::open(Mode::Default).unwrap();
        assert_eq!(driver.library().use_count(), Some(2));
        let sample = Sample::of("shared", 4096);
        let mut bytes = [0_u8; 4096];
        CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut bytes[..], 0).unwrap();
        assert!(bytes[..] == sample.bytes);
    });
}

#[test]
fn settings_act_before_opening_and_are_refused_afterwards() {
    on_nvidia("settings_act_before_opening_and_are_refused_afterwards", || {
        let slabs = [(1024, 8), (4096, 4)].map(|(size_kib, count)| Slab { size_kib, count });
        let settings = || {
            DriverSettings::new()
                .size(SizeParameter::MaxIoQueueDepth, 64)
                .size(SizeParameter::MaxDirectIoSizeKib, 8192)
                .switch(BoolParameter::UsePollMode, true)
                .slabs(SlabPool::Posix, slabs)
        };
        let driver = settings().open(Mode::Compat).unwrap();
        let library = driver.library();
        assert_eq!(library.size(SizeParameter::MaxIoQueueDepth).unwrap(), 64);
        assert_eq!(library.size(SizeParameter::MaxDirectIoSizeKib).unwrap(), 8192);
        assert!(library.switch(BoolParameter::UsePollMode).unwrap());
        assert_eq!(library.slabs(SlabPool::Posix, 2).unwrap(), slabs);
        assert!(matches!(library.slabs(SlabPool::Posix, 3), Err(CuFileError::Call { .. })));
        assert_eq!(library.size_limits(SizeParameter::MaxIoQueueDepth).unwrap(), (1, 256));
        assert_eq!(library.text(StringParameter::LogfilePath).unwrap(), "/dev/null");

        settings().open(Mode::Compat).unwrap();
        let error = settings().size(SizeParameter::MaxIoQueueDepth, 65).open(Mode::Compat).unwrap_err();
        let CuFileError::OnlyBeforeOpen { setting, asked, found } = &error else { panic!("{error}") };
        assert!(setting.contains("QUEUE_DEPTH") && asked == "65" && found == "64");
        assert_eq!(library.size(SizeParameter::MaxIoQueueDepth).unwrap(), 64, "nothing was set");
    });
}

#[test]
fn what_the_library_does_not_take_is_an_error() {
    on_nvidia("what_the_library_does_not_take_is_an_error", || {
        // The mode owns its two switches.
        for parameter in [BoolParameter::AllowCompatMode, BoolParameter::ForceCompatMode] {
            let error = DriverSettings::new().switch(parameter, true).open(Mode::Compat).unwrap_err();
            assert!(matches!(error, CuFileError::Usage(_)), "{error}");
        }
        // Accepted and ignored: seen on 1.20. The driver is not left open.
        let error = DriverSettings::new().max_pinned_kib(65536).open(Mode::Compat).unwrap_err();
        assert!(matches!(error, CuFileError::NotTaken { .. }), "{error}");
        assert_eq!(Library::load().unwrap().use_count(), Some(0));

        let driver = compat();
        driver.set_max_direct_io_kib(4096).unwrap();
        driver.set_poll_mode(true, 64).unwrap();
        driver.set_poll_mode(false, 4).unwrap();
        assert!(matches!(driver.set_max_cache_kib(65536), Err(CuFileError::NotTaken { .. })));
        assert_eq!(driver.p2p_flags(StorageKind::Nvme).unwrap(), P2pFlags(0));
        driver.set_p2p_flags(StorageKind::Nvme, P2pFlags::PCI_P2PDMA).unwrap();
        assert_eq!(driver.p2p_flags(StorageKind::Nvme).unwrap(), P2pFlags::PCI_P2PDMA);
        assert_eq!(driver.bar_size_kib(0).unwrap(), None, "a simulated GPU tells the library no BAR size");
        assert!(matches!(driver.bar_size_kib(7), Err(CuFileError::Call { .. })));
        let sample = Sample::of("topology", 1);
        driver.export_topology(&sample.folder.path().join("topology")).unwrap();
    });
}

#[test]
fn statistics_count_the_bytes_and_tell_that_they_bounced() {
    on_nvidia("statistics_count_the_bytes_and_tell_that_they_bounced", || {
        let sample = Sample::of("statistics", 1 << 20);
        let driver = compat();
        driver.set_statistics_level(3).unwrap();
        driver.start_statistics().unwrap();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 1 << 20);
        for _ in 0..3 {
            file.read_exact(&mut buffer, 0).unwrap();
        }
        file.read_exact_at(&mut buffer, 0..1000, 5).unwrap();
        let level1 = driver.statistics_level1().unwrap();
        assert_eq!(level1.read.bytes, (3 << 20) + 1000);
        assert_eq!((level1.read.operations.ok, level1.read.operations.failed), (4, 0));
        assert_eq!(level1.buffer_registrations.ok, 1);
        assert_eq!(level1.file_registrations.ok, 1);
        let level2 = driver.statistics_level2().unwrap();
        assert_eq!(level2.level1.read.bytes, level1.read.bytes);
        assert!(level2.read_sizes_kib.iter().sum::<u64>() > 0);
        let level3 = driver.statistics_level3().unwrap();
        assert_eq!(level3.level2.level1.read.bytes, level1.read.bytes);
        assert_eq!((level3.posix_reads(), level3.direct_reads()), (4, 0));
        assert_eq!(level3.gpus[0].read.bytes, (3 << 20) + 1000);
        file.read_exact(&mut buffer, 0).unwrap();
        assert_eq!(driver.statistics_level3().unwrap().posix_reads(), 5);
        driver.reset_statistics().unwrap();
        assert_eq!(driver.statistics_level1().unwrap().read.bytes, 0);
        file.read_exact(&mut buffer, 0).unwrap();
        assert_eq!(driver.statistics_level1().unwrap().read.operations.ok, 1);
        // NVIDIA's 1.20: whoever proves a path by these must never reset them.
        assert_eq!(driver.statistics_level3().unwrap().posix_reads(), 0);
        assert_eq!(driver.statistics_level().unwrap(), 3);
        driver.stop_statistics().unwrap();
    });
}

#[test]
fn a_forked_child_is_told_and_releases_nothing() {
    on_nvidia("a_forked_child_is_told_and_releases_nothing", || {
        let sample = Sample::of("fork", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        let memory = device_memory(4096);
        // SAFETY: the child only makes calls of ours, which answer or do nothing, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = |result: Result<(), CuFileError>| matches!(result, Err(CuFileError::Forked));
            let answers = [
                forked(driver.health()),
                forked(file.read_exact(&mut buffer, 0)),
                forked(file.read_exact(&mut [0_u8; 8][..], 0)),
                forked(Driver::open(Mode::Compat).map(|_| ())),
                forked(CuFile::open(&driver, &sample.path).map(|_| ())),
                forked(RegisteredBuffer::register(&driver, memory).map(|_| ()).map_err(|(_, error)| error)),
                forked(driver.clone().close().map_err(|(_, error)| error)),
            ];
            drop((buffer, file, driver));
            let wrong = answers.iter().position(|answer| !answer);
            // SAFETY: ends this process at once, without the destructors of the parent's libraries.
            unsafe { libc::_exit(wrong.map_or(0, |place| place as i32 + 1)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's exit status (the number of the wrong answer, times 256)");
        // The parent is none the worse.
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(cufile_support::look(buffer.address(), 65536) == sample.bytes);
    });
}

#[test]
fn without_a_library_it_is_unavailable() {
    const TEST: &str = "without_a_library_it_is_unavailable";
    let simulation =
        test_support::Simulation::new(TEST).setting("GDS_CUFILE_LIBRARY", "/nonexistent/libcufile.so.0");
    let outcome = simulation.run(|| {
        for _ in 0..2 {
            let error = Driver::open(Mode::Compat).unwrap_err();
            assert!(error.is_unavailable() && error.to_string().contains("/nonexistent"), "{error}");
        }
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

#[test]
fn without_a_gpu_it_is_unavailable_and_never_opened() {
    const TEST: &str = "without_a_gpu_it_is_unavailable_and_never_opened";
    let Some(simulation) = nvidia(TEST) else { return };
    let outcome = simulation.setting("CUDA_SIM_DEVICES", "0").run(|| {
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert_eq!(Library::load().unwrap().use_count(), Some(0));
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}
