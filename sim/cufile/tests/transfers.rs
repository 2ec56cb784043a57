//! Registering, reading and writing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use cufile_sys::*;
use support::{Calls as _, Gpu, KIB, MIB, REAL, expected, failed, file, fill, load};
use test_support::control::{pause_copies, resume_copies};
use test_support::cufile_sim::{Alive, on_simulator, pause_transfers, report};
use test_support::folder::on_disk;

#[test]
fn files_are_checked() {
    let test = "files_are_checked";
    on_simulator(test, &[], || {
        let (api, folder) = (load(), on_disk(test));
        let path = folder.path().join("data");
        let file = file(&path, MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        assert_eq!(api.register(&file), Err(5028));
        assert_eq!(api.register(&OpenOptions::new().append(true).open(&path).unwrap()), Err(5019));
        assert_eq!(api.register(&std::fs::File::open(folder.path()).unwrap()), Err(5018));
        assert_eq!(api.register_as(1, 9999), Err(5022));
        assert_eq!(api.register_as(2, file.as_raw_fd()), Err(5008));
        let read_only = std::fs::File::open(&path).unwrap();
        let read_only = (api.register(&read_only).unwrap(), read_only);
        let mut bytes = vec![0_u8; 4096];
        let address = bytes.as_mut_ptr().addr() as u64;
        assert_eq!(api.read(read_only.0, address, 4096, 0, 0), Ok(4096));
        assert_eq!(api.write(read_only.0, address, 4096, 0, 0), failed(5019));
        // SAFETY: a handle of this library's.
        unsafe { (api.cuFileHandleDeregister)(handle) };
        assert_eq!(api.read(handle, address, 4096, 0, 0), failed(5027));
        assert_eq!(api.read(0x1234 as CUfileHandle_t, address, 4096, 0, 0), failed(5027));
        assert!(api.register(&file).is_ok());
    });
}

#[test]
fn memory_is_checked() {
    let test = "memory_is_checked";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), 4 * MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        let base = memory.address;
        assert_eq!((api.register_buffer(0, 1), api.register_buffer(base, 0)), (5022, 5022));
        assert_eq!(api.register_buffer(base, MIB + 1), 5014);
        assert_eq!((api.register_buffer(base, MIB / 2), api.register_buffer(base, MIB)), (0, 5023));
        assert_eq!(api.read(handle, base, MIB / 2, 0, 0), Ok(MIB / 2));
        assert_eq!(api.read(handle, base, MIB / 2, 0, 1), failed(5017));
        // Another address within is not the registered buffer, but memory like any other.
        assert_eq!(api.read(handle, base + 4096, MIB - 4096, 0, 0), Ok(MIB - 4096));
        assert_eq!(api.read(handle, base + 4096, MIB, 0, 0), failed(libc::EPERM));
        assert_eq!(report().transfers.unregistered, 1);
        assert_eq!((api.deregister_buffer(base + 1), api.deregister_buffer(base)), (5024, 0));
        assert_eq!((api.deregister_buffer(base), api.deregister_buffer(0)), (5024, 5022));
        assert_eq!(api.read(handle, base, 2 * MIB, 0, 0), failed(libc::EPERM));
        assert_eq!(api.read(handle, base, 4096, -1, 0), failed(5022));
        assert_eq!(api.read(handle, base, 4096, 0, -1), failed(libc::EPERM));
        assert_eq!(api.read(handle, 0, 4096, 0, 0), failed(libc::EINVAL));
        assert_eq!(api.read(handle, base, 0, 0, 0), Ok(0));
        // The file's end.
        assert_eq!(api.read(handle, base, 4096, 4 * MIB as i64 - 100, 0), Ok(100));
        assert_eq!(api.read(handle, base, 4096, 9 * MIB as i64, 0), Ok(0));
        // Host memory.
        let mut bytes = vec![0_u8; 4096];
        let host = bytes.as_mut_ptr().addr() as u64;
        assert_eq!((api.register_buffer(host, 4096), api.read(handle, host, 4096, 7, 0)), (0, Ok(4096)));
        assert_eq!(api.read(handle, host, 4096, 7, 1), failed(5017));
        assert_eq!(bytes, expected(7, 4096));
        assert_eq!(api.deregister_buffer(host), 0);
    });
}

#[test]
fn registered_device_memory_fits_into_bar1() {
    let test = "registered_device_memory_fits_into_bar1";
    on_simulator(test, &[REAL, ("CUDA_SIM_BAR1", "32MiB")], || {
        let (api, gpu) = (load(), Gpu::new());
        assert_eq!(api.open(), 0);
        let memory = gpu.allocate(64 * MIB);
        assert_eq!(api.register_buffer(memory.address, 64 * MIB), 5016);
        assert_eq!(api.register_buffer(memory.address, 24 * MIB), 0);
        assert_eq!(api.register_buffer(memory.address + 24 * MIB as u64, 16 * MIB), 5016);
        assert_eq!(api.register_buffer(memory.address + 24 * MIB as u64, 8 * MIB), 0);
        let now = report();
        assert_eq!(now.peak_registered_device_bytes, 32 * MIB as u64);
        assert_eq!((now.alive.buffers, now.alive.registered_device_bytes), (2, 32 * MIB as u64));
        // Closing gives it all back.
        assert_eq!((api.close(), report().alive), (0, Alive::default()));
        assert_eq!(api.register_buffer(memory.address, 32 * MIB), 0);
    });
}

#[test]
fn pinned_memory_has_a_limit_set_before_opening() {
    let test = "pinned_memory_has_a_limit_set_before_opening";
    on_simulator(test, &[REAL], || {
        let (api, gpu) = (load(), Gpu::new());
        // SAFETY: a value only.
        assert_eq!(support::code(unsafe { (api.cuFileDriverSetMaxPinnedMemSize)(1024) }), 0);
        assert_eq!(api.open(), 0);
        let memory = gpu.allocate(2 * MIB);
        assert_eq!(api.register_buffer(memory.address, 2 * MIB), 5016);
        assert_eq!(api.register_buffer(memory.address, MIB), 0);
    });
}

/// Nothing is pinned then.
#[test]
fn compat_mode_has_no_limit() {
    let test = "compat_mode_has_no_limit";
    on_simulator(test, &[("CUDA_SIM_BAR1", "1MiB")], || {
        let (api, gpu) = (load(), Gpu::new());
        let memory = gpu.allocate(64 * MIB);
        assert_eq!(api.register_buffer(memory.address, 64 * MIB), 0);
        assert_eq!(report().peak_registered_device_bytes, 64 * MIB as u64);
    });
}

/// Every offset and length, with direct and plain descriptors, against the file's own bytes.
#[test]
fn any_offset_and_length_is_read_and_written_exactly() {
    let test = "any_offset_and_length_is_read_and_written_exactly";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let len = 3 * MIB + 1234;
        let memory = gpu.allocate(4 * MIB);
        let offsets = [0, 1, 4095, 4096, 5000, MIB - 1, MIB, 2 * MIB + 77, len - 1];
        let lengths = [1, 100, 4096, 8191, 64 * KIB, MIB, MIB + 1, 2 * MIB + 4097];
        for flags in [0, libc::O_DIRECT] {
            let path = folder.path().join("data");
            let file = file(&path, len, flags);
            let handle = api.register(&file).unwrap();
            let mut bytes = expected(0, len);
            for (number, (offset, wanted)) in
                offsets.iter().flat_map(|offset| lengths.map(|wanted| (*offset, wanted))).enumerate()
            {
                let count = wanted.min(len - offset);
                let start = number % 7 * 513;
                assert_eq!(api.read(handle, memory.address, wanted, offset as i64, start as i64), Ok(count));
                assert_eq!(memory.bytes(start, count), bytes[offset..offset + count], "{offset} {wanted}");
                // And back, changed, where it does not grow the file.
                let new: Vec<u8> =
                    bytes[offset..offset + count].iter().map(|byte| byte.wrapping_add(1)).collect();
                fill(&memory, &new);
                assert_eq!(api.write(handle, memory.address, count, offset as i64, 0), Ok(count));
                bytes[offset..offset + count].copy_from_slice(&new);
            }
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            // SAFETY: a handle of this library's.
            unsafe { (api.cuFileHandleDeregister)(handle) };
        }
    });
}

#[test]
fn vectored_reads_fill_their_parts_in_order() {
    let test = "vectored_reads_fill_their_parts_in_order";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        let base = memory.address;
        assert_eq!(api.readv(handle, &[(base + 8192, 100), (base, 4096)], 5), Ok(4196));
        assert_eq!((memory.bytes(8192, 100), memory.bytes(0, 4096)), (expected(5, 100), expected(105, 4096)));
        assert_eq!(api.readv(handle, &[(base, 4096), (base + 4096, 4096)], MIB as i64 - 5000), Ok(5000));
        assert_eq!(api.readv(handle, &[], 0), failed(libc::EINVAL));
        assert_eq!(api.readv(handle, &[(base, 1); 1025], 0), failed(libc::EINVAL));
        assert_eq!(api.readv(0x1234 as CUfileHandle_t, &[(base, 1)], 0), failed(5027));
        assert_eq!(api.readv(handle, &[(base, 1), (base, 2 * MIB)], 0), failed(libc::EPERM));
    });
}

/// errno is stale after success: who looks at it anyway is caught.
#[test]
fn errno_is_junk_after_success() {
    let test = "errno_is_junk_after_success";
    on_simulator(test, &[], || {
        let (api, folder) = (load(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        let mut bytes = [0_u8; 16];
        assert_eq!(api.read(handle, bytes.as_mut_ptr().addr() as u64, 16, 0, 0), Ok(16));
        assert_ne!(std::io::Error::last_os_error().raw_os_error(), Some(0));
    });
}

/// The descriptor is the program's; a handle does not keep it.
#[test]
fn a_closed_descriptor_fails_and_a_truncated_file_is_short() {
    let test = "a_closed_descriptor_fails_and_a_truncated_file_is_short";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let memory = gpu.allocate(MIB);
        let open = || OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).to_owned();
        let path = folder.path().join("data");
        drop(file(&path, MIB, 0));
        let file = open().open(&path).unwrap();
        let handle = api.register(&file).unwrap();
        file.set_len(5000).unwrap();
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), Ok(5000));
        drop(file);
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), failed(libc::EBADF));
    });
}

/// As DMA does: what a stream still has to do with the memory comes after the read, and over it.
#[test]
fn reads_are_unordered_with_streams() {
    let test = "reads_are_unordered_with_streams";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let (memory, other, stream) = (gpu.allocate(MIB), gpu.allocate(MIB), gpu.stream());
        fill(&other, &vec![7; MIB]);
        pause_copies();
        stream.copy(&other, &memory);
        assert_eq!(api.read(handle, memory.address, MIB, 0, 0), Ok(MIB));
        assert_eq!(memory.bytes(0, MIB), expected(0, MIB));
        resume_copies();
        stream.synchronize();
        assert_eq!(memory.bytes(0, MIB), vec![7; MIB]);
    });
}

#[test]
fn freed_memory_is_an_error() {
    let test = "freed_memory_is_an_error";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let memory = gpu.allocate(MIB);
        let address = memory.address;
        assert_eq!(api.register_buffer(address, MIB), 0);
        drop(memory);
        assert_eq!(api.read(handle, address, MIB, 0, 0), failed(5011));
        assert_eq!(api.deregister_buffer(address), 0);
    });
}

#[test]
fn a_process_ends_with_transfers_in_flight() {
    let test = "a_process_ends_with_transfers_in_flight";
    on_simulator(test, &[], || {
        let (api, folder) = (load(), on_disk(test));
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap().expose_provenance();
        pause_transfers();
        std::thread::spawn(move || {
            let mut bytes = vec![0_u8; MIB];
            let handle = std::ptr::with_exposed_provenance_mut(handle);
            api.read(handle, bytes.as_mut_ptr().addr() as u64, MIB, 0, 0)
        });
        while report().calls.get("cuFileRead") != Some(&1) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
}
