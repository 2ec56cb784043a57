//! Every driver call of a short session made to fail, at each of its uses.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;

use cuda_staging::{Device, RingOptions, SlotCopy, SlotFetch};
use support::{Run, is_child, run_on_simulator};

const SLOT: usize = 4096;

/// A refusal, memory that ran out, a broken context, and a code nobody knows.
const CODES: [u32; 4] = [1, 2, BREAKS_THE_CONTEXT, 4242];
const BREAKS_THE_CONTEXT: u32 = 719;

/// All that a ring does, in both directions. Succeeds only if every byte is right.
fn session() -> Result<(), Box<dyn Error>> {
    let content: Vec<u8> = (0..4 * SLOT).map(|place| ((place * place) >> 5) as u8).collect();
    let device = Device::cuda(0)?;
    let mut ring = device.ring(RingOptions { slots: 2, slot_size: SLOT })?;
    let ranges: Vec<_> = (0..8).map(|half| half * SLOT as u64 / 2..(half + 1) * SLOT as u64 / 2).collect();
    let (carved, parts) = device.allocate(content.len() as u64, 256)?.carve(&ranges)?;
    let mut parts = parts.into_iter();
    for slot in content.chunks(SLOT) {
        let filled = ring.take()?.fill(|bytes| {
            bytes.copy_from_slice(slot);
            Ok::<_, Infallible>(slot.len())
        });
        let filled = filled.unwrap_or_else(|(_, never)| match never {});
        let copies =
            [0, SLOT / 2].into_iter().zip(&mut parts).map(|(slot_offset, to)| SlotCopy { slot_offset, to });
        ring.launch(filled, copies.collect())?;
    }
    ring.drain()?;
    let whole = carved.reunite().map_err(|_| "a part is still alive after drain")?.freeze();

    for (half, expected) in content.chunks(2 * SLOT).enumerate() {
        for slot in 0..2 {
            let start = (2 * half + slot) * SLOT;
            let from = whole.slice(start as u64..(start + SLOT) as u64)?;
            let slot = ring.take()?;
            ring.launch_fetch(slot, vec![SlotFetch { slot_offset: 0, from }])?;
        }
        for expected in expected.chunks(SLOT) {
            let filled = ring.take_fetched()?.ok_or("a fetch is missing")?;
            assert!(filled.bytes() == expected, "wrong bytes fetched");
            ring.put_back(filled.release());
        }
    }
    let mut bytes = vec![0; content.len()];
    device.copy_to_host(&whole, &mut bytes)?;
    assert!(bytes == content, "wrong bytes read back");
    Ok(())
}

#[test]
fn every_call_failing_at_every_use() {
    const NAME: &str = "every_call_failing_at_every_use";
    if is_child(NAME) {
        match session() {
            Ok(()) => println!("session: right"),
            Err(error) => println!("session: {error}"),
        }
        return;
    }
    let clean = run_on_simulator(NAME, &[]);
    clean.assert_passed();
    assert!(clean.output.contains("session: right"), "{}", clean.output);
    assert_eq!((clean.left_behind(), clean.dropped_with_context()), (vec![], vec![]));

    let mut fired = BTreeMap::<String, u64>::new();
    for (call, uses) in clean.calls() {
        // How often an event is asked differs from run to run; the first questions stand for all.
        let uses = if call == "cuEventQuery" { uses.min(16) } else { uses };
        for k in 1..=uses {
            for code in CODES {
                let fault = format!("{call}@{k}={code}");
                let run = run_on_simulator(NAME, &[("CUDA_SIM_FAULT", &fault), ("CUDA_SIM_JITTER_US", "50")]);
                run.assert_passed();
                // A driver that did not start writes no report.
                if run.faults().contains_key(&call) || run.report.is_null() {
                    *fired.entry(call.clone()).or_default() += 1;
                    check(&call, code, &run);
                }
            }
        }
    }
    println!("faults fired, by function: {fired:#?}");
    let silent: Vec<_> = clean.calls().into_keys().filter(|call| !fired.contains_key(call)).collect();
    assert!(silent.is_empty(), "never failed: {silent:?}");
}

/// Whether a run in which `call` failed once with `code` ended as it should.
fn check(call: &str, code: u32, run: &Run) {
    let (left, dropped) = (run.left_behind(), run.dropped_with_context());
    let told = format!("{call} failed with {code}; left {left:?}, dropped {dropped:?}:\n{}", run.output);
    let right = run.output.contains("session: right");
    assert!(right || run.output.contains(&format!("{call} failed with {code}")), "not named: {told}");

    let is_release = ["Destroy", "Free", "Unregister"].iter().any(|part| call.contains(part));
    if call.contains("CtxRelease") {
        assert_eq!(left.len(), 1, "{told}");
    } else if code == BREAKS_THE_CONTEXT && !left.is_empty() {
        // Whether the copies in flight are over cannot be learnt any more; what they use is kept, and only that.
        assert!(left.iter().any(|what| what.contains("pins")), "nothing was in flight: {told}");
        assert!(!left.iter().any(|what| what.contains("streams")), "{told}");
    } else {
        assert!(left.is_empty(), "{told}");
    }
    if code != BREAKS_THE_CONTEXT {
        // What could not be released goes with its context, and it is that one thing.
        assert_eq!(dropped.len(), usize::from(is_release), "{told}");
    }
}
