//! `gds bench --sweep`: which sizes suit this machine, and whether that is more than noise.
//!
//! The best of many is partly the luckiest of many. So the winner is measured against the default once more, in rounds of its own,
//! and only these say by how much it is better.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use anyhow::bail;
use gds_loader::PathKind;
use gds_loader::bench::{Asked, Case, Lane, Machine, Round, Row, Subject, Summary, schedule};
use gds_loader::{Engine, Measure};
use serde::Serialize;

use super::rounds::{CaseRounds, Stand};
use super::worker::Settings;
use super::{Arguments, CacheChoice, table};
use crate::cli::describe;
use crate::cli::exit::Usage;
use crate::cli::output::{Align, Output, facts};
use crate::cli::progress::{Progress, ProgressMode};
use crate::cli::{output, sizes, version};

/// A setting of which several values are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    ReadSize,
    SlotSize,
    Depth,
    Threads,
}

impl Setting {
    const ALL: [Self; 4] = [Self::ReadSize, Self::SlotSize, Self::Depth, Self::Threads];

    fn as_str(self) -> &'static str {
        match self {
            Self::ReadSize => "read-size",
            Self::SlotSize => "slot-size",
            Self::Depth => "depth",
            Self::Threads => "threads",
        }
    }

    /// What is tried where nobody says what: from far too little to far too much on any drive of today.
    fn usual(self) -> Vec<u64> {
        match self {
            Self::ReadSize => vec![1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20],
            Self::SlotSize => vec![4 << 20, 8 << 20, 16 << 20],
            Self::Depth => vec![1, 2, 4, 8, 16],
            Self::Threads => vec![1, 2, 4, 8],
        }
    }

    fn parse_value(self, text: &str) -> Result<u64, String> {
        match self {
            Self::ReadSize | Self::SlotSize => sizes::parse_size(text),
            Self::Depth | Self::Threads => match text.parse::<u16>() {
                Ok(count) if count > 0 => Ok(count.into()),
                _ => Err(format!("{text:?} is not a count from 1 to {}", u16::MAX)),
            },
        }
    }

    fn put(self, value: u64, settings: &mut Settings) {
        match self {
            Self::ReadSize => settings.read_size = Some(value),
            Self::SlotSize => settings.slot_size = Some(value),
            Self::Depth => settings.depth = Some(value as usize),
            Self::Threads => settings.threads = Some(value as usize),
        }
    }
}

/// `--sweep`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    All,
    One(Setting, Vec<u64>),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let names = Setting::ALL.map(Setting::as_str).join(", ");
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| format!("NAME=VALUES is wanted, NAME being one of {names}"))?;
        let Some(setting) = Setting::ALL.into_iter().find(|setting| setting.as_str() == name) else {
            return Err(format!("{name:?} is none of {names}"));
        };
        let values = match values.split_once("..") {
            Some((first, last)) => doubling(setting.parse_value(first)?, setting.parse_value(last)?)?,
            None => values.split(',').map(|value| setting.parse_value(value)).collect::<Result<_, _>>()?,
        };
        Ok(Self::One(setting, values))
    }
}

/// From `first` by doubling up to `last`.
fn doubling(first: u64, last: u64) -> Result<Vec<u64>, String> {
    if first > last {
        return Err(format!("{first} is more than {last}"));
    }
    let next = |value: &u64| value.checked_mul(2).filter(|next| *next <= last);
    Ok(std::iter::successors(Some(first), next).collect())
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = [("read-size", self.read_size), ("slot-size", self.slot_size)];
        let counts = [("depth", self.depth), ("threads", self.threads), ("slots", self.slots)];
        let mut words: Vec<String> = sizes
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", binary(value?))))
            .collect();
        words.extend(counts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))));
        f.pad(&if words.is_empty() { "default".to_owned() } else { words.join(", ") })
    }
}

/// A size as it is asked for: `4 MiB` where it is whole, else its bytes.
fn binary(bytes: u64) -> String {
    match bytes {
        mib if mib.is_multiple_of(1 << 20) => format!("{} MiB", mib >> 20),
        kib if kib.is_multiple_of(1 << 10) => format!("{} KiB", kib >> 10),
        other => format!("{other} bytes"),
    }
}

/// The JSON object.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    subject: Subject,
    rounds: u16,
    seed: u64,
    seconds: f64,
    lane: String,
    asked: Asked,
    tried: Vec<Tried>,
    best: Best,
}

/// One combination of settings.
#[derive(Debug, Serialize)]
struct Tried {
    settings: Settings,
    seconds: Option<Summary>,
    gb_per_s: Option<Summary>,
    /// How many times as fast as the default, within each round.
    against_default: Option<Summary>,
    /// No round was as cold or as warm as asked.
    unproven: bool,
    failure: Option<String>,
}

/// The winner.
#[derive(Debug, Serialize)]
struct Best {
    settings: Settings,
    /// How many times as fast as the default in the rounds of the confirmation; `null` where it is the default.
    against_default: Option<Summary>,
    /// Three quarters of these rounds were faster than the default's.
    better: bool,
}

/// Runs combinations against each other.
struct Sweep<'a> {
    arguments: &'a Arguments,
    stand: Stand,
    case: Case,
    base: Settings,
    progress: Progress,
    tried: Vec<Tried>,
}

impl Sweep<'_> {
    /// Interleaved rounds of these settings, in the order given.
    fn run(&mut self, settings: &[Settings], seed: u64) -> Vec<Row> {
        let mut rounds: Vec<CaseRounds> = settings.iter().map(|_| CaseRounds::default()).collect();
        let order = schedule(&vec![self.case.asked; settings.len()], self.arguments.rounds.into(), seed);
        for (round, order) in order.iter().enumerate() {
            for &index in order {
                self.progress.say(format!(
                    "round {}/{}: {}",
                    round + 1,
                    self.arguments.rounds,
                    settings[index]
                ));
                if rounds[index].failure.is_none() {
                    let loaded = self.stand.load(self.case, settings[index]);
                    rounds[index].add(round, &self.case, loaded);
                }
                self.progress.advance(self.stand.subject.bytes);
            }
        }
        rounds
            .into_iter()
            .map(|rounds| {
                let mut row = Row::of(self.case, self.stand.subject.bytes, rounds.rounds);
                row.failure = rounds.failure;
                row
            })
            .collect()
    }

    /// Tries `settings` beside the default, notes what came of it, and gives the fastest of all.
    fn try_all(&mut self, settings: Vec<Settings>) -> Settings {
        let mut all = vec![self.base];
        all.extend(settings.into_iter().filter(|settings| *settings != self.base));
        let seed = self.arguments.seed.wrapping_add(self.tried.len() as u64);
        let rows = self.run(&all, seed);
        let median = |row: &Row| {
            row.seconds.filter(|_| row.failure.is_none()).map_or(f64::MAX, |seconds| seconds.median)
        };
        let fastest = rows.iter().zip(&all).min_by(|(a, _), (b, _)| median(a).total_cmp(&median(b)));
        let fastest = fastest.map_or(self.base, |(_, settings)| *settings);
        for (row, settings) in rows.iter().zip(&all) {
            // The default comes in every group; its first rounds stand for it.
            if *settings == self.base && self.tried.iter().any(|tried| tried.settings == self.base) {
                continue;
            }
            self.tried.push(Tried {
                settings: *settings,
                seconds: row.seconds,
                gb_per_s: row.gb_per_s,
                against_default: row.speed_over(&rows[0]),
                unproven: !row.is_proven(),
                failure: row.failure.clone(),
            });
        }
        fastest
    }

    fn confirm(&mut self, best: Settings) -> Best {
        if best == self.base {
            return Best { settings: best, against_default: None, better: false };
        }
        let rows = self.run(&[self.base, best], self.arguments.seed.wrapping_mul(31).wrapping_add(7));
        let against_default = rows[1].speed_over(&rows[0]);
        let better = against_default.is_some_and(|speed| speed.lower_quartile > 1.0);
        Best { settings: best, against_default, better }
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let start = Instant::now();
    let choices = choices(&arguments.sweep)?;
    let asked = match arguments.cache {
        None | Some(CacheChoice::Cold) => Asked::Cold,
        Some(CacheChoice::Warm) => Asked::Warm,
        Some(CacheChoice::Both) => return Err(Usage("--sweep is of one: --cache cold or warm".into()).into()),
    };
    let path = arguments.only_path()?;
    let mut lane = Lane::of(path);
    if path == PathKind::Direct {
        lane.engine = arguments.engine.filter(|engine| *engine != Engine::Auto);
    }
    let case = Case::new(lane, Some(asked), Measure::Pipelined);
    let base = arguments.settings();
    let mut stand = Stand::open(&arguments.path, &arguments.device)?;
    let first = match stand.load(case, base) {
        Ok(loaded) => Round::of(0, &case, &loaded.report),
        Err(super::worker::Refusal::Unavailable(reason)) => {
            return Err(
                gds_loader::Error::Unavailable { path: arguments.path.clone(), by: path, reason }.into()
            );
        }
        Err(super::worker::Refusal::Failed(reason)) => bail!("{case}: {reason}"),
    };
    let combinations = combinations(&choices, base);
    let in_groups: usize = choices.iter().map(|(_, values)| values.len() + 1).sum();
    let settings = 2 + if arguments.full { combinations.len() + 1 } else { in_groups };
    let loads = settings * usize::from(arguments.rounds);
    if arguments.progress != ProgressMode::Never {
        eprintln!(
            "sweep: {settings} settings, {loads} loads, about {} s",
            sizes::count((loads as f64 * first.seconds).ceil() as u64)
        );
    }
    let total = stand.subject.bytes.saturating_mul(loads as u64);
    let progress = Progress::start(arguments.progress, "sweeping", total);
    let mut sweep = Sweep { arguments, stand, case, base, progress, tried: Vec::new() };
    let mut best = base;
    if arguments.full {
        best = sweep.try_all(combinations);
    } else {
        for (setting, values) in &choices {
            let mut group = vec![best];
            for value in values {
                let mut settings = best;
                setting.put(*value, &mut settings);
                group.push(settings);
            }
            group.retain(fits);
            group.dedup();
            best = sweep.try_all(group);
        }
    }
    let best = sweep.confirm(best);
    let Sweep { stand, tried, progress, .. } = sweep;
    drop(progress);
    let report = Report {
        version: version(),
        machine: stand.machine.clone(),
        subject: stand.subject.clone(),
        rounds: arguments.rounds,
        seed: arguments.seed,
        seconds: start.elapsed().as_secs_f64(),
        lane: lane.to_string(),
        asked,
        tried,
        best,
    };
    let mut out = Output::new();
    if arguments.json {
        out.json(&report)?
    } else {
        print(&mut out, &report)?
    }
    out.finish()
}

fn choices(given: &[Choice]) -> anyhow::Result<Vec<(Setting, Vec<u64>)>> {
    let mut choices: Vec<(Setting, Vec<u64>)> = Vec::new();
    for choice in given {
        let added = match choice {
            Choice::All => Setting::ALL.map(|setting| (setting, setting.usual())).to_vec(),
            Choice::One(setting, values) => vec![(*setting, values.clone())],
        };
        for (setting, values) in added {
            if choices.iter().any(|(known, _)| *known == setting) {
                return Err(Usage(format!("--sweep {} is given twice", setting.as_str())).into());
            }
            choices.push((setting, values));
        }
    }
    Ok(choices)
}

/// Every combination that can be meant.
fn combinations(choices: &[(Setting, Vec<u64>)], base: Settings) -> Vec<Settings> {
    let mut all = vec![base];
    for (setting, values) in choices {
        all = all
            .iter()
            .flat_map(|settings| {
                values.iter().map(|value| {
                    let mut settings = *settings;
                    setting.put(*value, &mut settings);
                    settings
                })
            })
            .collect();
    }
    all.retain(fits);
    all
}

/// A slot holds a read.
fn fits(settings: &Settings) -> bool {
    settings.slot_size.zip(settings.read_size).is_none_or(|(slot, read)| read <= slot)
}

fn print(out: &mut Output, report: &Report) -> anyhow::Result<()> {
    let Subject { path, bytes, device, .. } = &report.subject;
    out.table(&facts([
        ("Checkpoint", format!("{}: {}", path.display(), sizes::bytes(*bytes))),
        ("Device", describe::device(device)),
        ("Machine", table::machine(&report.machine)),
        ("Storage", table::storage(&report.machine.storage)),
        ("Path", format!("{}, {}", report.lane, report.asked.as_str())),
        (
            "Rounds",
            format!(
                "{}, shuffled by seed {}; {} s in all",
                report.rounds,
                report.seed,
                sizes::seconds(report.seconds)
            ),
        ),
    ]))?;
    out.gap()?;
    let mut rows = output::table(&[
        ("Settings", Align::Left),
        ("GB/s", Align::Right),
        ("Least", Align::Right),
        ("Most", Align::Right),
        ("Times the default", Align::Right),
        ("Notes", Align::Left),
    ]);
    for tried in &report.tried {
        let gb_per_s = |value: f64| sizes::gb_per_s((value * 1e9) as u64, 1.0);
        let mut cells = vec![tried.settings.to_string()];
        cells.extend(match &tried.gb_per_s {
            Some(rate) => [rate.median, rate.min, rate.max].map(gb_per_s),
            None => ["-", "-", "-"].map(str::to_owned),
        });
        cells.push(tried.against_default.as_ref().map_or_else(|| "-".to_owned(), table::ratio));
        cells.push(match &tried.failure {
            Some(reason) => reason.clone(),
            None if tried.unproven => format!("not {}", report.asked.as_str()),
            None => String::new(),
        });
        rows.add_row(cells);
    }
    out.table(&rows)?;
    out.gap()?;
    out.table(&facts([("Best", verdict(&report.best))]))
}

fn verdict(best: &Best) -> String {
    match &best.against_default {
        None => "the default: nothing tried was faster".to_owned(),
        Some(speed) if best.better => format!(
            "{}: {} times as fast as the default in rounds of their own",
            best.settings,
            table::ratio(speed)
        ),
        Some(speed) => format!(
            "the default: {} seemed faster, and in rounds of their own was {} times as fast, which is within the spread",
            best.settings,
            table::ratio(speed)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        let one = |text: &str| match text.parse() {
            Ok(Choice::One(setting, values)) => (setting, values),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(one("read-size=1MiB,4MiB"), (Setting::ReadSize, vec![1 << 20, 4 << 20]));
        assert_eq!(one("slot-size=4MiB..16MiB"), (Setting::SlotSize, vec![4 << 20, 8 << 20, 16 << 20]));
        assert_eq!(one("depth=1..6"), (Setting::Depth, vec![1, 2, 4]));
        assert_eq!(one("threads=3"), (Setting::Threads, vec![3]));
        assert_eq!("all".parse(), Ok(Choice::All));
        for text in ["", "depth", "width=1", "depth=0", "depth=4..2", "read-size=lots", "threads=1,,2"] {
            assert!(text.parse::<Choice>().is_err(), "{text}");
        }
    }

    #[test]
    fn combinations_are_all_that_can_be_meant() {
        let choices = [
            (Setting::ReadSize, vec![1 << 20, 8 << 20]),
            (Setting::SlotSize, vec![4 << 20, 8 << 20]),
            (Setting::Threads, vec![1, 2, 3]),
        ];
        let all = combinations(&choices, Settings::default());
        assert_eq!(all.len(), 9, "a slot of 4 MiB holds no read of 8 MiB");
        assert_eq!(all[0].to_string(), "read-size 1 MiB, slot-size 4 MiB, threads 1");
        assert!(choices_of(&["all", "depth=1"]).is_err() && choices_of(&["all"]).unwrap().len() == 4);
        assert_eq!(Settings::default().to_string(), "default");
    }

    fn choices_of(texts: &[&str]) -> anyhow::Result<Vec<(Setting, Vec<u64>)>> {
        choices(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
    }
}
