//! What NVIDIA's cuFile samples of the folders `5_cuFile_MemMap` and `buffer-agnostic` show, through the safe API, and reads
//! beside a mapping of the same file. `docs/cufile-samples.md` is the table of all of them.
//!
//! The simulated driver cannot map device memory piece by piece (`cuMemMap`). One allocation stands for the reserved range
//! here, and is adopted in parts, as a caller's memory is: what these samples show of cuFile is which range of addresses was
//! registered when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;
mod samples_support;

use std::fs;

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, look, nvidia, on_nvidia, pattern, registered};
use gds_loader::cufile::{CuFile, IoSlice, IoSliceMut, RegisteredBuffer};
use samples_support::{KIB, MIB, create, open_both, patterned, read_and_check};
use test_support::control;

const HALF: u64 = 512 * KIB;

/// A range of device memory that its user takes into use step by step.
struct Reserved(RegionMut);

impl Reserved {
    fn new(len: u64) -> Self {
        Self(device_memory(len))
    }

    /// The first `len` bytes of it. Nobody may use the same bytes otherwise.
    fn first(&self, len: u64) -> RegionMut {
        // SAFETY: allocated until the end of the test, which uses what it adopts one after the other.
        unsafe { Device::cuda(0).unwrap().adopt(self.0.address(), len) }.unwrap()
    }

    fn fill(&self, bytes: &[u8]) {
        control::write_device_memory(self.0.address(), bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        look(self.0.address(), self.0.len())
    }
}

/// Registered, used, and registered anew with more bytes at the same address.
#[test]
fn memmap_reregister() {
    on_nvidia("memmap_reregister", || {
        let (driver, sample) = (compat(), Sample::of("reregister", 0));
        let file = create(&driver, &sample.path);
        let memory = Reserved::new(2 * HALF);
        memory.fill(&pattern(2 << 19));
        let before = RegisteredBuffer::register(&driver, memory.first(HALF)).unwrap();
        file.write_all(&before, 0).unwrap();
        drop(before);
        let mut after = RegisteredBuffer::register(&driver, memory.first(2 * HALF)).unwrap();
        file.write_all_at(&after, HALF..2 * HALF, HALF).unwrap();
        assert!(fs::read(&sample.path).unwrap() == pattern(1 << 20));
        memory.fill(&[0; 1 << 20]);
        file.read_exact(&mut after, 0).unwrap();
        assert!(memory.bytes() == pattern(1 << 20));
    });
}

/// All of it registered before the second half is in use.
#[test]
fn memmap_preregister() {
    on_nvidia("memmap_preregister", || {
        let (driver, sample) = (compat(), Sample::of("preregister", 0));
        let file = create(&driver, &sample.path);
        let memory = Reserved::new(2 * HALF);
        let whole = RegisteredBuffer::register(&driver, memory.first(2 * HALF)).unwrap();
        let (mut first, mut second) = whole.split_at(HALF).unwrap();
        memory.fill(&pattern(1 << 20));
        file.write_all(&first, 0).unwrap();
        file.write_all(&second, HALF).unwrap();
        assert!(fs::read(&sample.path).unwrap() == pattern(1 << 20));
        memory.fill(&[0; 1 << 20]);
        file.read_exact(&mut second, HALF).unwrap();
        file.read_exact(&mut first, 0).unwrap();
        assert!(memory.bytes() == pattern(1 << 20));
    });
}

/// Registered ahead, and written and read in steps as it grows.
#[test]
fn memmap_preregister_iterative_resize() {
    on_nvidia("memmap_preregister_iterative_resize", || {
        const STEP: u64 = 64 * KIB;
        let (driver, sample) = (compat(), Sample::of("resize", 0));
        let file = create(&driver, &sample.path);
        let memory = Reserved::new(2 * HALF);
        let mut whole = RegisteredBuffer::register(&driver, memory.first(2 * HALF)).unwrap();
        for start in (0..2 * HALF).step_by(STEP as usize) {
            memory.fill(&pattern((start + STEP) as usize));
            file.write_all_at(&whole, start..start + STEP, start).unwrap();
        }
        assert!(fs::read(&sample.path).unwrap() == pattern(1 << 20));
        memory.fill(&[0; 1 << 20]);
        for start in (0..2 * HALF).step_by(STEP as usize) {
            file.read_exact_at(&mut whole, start..start + STEP, start).unwrap();
        }
        assert!(memory.bytes() == pattern(1 << 20));
    });
}

/// Read, computed upon and written back in place. The host stands for the kernel: the simulated GPU runs none.
#[test]
fn memmap_thrust() {
    on_nvidia("memmap_thrust", || {
        let (driver, sample) = (compat(), Sample::of("thrust", 1 << 20));
        let file = open_both(&driver, &sample.path);
        let mut buffer = registered(&driver, MIB);
        read_and_check(&file, &mut buffer, (0, MIB, 0), &sample.bytes);
        let mut sorted = look(buffer.address(), MIB);
        sorted.sort_unstable();
        control::write_device_memory(buffer.address(), &sorted);
        file.write_all(&buffer, 0).unwrap();
        assert!(fs::read(&sample.path).unwrap() == sorted);
    });
}

/// One call writes from wherever the memory is: host, first GPU, second GPU.
#[test]
fn buffer_agnostic() {
    let Some(simulation) = nvidia("buffer_agnostic") else { return };
    let outcome = simulation.setting("CUDA_SIM_DEVICES", "2").run(|| {
        let (driver, sample) = (compat(), Sample::of("agnostic", 100_000));
        let source = CuFile::open(&driver, &sample.path).unwrap();
        let copy = sample.folder.path().join("copy");
        for device in [Device::cpu(), Device::cuda(0).unwrap(), Device::cuda(1).unwrap()] {
            let mut memory = device.allocate(100_000, 4096).unwrap();
            source.read_exact(&mut memory, 0).unwrap();
            create(&driver, &copy).write_all(&memory, 0).unwrap();
            assert!(fs::read(&copy).unwrap() == sample.bytes, "{}", device.info().name);
        }
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// One request to and from several places in memory, of every kind.
#[test]
fn vectored() {
    on_nvidia("vectored", || {
        let (driver, sample) = (compat(), Sample::of("vectored", 1 << 20));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let (mut first, mut second, mut host) =
            (registered(&driver, 10_000), device_memory(4096), vec![0; 77]);
        let mut pieces = [
            IoSliceMut::part(&mut first, 1..9_999).unwrap(),
            IoSliceMut::new(&mut host[..]),
            IoSliceMut::new(&mut second),
        ];
        file.read_vectored_exact(&mut pieces, 4097).unwrap();
        assert!(look(first.address() + 1, 9_998) == sample.bytes[4097..14_095]);
        assert!(host == sample.bytes[14_095..14_172]);
        assert!(look(second.address(), 4096) == sample.bytes[14_172..18_268]);

        let copy = create(&driver, &sample.folder.path().join("copy"));
        let pieces =
            [IoSlice::new(&second), IoSlice::new(&host[..]), IoSlice::part(&first, 1..9_999).unwrap()];
        copy.write_vectored_all(&pieces, 0).unwrap();
        let expected =
            [&sample.bytes[14_172..18_268], &sample.bytes[14_095..14_172], &sample.bytes[4097..14_095]];
        assert!(fs::read(copy.path()).unwrap() == expected.concat());
    });
}

/// A mapping of the file and cuFile see the same bytes, whichever of them wrote.
#[test]
fn beside_a_mapping() {
    on_nvidia("beside_a_mapping", || {
        let (driver, sample) = (compat(), Sample::of("mapping", 1 << 20));
        let file = open_both(&driver, &sample.path);
        // SAFETY: nobody else has the file, which keeps its length.
        let mut mapping = unsafe { memmap2::MmapMut::map_mut(file.file()) }.unwrap();
        assert!(mapping[..] == sample.bytes);
        let mut buffer = registered(&driver, MIB);
        read_and_check(&file, &mut buffer, (0, MIB, 0), &sample.bytes);

        file.write_all_at(&patterned(MIB), 0..5_000, 99_999).unwrap();
        let mut expected = sample.bytes.clone();
        expected[99_999..104_999].copy_from_slice(&pattern(5_000));
        assert!(mapping[..] == expected, "written by cuFile");

        mapping[700_000..700_100].fill(9);
        expected[700_000..700_100].fill(9);
        mapping.flush().unwrap();
        read_and_check(&file, &mut buffer, (0, MIB, 0), &expected);
        // A file can be read into memory that is another file's mapping.
        let other = Sample::of("mapped-destination", 1 << 20);
        CuFile::open(&driver, &other.path).unwrap().read_exact(&mut mapping[..4096], 0).unwrap();
        assert!(
            mapping[..4096] == other.bytes[..4096]
                && fs::read(&sample.path).unwrap()[..4096] == other.bytes[..4096]
        );
    });
}
