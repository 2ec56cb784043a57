//! The safe cuFile API on a library that misbehaves on demand (`sim/cufile`): what fails, falls short, hangs or lies comes
//! out as the right bytes or as the right error, and nothing in flight is ever freed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;

use std::time::{Duration, Instant};

use cuda_staging::Device;
use cufile_support::{Sample, compat, device_memory, look, on_sim, on_sim_leaving, registered, set_script};
use gds_loader::cufile::{
    Batch, CuFile, CuFileError, CuFileErrorKind, CuFileStream, Driver, DriverSettings, IoSliceMut, Library,
    Mode, RegisteredBuffer, RegisteredWindow, RegistrationBudget, StreamFlags,
};
use test_support::cufile_sim;

#[test]
fn short_counts_are_continued_to_the_exact_count() {
    on_sim("short_counts_are_continued_to_the_exact_count", &[], || {
        let sample = Sample::of("short", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        for script in ["read=short:2", "read=short:3", "read=bytes:4097", "read@1+=short,read@3=-1:4"] {
            set_script(script);
            let mut buffer = registered(&driver, 200_000);
            file.read_exact_at(&mut buffer, 7..150_008, 33).unwrap();
            assert!(look(buffer.address() + 7, 150_001) == sample.bytes[33..150_034], "{script}");
        }
        set_script("readv=bytes:1000");
        let (mut first, mut second) = (registered(&driver, 65536), device_memory(10_000));
        let mut pieces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        file.read_vectored_exact(&mut pieces, 5).unwrap();
        let arrived = [look(first.address(), 65536), look(second.address(), 10_000)].concat();
        assert!(arrived == sample.bytes[5..75_541]);
    });
}

/// A library that fails and leaves errno as a signal set it would otherwise be asked for ever.
#[test]
fn what_is_always_interrupted_is_an_error() {
    on_sim("what_is_always_interrupted_is_an_error", &[], || {
        let sample = Sample::of("interrupted", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        set_script("read@2+=-1:4,readv@1+=-1:4,read@1=bytes:4096");
        let mut buffer = registered(&driver, 65536);
        let error = file.read_exact(&mut buffer, 0).unwrap_err();
        assert_eq!((error.errno(), error.done()), (Some(4), 4096), "{error}");
        assert!(cufile_sim::report().calls["cuFileRead"] < 10_000);
        let mut pieces = [IoSliceMut::new(&mut buffer)];
        assert_eq!(file.read_vectored_exact(&mut pieces, 0).unwrap_err().errno(), Some(4));
        set_script("");
        file.read_exact(&mut buffer, 0).unwrap();
    });
}

#[test]
fn short_writes_are_continued_to_the_exact_count() {
    on_sim(
        "short_writes_are_continued_to_the_exact_count",
        &[("CUFILE_SIM_SCRIPT", "write=short:3")],
        || {
            let sample = Sample::of("short-writes", 1 << 20);
            let driver = compat();
            let mut buffer = registered(&driver, 1 << 20);
            CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
            let path = sample.folder.path().join("written");
            let mut options = std::fs::OpenOptions::new();
            let file =
                CuFile::open_with(&driver, &path, options.read(true).write(true).create(true)).unwrap();
            file.write_all(&buffer, 0).unwrap();
            assert!(std::fs::read(&path).unwrap() == sample.bytes);
        },
    );
}

#[test]
fn failed_reads_say_what_where_and_how_much_had_arrived() {
    on_sim("failed_reads_say_what_where_and_how_much_had_arrived", &[], || {
        let sample = Sample::of("failed", 1 << 20);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        for (effect, status, errno, kind) in [
            ("-1:5027", Some(5027), None, CuFileErrorKind::Environment),
            ("-1:5030", Some(5030), None, CuFileErrorKind::Environment),
            ("-1:5", None, Some(5), CuFileErrorKind::Data),
            ("-1:22", None, Some(22), CuFileErrorKind::Environment),
            ("-5", None, Some(5), CuFileErrorKind::Data),
            ("5999", Some(5999), None, CuFileErrorKind::Environment),
            ("-5999", Some(5999), None, CuFileErrorKind::Environment),
            ("-5012", Some(5012), None, CuFileErrorKind::Device),
        ] {
            set_script(&format!("read@1=bytes:1000,read@2={effect}"));
            let error = file.read_exact(&mut buffer, 4096).unwrap_err();
            let CuFileError::Transfer { done, expected, file_offset, path, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*done, *expected, *file_offset), (1000, 65536, 4096), "{effect}");
            assert_eq!(*path, sample.path);
            assert_eq!(error.status().map(|status| status.code()), status, "{effect}");
            assert_eq!((error.errno(), error.kind()), (errno, kind), "{effect}");
            let code = status.or(errno).unwrap();
            assert!(error.to_string().contains(&code.to_string()), "{error}");
            assert!(look(buffer.address(), 1000) == sample.bytes[4096..5096], "what had arrived");
            // The next read is none the worse.
            set_script("");
            file.read_exact(&mut buffer, 0).unwrap();
        }
    });
}

#[test]
fn registration_refused_is_told_apart_by_what_to_do() {
    on_sim("registration_refused_is_told_apart_by_what_to_do", &[], || {
        let sample = Sample::of("registration", 65536);
        let driver = compat();
        for code in [5030, 5027, 5999] {
            set_script(&format!("handle_register={code}"));
            let error = CuFile::open(&driver, &sample.path).unwrap_err();
            assert_eq!(error.status().map(|status| status.code()), Some(code), "{error}");
            assert_eq!(error.kind(), CuFileErrorKind::Environment);
        }
        // A window that shrinks until it fits, as a caller does it; the memory comes back each time.
        set_script("buf_register>1MiB=5016");
        let device = Device::cuda(0).unwrap();
        let budget = RegistrationBudget::new(64 << 20);
        let mut slot = 2 << 20;
        let window = loop {
            match RegisteredWindow::new(&driver, &device, 4, slot, &budget) {
                Ok(window) => break window,
                Err(error) => assert!(error.is_registration_limit(), "{error}"),
            }
            assert_eq!(budget.used(), 0);
            slot /= 2;
        };
        assert_eq!((window.slot_len(), budget.used()), (256 << 10, 1 << 20));
        set_script("buf_register=5011/719");
        let (memory, error) = RegisteredBuffer::register(&driver, device_memory(4096)).unwrap_err();
        assert_eq!(
            (memory.len(), error.cuda_code(), error.kind()),
            (4096, Some(719), CuFileErrorKind::Device)
        );
        assert!(!error.is_registration_limit());
    });
}

#[test]
fn a_deregistration_that_fails_keeps_the_memory() {
    const TEST: &str = "a_deregistration_that_fails_keeps_the_memory";
    let outcome = on_sim_leaving(TEST, &[("CUFILE_SIM_SCRIPT", "buf_deregister=5030")], || {
        drop(registered(&compat(), 1 << 20));
    });
    if let Some(outcome) = outcome {
        let alive = outcome.report().ours_alive();
        assert_eq!(alive["allocations"].count, 1, "{alive:?}");
    }
}

#[test]
fn bar1_limits_registration_in_real_mode() {
    let settings = [("CUFILE_SIM_MODE", "real"), ("CUDA_SIM_BAR1", "8MiB")];
    on_sim("bar1_limits_registration_in_real_mode", &settings, || {
        let sample = Sample::of("real", 1 << 20);
        let driver = Driver::open(Mode::Direct).unwrap();
        assert!(driver.is_compat_ruled_out());
        driver.set_statistics_level(3).unwrap();
        driver.start_statistics().unwrap();
        let (_, error) = RegisteredBuffer::register(&driver, device_memory(32 << 20)).unwrap_err();
        assert_eq!(error.status().map(|status| status.code()), Some(5016));
        assert!(error.is_registration_limit());
        let mut buffer = registered(&driver, 1 << 20);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(look(buffer.address(), 1 << 20) == sample.bytes);
        let statistics = driver.statistics_level3().unwrap();
        assert_eq!(statistics.posix_reads(), 0);
        assert!(statistics.direct_reads() > 0, "{:?}", statistics.gpus);
    });
}

#[test]
fn a_lying_library_is_found_out_by_its_statistics() {
    on_sim("a_lying_library_is_found_out_by_its_statistics", &[("CUFILE_SIM_MODE", "lying")], || {
        let sample = Sample::of("lying", 65536);
        let driver = Driver::open(Mode::Direct).unwrap();
        driver.set_statistics_level(3).unwrap();
        driver.start_statistics().unwrap();
        let mut buffer = registered(&driver, 65536);
        CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
        let statistics = driver.statistics_level3().unwrap();
        assert!(statistics.posix_reads() > 0 && statistics.direct_reads() == 0, "{:?}", statistics.gpus);
    });
}

#[test]
fn a_hang_in_open_is_bounded_and_remembered() {
    on_sim("a_hang_in_open_is_bounded_and_remembered", &[("CUFILE_SIM_SCRIPT", "open@1=hang")], || {
        let limit = Duration::from_millis(300);
        let start = Instant::now();
        let error = DriverSettings::new().limit(limit).open(Mode::Compat).unwrap_err();
        assert!(matches!(error, CuFileError::TimedOut { limit: found, .. } if found == limit), "{error}");
        assert!(start.elapsed() >= limit && start.elapsed() < Duration::from_secs(10));
        // No second attempt, which would spin too.
        let start = Instant::now();
        for mode in [Mode::Compat, Mode::Direct, Mode::Default] {
            let error = Driver::open(mode).unwrap_err();
            assert_eq!(error.kind(), CuFileErrorKind::Broken, "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn the_environment_bounds_opening() {
    let settings = [("CUFILE_SIM_SCRIPT", "open=hang"), ("GDS_CUFILE_OPEN_SECONDS", "0.2")];
    on_sim("the_environment_bounds_opening", &settings, || {
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(
            matches!(error, CuFileError::TimedOut { limit, .. } if limit == Duration::from_millis(200)),
            "{error}"
        );
    });
}

#[test]
fn an_open_that_fails_is_unavailable_with_its_code() {
    on_sim("an_open_that_fails_is_unavailable_with_its_code", &[], || {
        Library::load().unwrap().version();
        for code in [5033, 5010, 5999] {
            set_script(&format!("open@1={code}"));
            let error = Driver::open(Mode::Compat).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            assert_eq!(error.status().map(|status| status.code()), Some(code));
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
        assert!(Driver::open(Mode::Direct).unwrap_err().is_unavailable());
        compat();
    });
}

#[test]
fn an_old_library_lacks_features_and_nothing_else() {
    let settings = [("CUFILE_SIM_VERSION", "1.3"), ("CUFILE_FORCE_COMPAT_MODE", "true")];
    on_sim("an_old_library_lacks_features_and_nothing_else", &settings, || {
        let sample = Sample::of("old", 65536);
        let driver = compat();
        assert_eq!(driver.library().version(), None);
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(look(buffer.address(), 65536) == sample.bytes);
        let stream = Device::cuda(0).unwrap().stream().unwrap();
        let lacking = [
            driver.statistics_level1().map(|_| ()).unwrap_err(),
            driver.set_statistics_level(3).unwrap_err(),
            CuFileStream::register(&driver, stream, StreamFlags::default()).map(|_| ()).unwrap_err(),
            file.read_vectored_exact(&mut [IoSliceMut::new(&mut buffer)], 0).unwrap_err(),
            driver.bar_size_kib(0).map(|_| ()).unwrap_err(),
        ];
        for error in lacking {
            assert!(error.is_unavailable(), "{error}");
        }
        let plain = std::fs::File::open(&sample.path).unwrap();
        assert!(
            matches!(CuFile::register(&driver, plain, "x"), Err(CuFileError::Usage(_))),
            "needs O_DIRECT"
        );
    });
}

#[test]
fn without_parameters_direct_mode_needs_nvidia_fs() {
    const TEST: &str = "without_parameters_direct_mode_needs_nvidia_fs";
    on_sim(TEST, &[("CUFILE_SIM_VERSION", "1.11")], || {
        let error = Driver::open(Mode::Direct).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("nvidia-fs"), "{error}");
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("CUFILE_FORCE_COMPAT_MODE"), "{error}");
    });
}

#[test]
fn one_missing_function_costs_one_feature() {
    let settings = [("CUFILE_SIM_WITHOUT", "cuFileReadv,cuFileBatchIOCancel")];
    on_sim("one_missing_function_costs_one_feature", &settings, || {
        let sample = Sample::of("missing", 4096);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut bytes = [0_u8; 4096];
        let error = file.read_vectored_exact(&mut [IoSliceMut::new(&mut bytes[..])], 0).unwrap_err();
        assert!(matches!(error, CuFileError::Missing { function: "cuFileReadv", .. }), "{error}");
        let error = Batch::new(&driver, 4).unwrap_err();
        assert!(matches!(error, CuFileError::Missing { function: "cuFileBatchIOCancel", .. }), "{error}");
        file.read_exact(&mut bytes[..], 0).unwrap();
        assert!(bytes[..] == sample.bytes);
    });
}

#[test]
fn a_missing_base_function_is_unavailable() {
    on_sim("a_missing_base_function_is_unavailable", &[("CUFILE_SIM_WITHOUT", "cuFileRead")], || {
        let error = Driver::open(Mode::Compat).unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("cuFileRead"), "{error}");
    });
}

#[test]
fn another_users_close_is_explained() {
    on_sim("another_users_close_is_explained", &[], || {
        let sample = Sample::of("close", 65536);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        let api = cufile_sys::Api::get().unwrap();
        // SAFETY: takes nothing.
        unsafe { api.cuFileDriverClose_v2.unwrap()() }.result().unwrap();
        let error = file.read_exact(&mut buffer, 0).unwrap_err();
        assert!(matches!(error, CuFileError::Closed { .. }), "{error}");
        assert!(error.to_string().contains("another user"), "{error}");
        let again = compat();
        let fresh = CuFile::open(&again, &sample.path).unwrap();
        drop(file);
        let mut memory = buffer.into_region();
        fresh.read_exact(&mut memory, 0).unwrap();
        assert!(look(memory.address(), 65536) == sample.bytes);
    });
}
