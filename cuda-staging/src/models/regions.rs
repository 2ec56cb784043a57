//! Regions that are handed out in parts and come back whole.

use loom::thread;

use super::{Faults, model};
use crate::{RegionMut, Toucher};

/// Waits until a region is whole again.
fn reunite(mut carved: crate::Carved) -> RegionMut {
    loop {
        match carved.reunite() {
            Ok(whole) => return whole,
            Err(not_yet) => carved = not_yet,
        }
        thread::yield_now();
    }
}

#[test]
fn a_region_is_whole_when_both_workers_have_written_theirs() {
    model(3, Faults::default(), |_| {
        let (carved, parts) = RegionMut::from_vec(vec![0; 4]).carve(&[0..2, 2..4]).unwrap();
        let workers: Vec<_> = parts
            .into_iter()
            .zip([1, 2])
            .map(|(mut part, value)| thread::spawn(move || part.host_bytes_mut().unwrap().fill(value)))
            .collect();
        assert_eq!(reunite(carved).host_bytes().unwrap(), [1, 1, 2, 2]);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_part_that_was_cut_on_and_frozen_counts_until_the_last_of_it_is_gone() {
    model(3, Faults::default(), |_| {
        let (carved, mut parts) =
            RegionMut::from_vec(vec![0; 4]).carve(std::slice::from_ref(&(0..4))).unwrap();
        let (mut head, tail) = parts.remove(0).split_at(2).unwrap();
        let frozen = tail.freeze();
        let writer = thread::spawn(move || head.host_bytes_mut().unwrap().fill(3));
        let reader = thread::spawn(move || frozen.host_bytes().unwrap().to_vec());
        assert_eq!(reunite(carved).host_bytes().unwrap(), [3, 3, 0, 0]);
        writer.join().unwrap();
        assert_eq!(reader.join().unwrap(), [0, 0]);
    });
}

#[test]
fn whoever_touches_ahead_keeps_the_memory_and_no_part_of_it() {
    model(3, Faults::default(), |_| {
        let region = crate::Device::cpu().allocate(8, 1).unwrap();
        let toucher = region.toucher();
        let (carved, mut parts) = region.carve(std::slice::from_ref(&(0..8))).unwrap();
        let touching =
            thread::spawn(move || toucher.as_ref().is_none_or(|toucher: &Toucher| toucher.touch(0..8)));
        parts[0].host_bytes_mut().unwrap().fill(4);
        drop(parts);
        let whole = carved.reunite().expect("a toucher is no part");
        assert_eq!(whole.host_bytes().unwrap(), [4; 8]);
        drop(whole);
        assert!(touching.join().unwrap(), "the memory lives as long as its toucher");
    });
}
