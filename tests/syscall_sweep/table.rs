//! What was seen, by system call.

use std::collections::{BTreeMap, BTreeSet};

use test_support::syscalls::{Effect, name};

use crate::operation::Ended;
use crate::sweep::effects;

/// Of one call.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Uses in the operations without a fault.
    uses: u64,
    fired: BTreeMap<Effect, u64>,
    /// Effects of which a run was to hit the call's first use, and did not make the call.
    absent: BTreeSet<Effect>,
    right: u64,
    failed: u64,
}

/// Of all calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(BTreeMap<i64, Row>);

impl Table {
    pub(crate) fn used(&mut self, call: i64, uses: u64) {
        self.0.entry(call).or_default().uses += uses;
    }

    pub(crate) fn fired(&mut self, call: i64, effect: Effect, ended: Option<&Ended>) {
        let row = self.0.entry(call).or_default();
        *row.fired.entry(effect).or_default() += 1;
        match ended {
            Some(Ended::Right(_)) => row.right += 1,
            Some(Ended::Failed(..)) => row.failed += 1,
            None => {}
        }
    }

    /// A run in which it should have failed did not make the call: it is made once a process or once a thread, such as
    /// getrandom for the keys of hash tables, and fell into the run whose calls were counted by chance.
    pub(crate) fn absent(&mut self, call: i64, effect: Effect) {
        self.0.entry(call).or_default().absent.insert(effect);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().flat_map(|row| row.fired.values()).sum()
    }

    /// Calls, and effects of calls, that were never made to fail though they were made.
    pub(crate) fn missed(&self) -> Vec<String> {
        let of_call = |(call, row): (&i64, &Row)| {
            let missed: Vec<String> = effects(*call)
                .filter(|effect| !row.fired.contains_key(effect) && !row.absent.contains(effect))
                .map(|effect| effect.to_string())
                .collect();
            (!missed.is_empty()).then(|| format!("{} never failed by {}", name(*call), missed.join(", ")))
        };
        self.0.iter().filter_map(of_call).collect()
    }

    pub(crate) fn print(&self) {
        let rows: BTreeMap<String, &Row> = self.0.iter().map(|(call, row)| (name(*call), row)).collect();
        print!("{:<20} {:>6} {:>6}", "call", "uses", "faults");
        let all: Vec<Effect> = effects(libc::SYS_read).collect();
        all.iter().for_each(|effect| print!(" {effect:>7}"));
        println!(" {:>8} {:>8}", "correct", "error");
        for (name, row) in rows {
            print!("{name:<20} {:>6} {:>6}", row.uses, row.fired.values().sum::<u64>());
            for effect in &all {
                print!(" {:>7}", row.fired.get(effect).map_or_else(|| "-".to_owned(), ToString::to_string));
            }
            let absent = row.absent.iter().any(|effect| !row.fired.contains_key(effect));
            let note = if absent { "  (not made by the run that was to fail)" } else { "" };
            println!(" {:>8} {:>8}{note}", row.right, row.failed);
        }
    }
}
