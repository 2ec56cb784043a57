//! The tour for people: where the checkpoint stood, the loads beside each other, what this machine lacks.

use gds_loader::bench::CacheState;

use super::{Load, Tour, Unavailable};
use crate::cli::describe;
use crate::cli::output::{Align, Output, facts, table};
use crate::cli::sizes;

pub(super) fn print(out: &mut Output, tour: &Tour) -> anyhow::Result<()> {
    out.table(&facts([
        ("Checkpoint", format!("{} {}", tour.checkpoint.display(), tour.storage)),
        (
            "Contents",
            format!(
                "{}, {} tensors in {} files; removed again",
                sizes::bytes(tour.bytes),
                sizes::count(tour.tensors as u64),
                tour.files
            ),
        ),
    ]))?;
    out.gap()?;
    let mut columns = vec![
        ("Path", Align::Left),
        ("Device", Align::Left),
        ("Page cache", Align::Left),
        ("Seconds", Align::Right),
        ("GB/s", Align::Right),
        ("Verified", Align::Left),
    ];
    let notes: Vec<String> = tour.loads.iter().map(notes).collect();
    let noted = notes.iter().any(|note| !note.is_empty());
    if noted {
        columns.push(("Notes", Align::Left));
    }
    let mut loads = table(&columns);
    for (load, note) in tour.loads.iter().zip(notes) {
        let report = &load.report;
        let mut row = vec![
            describe::paths(&report.paths),
            describe::device(&report.device),
            load.cache.clone(),
            sizes::seconds(report.seconds),
            sizes::gb_per_s(report.bytes, report.seconds),
            if load.verified { "yes".into() } else { "no".into() },
        ];
        if noted {
            row.push(note);
        }
        loads.add_row(row);
    }
    out.table(&loads)?;
    out.gap()?;
    // A table, for its wrapping at words.
    let mut words = vec![
        (
            "Verified",
            format!(
                "every load byte by byte, all {}, by what its position demands",
                sizes::bytes(tour.bytes)
            ),
        ),
        ("Cold", "at most 1% of the files was in the page cache just before the load".to_owned()),
        ("Warm", "at least 99% was".to_owned()),
    ];
    words.extend(
        tour.unavailable
            .iter()
            .map(|Unavailable { what, reason }| ("Not available", format!("{}: {reason}", what.join(", ")))),
    );
    out.table(&facts(words))
}

fn notes(load: &Load) -> String {
    let mut notes = describe::fallbacks(&load.report.fallbacks);
    if !CacheState::before(&load.report.cache).is(load.asked) {
        notes.push(format!("could not be made {}", load.asked.as_str()));
    }
    notes.join("; ")
}
