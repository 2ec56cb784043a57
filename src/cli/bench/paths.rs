//! Every path against every other: which cases there are, their rounds, and what these say together.

use std::time::Instant;

use anyhow::{Context as _, bail};
use gds_loader::bench::{
    Asked, Case, Headline, Lane, LimitKind, Overlap, Round, Row, Start, TwoWays, schedule,
};
use gds_loader::{Engine, Measure, PathKind};

use super::report::{Report, Unavailable};
use super::rounds::{CaseRounds, LimitRounds, Stand};
use super::worker::Refusal;
use super::{Arguments, CacheChoice, plot, table};
use crate::cli::output::Output;
use crate::cli::output_file::{Kind, OutputFile};
use crate::cli::progress::Progress;
use crate::cli::version;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let start = Instant::now();
    // Before an hour of rounds rather than after it.
    let plot = arguments.plot.as_deref().map(|file| OutputFile::check(file, Kind::Plot)).transpose()?;
    let mut stand = Stand::open(&arguments.path, &arguments.device)?;
    let warmed = warm_up(arguments, &mut stand)?;
    let report = measure(arguments, stand, warmed, start)?;
    let mut out = Output::new();
    if arguments.json {
        out.json(&report)?;
    } else {
        table::print(&mut out, &report)?;
    }
    out.finish()?;
    // Last, so that the figures are there whatever becomes of it.
    match plot {
        Some(file) => file.write(&plot::draw(&report).context("drawing the plot")?),
        None => Ok(()),
    }
}

/// What the warm-up found.
struct Warmed {
    /// Loads that can be made, with the seconds of the warm-up.
    loads: Vec<(Case, f64)>,
    starts: Vec<(Lane, Start)>,
    unavailable: Vec<Unavailable>,
}

impl Warmed {
    /// The path through the host that was the fastest in the warm-up. Near rivals may change places; what is measured with it is
    /// compared with its own loads only.
    fn best_host_lane(&self, asked: Asked) -> Option<Lane> {
        let through_host = |case: &Case| !matches!(case.lane.path, PathKind::Gds | PathKind::GdsCompat);
        self.loads
            .iter()
            .filter(|(case, _)| case.asked == Some(asked) && through_host(case))
            .min_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(case, _)| case.lane)
    }
}

/// One load of every case: finds out which paths there are, and pays what is paid once.
fn warm_up(arguments: &Arguments, stand: &mut Stand) -> anyhow::Result<Warmed> {
    let asked = arguments.cache.unwrap_or(CacheChoice::Both).asked();
    let wanted = |lane: &Lane| {
        let engine = arguments.engine.filter(|engine| *engine != Engine::Auto);
        (arguments.backend.is_empty() || arguments.backend.contains(&lane.path))
            && (lane.engine.is_none() || engine.is_none() || lane.engine == engine)
    };
    let lanes: Vec<Lane> = Lane::all().into_iter().filter(wanted).collect();
    let total = stand.subject.bytes.saturating_mul((lanes.len() * asked.len()) as u64);
    let progress = Progress::start(arguments.progress, "warming up", total);
    // A path that fails for other reasons than not being there is the failure where no other path serves.
    let mut failed = None;
    let mut warmed = Warmed { loads: Vec::new(), starts: Vec::new(), unavailable: Vec::new() };
    for lane in lanes {
        let to_gpu_only = matches!(lane.path, PathKind::Gds | PathKind::GdsCompat);
        if let Some(reason) = stand.no_gpu.clone().filter(|_| to_gpu_only) {
            progress.advance(stand.subject.bytes.saturating_mul(asked.len() as u64));
            warmed.unavailable.push(Unavailable { path: lane.path, what: lane.to_string(), reason });
            continue;
        }
        for asked in asked {
            let case = Case::new(lane, Some(*asked), Measure::Pipelined);
            progress.say(format!("warming up: {case}"));
            let loaded = stand.load(case, arguments.settings());
            progress.advance(stand.subject.bytes);
            match loaded {
                Ok(loaded) => {
                    warmed.loads.push((case, loaded.report.seconds));
                    if !warmed.starts.iter().any(|(known, _)| *known == lane) {
                        let first = Round::of(0, &case, &loaded.report);
                        warmed.starts.push((lane, Start::new(loaded.device_s, loaded.cufile_s, first)));
                    }
                }
                Err(refusal) => {
                    let reason = refusal.reason().to_owned();
                    if matches!(refusal, Refusal::Failed(_)) {
                        failed.get_or_insert_with(|| format!("{lane}: {reason}"));
                    }
                    warmed.unavailable.push(Unavailable { path: lane.path, what: lane.to_string(), reason });
                    break;
                }
            }
        }
    }
    if warmed.loads.is_empty() {
        if let Some(failed) = failed {
            bail!(failed);
        }
        let first = warmed.unavailable.into_iter().next().context("no path was asked for")?;
        let (path, by, reason) = (arguments.path.clone(), first.path, first.reason);
        return Err(gds_loader::Error::Unavailable { path, by, reason }.into());
    }
    Ok(warmed)
}

/// Something that every round has once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    Case(Case),
    Limit(LimitKind),
}

impl Task {
    fn asked(self) -> Option<Asked> {
        match self {
            Self::Case(case) => case.asked,
            Self::Limit(LimitKind::Storage) => Some(Asked::Cold),
            Self::Limit(_) => None,
        }
    }

    fn say(self) -> String {
        match self {
            Self::Case(case) => case.to_string(),
            Self::Limit(limit) => format!("limit: {}", limit.as_str()),
        }
    }
}

/// The loads of the warm-up, the parts of the best ones, and the limits.
fn tasks(warmed: &Warmed, to_gpu: bool) -> Vec<Task> {
    let mut cases: Vec<Case> = warmed.loads.iter().map(|(case, _)| *case).collect();
    // On the CPU device bytes are read in place.
    for asked in [Asked::Cold, Asked::Warm] {
        let Some(lane) = warmed.best_host_lane(asked).filter(|_| to_gpu) else { continue };
        cases.push(Case::new(lane, Some(asked), Measure::Serial));
        cases.push(Case::new(lane, Some(asked), Measure::ReadAlone));
        for part in [Measure::CopyAlone, Measure::CopyPerTensor] {
            let copies = Case::new(lane, None, part);
            if !cases.contains(&copies) {
                cases.push(copies);
            }
        }
    }
    let limits = [LimitKind::Storage, LimitKind::Memory].into_iter().chain(to_gpu.then_some(LimitKind::Link));
    cases.into_iter().map(Task::Case).chain(limits.map(Task::Limit)).collect()
}

fn measure(
    arguments: &Arguments,
    mut stand: Stand,
    warmed: Warmed,
    start: Instant,
) -> anyhow::Result<Report> {
    let tasks = tasks(&warmed, stand.to_gpu);
    let caches: Vec<Option<Asked>> = tasks.iter().map(|task| task.asked()).collect();
    let rounds = schedule(&caches, arguments.rounds.into(), arguments.seed);
    let loads = tasks.len() as u64 * u64::from(arguments.rounds);
    let total = stand.subject.bytes.saturating_mul(loads);
    let progress = Progress::start(arguments.progress, "measuring", total);
    let mut cases: Vec<CaseRounds> = tasks.iter().map(|_| CaseRounds::default()).collect();
    let mut limits: Vec<LimitRounds> = tasks.iter().map(|_| LimitRounds::default()).collect();
    let link_by = warmed.loads.first().map(|(case, _)| case.lane).context("nothing can be loaded")?;
    for (round, order) in rounds.iter().enumerate() {
        for &index in order {
            let task = tasks[index];
            progress.say(format!("round {}/{}: {}", round + 1, arguments.rounds, task.say()));
            match task {
                Task::Case(case) => {
                    let loaded = stand.load(case, arguments.settings());
                    cases[index].add(round, &case, loaded);
                }
                Task::Limit(limit) => limits[index].add(stand.limit(limit, link_by, round)),
            }
            progress.advance(stand.subject.bytes);
        }
    }
    drop(progress);

    let mut report = Report {
        version: version(),
        settings: arguments.settings(),
        rounds: arguments.rounds,
        seed: arguments.seed,
        seconds: 0.0,
        rows: Vec::new(),
        limits: Vec::new(),
        gds_against_host: Vec::new(),
        gds_absent: None,
        overlap: Vec::new(),
        overlap_absent: None,
        copies: None,
        unavailable: warmed.unavailable,
        machine: stand.machine.clone(),
        subject: stand.subject.clone(),
    };
    for ((task, case_rounds), limit_rounds) in tasks.iter().zip(cases).zip(limits) {
        match *task {
            Task::Case(case) => {
                let mut row = Row::of(case, report.subject.bytes, case_rounds.rounds);
                row.failure = case_rounds.failure;
                let of_lane = |(lane, _): &&(Lane, Start)| *lane == case.lane;
                row.start = warmed.starts.iter().find(of_lane).map(|(_, start)| start.clone());
                report.rows.push(row);
            }
            Task::Limit(limit) => report.limits.push(limit_rounds.into_limit(limit, stand.how(limit))),
        }
    }
    conclude(&mut report, stand.to_gpu, &arguments.backend);
    // Ends the processes, which takes time too.
    drop(stand);
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// What the rows say together.
fn conclude(report: &mut Report, to_gpu: bool, asked_for: &[PathKind]) {
    for row in &mut report.rows {
        if row.case.measure != Measure::CopyAlone && row.case.measure != Measure::CopyPerTensor {
            // What is only read does not pass by the link.
            row.bind(&report.limits, to_gpu && row.case.measure != Measure::ReadAlone);
            row.doubt(&report.subject, &report.machine, &report.limits);
        }
    }
    report.gds_against_host = [Asked::Cold, Asked::Warm]
        .into_iter()
        .filter_map(|asked| Headline::of(&report.rows, asked))
        .collect();
    if report.gds_against_host.is_empty() {
        report.gds_absent = Some(why_no_headline(report, asked_for));
    }
    let find = |lane: Lane, asked: Option<Asked>, measure: Measure| {
        report.rows.iter().find(move |row| row.case == Case::new(lane, asked, measure))
    };
    let serial = report.rows.iter().filter(|row| row.case.measure == Measure::Serial);
    report.overlap = serial
        .filter_map(|serial| {
            let Case { lane, asked, .. } = serial.case;
            let read = find(lane, asked, Measure::ReadAlone)?;
            let copy = find(lane, None, Measure::CopyAlone)?;
            Overlap::of(serial, read, copy, find(lane, asked, Measure::Pipelined)?)
        })
        .collect();
    if !to_gpu {
        let reason = "the CPU device has no copies to hide: bytes are read where they belong";
        report.overlap_absent = Some(reason.to_owned());
    } else if report.overlap.is_empty() {
        report.overlap_absent = Some("no path through the host's memory ran".to_owned());
    }
    report.copies =
        report.rows.iter().find(|row| row.case.measure == Measure::CopyPerTensor).and_then(|tensors| {
            let pieces = find(tensors.case.lane, None, Measure::CopyAlone)?;
            TwoWays::of(pieces, tensors, report.subject.bytes)
        });
}

fn why_no_headline(report: &Report, asked_for: &[PathKind]) -> String {
    let left_out = |path| !asked_for.is_empty() && !asked_for.contains(&path);
    let unavailable = |path| report.unavailable.iter().find(|entry| entry.path == path);
    for path in [PathKind::Gds, PathKind::Direct] {
        if left_out(path) {
            return format!("{path} was not asked for");
        }
        if let Some(entry) = unavailable(path)
            && !report.rows.iter().any(|row| row.case.lane.path == path)
        {
            return entry.reason.clone();
        }
        let failed = |row: &&Row| row.case.lane.path == path && row.failure.is_some();
        if let Some(reason) = report.rows.iter().find(failed).and_then(|row| row.failure.clone()) {
            return reason;
        }
    }
    "no round of both had the page cache as asked".to_owned()
}
