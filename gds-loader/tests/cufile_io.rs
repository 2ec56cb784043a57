//! Reads and writes through the safe cuFile API, on NVIDIA's own library in compatibility mode on the simulated GPU. The
//! oracle is the file as the standard library sees it, and device memory as the simulator sees it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;

use std::fs::{File, OpenOptions};
use std::sync::Arc;
use std::thread;

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, look, on_nvidia, pattern, registered};
use gds_loader::cufile::{
    CuFile, CuFileError, CuFileErrorKind, Direction, IoSlice, IoSliceMut, RegisteredBuffer, RegisteredWindow,
    RegistrationBudget,
};

const MIB: usize = 1 << 20;

/// Offset in the file, range in the memory: aligned, not aligned, tiny, up to the last byte.
const CUTS: [(u64, u64, u64); 7] = [
    (0, 0, 65536),
    (4096, 8192, 4096),
    (1, 0, 65536),
    (4097, 13, 10_001),
    (99_999, 511, 1),
    (MIB as u64 - 100_000, 77, 100_000),
    (512, 512, 512),
];

#[test]
fn reads_into_every_kind_of_memory_are_exact() {
    on_nvidia("reads_into_every_kind_of_memory_are_exact", || {
        let sample = Sample::of("reads", MIB);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        assert!(file.is_direct());
        let len = MIB as u64;

        let mut plain = device_memory(len);
        file.read_exact(&mut plain, 0).unwrap();
        assert!(look(plain.address(), len) == sample.bytes, "unregistered device memory");

        let mut whole = registered(&driver, len);
        file.read_exact(&mut whole, 0).unwrap();
        assert!(look(whole.address(), len) == sample.bytes, "registered device memory");

        let mut host = vec![0; MIB];
        file.read_exact(&mut host[..], 0).unwrap();
        assert!(host == sample.bytes, "host memory");

        let mut region = Device::cpu().allocate(len, 4096).unwrap();
        file.read_exact(&mut region, 0).unwrap();
        assert!(region.host_bytes().unwrap() == sample.bytes, "a host region");

        let mut pinned = RegisteredBuffer::register(&driver, region).unwrap();
        pinned.host_bytes_mut().unwrap().fill(0);
        file.read_exact(&mut pinned, 0).unwrap();
        assert!(pinned.into_region().host_bytes().unwrap() == sample.bytes, "registered host memory");

        for (file_offset, start, count) in CUTS {
            let (from, to) = (file_offset as usize, start as usize);
            let mut expected = vec![0xA5; MIB];
            expected[to..to + count as usize].copy_from_slice(&sample.bytes[from..from + count as usize]);

            let mut plain = device_memory(len);
            file.read_exact_at(&mut plain, start..start + count, file_offset).unwrap();
            assert!(look(plain.address(), len) == expected, "plain {file_offset} {start} {count}");
            let mut buffer = registered(&driver, len);
            file.read_exact_at(&mut buffer, start..start + count, file_offset).unwrap();
            assert!(look(buffer.address(), len) == expected, "registered {file_offset} {start} {count}");
            let mut host = vec![0xA5; MIB];
            file.read_exact_at(&mut host[..], start..start + count, file_offset).unwrap();
            assert!(host == expected, "host {file_offset} {start} {count}");
        }
    });
}

#[test]
fn parts_of_one_registration_are_read_into_on_their_own() {
    on_nvidia("parts_of_one_registration_are_read_into_on_their_own", || {
        let sample = Sample::of("parts", MIB);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let buffer = registered(&driver, 300_000);
        let address = buffer.address();
        let (head, tail) = buffer.split_at(100_001).unwrap();
        let (mut middle, mut tail) = tail.split_at(50_000).unwrap();
        drop(head);
        file.read_exact(&mut middle, 7).unwrap();
        file.read_exact_at(&mut tail, 9..10_009, 500_000).unwrap();
        let mut expected = vec![0xA5; 300_000];
        expected[100_001..150_001].copy_from_slice(&sample.bytes[7..50_007]);
        expected[150_010..160_010].copy_from_slice(&sample.bytes[500_000..510_000]);
        assert!(look(address, 300_000) == expected);
        // The memory comes back part by part, and is still there.
        let middle = middle.into_region();
        drop(tail);
        assert!(look(middle.address(), 50_000) == sample.bytes[7..50_007]);
    });
}

#[test]
fn the_end_of_the_file_is_an_error_that_says_how_much_arrived() {
    on_nvidia("the_end_of_the_file_is_an_error_that_says_how_much_arrived", || {
        let sample = Sample::of("end", 10_000);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 65536);
        for (offset, expected) in [(0, 10_000), (4096, 5904), (9_999, 1), (10_000, 0), (1 << 40, 0)] {
            let error = file.read_exact(&mut buffer, offset).unwrap_err();
            let CuFileError::Short { direction, done, file_offset, expected: asked, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*direction, *done, *file_offset), (Direction::Read, expected, offset));
            assert_eq!((*asked, error.done(), error.kind()), (65536, expected, CuFileErrorKind::Data));
            assert_eq!(file.read_up_to(&mut buffer, 0..65536, offset).unwrap(), expected);
            if expected > 0 {
                assert!(look(buffer.address(), expected) == sample.bytes[offset as usize..]);
            }
        }
    });
}

#[test]
fn requests_that_cannot_be_are_refused_before_the_library() {
    on_nvidia("requests_that_cannot_be_are_refused_before_the_library", || {
        let sample = Sample::of("refused", 10_000);
        let driver = compat();
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut memory = [0_u8; 16];
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let wrong = [0..17, 10..9, 17..17, 0..u64::MAX];
        for range in wrong {
            let error = file.read_exact_at(&mut memory[..], range.clone(), 0).unwrap_err();
            assert!(matches!(error, CuFileError::Usage(_)), "{range:?}: {error}");
        }
        for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 15] {
            let error = file.read_exact(&mut memory[..], offset).unwrap_err();
            assert!(matches!(error, CuFileError::Usage(_)), "{offset}: {error}");
        }
        file.read_exact(&mut memory[..0], 0).unwrap();
        let empty = RegisteredBuffer::register(&driver, RegionMut::from_vec(Vec::new()));
        assert!(matches!(empty, Err((_, CuFileError::Usage(_)))));
        assert!(matches!(CuFile::open(&driver, "/nonexistent/file"), Err(CuFileError::File { .. })));
    });
}

#[test]
fn writes_make_the_round_trip() {
    on_nvidia("writes_make_the_round_trip", || {
        let sample = Sample::of("writes", MIB);
        let driver = compat();
        let path = sample.folder.path().join("written");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = CuFile::open_with(&driver, &path, &options).unwrap();

        let mut buffer = registered(&driver, MIB as u64);
        CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
        file.write_all(&buffer, 0).unwrap();
        assert!(std::fs::read(&path).unwrap() == sample.bytes, "from registered memory");

        let mut expected = sample.bytes.clone();
        for (file_offset, start, count) in CUTS {
            let (to, from) = (file_offset as usize, start as usize);
            expected[to..to + count as usize].copy_from_slice(&sample.bytes[from..from + count as usize]);
            file.write_all_at(&buffer, start..start + count, file_offset).unwrap();
            assert!(std::fs::read(&path).unwrap() == expected, "{file_offset} {start} {count}");
        }

        let frozen = buffer.into_region().freeze();
        file.write_all(&frozen, 0).unwrap();
        assert!(std::fs::read(&path).unwrap() == sample.bytes, "from read-only memory");
        let host = pattern(9_999);
        file.write_all(&host[..], 3).unwrap();
        assert!(std::fs::read(&path).unwrap()[3..10_002] == host, "from host memory");
    });
}

#[test]
fn a_file_that_cannot_be_written_says_so() {
    on_nvidia("a_file_that_cannot_be_written_says_so", || {
        let sample = Sample::of("read-only", 10_000);
        let file = CuFile::open(&compat(), &sample.path).unwrap();
        let error = file.write_all(&[1_u8; 4096][..], 0).unwrap_err();
        assert!(
            matches!(error, CuFileError::Transfer { direction: Direction::Write, done: 0, .. }),
            "{error}"
        );
        assert!(error.status().is_some() || error.errno().is_some(), "{error}");
        assert!(std::fs::read(&sample.path).unwrap() == sample.bytes);
    });
}

#[test]
fn vectored_reads_and_writes_are_exact() {
    on_nvidia("vectored_reads_and_writes_are_exact", || {
        let sample = Sample::of("vectored", MIB);
        let driver = compat();
        let mut options = OpenOptions::new();
        let file = CuFile::open_with(&driver, &sample.path, options.read(true).write(true)).unwrap();
        let (mut first, mut second) = (registered(&driver, 65536), device_memory(65536));
        let mut nothing = [0_u8; 4];
        let mut pieces = [
            IoSliceMut::part(&mut first, 4096..20_480).unwrap(),
            IoSliceMut::part(&mut nothing[..], 2..2).unwrap(),
            IoSliceMut::new(&mut second),
        ];
        file.read_vectored_exact(&mut pieces, 8192).unwrap();
        assert!(look(first.address() + 4096, 16_384) == sample.bytes[8192..24_576]);
        assert!(look(second.address(), 65536) == sample.bytes[24_576..90_112]);
        assert!(look(first.address(), 4096) == [0xA5; 4096]);

        // Past the end: what there is arrives, the rest is an error.
        let mut pieces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let error = file.read_vectored_exact(&mut pieces, MIB as u64 - 70_000).unwrap_err();
        assert_eq!(error.done(), 70_000, "{error}");

        file.write_vectored_all(&[IoSlice::new(&second), IoSlice::part(&first, 0..4096).unwrap()], 0)
            .unwrap();
        let written = std::fs::read(&sample.path).unwrap();
        assert!(written[..65536] == look(second.address(), 65536));
        assert!(written[65536..69_632] == look(first.address(), 4096));
        assert!(written[69_632..] == sample.bytes[69_632..]);
        file.read_vectored_exact(&mut [], 0).unwrap();

        // More pieces than the library takes at once.
        let mut many = vec![[0_u8; 16]; 1000];
        let mut pieces: Vec<_> = many.iter_mut().map(|piece| IoSliceMut::new(&mut piece[..])).collect();
        file.read_vectored_exact(&mut pieces, 69_633).unwrap();
        assert!(many.concat() == sample.bytes[69_633..85_633]);
    });
}

#[test]
fn threads_share_a_handle_or_have_their_own() {
    on_nvidia("threads_share_a_handle_or_have_their_own", || {
        let sample = Sample::of("threads", 4 * MIB);
        let driver = compat();
        let shared = CuFile::open(&driver, &sample.path).unwrap();
        let bytes = Arc::new(sample.bytes.clone());
        let threads = (0..8_usize).map(|thread| {
            let own = thread % 2 == 0;
            let file = if own { CuFile::open(&driver, &sample.path).unwrap() } else { shared.clone() };
            let (driver, bytes) = (driver.clone(), Arc::clone(&bytes));
            thread::spawn(move || {
                let mut buffer = registered(&driver, MIB as u64 / 2);
                let from = thread * (MIB / 2);
                file.read_exact(&mut buffer, from as u64).unwrap();
                assert!(
                    look(buffer.address(), buffer.len()) == bytes[from..from + MIB / 2],
                    "thread {thread}"
                );
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_window_serves_many_threads_from_one_registration() {
    on_nvidia("a_window_serves_many_threads_from_one_registration", || {
        const SLOT: u64 = 100_000;
        let sample = Sample::of("window", 4 * MIB);
        let driver = compat();
        let device = Device::cuda(0).unwrap();
        let budget = RegistrationBudget::new(1 << 20);
        let window = RegisteredWindow::new(&driver, &device, 4, SLOT, &budget).unwrap();
        assert_eq!((window.slots(), window.slot_len(), budget.used()), (4, SLOT, 4 * 131_072));
        let over = RegisteredWindow::new(&driver, &device, 5, SLOT, &budget).unwrap_err();
        assert!(over.is_registration_limit(), "{over}");

        let file = CuFile::open(&driver, &sample.path).unwrap();
        thread::scope(|scope| {
            for worker in 0..4 {
                let (window, file, bytes) = (&window, &file, &sample.bytes);
                scope.spawn(move || {
                    for piece in (worker..40).step_by(4) {
                        let offset = piece * SLOT as usize;
                        window.read(file, offset as u64, worker, SLOT).unwrap();
                        let arrived = window.with_slot(worker, |slot| look(slot.address(), SLOT)).unwrap();
                        assert!(arrived == bytes[offset..offset + SLOT as usize], "piece {piece}");
                    }
                });
            }
        });
        let tail = sample.bytes.len() as u64 - 10;
        assert_eq!(window.read_up_to(&file, tail, 0, SLOT).unwrap(), 10);
        assert!(matches!(window.read(&file, 0, 4, 1), Err(CuFileError::Usage(_))));
        let slots = window.into_slots();
        assert_eq!(budget.used(), 4 * 131_072);
        drop(slots);
        assert_eq!((budget.used(), budget.peak()), (0, 4 * 131_072));
    });
}

#[test]
fn a_file_without_direct_io_is_served_and_said_to_be() {
    on_nvidia("a_file_without_direct_io_is_served_and_said_to_be", || {
        let sample = Sample::of("plain", MIB);
        let driver = compat();
        let file = CuFile::register(&driver, File::open(&sample.path).unwrap(), &sample.path).unwrap();
        assert!(!file.is_direct());
        let mut buffer = registered(&driver, MIB as u64);
        file.read_exact(&mut buffer, 0).unwrap();
        assert!(look(buffer.address(), MIB as u64) == sample.bytes);
        file.read_exact_at(&mut buffer, 5..10_000, 4_097).unwrap();
        assert!(look(buffer.address() + 5, 9_995) == sample.bytes[4_097..14_092]);
    });
}

#[test]
fn a_file_cut_short_while_open_is_a_data_error() {
    on_nvidia("a_file_cut_short_while_open_is_a_data_error", || {
        let sample = Sample::of("truncated", MIB);
        let file = CuFile::open(&compat(), &sample.path).unwrap();
        OpenOptions::new().write(true).open(&sample.path).unwrap().set_len(5_000).unwrap();
        let mut memory = device_memory(MIB as u64);
        let error = file.read_exact(&mut memory, 0).unwrap_err();
        assert_eq!((error.kind(), error.done()), (CuFileErrorKind::Data, 5_000), "{error}");
        // Replaced by another file of this name: the open one is read, whole.
        std::fs::remove_file(&sample.path).unwrap();
        std::fs::write(&sample.path, b"another").unwrap();
        file.read_exact_at(&mut memory, 0..5_000, 0).unwrap();
        assert!(look(memory.address(), 5_000) == sample.bytes[..5_000]);
    });
}

#[test]
fn memory_registered_twice_is_refused_and_comes_back() {
    on_nvidia("memory_registered_twice_is_refused_and_comes_back", || {
        let driver = compat();
        let first = registered(&driver, 65536);
        // SAFETY: `first` is not used while its memory is adopted a second time.
        let again = unsafe { Device::cuda(0).unwrap().adopt(first.address(), 65536) }.unwrap();
        let (again, error) = RegisteredBuffer::register(&driver, again).unwrap_err();
        assert_eq!(error.status().map(|status| status.code()), Some(5023), "{error}");
        assert!(!error.is_registration_limit());
        drop(first);
        drop(again);
    });
}
