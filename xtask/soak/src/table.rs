//! The rows for people.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table};

use crate::row::Row;
use crate::verdict::Verdict;

const HEAD: [&str; 13] = [
    "scenario",
    "way",
    "loads",
    "compared",
    "errors (expected)",
    "versions",
    "RssAnon MiB",
    "KiB/load",
    "files",
    "threads",
    "pinned",
    "s",
    "verdict",
];

/// The table of all rows.
pub(crate) fn of(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.set_header(HEAD);
    rows.iter().for_each(|row| {
        table.add_row(cells(row));
    });
    for column in 2..HEAD.len() - 1 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn cells(row: &Row) -> Vec<String> {
    let figures = &row.figures;
    let [start, warm, end] = figures.rss_anon.map(|bytes| bytes as f64 / f64::from(1 << 20));
    let pair = |[warm, end]: [u64; 2]| if warm == end { end.to_string() } else { format!("{warm} to {end}") };
    vec![
        row.scenario.to_owned(),
        row.way.to_owned(),
        figures.loads.to_string(),
        format!("{:.2} GB", figures.bytes_compared as f64 / 1e9),
        format!("{} ({})", figures.errors.values().sum::<u64>(), row.errors_expected),
        counts(&figures.versions),
        format!("{start:.1} {warm:.1} {end:.1}"),
        format!("{:+.2}", figures.slope / 1024.0),
        pair(figures.descriptors),
        pair(figures.threads),
        format!("{} MiB", figures.pinned >> 20),
        format!("{:.1}", figures.seconds),
        match row.verdict {
            Verdict::Good => "good".to_owned(),
            Verdict::Bad(_) => "BAD".to_owned(),
            Verdict::CouldNotRun(_) => "could not run".to_owned(),
        },
    ]
}

/// How many models were of each version, where there was more than one.
fn counts(versions: &BTreeMap<u32, u64>) -> String {
    match versions.len() {
        0 | 1 => String::new(),
        _ => versions.values().map(u64::to_string).collect::<Vec<_>>().join("+"),
    }
}
