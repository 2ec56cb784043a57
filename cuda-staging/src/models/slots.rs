//! Slots: free, being filled, filled, being copied, free again.

use loom::thread;

use super::{Faults, LEN, bytes_of, copy, expected, fill, model, pieces, ring};
use crate::{Ring, SlotFetch};

/// Moves pieces through a ring, each filled with its number.
fn move_pieces(ring: &mut Ring, parts: Vec<crate::RegionMut>, first: u8) {
    for (part, value) in parts.into_iter().zip(first..) {
        let slot = ring.take().unwrap();
        ring.launch(fill(slot, value), copy(part)).unwrap();
    }
}

#[test]
fn a_slot_is_filled_again_only_when_its_copy_is_over() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 3);
        let mut ring = ring(device, 2);
        move_pieces(&mut ring, parts, 1);
        ring.drain().unwrap();
        let whole = carved.reunite().expect("after a drain no part is held").freeze();
        assert_eq!(bytes_of(&whole), expected([1, 2, 3]));
        assert_eq!(ring.statistics().copies, 3);
    });
}

#[test]
fn one_slot_is_enough() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 3);
        let mut ring = ring(device, 1);
        move_pieces(&mut ring, parts, 1);
        ring.drain().unwrap();
        assert_eq!(bytes_of(&carved.reunite().unwrap().freeze()), expected([1, 2, 3]));
    });
}

#[test]
fn two_workers_fill_one_allocation() {
    model(1, Faults::default(), |device| {
        let (carved, mut parts) = pieces(device, 3);
        let others = parts.split_off(2);
        let worker = |mut ring: Ring, parts, first| {
            move || {
                move_pieces(&mut ring, parts, first);
                ring.drain().unwrap();
            }
        };
        let (here, there) = (ring(device, 1), ring(device, 1));
        let other = thread::spawn(worker(there, others, 3));
        worker(here, parts, 1)();
        other.join().unwrap();
        assert_eq!(bytes_of(&carved.reunite().unwrap().freeze()), expected([1, 2, 3]));
    });
}

#[test]
fn dropping_a_ring_waits_for_what_is_in_flight() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 2);
        let mut ring = ring(device, 2);
        move_pieces(&mut ring, parts, 1);
        drop(ring);
        let whole = carved.reunite().expect("after the drop no part is held").freeze();
        assert_eq!(bytes_of(&whole), expected([1, 2]));
    });
}

#[test]
fn a_destination_that_goes_first_is_freed_after_its_copies() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 1);
        let mut ring = ring(device, 1);
        move_pieces(&mut ring, parts, 1);
        // The model fails where a copy goes to memory that was freed.
        drop(carved);
        drop(ring);
    });
}

#[test]
fn a_slot_that_is_fetched_into_is_handed_out_when_its_bytes_are_there() {
    model(2, Faults::default(), |device| {
        let (carved, parts) = pieces(device, 2);
        let mut ring = ring(device, 1);
        move_pieces(&mut ring, parts, 1);
        ring.drain().unwrap();
        let whole = carved.reunite().unwrap().freeze();
        for (index, value) in (0_u64..).zip([1, 2]) {
            let from = whole.slice(index * LEN as u64..(index + 1) * LEN as u64).unwrap();
            let slot = ring.take().unwrap();
            ring.launch_fetch(slot, vec![SlotFetch { slot_offset: 0, from }]).unwrap();
            let fetched = ring.take_fetched().unwrap().unwrap();
            assert_eq!(fetched.bytes(), [value; LEN]);
            ring.put_back(fetched.release());
        }
    });
}

#[test]
fn copies_come_after_what_the_caller_enqueued() {
    model(1, Faults::default(), |device| {
        // The caller's own copy on the caller's own stream, to the same place.
        let (carved, parts) = pieces(device, 1);
        let place = parts[0].address();
        let source = super::quietly(|state| {
            let source = state.allocate(LEN);
            state.device(source, LEN).fill(9);
            source
        });
        let caller = device.stream().unwrap();
        let handle = caller.raw().unwrap();
        super::on(handle.addr(), |state| state.copy_within(source, place, LEN, handle.addr()));
        let mut ring = ring(device, 1);
        // SAFETY: the caller's stream lives, on this device.
        unsafe { ring.wait_for(handle) }.unwrap();
        move_pieces(&mut ring, parts, 1);
        ring.drain().unwrap();
        assert_eq!(bytes_of(&carved.reunite().unwrap().freeze()), expected([1]));
        super::quietly(|state| state.free(source));
    });
}
