//! Every driver call of a short session made to fail, at each of its uses.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;

use cuda_staging::{Device, RingOptions, SlotCopy, SlotFetch};
use test_support::{Outcome, Simulation};

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

/// Runs the session, with `fault` if there is one. `None` in the child.
fn run(fault: Option<&str>) -> Option<Outcome> {
    let settings = fault.map(|fault| [("CUDA_SIM_FAULT", fault), ("CUDA_SIM_JITTER_US", "50")]);
    let simulation =
        Simulation::new("every_call_failing_at_every_use").settings(settings.as_ref().map_or(&[], |s| s));
    let outcome = simulation.run(|| match session() {
        Ok(()) => println!("session: right"),
        Err(error) => println!("session: {error}"),
    })?;
    assert!(outcome.finished, "{fault:?}: {outcome}");
    Some(outcome)
}

#[test]
fn every_call_failing_at_every_use() {
    let Some(clean) = run(None) else { return };
    clean.assert_well();
    assert!(clean.child.stdout.contains("session: right"), "{clean}");

    let mut fired = BTreeMap::<&str, u64>::new();
    for (call, &uses) in &clean.report().calls {
        // How often an event is asked differs from run to run; the first questions stand for all.
        let uses = if call == "cuEventQuery" { uses.min(16) } else { uses };
        for k in 1..=uses {
            for code in CODES {
                let Some(outcome) = run(Some(&format!("{call}@{k}={code}"))) else { return };
                // A driver that did not start writes no report.
                if outcome.reports.is_empty() || outcome.report().faults.contains_key(call) {
                    *fired.entry(call).or_default() += 1;
                    check(call, code, &outcome);
                }
            }
        }
    }
    println!("faults fired, by function: {fired:#?}");
    let silent: Vec<_> =
        clean.report().calls.keys().filter(|call| !fired.contains_key(call.as_str())).collect();
    assert!(silent.is_empty(), "never failed: {silent:?}");
}

/// Whether a run in which `call` failed once with `code` ended as it should.
fn check(call: &str, code: u32, outcome: &Outcome) {
    let output = &outcome.child.stdout;
    let named = output.contains(&format!("{call} failed with {code}"));
    assert!(named || output.contains("session: right"), "{call} is not named: {outcome}");
    // In a broken context every release fails, and what is in flight is kept.
    let Some(report) = outcome.reports.first().filter(|_| code != BREAKS_THE_CONTEXT) else { return };
    let left = report.ours_alive();
    let is_release = ["Release", "Destroy", "Free", "Unregister"].iter().any(|part| call.contains(part));
    let count: u64 = left.values().map(|tally| tally.count).sum();
    assert_eq!(
        count,
        u64::from(is_release),
        "only what could not be released stays: {call}, {left:?}, {outcome}"
    );
}
