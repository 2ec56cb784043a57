//! Windows: device memory that an engine writes in no stream's order, and that is copied on from.

use super::{Faults, LEN, bytes_of, copy, expected, model, pieces, quietly};
use crate::{RegionMut, SlotFetch, WindowRing};

/// What cuFile does: writes the window's bytes at once, whatever is in flight.
fn read_into(window: &RegionMut, value: u8) {
    let write = |range: std::ops::Range<u64>| {
        let address = window.address() + range.start;
        quietly(|state| state.device(address, (range.end - range.start) as usize).fill(value));
    };
    write(0..LEN as u64 / 2);
    loom::thread::yield_now();
    write(LEN as u64 / 2..LEN as u64);
}

#[test]
fn a_window_is_read_into_again_only_when_its_copies_are_over() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 3);
        let mut ring: WindowRing<RegionMut> = device.window_ring().unwrap();
        let mut idle =
            vec![device.allocate(LEN as u64, 256).unwrap(), device.allocate(LEN as u64, 256).unwrap()];
        for (part, value) in parts.into_iter().zip(1..) {
            let window = match idle.pop() {
                Some(window) => window,
                None => ring.take_back().unwrap().unwrap(),
            };
            read_into(&window, value);
            ring.launch(window, copy(part)).unwrap();
        }
        while ring.take_back().unwrap().is_some() {}
        let whole = carved.reunite().expect("no part is held").freeze();
        assert_eq!(bytes_of(&whole), expected([1, 2, 3]));
    });
}

#[test]
fn a_window_that_was_fetched_into_has_its_bytes() {
    model(2, Faults::default(), |device| {
        let source = device.allocate(LEN as u64, 256).unwrap();
        read_into(&source, 7);
        let source = source.freeze();
        let mut ring: WindowRing<RegionMut> = device.window_ring().unwrap();
        let mut window = device.allocate(LEN as u64, 256).unwrap();
        for _ in 0..2 {
            read_into(&window, 0);
            ring.launch_fetch(window, vec![SlotFetch { slot_offset: 0, from: source.clone() }]).unwrap();
            window = ring.take_back().unwrap().unwrap();
            let address = window.address();
            assert_eq!(quietly(|state| state.device(address, LEN).to_vec()), [7; LEN]);
        }
    });
}

#[test]
fn dropping_a_ring_waits_for_its_windows() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 1);
        let mut ring: WindowRing<RegionMut> = device.window_ring().unwrap();
        let window = device.allocate(LEN as u64, 256).unwrap();
        read_into(&window, 5);
        ring.launch(window, parts.into_iter().flat_map(copy).collect()).unwrap();
        drop(ring);
        assert_eq!(bytes_of(&carved.reunite().unwrap().freeze()), expected([5]));
    });
}
