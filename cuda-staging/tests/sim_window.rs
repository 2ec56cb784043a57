//! Copies out of windows on the simulated driver, whose copies run late.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::cell::Cell;
use std::convert::Infallible;
use std::slice;
use std::time::{Duration, Instant};

use cuda_staging::{Device, Error, Region, RegionMut, RingOptions, SlotCopy, SlotFetch, WindowRing};
use test_support::control::{pause_copies, resume_copies};
use test_support::on_simulator;

const WINDOW: u64 = 64 << 10;

struct Window(RegionMut);

impl AsRef<RegionMut> for Window {
    fn as_ref(&self) -> &RegionMut {
        &self.0
    }
}

/// What a direct read would have put into the `k`-th window.
fn content(k: usize) -> Vec<u8> {
    (0..WINDOW as usize).map(|at| (at * 7 + at / 251 + k * 31) as u8).collect()
}

/// Windows in one allocation, as a registration would cover it, with their contents in place.
fn windows(device: &Device, count: usize) -> Vec<Window> {
    let ranges: Vec<_> = (0..count as u64).map(|k| k * WINDOW..(k + 1) * WINDOW).collect();
    let whole = device.allocate(count as u64 * WINDOW, 4096).unwrap();
    let (carved, parts) = whole.carve(&ranges).unwrap();
    let mut ring = device.ring(RingOptions { slots: 2, slot_size: WINDOW as usize }).unwrap();
    for (k, to) in parts.into_iter().enumerate() {
        let filled = ring.take().unwrap().fill(|bytes| {
            bytes.copy_from_slice(&content(k));
            Ok::<_, Infallible>(bytes.len())
        });
        ring.launch(filled.unwrap(), vec![SlotCopy { slot_offset: 0, to }]).unwrap();
    }
    ring.drain().unwrap();
    let (_, parts) = carved.reunite().unwrap().carve(&ranges).unwrap();
    parts.into_iter().map(Window).collect()
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.device().copy_to_host(region, &mut bytes).unwrap();
    bytes
}

#[test]
fn windows_come_back_in_order_and_their_bytes_are_where_they_belong() {
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "200"), ("CUDA_SIM_JITTER_US", "400")];
    on_simulator("windows_come_back_in_order_and_their_bytes_are_where_they_belong", &settings, || {
        let device = Device::cuda(0).unwrap();
        let mut ring: WindowRing<Window> = device.window_ring().unwrap();
        // Each window goes to the destination in two parts, the second half first.
        let half = WINDOW / 2;
        let ranges: Vec<_> = (0..8).map(|k| k * half..(k + 1) * half).collect();
        let (carved, parts) = device.allocate(4 * WINDOW, 256).unwrap().carve(&ranges).unwrap();
        let mut parts = parts.into_iter();
        let mut addresses = Vec::new();
        for window in windows(&device, 4) {
            addresses.push(window.0.address());
            let offsets = [half as usize, 0];
            let copies = offsets.map(|slot_offset| SlotCopy { slot_offset, to: parts.next().unwrap() });
            ring.launch(window, copies.into()).unwrap();
        }
        for address in addresses {
            assert_eq!(ring.take_back().unwrap().unwrap().0.address(), address);
        }
        assert!(ring.take_back().unwrap().is_none());
        assert_eq!((ring.statistics().bytes_copied, ring.statistics().copies), (4 * WINDOW, 8));
        assert_eq!(ring.statistics().intervals.len(), 4);
        let whole = carved.reunite().unwrap().freeze();
        let expected: Vec<u8> = (0..4)
            .flat_map(|k| {
                [content(k)[half as usize..].to_vec(), content(k)[..half as usize].to_vec()].concat()
            })
            .collect();
        assert!(bytes_of(&whole) == expected);
    });
}

/// A window that is another one each time it is asked.
struct Shifting {
    windows: [RegionMut; 2],
    asked: Cell<usize>,
}

impl AsRef<RegionMut> for Shifting {
    fn as_ref(&self) -> &RegionMut {
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        &self.windows[asked % 2]
    }
}

#[test]
fn the_window_that_was_checked_is_the_one_that_is_copied_from() {
    on_simulator("the_window_that_was_checked_is_the_one_that_is_copied_from", &[], || {
        let device = Device::cuda(0).unwrap();
        let large = windows(&device, 1).pop().unwrap().0;
        let small = device.allocate(4096, 4096).unwrap();
        let to = device.allocate(WINDOW, 256).unwrap();
        let mut ring: WindowRing<Shifting> = device.window_ring().unwrap();
        let window = Shifting { windows: [large, small], asked: Cell::new(0) };
        // What is in bounds of the first is not in those of the second.
        ring.launch(window, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        assert_eq!(ring.take_back().unwrap().unwrap().asked.get(), 1);
    });
}

#[test]
fn regions_are_copied_into_a_window_and_are_there_when_it_comes_back() {
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "200"), ("CUDA_SIM_JITTER_US", "400")];
    on_simulator("regions_are_copied_into_a_window_and_are_there_when_it_comes_back", &settings, || {
        let device = Device::cuda(0).unwrap();
        let mut ring: WindowRing<RegionMut> = device.window_ring().unwrap();
        let from = windows(&device, 2).into_iter().map(|window| window.0.freeze());
        let half = (WINDOW / 2) as usize;
        for region in from {
            let window = device.allocate(WINDOW, 4096).unwrap();
            // The halves change places.
            let part = |start: usize| region.slice(start as u64..(start + half) as u64).unwrap();
            let fetches = [0, half].map(|start| SlotFetch { slot_offset: half - start, from: part(start) });
            ring.launch_fetch(window, fetches.into()).unwrap();
        }
        for k in 0..2 {
            let window = ring.take_back().unwrap().unwrap().freeze();
            assert!(bytes_of(&window) == [&content(k)[half..], &content(k)[..half]].concat());
        }
        assert_eq!((ring.statistics().bytes_copied, ring.statistics().copies), (2 * WINDOW, 4));
        let (window, from) =
            (device.allocate(WINDOW, 4096).unwrap(), windows(&device, 1).remove(0).0.freeze());
        let error = ring.launch_fetch(window, vec![SlotFetch { slot_offset: 1, from }]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    });
}

#[test]
fn a_window_is_not_given_back_before_its_copies_are_over() {
    on_simulator("a_window_is_not_given_back_before_its_copies_are_over", &[], || {
        let device = Device::cuda(0).unwrap();
        let window = windows(&device, 1).remove(0);
        let mut ring: WindowRing<Window> = device.window_ring().unwrap();
        let to = device.allocate(WINDOW, 256).unwrap();
        pause_copies();
        ring.launch(window, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        let start = Instant::now();
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            resume_copies();
        });
        assert!(ring.take_back().unwrap().is_some());
        assert!(start.elapsed() >= Duration::from_millis(150));
    });
}

#[test]
fn dropping_the_ring_waits_for_what_is_in_flight() {
    on_simulator("dropping_the_ring_waits_for_what_is_in_flight", &[], || {
        let device = Device::cuda(0).unwrap();
        let window = windows(&device, 1).remove(0);
        let mut ring: WindowRing<Window> = device.window_ring().unwrap();
        let (carved, parts) =
            device.allocate(WINDOW, 256).unwrap().carve(slice::from_ref(&(0..WINDOW))).unwrap();
        pause_copies();
        let copies = parts.into_iter().map(|to| SlotCopy { slot_offset: 0, to }).collect();
        ring.launch(window, copies).unwrap();
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            resume_copies();
        });
        drop(ring);
        assert!(bytes_of(&carved.reunite().unwrap().freeze()) == content(0));
    });
}

#[test]
fn copies_beyond_a_window_and_to_other_devices_are_refused() {
    let settings = [("CUDA_SIM_DEVICES", "2")];
    on_simulator("copies_beyond_a_window_and_to_other_devices_are_refused", &settings, || {
        let (device, other) = (Device::cuda(0).unwrap(), Device::cuda(1).unwrap());
        let mut ring: WindowRing<Window> = device.window_ring().unwrap();
        let mut refused = |slot_offset, to| {
            let copies = vec![SlotCopy { slot_offset, to }];
            let error = ring.launch(windows(&device, 1).remove(0), copies).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        };
        refused(1, device.allocate(WINDOW, 256).unwrap());
        refused(usize::MAX, device.allocate(1, 256).unwrap());
        refused(0, other.allocate(WINDOW, 256).unwrap());
        refused(0, Device::cpu().allocate(WINDOW, 256).unwrap());
        assert!(matches!(Device::cpu().window_ring::<Window>(), Err(Error::InvalidArgument(_))));
    });
}
