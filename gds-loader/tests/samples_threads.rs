//! What NVIDIA's cuFile samples of the folder `2_cuFile_Multithreaded` show, through the safe API: one test for each, under
//! the sample's name. `docs/cufile-samples.md` is the table of all of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;
mod samples_support;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::thread;

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, nvidia, on_nvidia, on_sim, registered};
use gds_loader::cufile::{
    CuFile, CuFileError, Driver, DriverSettings, Mode, RegisteredBuffer, SizeParameter,
};
use samples_support::{KIB, MIB, Memory, open_both, read_and_check};
use test_support::control;

#[test]
fn separate_handles() {
    on_nvidia("separate_handles", || {
        let driver = compat();
        let samples = [Sample::of("separate-1", 1 << 20), Sample::of("separate-2", 1 << 20)];
        thread::scope(|scope| {
            for worker in 0..8 {
                let (driver, sample) = (&driver, &samples[worker % 2]);
                scope.spawn(move || {
                    let file = CuFile::open(driver, &sample.path).unwrap();
                    read_and_check(&file, &mut registered(driver, MIB), (0, MIB, 0), &sample.bytes);
                });
            }
        });
    });
}

/// Threads on two GPUs share one handle.
#[test]
fn shared_handles() {
    on_two_gpus("shared_handles", |driver, region| RegisteredBuffer::register(driver, region).unwrap());
}

/// The same, with nothing registered.
#[test]
fn no_bufregister() {
    on_two_gpus("no_bufregister", |_, region| region);
}

#[track_caller]
fn on_two_gpus<M: Memory>(test: &str, prepare: impl Fn(&Driver, RegionMut) -> M + Sync) {
    let Some(simulation) = nvidia(test) else { return };
    let outcome = simulation.setting("CUDA_SIM_DEVICES", "2").run(|| {
        let (driver, sample) = (compat(), Sample::of(test, 4 << 20));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let devices = [0, 1].map(|index| Device::cuda(index).unwrap());
        thread::scope(|scope| {
            for worker in 0..8_u64 {
                let (driver, sample, file, prepare) = (&driver, &sample, &file, &prepare);
                let device = &devices[worker as usize % 2];
                scope.spawn(move || {
                    let mut memory = prepare(driver, device.allocate(MIB / 2, 4096).unwrap());
                    assert_eq!(memory.region().device().info().index, Some(worker as u32 % 2));
                    read_and_check(file, &mut memory, (0, MIB / 2, worker * MIB / 2), &sample.bytes);
                });
            }
        });
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// Sixty-four buffers for each thread, and a limit on registered memory that is set before opening.
#[test]
fn many_buffers_set_bar() {
    on_nvidia("many_buffers_set_bar", || {
        let settings = DriverSettings::new().size(SizeParameter::MaxDevicePinnedMemSizeKib, 65536);
        let driver = settings.open(Mode::Compat).unwrap();
        assert_eq!(driver.library().size(SizeParameter::MaxDevicePinnedMemSizeKib).unwrap(), 65536);
        many_buffers(&driver);
        driver.close().unwrap();
        // The older function is accepted and ignored here: an error, and no limit that is only believed in.
        let error = DriverSettings::new().max_pinned_kib(32768).open(Mode::Compat).unwrap_err();
        assert!(matches!(error, CuFileError::NotTaken { .. }), "{error}");
    });
}

/// The same where the limit is kept: beyond it nothing registers, and what was given back can be had again.
#[test]
fn many_buffers_set_bar_where_it_is_kept() {
    on_sim("many_buffers_set_bar_where_it_is_kept", &[("CUFILE_SIM_MODE", "real")], || {
        let driver = DriverSettings::new().max_pinned_kib(32768).open(Mode::Direct).unwrap();
        assert_eq!(driver.properties().unwrap().max_device_pinned_kib, 32768);
        many_buffers(&driver);
        let first = registered(&driver, 20 * MIB);
        let (_, error) = RegisteredBuffer::register(&driver, device_memory(13 * MIB)).unwrap_err();
        assert!(error.is_registration_limit() && error.status().unwrap().code() == 5016, "{error}");
        drop(first);
        registered(&driver, 13 * MIB);
    });
}

fn many_buffers(driver: &Driver) {
    let samples = [Sample::of("many-1", 1 << 20), Sample::of("many-2", 1 << 20)];
    thread::scope(|scope| {
        for worker in 0..4 {
            let sample = &samples[worker % 2];
            scope.spawn(move || {
                let file = CuFile::open(driver, &sample.path).unwrap();
                let mut buffers: Vec<_> = (0..64).map(|_| registered(driver, 64 * KIB)).collect();
                for (place, buffer) in (0..).zip(&mut buffers) {
                    read_and_check(&file, buffer, (0, 16 * KIB, place * 16 * KIB), &sample.bytes);
                }
            });
        }
    });
}

/// Sixty-four threads with a handle and four buffers each, half of them registered; limits are set before opening.
#[test]
fn highly_concurrent_halfreg() {
    on_nvidia("highly_concurrent_halfreg", || {
        let driver = DriverSettings::new()
            .size(SizeParameter::MaxDevicePinnedMemSizeKib, 131_072)
            .size(SizeParameter::MaxDeviceCacheSizeKib, 65536)
            .open(Mode::Compat)
            .unwrap();
        let samples = [Sample::of("halfreg-1", 512 << 10), Sample::of("halfreg-2", 512 << 10)];
        thread::scope(|scope| {
            for worker in 0..64_usize {
                let (driver, sample) = (&driver, &samples[worker / 2 % 2]);
                scope.spawn(move || match worker % 2 {
                    0 => stream_through(driver, sample, |len| registered(driver, len)),
                    _ => stream_through(driver, sample, device_memory),
                });
            }
        });
    });
}

/// Reads the whole file, chunk by chunk, through four buffers in turn.
fn stream_through<M: Memory>(driver: &Driver, sample: &Sample, allocate: impl Fn(u64) -> M) {
    const CHUNK: u64 = 64 * KIB;
    let file = CuFile::open(driver, &sample.path).unwrap();
    let mut buffers = [(); 4].map(|()| allocate(CHUNK));
    for chunk in 0..8 {
        read_and_check(&file, &mut buffers[chunk as usize % 4], (0, CHUNK, chunk * CHUNK), &sample.bytes);
    }
}

/// Threads with handles of their own read and write ranges of one file, from and to offsets in their memory.
#[test]
fn separate_handles_offset() {
    on_nvidia("separate_handles_offset", || {
        let (driver, sample) = (compat(), Sample::of("separate-offset", 2 << 20));
        offsets(&driver, &sample, || open_both(&driver, &sample.path));
    });
}

/// The same with one handle.
#[test]
fn shared_handles_offset() {
    on_nvidia("shared_handles_offset", || {
        let (driver, sample) = (compat(), Sample::of("shared-offset", 2 << 20));
        let shared = open_both(&driver, &sample.path);
        offsets(&driver, &sample, || shared.clone());
    });
}

/// Each of eight threads reads its part of the first MiB to an offset in its memory, and writes it to the second MiB.
fn offsets(driver: &Driver, sample: &Sample, open: impl Fn() -> CuFile + Sync) {
    const PART: u64 = MIB / 8;
    thread::scope(|scope| {
        for worker in 0..8_u64 {
            let open = &open;
            scope.spawn(move || {
                let (file, start) = (open(), worker * 4096 + worker % 2);
                let mut buffer = registered(driver, 2 * PART);
                read_and_check(&file, &mut buffer, (start, PART, worker * PART), &sample.bytes);
                file.write_all_at(&buffer, start..start + PART, MIB + worker * PART).unwrap();
            });
        }
    });
    let written = fs::read(&sample.path).unwrap();
    assert!(written[..1 << 20] == sample.bytes[..1 << 20], "what was read only");
    assert!(written[1 << 20..] == sample.bytes[..1 << 20], "what was written");
}

/// Ranges that share a block are written and read under a lock of that block: the library writes them by reading the
/// block, changing it and writing it back.
#[test]
fn file_control_locks() {
    on_nvidia("file_control_locks", || {
        const ROUNDS: u8 = 20;
        let (driver, sample) = (compat(), Sample::of("locks", 4096));
        thread::scope(|scope| {
            for (offset, len) in [(10_u64, 40_u64), (50, 200), (300, 1), (1999, 97)] {
                let (driver, path) = (&driver, &sample.path);
                scope.spawn(move || {
                    let file = open_both(driver, path);
                    let region = device_memory(len);
                    for round in 1..=ROUNDS {
                        control::write_device_memory(region.address(), &vec![round; len as usize]);
                        lock_block(file.file(), libc::F_WRLCK);
                        file.write_all(&region, offset).unwrap();
                        lock_block(file.file(), libc::F_UNLCK);
                    }
                });
            }
            let (driver, sample) = (&driver, &sample);
            scope.spawn(move || {
                let file = CuFile::open(driver, &sample.path).unwrap();
                let mut region = device_memory(100);
                for _ in 0..ROUNDS {
                    lock_block(file.file(), libc::F_RDLCK);
                    read_and_check(&file, &mut region, (0, 100, 1000), &sample.bytes);
                    lock_block(file.file(), libc::F_UNLCK);
                }
            });
        });
        let mut expected = sample.bytes.clone();
        for range in [10..50, 50..250, 300..301, 1999..2096] {
            expected[range].fill(ROUNDS);
        }
        assert!(fs::read(&sample.path).unwrap() == expected);
    });
}

/// Locks or unlocks the first block. Such a lock belongs to the open file and so keeps threads apart, as one of the process
/// (`F_SETLKW`) does not.
fn lock_block(file: &File, kind: i32) {
    // SAFETY: plain data, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 4096;
    // SAFETY: the descriptor is open; the lock is read for the call.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &lock) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}
