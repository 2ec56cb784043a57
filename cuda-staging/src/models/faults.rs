//! What fails or takes too long: nothing in flight is freed, nothing is used again, everybody ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Faults, LEAKED, bytes_of, copy, expected, fill, model, pieces, ring};
use crate::{Error, RegionMut, Ring};

/// A code that says the context is broken.
const BROKEN: i32 = 719;

/// A code that says the call was refused and nothing else.
const REFUSED: i32 = 1;

/// What became of a model's runs, to see that each outcome was among them.
#[derive(Clone, Default)]
struct Seen(Arc<[AtomicUsize; 2]>);

impl Seen {
    fn note(&self, outcome: bool) {
        self.0[usize::from(outcome)].fetch_add(1, Ordering::Relaxed);
    }

    fn assert_both(&self) {
        let seen = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
        println!("{seen:?}");
    }
}

fn leaked() -> usize {
    LEAKED.with_borrow(Vec::len)
}

/// Moves pieces until one fails.
fn try_move(ring: &mut Ring, parts: Vec<RegionMut>) -> crate::Result<()> {
    for (part, value) in parts.into_iter().zip(1..) {
        let slot = ring.take()?;
        ring.launch(fill(slot, value), copy(part))?;
    }
    ring.drain()
}

#[test]
fn a_copy_that_takes_too_long_is_leaked_and_poisons_the_device() {
    let (in_time, freed) = (Seen::default(), Seen::default());
    let (notes, other_notes) = (in_time.clone(), freed.clone());
    model(2, Faults::default(), move |device| {
        let (carved, parts) = pieces(device, 2);
        let mut ring = ring(device, 1);
        ring.set_wait_limit(Duration::ZERO);
        let moved = try_move(&mut ring, parts);
        notes.note(moved.is_ok());
        match moved {
            Ok(()) => assert!(device.health().is_ok()),
            Err(error) => {
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
                assert!(matches!(device.health(), Err(Error::Poisoned { .. })));
                assert!(matches!(ring.take(), Err(Error::Poisoned { .. })), "no slot of a poisoned device");
            }
        }
        drop(ring);
        // Whole again if and only if nothing is in flight any more: what is, is kept with all that it uses.
        let whole = carved.reunite();
        assert_eq!(whole.is_ok(), leaked() == 0, "{whole:?} with {} leaked", leaked());
        other_notes.note(whole.is_ok());
    });
    in_time.assert_both();
    freed.assert_both();
}

#[test]
fn a_broken_context_frees_nothing_that_it_may_still_write() {
    model(2, Faults { broken: Some((0, BROKEN)), ..Faults::default() }, |device| {
        let (carved, parts) = pieces(device, 3);
        let mut ring = ring(device, 2);
        let error = try_move(&mut ring, parts).expect_err("the first copy breaks the context");
        assert!(matches!(error, Error::Driver { code: BROKEN, .. } | Error::Poisoned { .. }), "{error}");
        assert!(matches!(device.health(), Err(Error::Poisoned { .. })));
        drop(ring);
        assert!(carved.reunite().is_err(), "the driver did not say that the copies are over");
        assert!(leaked() > 0);
    });
}

#[test]
fn a_refused_copy_gives_its_slot_back_when_those_before_it_are_over() {
    model(2, Faults { refused: Some((1, REFUSED)), ..Faults::default() }, |device| {
        let (carved, mut parts) = pieces(device, 2);
        let mut ring = ring(device, 1);
        let halves = parts.pop().unwrap().split_at(super::LEN as u64 / 2).unwrap();
        let copies = [halves.0, halves.1].into_iter().flat_map(copy).collect();
        let slot = ring.take().unwrap();
        // The first of its two copies was enqueued.
        let error = ring.launch(fill(slot, 1), copies).unwrap_err();
        assert!(matches!(error, Error::Driver { code: REFUSED, .. }), "{error}");
        assert!(device.health().is_ok() && ring.has_free());
        try_move(&mut ring, parts).unwrap();
        let whole = carved.reunite().unwrap().freeze();
        assert_eq!(bytes_of(&whole)[..super::LEN], expected([1]));
        assert_eq!(leaked(), 0);
    });
}
