//! cuFile's calls, in one process: loads in batches and saves too.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use test_support::cufile_sim;

use crate::long;
use crate::operation::{Ended, Operation};

/// Every code of cuFile, and one that nobody knows.
fn codes() -> impl Iterator<Item = u32> + Clone {
    (5001..=5050).chain([5999])
}

/// Calls that return nothing that could tell.
const SILENT: [&str; 3] = ["cuFileHandleDeregister", "cuFileBatchIODestroy", "cuFileUseCount"];

/// What was seen of a function.
#[derive(Default)]
struct Row {
    uses: u64,
    codes: BTreeMap<u32, u64>,
    right: u64,
    failed: u64,
}

/// Lets each use of each call fail, with each code or with some that take turns.
pub(crate) fn sweep(operations: &[Operation]) {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut turns = codes().cycle();
    for operation in operations {
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
        if calls.contains_key("cuFileBatchIOSubmit") {
            calls.insert("batch_event".to_owned(), report.transfers.reads + report.transfers.writes);
        }
        for (function, uses) in calls {
            rows.entry(function.clone()).or_default().uses += uses;
            for k in 1..=uses {
                let some = if long() { codes().count() } else { 3 };
                for code in turns.by_ref().take(some) {
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
                    let row = rows.entry(function.clone()).or_default();
                    *row.codes.entry(code).or_default() += 1;
                    let mut find = |what: String| wrong.push(format!("{}, {script}: {what}", operation.name));
                    match &ended {
                        Some(Ended::Right(_)) => row.right += 1,
                        Some(Ended::Failed(kind, text)) => {
                            row.failed += 1;
                            if !text.contains(&code.to_string()) {
                                find(format!("no clear error: {kind:?}: {text}"));
                            }
                        }
                        None => find("it panicked".to_owned()),
                    }
                    let left = ended.as_ref().map_or(Ok(()), |ended| (operation.left)(ended));
                    left.unwrap_or_else(&mut find);
                    // Memory that could not be deregistered is kept, since the storage may still write to it.
                    let alive = report.alive;
                    if alive != before && function != "cuFileBufDeregister" {
                        find(format!("left {alive:?}, before {before:?}, after {ended:?}"));
                    }
                    let (again, _) = run("");
                    if again != first {
                        find(format!("the next run: {again:?}, the first: {first:?}"));
                    }
                }
            }
        }
    }
    let mut fired: BTreeMap<u32, u64> = BTreeMap::new();
    println!("{:<32} {:>6} {:>6} {:>8} {:>8}", "call", "uses", "faults", "correct", "error");
    for (function, row) in &rows {
        let faults: u64 = row.codes.values().sum();
        println!("{function:<32} {:>6} {faults:>6} {:>8} {:>8}", row.uses, row.right, row.failed);
        row.codes.iter().for_each(|(code, count)| *fired.entry(*code).or_default() += count);
        if faults == 0 {
            wrong.push(format!("{function} was never made to fail"));
        }
    }
    println!("{} faults fired, of {} codes", fired.values().sum::<u64>(), fired.len());
    wrong.extend(
        codes().filter(|code| !fired.contains_key(code)).map(|code| format!("nothing failed with {code}")),
    );
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

/// Those of `operations` that use cuFile.
pub(crate) fn of(mut operations: Vec<Operation>) -> Vec<Operation> {
    operations.retain(|operation| operation.name.contains("gds"));
    operations
}
