//! Device memory, pinned memory, and what is known about addresses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::ffi::c_void;
use std::process::Command;

use support::{Driver, at, child, in_child, isolated, pattern, run, signal};

const LEN: usize = 100_000;

/// The protection of the mapping that `address` lies in, as /proc/self/maps has it; `None` where nothing is mapped.
fn protection(address: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let inside = (u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap())
            .contains(&address);
        inside.then(|| words.next().unwrap().to_owned())
    })
}

/// A line of /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn host_code_cannot_touch_device_memory() {
    let name = "host_code_cannot_touch_device_memory";
    if in_child() {
        let driver = Driver::load();
        driver.start();
        let address = driver.allocate(LEN);
        assert_eq!(protection(address).unwrap(), "---s");
        // SAFETY: not safe at all, which is the point: the process ends here.
        unsafe { std::ptr::read_volatile(address as *const u8) };
        return;
    }
    let (status, output) = run(&mut child(name, &[]));
    assert_eq!(signal(status), Some(11), "{status}\n{output}");
}

#[test]
fn the_range_of_freed_memory_is_gone_at_once() {
    isolated("the_range_of_freed_memory_is_gone_at_once", &[], |driver| {
        driver.start();
        let address = driver.allocate(LEN);
        assert_eq!(driver.cuMemFree_v2(address), 0);
        assert_eq!(protection(address), None);
        assert_eq!(driver.cuMemFree_v2(address), 1);
        assert_eq!(driver.cuMemFree_v2(0), 0);
        let kept = driver.allocate(LEN);
        assert_eq!(driver.cuMemFree_v2(kept + 1), 1, "not where it starts");
    });
}

#[test]
fn memory_is_limited_per_device_and_accounted_for() {
    let settings = [("CUDA_SIM_DEVICES", "2"), ("CUDA_SIM_MEMORY", "64MiB,128MiB")];
    isolated("memory_is_limited_per_device_and_accounted_for", &settings, |driver| {
        driver.start();
        let (mut free, mut total, mut address) = (0, 0, 0);
        assert_eq!(driver.cuMemAlloc_v2(&mut address, (64 << 20) + 1), 2);
        assert_eq!(driver.cuMemAlloc_v2(&mut address, usize::MAX), 2);
        assert_eq!(driver.cuMemAlloc_v2(&mut address, 0), 1);
        let all = driver.allocate(64 << 20);
        assert_eq!(driver.cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!((free, total), (0, 64 << 20));
        assert_eq!(driver.cuMemAlloc_v2(&mut address, 1), 2);
        assert_eq!(driver.cuMemFree_v2(all), 0);
        driver.allocate(64 << 20);
        assert_eq!(driver.cuDeviceTotalMem_v2(&mut total, 1), 0);
        assert_eq!(total, 128 << 20);

        let mut context = 0;
        assert_eq!(driver.cuDevicePrimaryCtxRetain(&mut context, 1), 0);
        assert_eq!(driver.cuCtxSetCurrent(context), 0);
        driver.allocate(128 << 20);
    });
}

#[test]
fn device_memory_is_not_the_programs_anonymous_memory() {
    isolated("device_memory_is_not_the_programs_anonymous_memory", &[], |driver| {
        driver.start();
        let (len, piece) = (256 << 20, pattern(1 << 20));
        let (before, device) = (status("RssAnon"), driver.allocate(len));
        for start in (0..len).step_by(piece.len()) {
            assert_eq!(driver.cuMemcpyHtoD_v2(device + start as u64, at(&piece), piece.len()), 0);
        }
        let grown = status("RssAnon").saturating_sub(before);
        assert!(grown < 16 << 20, "{grown}");
        assert!(driver.read_back(device + (len - piece.len()) as u64, piece.len()) == piece);
    });
}

#[test]
fn pins_do_not_overlap_and_are_taken_away_once() {
    isolated("pins_do_not_overlap_and_are_taken_away_once", &[], |driver| {
        driver.start();
        let memory = vec![0u8; 4 * LEN];
        let start = at(&memory);
        assert_eq!(driver.cuMemHostRegister_v2(start + LEN as u64, LEN, 0), 0);
        for (offset, len) in [(LEN, LEN), (0, LEN + 1), (2 * LEN - 1, 1), (0, 4 * LEN), (LEN + 5, 7)] {
            assert_eq!(driver.cuMemHostRegister_v2(start + offset as u64, len, 0), 712, "{offset} {len}");
        }
        assert_eq!(driver.cuMemHostRegister_v2(start, LEN, 0), 0, "the neighbour below");
        assert_eq!(driver.cuMemHostRegister_v2(start + 2 * LEN as u64, LEN, 0), 0, "the neighbour above");
        assert_eq!(driver.cuMemHostUnregister(start + 1), 713);
        assert_eq!(driver.cuMemHostUnregister(start), 0);
        assert_eq!(driver.cuMemHostUnregister(start), 713);
        let mut address = 0;
        assert_eq!(driver.cuMemHostGetDevicePointer_v2(&mut address, start + LEN as u64 + 3, 0), 0);
        assert_eq!(address, start + LEN as u64 + 3);

        let allocated = at(driver.pinned(LEN));
        assert_eq!(driver.cuMemHostUnregister(allocated), 713);
        assert_eq!(driver.cuMemFreeHost(allocated), 0);
        assert_eq!(driver.cuMemFreeHost(allocated), 1);
    });
}

#[test]
fn memory_that_is_not_there_cannot_be_pinned() {
    isolated("memory_that_is_not_there_cannot_be_pinned", &[], |driver| {
        driver.start();
        let device = driver.allocate(LEN);
        assert_eq!(driver.cuMemFree_v2(device), 0);
        assert_eq!(driver.cuMemHostRegister_v2(device, LEN, 0), 1);
        assert_eq!(driver.cuMemHostRegister_v2(0, LEN, 0), 1);
        let memory = [0u8; 16];
        assert_eq!(driver.cuMemHostRegister_v2(at(&memory), 0, 0), 1);
    });
}

#[test]
fn addresses_tell_what_they_are() {
    isolated("addresses_tell_what_they_are", &[], |driver| {
        let context = driver.start();
        let device = driver.allocate(LEN);
        let inside = device + 77;
        let (mut base, mut len) = (0, 0);
        assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut len, inside), 0);
        assert_eq!((base, len), (device, LEN));
        assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut len, device + LEN as u64), 500);

        let attribute = |number, address| {
            let mut value = u64::MAX;
            let code = driver.cuPointerGetAttribute((&raw mut value).cast(), number, address);
            (code, value)
        };
        let (type_of, ordinal) = (2, 9);
        assert_eq!(attribute(type_of, inside), (0, u64::from(u32::MAX) << 32 | 2));
        assert_eq!(attribute(ordinal, inside), (0, u64::from(u32::MAX) << 32));
        assert_eq!(attribute(1, inside), (0, context));
        assert_eq!(attribute(3, inside), (0, inside));
        assert_eq!(attribute(4, inside).0, 1, "device memory has no host pointer");
        assert_eq!(attribute(11, inside), (0, device));
        assert_eq!(attribute(12, inside), (0, LEN as u64));

        let pinned = at(driver.pinned(LEN));
        assert_eq!(attribute(type_of, pinned), (0, u64::from(u32::MAX) << 32 | 1));
        assert_eq!(attribute(4, pinned), (0, pinned));

        let pageable = vec![0u8; 10];
        assert_eq!(attribute(type_of, at(&pageable)).0, 1);
        let (mut kind, mut start) = (7u32, 7u64);
        let places: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut start).cast()];
        assert_eq!(
            driver.cuPointerGetAttributes(2, [type_of, 11].as_ptr(), places.as_ptr(), at(&pageable)),
            0
        );
        assert_eq!((kind, start), (0, 0), "unknown memory is no error here");
    });
}

#[test]
fn managed_memory_can_be_touched_from_both_sides() {
    isolated("managed_memory_can_be_touched_from_both_sides", &[], |driver| {
        driver.start();
        let mut address = 0;
        assert_eq!(driver.cuMemAllocManaged(&mut address, LEN, 1), 0);
        // SAFETY: managed memory of that length, which nothing else uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, LEN) };
        bytes.fill(4);
        assert!(driver.read_back(address, LEN).iter().all(|&byte| byte == 4));
        assert_eq!(driver.cuMemsetD8_v2(address, 5, LEN), 0);
        assert!(bytes.iter().all(|&byte| byte == 5));
        assert_eq!(driver.cuMemFree_v2(address), 0);
        assert_eq!(protection(address), None);
    });
}

#[test]
fn stream_ordered_memory_is_freed_in_the_order_of_the_stream() {
    isolated("stream_ordered_memory_is_freed_in_the_order_of_the_stream", &[], |driver| {
        driver.start();
        let (stream, slot, mut address) = (driver.stream(), driver.pinned(LEN), 0);
        assert_eq!(driver.cuMemAllocAsync(&mut address, LEN, stream), 0);
        driver.cuda_sim_pause_copies();
        assert_eq!(driver.cuMemcpyHtoDAsync_v2(address, at(slot), LEN, stream), 0);
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        assert!(protection(address).is_some());
        driver.cuda_sim_resume_copies();
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(protection(address), None);
        assert_eq!(driver.cuMemFreeAsync(address, stream), 1);
    });
}

#[test]
fn another_process_can_open_exported_memory() {
    let name = "another_process_can_open_exported_memory";
    isolated(name, &[], |driver| {
        driver.start();
        if let Ok(handle) = std::env::var("EXPORTED") {
            let words: Vec<u64> = handle.split(',').map(|word| word.parse().unwrap()).collect();
            let mut address = 0;
            assert_eq!(driver.cuIpcOpenMemHandle_v2(&mut address, words.try_into().unwrap(), 1), 0);
            assert!(driver.read_back(address, LEN) == pattern(LEN));
            assert_eq!(driver.cuMemsetD8_v2(address, 8, LEN), 0);
            assert_eq!(driver.cuMemFree_v2(address), 1, "it is the other process's");
            assert_eq!(driver.cuIpcCloseMemHandle(address), 0);
            return;
        }
        let address = driver.allocate(LEN);
        assert_eq!(driver.cuMemcpyHtoD_v2(address, at(&pattern(LEN)), LEN), 0);
        let mut handle = [0u8; 64];
        assert_eq!(driver.cuIpcGetMemHandle(&mut handle, address), 0);
        let words: Vec<u64> =
            handle.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let mut own = 0;
        assert_eq!(driver.cuIpcOpenMemHandle_v2(&mut own, words.clone().try_into().unwrap(), 1), 201);
        let words: Vec<String> = words.iter().map(u64::to_string).collect();
        let mut other = Command::new(std::env::current_exe().unwrap());
        let (status, output) =
            run(other.args(["--exact", name, "--nocapture"]).env("EXPORTED", words.join(",")));
        assert!(status.success(), "{output}");
        assert!(driver.read_back(address, LEN).iter().all(|&byte| byte == 8));
    });
}

#[test]
fn the_back_door_reaches_device_memory_and_counts_bar1() {
    isolated("the_back_door_reaches_device_memory_and_counts_bar1", &[("CUDA_SIM_BAR1", "1MiB")], |driver| {
        driver.start();
        assert_eq!(driver.cuda_sim_version(), 1);
        let (device, bytes) = (driver.allocate(LEN), pattern(LEN));
        assert_eq!(driver.cuda_sim_write_device_memory(device, at(&bytes), LEN), 0);
        assert!(driver.read_back(device, LEN) == bytes);
        let landed = vec![0u8; 10];
        assert_eq!(driver.cuda_sim_read_device_memory(at(&landed), device + 5, 10), 0);
        assert_eq!(std::hint::black_box(landed), bytes[5..15]);
        let alias = driver.cuda_sim_device_memory(device + 5, LEN - 5);
        // SAFETY: inside the allocation, which nothing else uses now.
        unsafe { *alias = 99 };
        assert_eq!(driver.read_back(device + 5, 1), [99]);
        assert!(driver.cuda_sim_device_memory(device + 5, LEN).is_null());
        assert_eq!(driver.cuda_sim_write_device_memory(device + 5, at(&bytes), LEN), 700);

        let (mut size, mut used) = (0, 0);
        assert_eq!(driver.cuda_sim_reserve_bar1(0, 1 << 20), 0);
        assert_eq!(driver.cuda_sim_reserve_bar1(0, 1), 2);
        assert_eq!(driver.cuda_sim_release_bar1(0, 1 << 19), 0);
        assert_eq!(driver.cuda_sim_bar1(0, &mut size, &mut used), 0);
        assert_eq!((size, used), (1 << 20, 1 << 19));
    });
}

/// Settings for 32 MiB of resident memory out of 64 MiB.
const RESIDENT: [(&str, &str); 2] = [("CUDA_SIM_MEMORY", "64MiB"), ("CUDA_SIM_RESIDENT", "32MiB")];

#[test]
fn resident_memory_has_its_pages_from_the_start_and_is_used_again() {
    isolated("resident_memory_has_its_pages_from_the_start_and_is_used_again", &RESIDENT, |driver| {
        let before = status("RssShmem");
        assert_eq!(driver.cuInit(0), 0);
        assert!(status("RssShmem") < before + (1 << 20), "a device without a context costs nothing");
        driver.start();
        let started = status("RssShmem");
        assert!(started >= before + (32 << 20), "{before} {started}");

        let (first, bytes) = (driver.allocate(LEN), pattern(LEN));
        assert_eq!(protection(first).unwrap(), "---s");
        assert_eq!(driver.cuMemcpyHtoD_v2(first, at(&bytes), LEN), 0);
        let second = driver.allocate(24 << 20);
        assert_eq!(driver.cuMemsetD8_v2(second, 1, 24 << 20), 0);
        assert!(driver.read_back(first, LEN) == bytes);
        assert_eq!(driver.cuMemFree_v2(first), 0);
        assert_eq!(protection(first), None);
        assert_eq!(driver.cuMemFree_v2(first), 1);
        let again = driver.allocate(LEN);
        assert!(driver.read_back(again, LEN) == bytes, "the pages that were freed, as they were left");
        assert!(status("RssShmem") < started + (1 << 20), "no page came to it");
        assert_eq!(driver.cuMemFree_v2(second), 0);
        assert!(status("RssShmem") >= before + (32 << 20), "none went");
    });
}

#[test]
fn resident_memory_is_limited_and_accounted_for_as_any() {
    isolated("resident_memory_is_limited_and_accounted_for_as_any", &RESIDENT, |driver| {
        driver.start();
        let device = |driver: &Driver| {
            let report = driver.report();
            ["used", "peak", "resident", "resident_used"]
                .map(|name| report["devices"][0][name].as_u64().unwrap() >> 20)
        };
        assert_eq!(device(driver), [0, 0, 32, 0]);
        let (mut free, mut total, mut address) = (0, 0, 0);
        let large = driver.allocate(40 << 20);
        assert_eq!(device(driver), [40, 40, 32, 0], "too large for it");
        let small = driver.allocate(24 << 20);
        assert_eq!(device(driver), [64, 64, 32, 24]);
        assert_eq!(driver.cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!((free, total), (0, 64 << 20));
        assert_eq!(driver.cuMemAlloc_v2(&mut address, 1), 2, "though there is resident memory left");
        assert_eq!(driver.report()["alive"][0]["allocations"]["bytes"], 64 << 20);
        assert_eq!(driver.cuMemFree_v2(small), 0);
        assert_eq!(driver.cuMemFree_v2(large), 0);
        assert_eq!(device(driver), [0, 64, 32, 0]);
        assert_eq!(driver.report()["alive"][0]["allocations"]["count"], 0);

        driver.allocate(32 << 20);
        assert_eq!(driver.cuDevicePrimaryCtxReset_v2(0), 0);
        assert_eq!(device(driver), [0, 64, 32, 0], "what went with its context is free too");
    });
}

#[test]
fn allocations_do_not_overlap_in_resident_memory_nor_beyond() {
    isolated("allocations_do_not_overlap_in_resident_memory_nor_beyond", &RESIDENT, |driver| {
        driver.start();
        let mut live: Vec<(u64, usize, u8)> = Vec::new();
        let mut random = 1u64;
        for round in 0..400u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (random >> 33) as usize;
            if live.len() == 12 {
                let (address, len, value) = live.swap_remove(choice % 12);
                assert!(driver.read_back(address, len).iter().all(|&byte| byte == value), "round {round}");
                assert_eq!(driver.cuMemFree_v2(address), 0);
            }
            let (len, value, mut address) = (1 + choice % (4 << 20), round as u8, 0);
            match round % 3 {
                0 => assert_eq!(driver.cuMemAllocManaged(&mut address, len, 1), 0),
                _ => address = driver.allocate(len),
            }
            assert_eq!(driver.cuMemsetD8_v2(address, value, len), 0);
            live.push((address, len, value));
        }
        for (address, len, value) in live {
            assert!(driver.read_back(address, len).iter().all(|&byte| byte == value));
        }
    });
}

#[test]
fn a_source_that_is_not_there_is_an_error_for_resident_memory_too() {
    isolated("a_source_that_is_not_there_is_an_error_for_resident_memory_too", &RESIDENT, |driver| {
        driver.start();
        let (device, gone) = (driver.allocate(LEN), driver.allocate(LEN));
        assert_eq!(driver.cuMemFree_v2(gone), 0);
        assert_eq!(driver.cuda_sim_write_device_memory(device, gone, LEN), 700);
        let bytes = pattern(LEN);
        assert_eq!(driver.cuda_sim_write_device_memory(device, at(&bytes), LEN), 0);
        assert!(driver.read_back(device, LEN) == bytes);
        // SAFETY: inside the allocation, which nothing else uses now.
        unsafe { *driver.cuda_sim_device_memory(device + 5, LEN - 5) = 99 };
        assert_eq!(driver.read_back(device + 5, 1), [99]);
    });
}
