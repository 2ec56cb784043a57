//! What NVIDIA's cuFile samples of the folder `1_cuFile_Basics` show, through the safe API: one test for each, under the
//! sample's name. `docs/cufile-samples.md` is the table of all of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]

mod cufile_support;
mod samples_support;

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};

use cuda_staging::{Device, RegionMut};
use cufile_support::{Sample, compat, device_memory, look, on_nvidia, pattern, registered};
use cufile_sys::CUfileOpError;
use gds_loader::cufile::{
    BoolParameter, CuFile, CuFileError, DriverSettings, Mode, RegisteredBuffer, SizeParameter, Slab,
    SlabPool, Status, StatusKind,
};
use samples_support::{KIB, MIB, create, patterned};

#[test]
fn bufregister_write() {
    on_nvidia("bufregister_write", || {
        let (driver, sample) = (compat(), Sample::of("bufregister-write", 0));
        let buffer = RegisteredBuffer::register(&driver, patterned(128 * KIB)).unwrap();
        let file = create(&driver, &sample.path);
        assert!(file.is_direct());
        file.write_all(&buffer, 0).unwrap();
        assert!(fs::read(&sample.path).unwrap() == pattern(128 << 10));
    });
}

#[test]
fn no_bufregister_write() {
    on_nvidia("no_bufregister_write", || {
        let (driver, sample) = (compat(), Sample::of("no-bufregister-write", 0));
        driver.set_statistics_level(1).unwrap();
        driver.start_statistics().unwrap();
        create(&driver, &sample.path).write_all(&patterned(128 * KIB), 0).unwrap();
        assert!(fs::read(&sample.path).unwrap() == pattern(128 << 10));
        assert_eq!(driver.statistics_level1().unwrap().buffer_registrations.ok, 0);
    });
}

#[test]
fn no_odirect_write() {
    on_nvidia("no_odirect_write", || {
        let (driver, sample) = (compat(), Sample::of("no-odirect-write", 0));
        let plain = OpenOptions::new().write(true).truncate(true).open(&sample.path).unwrap();
        let file = CuFile::register(&driver, plain, &sample.path).unwrap();
        assert!(!file.is_direct());
        // Not a whole number of blocks, either.
        file.write_all_at(&patterned(128 * KIB), 0..100_001, 0).unwrap();
        assert!(fs::read(&sample.path).unwrap() == pattern(100_001));
    });
}

/// `driver_rw_integrity` and `runtime_rw_integrity`, which differ in the CUDA API that they allocate by.
#[test]
fn rw_integrity() {
    on_nvidia("rw_integrity", || {
        let (driver, sample) = (compat(), Sample::of("integrity", 31 << 20));
        let source = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 31 * MIB);
        source.read_exact(&mut buffer, 0).unwrap();
        let copy = sample.folder.path().join("copy");
        let target = create(&driver, &copy);
        target.write_all(&buffer, 0).unwrap();
        assert!(fs::read(&copy).unwrap() == sample.bytes, "file to device to file");

        // And what was written is what is read, by the same handle.
        let mut again = device_memory(31 * MIB);
        target.read_exact(&mut again, 0).unwrap();
        assert!(look(again.address(), again.len()) == sample.bytes);
    });
}

#[test]
fn devmem_offset_write() {
    on_nvidia("devmem_offset_write", || {
        let (driver, sample) = (compat(), Sample::of("offset", 1 << 20));
        let mut buffer = registered(&driver, MIB);
        CuFile::open(&driver, &sample.path).unwrap().read_exact(&mut buffer, 0).unwrap();
        let written = sample.folder.path().join("written");
        let file = create(&driver, &written);
        for offset in [128 * KIB, 4096, 513, MIB - 1] {
            file.file().set_len(0).unwrap();
            file.write_all_at(&buffer, offset..MIB, 0).unwrap();
            assert!(fs::read(&written).unwrap() == sample.bytes[offset as usize..], "offset {offset}");
        }
    });
}

#[test]
fn iterative_read() {
    on_nvidia("iterative_read", || {
        const CHUNK: u64 = 256 * KIB;
        // The last chunk is no block.
        let (driver, sample) = (compat(), Sample::of("iterative", (3 << 20) + 1234));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, CHUNK);
        let mut arrived = Vec::new();
        loop {
            let count = file.read_up_to(&mut buffer, 0..CHUNK, arrived.len() as u64).unwrap();
            if count == 0 {
                break;
            }
            arrived.extend(look(buffer.address(), count));
        }
        assert!(arrived == sample.bytes);
    });
}

#[test]
fn iterative_devmem_offset_rw() {
    on_nvidia("iterative_devmem_offset_rw", || {
        const CHUNK: u64 = 128 * KIB;
        let (driver, sample) = (compat(), Sample::of("iterative-offset", 2 << 20));
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let mut buffer = registered(&driver, 2 * MIB);
        for offset in (0..2 * MIB).step_by(CHUNK as usize) {
            file.read_exact_at(&mut buffer, offset..offset + CHUNK, offset).unwrap();
        }
        assert!(look(buffer.address(), 2 * MIB) == sample.bytes);

        let copy = sample.folder.path().join("copy");
        let target = create(&driver, &copy);
        // From the end to the beginning: each write extends or fills.
        for chunk in (0..2 * MIB / CHUNK).rev() {
            let offset = chunk * CHUNK;
            target.write_all_at(&buffer, offset..offset + CHUNK, offset).unwrap();
        }
        assert!(fs::read(&copy).unwrap() == sample.bytes);
    });
}

/// A function of the CUDA driver that the program runs on.
fn cuda<F: Copy>(name: &CStr) -> F {
    // SAFETY: a C string; RTLD_DEFAULT looks through what is loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!address.is_null() && size_of::<F>() == size_of_val(&address), "{name:?}");
    // SAFETY: a function pointer, of the type that the caller knows this function to have.
    unsafe { std::mem::transmute_copy(&address) }
}

#[test]
fn various_mem_rw() {
    on_nvidia("various_mem_rw", || {
        const LEN: usize = 300_000;
        const GLOBAL: u32 = 1;
        let (driver, sample) = (compat(), Sample::of("various", LEN));
        let (gpu, host) = (Device::cuda(0).unwrap(), Device::cpu());
        gpu.make_current().unwrap();

        let mut managed = 0_u64;
        let allocate: extern "C" fn(*mut u64, usize, u32) -> i32 = cuda(c"cuMemAllocManaged");
        assert_eq!(allocate(&mut managed, LEN, GLOBAL), 0);
        let mut pinned: *mut u8 = std::ptr::null_mut();
        let pin: extern "C" fn(*mut *mut u8, usize, u32) -> i32 = cuda(c"cuMemHostAlloc");
        assert_eq!(pin(&mut pinned, LEN, 0), 0);
        let pinned = pinned.expose_provenance() as u64;

        // SAFETY: both are allocated until the end of the test and used by nothing else; the host's is zeroed.
        let (managed_memory, pinned_memory) =
            unsafe { (gpu.adopt(managed, LEN as u64).unwrap(), host.adopt(pinned, LEN as u64).unwrap()) };
        let kinds = [
            ("device", device_memory(LEN as u64)),
            ("managed", managed_memory),
            ("pageable host", RegionMut::from_vec(vec![0; LEN])),
            ("pinned host", pinned_memory),
        ];
        let file = CuFile::open(&driver, &sample.path).unwrap();
        let copy = sample.folder.path().join("copy");
        for (kind, mut memory) in kinds {
            file.read_exact(&mut memory, 0).unwrap_or_else(|error| panic!("{kind}: {error}"));
            create(&driver, &copy).write_all(&memory, 0).unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert!(fs::read(&copy).unwrap() == sample.bytes, "{kind}");
            let bytes = match memory.host_bytes() {
                Some(bytes) => bytes.to_vec(),
                None => look(memory.address(), LEN as u64),
            };
            assert!(bytes == sample.bytes, "{kind}");
        }

        let free: extern "C" fn(u64) -> i32 = cuda(c"cuMemFree_v2");
        let unpin: extern "C" fn(u64) -> i32 = cuda(c"cuMemFreeHost");
        assert_eq!((free(managed), unpin(pinned)), (0, 0));
    });
}

#[test]
fn error_and_properties() {
    on_nvidia("error_and_properties", || {
        // The codes by name, and those that nobody knows as numbers.
        let status = Status::from(CUfileOpError(5011));
        assert_eq!((status.name(), status.kind()), (Some("CU_FILE_CUDA_DRIVER_ERROR"), StatusKind::Cuda));
        assert!(!status.description().is_empty());
        let unknown = Status::from(CUfileOpError(5999));
        assert_eq!((unknown.name(), unknown.code()), (None, 5999));
        assert!(unknown.to_string().contains("5999"), "{unknown}");

        // Properties are set before opening, and read back.
        let slabs = [(4, 4), (16, 2), (64, 1)].map(|(size_kib, count)| Slab { size_kib, count });
        let settings = DriverSettings::new()
            .switch(BoolParameter::UsePollMode, true)
            .size(SizeParameter::PollThresholdSizeKib, 32768)
            .slabs(SlabPool::GpuBounceBuffer, slabs);
        let driver = settings.open(Mode::Compat).unwrap();
        let library = driver.library();
        assert!(library.switch(BoolParameter::UsePollMode).unwrap());
        assert_eq!(library.size(SizeParameter::PollThresholdSizeKib).unwrap(), 32768);
        assert_eq!(library.slabs(SlabPool::GpuBounceBuffer, 3).unwrap(), slabs);
        // Those that may be set later show in the properties.
        driver.set_poll_mode(true, 16384).unwrap();
        driver.set_max_direct_io_kib(4096).unwrap();
        let properties = driver.properties().unwrap();
        assert!(properties.polls);
        assert_eq!((properties.poll_threshold_kib, properties.max_direct_io_kib), (16384, 4096));

        // A file type that the library does not take.
        let (read, _write) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(read));
        let error = CuFile::register(&driver, pipe, "a pipe").unwrap_err();
        let CuFileError::Call { call, .. } = &error else { panic!("{error}") };
        assert_eq!((*call, error.status().unwrap().code()), ("cuFileHandleRegister", 5018));
    });
}
