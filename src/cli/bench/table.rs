//! The benchmark for people.

use std::fmt::Write as _;

use gds_loader::bench::{
    BoundBy, Headline, Limit, LimitKind, Machine, Overlap, Row, Start, Storage, Subject, Summary, TwoWays,
};
use gds_loader::{GdsProof, Measure};

use super::report::Report;
use super::rounds::shares;
use crate::cli::describe;
use crate::cli::output::{Align, Output, facts, table};
use crate::cli::sizes;

pub(super) fn print(out: &mut Output, report: &Report) -> anyhow::Result<()> {
    out.table(&facts(head(report)))?;
    out.gap()?;
    rows(out, report)?;
    if !report.overlap.is_empty() {
        out.gap()?;
        overlap(out, &report.overlap)?;
    }
    out.gap()?;
    out.table(&facts(findings(report)))
}

fn head(report: &Report) -> Vec<(&'static str, String)> {
    let Subject { path, files, tensors, bytes, device, .. } = &report.subject;
    let checkpoint = format!(
        "{}: {}, {} tensors in {}",
        path.display(),
        sizes::bytes(*bytes),
        sizes::count(*tensors as u64),
        sizes::plural(*files as u64, "file")
    );
    vec![
        ("Checkpoint", checkpoint),
        ("Device", describe::device(device)),
        ("Machine", machine(&report.machine)),
        ("Storage", storage(&report.machine.storage)),
        (
            "Rounds",
            format!(
                "{} after one to warm up, shuffled by seed {}; {} s in all",
                report.rounds,
                report.seed,
                sizes::seconds(report.seconds)
            ),
        ),
    ]
}

pub(super) fn machine(machine: &Machine) -> String {
    let mut text = machine.cpu.clone().unwrap_or_else(|| "unknown processor".to_owned());
    let _ = write!(text, ", {}", sizes::plural(machine.cores as u64, "core"));
    if let Some(bytes) = machine.memory {
        let _ = write!(text, ", {}", sizes::bytes(bytes));
    }
    if let Some(kernel) = &machine.kernel {
        let _ = write!(text, ", Linux {kernel}");
    }
    if let Some(driver) = &machine.driver {
        let _ = write!(text, ", NVIDIA driver {driver}");
    }
    if let Some(version) = &machine.cufile {
        let _ = write!(text, ", cuFile {version}");
    }
    if machine.virtual_machine {
        text += "; a virtual machine, whose host may hold what is cold here";
    }
    text
}

pub(super) fn storage(storage: &Storage) -> String {
    let file_system = storage.file_system.as_deref().unwrap_or("an unknown file system");
    match storage.device.as_deref().or(storage.source.as_deref()) {
        Some(device) => format!("{file_system} on {device}"),
        None => file_system.to_owned(),
    }
}

fn rows(out: &mut Output, report: &Report) -> anyhow::Result<()> {
    let columns = [
        ("Path", Align::Left),
        ("Files were", Align::Left),
        ("Cached", Align::Left),
        ("GB/s", Align::Right),
        ("Least", Align::Right),
        ("Most", Align::Right),
        ("Max/min", Align::Right),
        ("Seconds", Align::Right),
        ("CPU s/GB", Align::Right),
        ("Of its limit", Align::Left),
    ];
    let mut rows = table(&columns);
    for row in report.rows.iter().filter(|row| row.case.measure == Measure::Pipelined) {
        let cached = row.counted().last().map_or_else(|| "-".to_owned(), |round| shares(&round.cache));
        let mut cells = vec![row.case.lane.to_string(), row.state.clone(), cached];
        cells.extend(rates(row.gb_per_s.as_ref()));
        cells.push(row.seconds.map_or_else(|| "-".to_owned(), |seconds| sizes::seconds(seconds.median)));
        cells.push(row.cpu_s_per_gb.map_or_else(|| "-".to_owned(), |cpu| format!("{:.3}", cpu.median)));
        cells.push(row.limit.map_or_else(
            || "-".to_owned(),
            |share| format!("{:.0}% of {}", share.share.median * 100.0, share.limit.as_str()),
        ));
        rows.add_row(cells);
    }
    for limit in report.limits.iter().filter(|limit| limit.gb_per_s.is_some()) {
        let mut cells = vec![format!("limit: {}", limit.limit.as_str()), String::new(), String::new()];
        cells.extend(rates(limit.gb_per_s.as_ref()));
        rows.add_row(cells);
    }
    out.table(&rows)
}

fn rates(rate: Option<&Summary>) -> [String; 4] {
    let gb_per_s = |value: f64| sizes::gb_per_s((value * 1e9) as u64, 1.0);
    match rate {
        Some(rate) => [
            gb_per_s(rate.median),
            gb_per_s(rate.min),
            gb_per_s(rate.max),
            rate.max_over_min.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        ],
        None => ["-", "-", "-", "-"].map(str::to_owned),
    }
}

fn overlap(out: &mut Output, overlaps: &[Overlap]) -> anyhow::Result<()> {
    let columns = [
        ("Seconds of", Align::Left),
        ("serial", Align::Right),
        ("read alone", Align::Right),
        ("copy alone", Align::Right),
        ("pipelined", Align::Right),
        ("over the longer", Align::Right),
        ("gain over serial", Align::Right),
    ];
    let mut rows = table(&columns);
    for overlap in overlaps {
        let median = |summary: &Summary| sizes::seconds(summary.median);
        rows.add_row([
            overlap.label.clone(),
            median(&overlap.serial),
            median(&overlap.read_alone),
            median(&overlap.copy_alone),
            median(&overlap.pipelined),
            ratio(&overlap.over_longer),
            ratio(&overlap.gain),
        ]);
    }
    out.table(&rows)
}

/// `1.04 (1.01 to 1.09)`: the median and the extremes of a ratio taken within each round.
pub(super) fn ratio(summary: &Summary) -> String {
    format!("{:.2} ({:.2} to {:.2})", summary.median, summary.min, summary.max)
}

fn findings(report: &Report) -> Vec<(&'static str, String)> {
    let simulated = report.machine.is_simulated();
    let mut found: Vec<(&str, String)> = Vec::new();
    found.extend(report.gds_against_host.iter().map(|headline| ("GPUDirect", against(headline, simulated))));
    found.extend(
        report
            .gds_absent
            .iter()
            .map(|reason| ("GPUDirect", format!("not compared: {}", absent(report, reason)))),
    );
    found.extend(report.overlap_absent.iter().map(|reason| ("Overlap", reason.clone())));
    found.extend(report.copies.iter().map(|copies| ("Copies", price(copies))));
    found.extend(paid_once(&report.rows).map(|text| ("Paid once", text)));
    found.extend(pinning(&report.rows).map(|text| ("Pinning", text)));
    found.extend(report.limits.iter().map(|limit| ("Limit", describe_limit(limit))));
    found.extend(report.rows.iter().flat_map(|row| notes(row, &report.limits)).map(|note| ("Note", note)));
    found.push((
        "Cold",
        "at most 1% of the files was in the page cache just before each such load".to_owned(),
    ));
    found.push(("Warm", "at least 99% was".to_owned()));
    found.extend(missing(report).into_iter().map(|text| ("Not available", text)));
    found
}

/// The paths that are not available, each reason told once.
pub(super) fn missing(report: &Report) -> Vec<String> {
    let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
    for entry in &report.unavailable {
        match missing.iter_mut().find(|(reason, _)| *reason == entry.reason) {
            Some((_, paths)) => paths.push(&entry.what),
            None => missing.push((&entry.reason, vec![&entry.what])),
        }
    }
    missing.into_iter().map(|(reason, paths)| format!("{}: {reason}", paths.join(", "))).collect()
}

/// Why there is no headline; a reason that is told below anyway is not told twice.
fn absent(report: &Report, reason: &str) -> String {
    match report.unavailable.iter().find(|entry| entry.reason == reason) {
        Some(entry) => format!("{} is not available, see below", entry.path),
        None => reason.to_owned(),
    }
}

fn against(headline: &Headline, simulated: bool) -> String {
    let Headline { gds, host, speed, gds_cpu_s_per_gb, host_cpu_s_per_gb, .. } = headline;
    let mut text = format!("{gds}: {} times as fast as {host}, within each round", ratio(speed));
    if let (Some(gds), Some(host)) = (gds_cpu_s_per_gb, host_cpu_s_per_gb) {
        let _ = write!(text, "; {gds:.3} CPU s/GB against {host:.3}");
    }
    let proof = headline.proof.as_ref().and_then(|report| report.proof);
    text += match proof {
        Some(GdsProof::Verified) => "; cuFile's statistics verify that no read was served by the host",
        Some(GdsProof::Bounced) => "; BOUNCED: cuFile's statistics say that the host served reads",
        _ => "; unverified: cuFile's statistics do not say who served the reads",
    };
    if simulated {
        text += "; the GPU is simulated, so this says nothing about hardware";
    }
    text
}

fn price(copies: &TwoWays) -> String {
    let describe = |copies: &gds_loader::bench::Copies| {
        format!(
            "{} copies, {} GB/s, {} copies/s",
            sizes::count(copies.copies),
            sizes::gb_per_s(copies.bytes, copies.seconds),
            sizes::count(copies.per_second() as u64)
        )
    };
    let mut text =
        format!("one a piece: {}; one a tensor: {}", describe(&copies.pieces), describe(&copies.tensors));
    let Some(price) = &copies.price else {
        text += "; too alike in number to tell calls from bandwidth";
        return text;
    };
    let bound = |by| if by == BoundBy::Calls { "calls" } else { "bandwidth" };
    let (by_pieces, by_tensors) = (bound(price.pieces_bound_by), bound(price.tensors_bound_by));
    let bound = if by_pieces == by_tensors {
        format!("both are bound by {by_pieces}")
    } else {
        format!("pieces are bound by {by_pieces}, tensors by {by_tensors}")
    };
    if price.seconds_per_copy > 0.0 {
        let _ = write!(
            text,
            "; time is copies times a price plus bytes by a bandwidth, so a copy costs {:.1} µs besides its bytes: {} of the time by \
             pieces, {} by tensors: {bound}",
            price.seconds_per_copy * 1e6,
            sizes::percent(price.share_of_pieces),
            sizes::percent(price.share_of_tensors),
        );
    } else {
        let _ = write!(text, "; more copies took no longer beyond the spread of the rounds: {bound}");
    }
    text
}

/// What the processes paid before and in their first load.
fn paid_once(rows: &[Row]) -> Option<String> {
    let mut seen: Vec<String> = Vec::new();
    for row in rows {
        let lane = row.case.lane.to_string();
        let worth_telling = |start: &&Start| start.device_s >= 0.001 || start.cufile_s.is_some();
        let Some(start) = row.start.as_ref().filter(worth_telling) else { continue };
        if seen.iter().any(|text| text.starts_with(&format!("{lane}: "))) {
            continue;
        }
        let mut text = format!("{lane}: ");
        if start.device_s >= 0.001 {
            let _ = write!(text, "device {}, ", sizes::duration(start.device_s));
        }
        if let Some(seconds) = start.cufile_s {
            let _ = write!(text, "cuFile's driver {}, ", sizes::duration(seconds));
        }
        let _ = write!(text, "first load {}", sizes::duration(start.first.seconds));
        seen.push(text);
    }
    (!seen.is_empty()).then(|| seen.join("; "))
}

fn pinning(rows: &[Row]) -> Option<String> {
    let loads = || rows.iter().filter(|row| row.case.measure == Measure::Pipelined);
    let medians: Vec<f64> = loads().filter_map(|row| row.pin_s).map(|pin| pin.median).collect();
    let most = medians.iter().copied().fold(0.0, f64::max);
    let pinned = loads().flat_map(Row::counted).map(|round| round.pinned_bytes).max()?;
    (pinned > 0).then(|| {
        let (time, bytes) = (sizes::duration(most), sizes::bytes(pinned));
        format!("at most {time} of each load, its seconds included, for at most {bytes}")
    })
}

fn describe_limit(limit: &Limit) -> String {
    let kind = limit.limit.as_str();
    match (&limit.gb_per_s, &limit.failure) {
        (None, Some(reason)) => format!("{kind}: not known: {reason}"),
        _ => format!("{kind}: {}", limit.how),
    }
}

/// How steady a limit was, which says how much to make of a row beyond it.
fn drift(limits: &[Limit], kind: LimitKind) -> String {
    let limit = limits.iter().find(|limit| limit.limit == kind);
    match limit.and_then(|limit| limit.gb_per_s?.max_over_min) {
        Some(ratio) if ratio > 1.2 => format!("it drifted by a factor of {ratio:.2} over the rounds"),
        _ => "it was steady, so those were not the best that can be had".to_owned(),
    }
}

fn notes(row: &Row, limits: &[Limit]) -> Vec<String> {
    let mut notes = Vec::new();
    let label = &row.label;
    if row.left_out > 0 {
        let rounds = sizes::plural(row.left_out as u64, "round");
        notes.push(format!("{label}: {rounds} left out: the page cache did not hold what was asked for"));
    }
    if row.state.starts_with("not ") {
        notes.push(format!("{label}: the page cache could not be brought to what was asked for"));
    }
    if let Some(reason) = &row.failure {
        notes.push(format!("{label}: {reason}"));
    }
    if let Some(reason) = &row.above_memory {
        notes.push(format!("{label}: {reason}"));
    }
    let fallbacks: usize = row.counted().map(|round| round.fallbacks).sum();
    if fallbacks > 0 {
        notes.push(format!("{label}: {} to another path", sizes::plural(fallbacks as u64, "fallback")));
    }
    if let Some(share) = row.limit.filter(|share| share.share.median > 1.05) {
        notes.push(format!(
            "{label}: {:.0}% of the {} limit, which is what plainer {} got seconds apart in the same rounds: {}",
            share.share.median * 100.0,
            share.limit.as_str(),
            if share.limit == LimitKind::Storage { "reads" } else { "copies" },
            drift(limits, share.limit)
        ));
    }
    notes
}
