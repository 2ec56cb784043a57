//! cuFile's calls: loads in batches and saves too, one after the other in one process.
//!
//! Where the library may still write to memory, gds keeps that memory, and where nobody knows what it writes, gives up on it until the
//! process ends. So such a fault is the last of its process, and the next process goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use test_support::{Simulation, cufile_sim};

use crate::operation::{Ended, Operation};
use crate::{gpu, long};

/// Tells a process after which fault it begins.
const AFTER: &str = "GDS_SWEEP_AFTER";

/// A fault by what it strikes: the operation, the function, which use of it, and which of the codes tried there. A plain number would
/// not do: how often a batch is asked for its state differs from run to run.
type Place = (usize, String, u64, usize);

fn parse(place: &str) -> Option<Place> {
    let [operation, function, k, code] = place.split(',').collect::<Vec<_>>()[..] else { return None };
    Some((operation.parse().ok()?, function.to_owned(), k.parse().ok()?, code.parse().ok()?))
}

/// Every code of cuFile, and one that nobody knows.
fn codes() -> impl Iterator<Item = u32> + Clone {
    (5001..=5050).chain([5999])
}

/// Calls that return nothing that could tell.
const SILENT: [&str; 3] = ["cuFileHandleDeregister", "cuFileBatchIODestroy", "cuFileUseCount"];

/// Refused with most codes, it may have begun all the same: what is refused may end what can be done in the process.
const SUBMIT: &str = "cuFileBatchIOSubmit";

/// Memory that could not be deregistered is kept, and its share of the GPU's BAR1 with it.
const DEREGISTER: &str = "cuFileBufDeregister";

/// What [`DEREGISTER`] answers where there is nothing to deregister.
const NOT_REGISTERED: u32 = 5024;

/// So many codes are tried at the K-th use of a function.
fn codes_at(function: &str, k: u64) -> usize {
    match (long(), function == SUBMIT) {
        (true, true) if k > 1 => 1,
        (true, _) => codes().count(),
        (false, true) => usize::from(k == 1),
        (false, false) => 3,
    }
}

/// Lets each use of each call fail, with each code or with some that take turns, in as many processes as that takes.
pub(crate) fn sweep(simulation: impl Fn() -> Simulation, limit: Duration) {
    let mut seen = Seen::default();
    let (mut after, mut processes) = (Some(String::new()), 0);
    while let Some(last) = after {
        let simulation = simulation().setting(AFTER, last).limit(limit);
        let Some(outcome) = simulation.run(|| in_this_process(&of(gpu::all()))) else { return };
        assert!(outcome.finished, "{outcome}");
        after = seen.read(&outcome.child.stdout);
        processes += 1;
    }
    println!("{processes} processes");
    seen.assert_well();
}

/// Those of `operations` that use cuFile.
fn of(mut operations: Vec<Operation>) -> Vec<Operation> {
    operations.retain(|operation| operation.name.contains("gds"));
    operations
}

fn in_this_process(operations: &[Operation]) {
    let after = parse(&std::env::var(AFTER).unwrap());
    let mut turns = codes().cycle();
    println!();
    for (index, operation) in operations.iter().enumerate() {
        let run = |script: &str| {
            (operation.reset)();
            cufile_sim::reset_counters();
            cufile_sim::set_script(script);
            let ended = catch_unwind(AssertUnwindSafe(|| (operation.run)()));
            let report = cufile_sim::report();
            cufile_sim::set_script("");
            (ended.ok(), report)
        };
        run("");
        let (first, report) = run("");
        assert!(matches!(first, Some(Ended::Right(_))), "{}: {first:?}", operation.name);
        let mut calls = report.calls;
        calls.retain(|function, uses| *uses > 0 && !SILENT.contains(&function.as_str()));
        // One operation is submitted at a time, and each has one end.
        if let Some(submitted) = calls.get(SUBMIT).copied() {
            calls.insert("batch_event".to_owned(), submitted);
        }
        for (function, uses) in calls {
            println!("uses\t{}\t{function}\t{uses}", operation.name);
            for k in 1..=uses {
                for (nth, code) in turns.by_ref().take(codes_at(&function, k)).enumerate() {
                    if after.as_ref().is_some_and(|after| (index, function.clone(), k, nth) <= *after) {
                        continue;
                    }
                    let effect = match function.as_str() {
                        "cuFileRead" | "cuFileWrite" => format!("-1:{code}"),
                        "batch_event" => format!("FAILED:-{code}"),
                        _ => code.to_string(),
                    };
                    let script = format!("{function}@{k}={effect}");
                    let before = cufile_sim::report().alive;
                    let (ended, report) = run(&script);
                    if report.faults.iter().all(|fault| fault.fired == 0) {
                        continue;
                    }
                    let find = |what: String| {
                        println!("wrong\t{}, {script}: {}", operation.name, what.replace('\n', " "));
                    };
                    let outcome = match &ended {
                        Some(Ended::Right(_)) => "correct",
                        Some(Ended::Failed(kind, text)) => {
                            if !text.contains(&code.to_string()) {
                                find(format!("no clear error: {kind:?}: {text}"));
                            }
                            "error"
                        }
                        None => {
                            find("it panicked".to_owned());
                            "panic"
                        }
                    };
                    println!("fired\t{function}\t{code}\t{outcome}");
                    let left = ended.as_ref().map_or(Ok(()), |ended| (operation.left)(ended));
                    left.unwrap_or_else(&find);
                    let (again, _) = run("");
                    let given_up = is_given_up(again.as_ref());
                    // Memory that is said not to be registered is freed, and the simulator has it registered still: what comes to
                    // lie there next may be refused, which is by chance.
                    let is_lie = function == DEREGISTER && code == NOT_REGISTERED;
                    if again != first && !(given_up && function == SUBMIT) && !is_lie {
                        find(format!("the next run: {again:?}, the first: {first:?}"));
                    }
                    if given_up || function == DEREGISTER {
                        println!("last\t{index},{function},{k},{nth}");
                        return;
                    }
                    let alive = report.alive;
                    if alive != before {
                        find(format!("left {alive:?}, before {before:?}, after {ended:?}"));
                    }
                }
            }
        }
    }
}

/// Whether a run was refused because memory may still be written to.
fn is_given_up(ended: Option<&Ended>) -> bool {
    matches!(ended, Some(Ended::Failed(_, text)) if text.contains("unusable after an earlier failure"))
}

/// What the processes saw.
#[derive(Default)]
struct Seen {
    /// Uses without a fault, by operation and function.
    uses: BTreeMap<(String, String), u64>,
    /// How often a function failed and then the operation ended so.
    ended: BTreeMap<(String, String), u64>,
    codes: BTreeSet<u32>,
    wrong: Vec<String>,
}

impl Seen {
    /// Takes what a process printed; the fault that it ended with, where that was not the last.
    fn read(&mut self, printed: &str) -> Option<String> {
        let mut after = None;
        for line in printed.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["uses", operation, function, uses] => {
                    self.uses.insert((operation.to_owned(), function.to_owned()), uses.parse().unwrap());
                }
                ["fired", function, code, outcome] => {
                    *self.ended.entry((function.to_owned(), outcome.to_owned())).or_default() += 1;
                    self.codes.insert(code.parse().unwrap());
                }
                ["wrong", what] => self.wrong.push(what.to_owned()),
                ["last", place] => after = Some(place.to_owned()),
                _ => {}
            }
        }
        after
    }

    fn assert_well(mut self) {
        println!("{:<32} {:>6} {:>6} {:>8} {:>8}", "call", "uses", "faults", "correct", "error");
        let functions: BTreeSet<&String> = self.uses.keys().map(|(_, function)| function).collect();
        for function in functions {
            let uses: u64 =
                self.uses.iter().filter(|((_, of), _)| of == function).map(|(_, uses)| uses).sum();
            let [right, failed] = ["correct", "error"]
                .map(|outcome| self.ended.get(&(function.clone(), outcome.to_owned())).copied().unwrap_or(0));
            println!("{function:<32} {uses:>6} {:>6} {right:>8} {failed:>8}", right + failed);
            if right + failed == 0 {
                self.wrong.push(format!("{function} was never made to fail"));
            }
        }
        let fired: u64 = self.ended.values().sum();
        println!("{fired} faults fired, of {} codes", self.codes.len());
        let missed = codes().filter(|code| !self.codes.contains(code));
        self.wrong.extend(missed.map(|code| format!("nothing failed with {code}")));
        assert!(self.wrong.is_empty(), "{} findings:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}
