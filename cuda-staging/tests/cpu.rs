//! Slots, ring and regions on the CPU device.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::convert::Infallible;
use std::thread;

use cuda_staging::limits::page_size;
use cuda_staging::{
    Device, DeviceSelector, Error, FilledSlot, FreeSlot, Region, RegionMut, Ring, RingOptions,
};
use cuda_staging::{SlotCopy, SlotFetch};
use proptest::prelude::*;

fn ring(slots: usize) -> Ring {
    Device::cpu().ring(RingOptions { slots, slot_size: 4096 }).unwrap()
}

fn filled(slot: FreeSlot, content: &[u8]) -> FilledSlot {
    let filled = slot.fill(|bytes| {
        bytes[..content.len()].copy_from_slice(content);
        Ok::<_, Infallible>(content.len())
    });
    filled.unwrap_or_else(|(_, never)| match never {})
}

#[test]
fn what_workers_hand_over_can_be_handed_over() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<(Ring, RegionMut, FreeSlot, FilledSlot, SlotCopy, SlotFetch)>();
    is_shared::<(Device, Region, Error)>();
}

#[test]
fn slots_are_page_aligned_zeroed_and_in_whole_pages() {
    let mut ring = Device::cpu().ring(RingOptions { slots: 3, slot_size: 5000 }).unwrap();
    let mut starts = Vec::new();
    for _ in 0..3 {
        let mut reading = ring.take().unwrap().begin_read();
        assert_eq!(reading.capacity(), 5000_usize.next_multiple_of(page_size()));
        starts.push(reading.as_mut_ptr().addr());
        // SAFETY: no read was begun.
        let mut filled = unsafe { reading.complete(0) };
        assert!(filled.bytes_mut().iter().all(|&byte| byte == 0));
    }
    starts.sort_unstable();
    let distance = 5000_usize.next_multiple_of(page_size());
    assert!(starts.iter().all(|start| start % page_size() == 0));
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == distance), "{starts:x?}");
}

#[test]
fn a_ring_of_nothing_is_refused() {
    for (slots, slot_size) in [(0, 4096), (4, 0), (usize::MAX, 4096), (1, usize::MAX)] {
        let outcome = Device::cpu().ring(RingOptions { slots, slot_size });
        assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{slots} of {slot_size}");
    }
}

#[test]
fn a_ring_that_does_not_fit_is_out_of_memory() {
    let error = Device::cpu().ring(RingOptions { slots: 1, slot_size: 1 << 62 }).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.to_string().contains(&(1_u64 << 62).to_string()), "{error}");
}

#[test]
fn a_read_ends_with_what_it_read() {
    let mut ring = ring(1);
    let (slot, error) = ring.take().unwrap().fill(|_| Err("no data")).unwrap_err();
    assert_eq!(error, "no data");
    let mut reading = slot.begin_read();
    // SAFETY: the slot has at least three bytes, and nothing else uses them.
    unsafe { reading.as_mut_ptr().copy_from_nonoverlapping(b"abc".as_ptr(), 3) };
    // SAFETY: the write above is over.
    let filled = unsafe { reading.complete(3) };
    assert_eq!(filled.bytes(), b"abc");
    let filled = filled.release().fill(|bytes| Ok::<_, Infallible>(bytes.len() + 1)).unwrap();
    assert_eq!(filled.bytes().len(), filled.capacity(), "no length goes beyond the slot");
}

#[test]
fn a_slot_is_gathered_in_its_upper_part() {
    let mut ring = ring(1);
    let mut slot = filled(ring.take().unwrap(), b"0123456789");
    let upper = slot.capacity() / 2;
    slot.bytes_mut().copy_within(8..10, upper);
    slot.bytes_mut().copy_within(0..2, upper + 2);
    let region = ring.device().clone().allocate(4, 1).unwrap();
    let (carved, parts) = region.carve(&[0..4, 4..4]).unwrap();
    let copies = parts.into_iter().map(|to| SlotCopy { slot_offset: upper, to }).collect();
    ring.launch(slot, copies).unwrap();
    assert_eq!(carved.reunite().unwrap().host_bytes().unwrap(), b"8901");
}

#[test]
fn without_a_free_slot_and_without_copies_nothing_is_waited_for() {
    let mut ring = ring(2);
    let first = ring.take().unwrap();
    let _second = ring.take().unwrap();
    assert!(matches!(ring.take(), Err(Error::InvalidArgument(_))));
    ring.put_back(first);
    assert!(ring.take().is_ok());
    assert_eq!(ring.statistics().waits, 0);
}

#[test]
fn a_copy_beyond_the_slot_is_refused_and_costs_no_slot() {
    let mut ring = ring(1);
    let device = ring.device().clone();
    let capacity = ring.take().map(|slot| {
        let capacity = slot.capacity();
        ring.put_back(slot);
        capacity
    });
    let capacity = capacity.unwrap();
    for (slot_offset, len) in [(capacity, 1), (capacity - 1, 2), (0, capacity as u64 + 1), (usize::MAX, 1)] {
        let slot = filled(ring.take().unwrap(), b"x");
        let to = device.allocate(len, 1).unwrap();
        let outcome = ring.launch(slot, vec![SlotCopy { slot_offset, to }]);
        assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{len} at {slot_offset}");
    }
    let empty = device.allocate(0, 1).unwrap();
    let slot = filled(ring.take().unwrap(), b"");
    ring.launch(slot, vec![SlotCopy { slot_offset: capacity, to: empty }]).unwrap();
}

#[test]
fn fetched_slots_come_back_in_order() {
    let mut ring = ring(3);
    let region = RegionMut::from_vec((0..=255).collect()).freeze();
    for start in [10, 20] {
        let fetches = vec![
            SlotFetch { slot_offset: 4, from: region.slice(start..start + 2).unwrap() },
            SlotFetch { slot_offset: 0, from: region.slice(start + 100..start + 104).unwrap() },
        ];
        let slot = ring.take().unwrap();
        ring.launch_fetch(slot, fetches).unwrap();
    }
    let slot = ring.take().unwrap();
    assert!(matches!(ring.fetch(slot, Vec::new()), Err(Error::InvalidArgument(_))), "it would overtake");
    ring.drain().unwrap();
    assert_eq!(ring.take_fetched().unwrap().unwrap().bytes(), [110, 111, 112, 113, 10, 11]);
    let second = ring.take_fetched().unwrap().unwrap();
    assert_eq!(second.bytes(), [120, 121, 122, 123, 20, 21]);
    assert!(ring.take_fetched().unwrap().is_none());
    let whole = ring.fetch(second.release(), vec![SlotFetch { slot_offset: 0, from: region }]).unwrap();
    assert_eq!(whole.bytes(), (0..=255).collect::<Vec<u8>>());
    assert_eq!((ring.statistics().copies, ring.statistics().bytes_copied), (5, 12 + 256));
}

#[test]
fn adopted_memory_stays_the_callers() {
    let device = Device::cpu();
    let mut bytes = vec![1_u8; 100];
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the vector outlives the region and is not used while it exists.
    let mut region = unsafe { device.adopt(address, 100) }.unwrap();
    region.host_bytes_mut().unwrap()[7] = 9;
    drop(region);
    assert_eq!(bytes[7], 9);
    for (address, len) in [(0, 1), (u64::MAX, 2), (4096, u64::MAX)] {
        // SAFETY: it is refused.
        assert!(unsafe { device.adopt(address, len) }.is_err());
    }
}

#[test]
fn the_cpu_device_is_always_there() {
    let device = Device::open(&DeviceSelector::Cpu).unwrap();
    assert!(!device.is_cuda());
    assert_eq!((device.info().index, device.memory().unwrap()), (None, None));
    assert_eq!(device.info().kind.as_str(), "cpu");
    device.health().unwrap();
    assert_eq!(device.stream().unwrap().raw(), None);
    Device::open(&DeviceSelector::Auto).unwrap();
}

#[test]
fn an_alignment_is_a_power_of_two() {
    for alignment in [0, 3, 257] {
        assert!(
            matches!(Device::cpu().allocate(10, alignment), Err(Error::InvalidArgument(_))),
            "{alignment}"
        );
    }
    assert!(matches!(Device::cpu().allocate(u64::MAX, 1 << 40), Err(Error::InvalidArgument(_))));
    assert!(Device::cpu().allocate(1 << 62, 1).unwrap_err().is_out_of_memory());
}

#[test]
fn workers_fill_their_parts_side_by_side() {
    const PARTS: u64 = 200;
    const PART: u64 = 1000;
    let device = Device::cpu();
    let ranges: Vec<_> = (0..PARTS).rev().map(|index| index * PART..(index + 1) * PART).collect();
    let (carved, mut parts) = device.allocate(PARTS * PART, 256).unwrap().carve(&ranges).unwrap();
    thread::scope(|scope| {
        while !parts.is_empty() {
            let share = parts.split_off(parts.len() - 50);
            let first = parts.len();
            let mut ring = device.ring(RingOptions { slots: 2, slot_size: 4096 }).unwrap();
            scope.spawn(move || {
                for (offset, to) in share.into_iter().enumerate() {
                    let slot = filled(ring.take().unwrap(), &[(first + offset) as u8; PART as usize]);
                    ring.launch(slot, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
                }
                ring.drain().unwrap();
            });
        }
    });
    let whole = carved.reunite().unwrap().freeze();
    let mut bytes = vec![0; (PARTS * PART) as usize];
    device.copy_to_host(&whole, &mut bytes).unwrap();
    for (index, part) in bytes.chunks(PART as usize).enumerate() {
        assert!(part.iter().all(|&byte| u64::from(byte) == PARTS - 1 - index as u64), "part {index}");
    }
    assert!(device.copy_to_host(&whole, &mut bytes[1..]).is_err(), "lengths must agree");
}

proptest! {
    #[test]
    fn allocations_are_aligned_zeroed_and_as_long_as_asked(len in 0_u64..100_000, shift in 0_u32..22) {
        let region = Device::cpu().allocate(len, 1 << shift).unwrap();
        prop_assert_eq!(region.len(), len);
        prop_assert!(len == 0 || region.address().is_multiple_of(1 << shift));
        prop_assert!(region.host_bytes().unwrap().iter().all(|&byte| byte == 0));
    }

    /// What any scattering of a slot brings is what a plain loop brings.
    #[test]
    fn copies_scatter_a_slot(
        content in prop::collection::vec(any::<u8>(), 4096),
        pieces in prop::collection::vec((0_usize..4000, 0_u64..96), 1..20),
    ) {
        let mut ring = ring(1);
        let mut end = 0;
        let ranges: Vec<_> = pieces.iter().map(|&(_, len)| { end += len; end - len..end }).collect();
        let (carved, parts) = ring.device().allocate(end, 1).unwrap().carve(&ranges).unwrap();
        let copies = parts.into_iter().zip(&pieces).map(|(to, &(slot_offset, _))| SlotCopy { slot_offset, to });
        let slot = filled(ring.take().unwrap(), &content);
        ring.launch(slot, copies.collect()).unwrap();
        let expected: Vec<u8> = pieces.iter().flat_map(|&(at, len)| &content[at..at + len as usize]).copied().collect();
        let whole = carved.reunite().unwrap();
        prop_assert_eq!(whole.host_bytes().unwrap(), expected);
        prop_assert_eq!(ring.statistics().bytes_copied, end);
    }
}
