//! The benchmark as data: what `gds bench --json` prints, and the sums that make it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::judge::{Claim, Copies, PriceOfCopies};
use super::statistics::{Summary, paired};
use super::{Asked, CacheState, Case, Machine, RawReport};
use crate::pipeline::Measure;
use crate::report::{CacheReport, DeviceReport, EngineReport, GdsReport, LoadReport};
use crate::transport::PathKind;

/// What is loaded in every round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Subject {
    /// The PATH as given. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "crate::report::lossily")]
    pub path: PathBuf,
    /// Files.
    pub files: usize,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// Where to.
    pub device: DeviceReport,
}

impl Subject {
    /// The files of `path`, loaded to `device`.
    pub fn new(path: PathBuf, files: usize, tensors: usize, bytes: u64, device: DeviceReport) -> Self {
        Self { path, files, tensors, bytes, device }
    }
}

/// One case in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Round {
    /// Which round, from 0.
    pub round: usize,
    /// The page cache held just before what had been asked for. Only such rounds are in a row's figures, unless it has none.
    pub proven: bool,
    /// From the call to the last byte being visible.
    pub seconds: f64,
    /// `bytes / seconds / 10^9`.
    pub gb_per_s: f64,
    /// User and system time of the loading process, in seconds.
    pub cpu_s: f64,
    /// The page cache before and after.
    pub cache: CacheReport,
    /// Opening paths, and in the first load of a process also cuFile's driver; in `seconds`.
    pub open_s: f64,
    /// Pinning; in `seconds`.
    pub pin_s: f64,
    /// Time with a read in flight.
    pub read_s: f64,
    /// Time with a copy in flight.
    pub copy_s: f64,
    /// Share of that during which a read was in flight too.
    pub copy_hidden: Option<f64>,
    /// Copies to the device.
    pub copies: u64,
    /// Host memory pinned, in bytes.
    pub pinned_bytes: u64,
    /// Pieces and files that went another way than asked.
    pub fallbacks: usize,
    /// Who kept reads in flight.
    pub engine: Option<EngineReport>,
    /// What cuFile's statistics say.
    pub gds: Option<GdsReport>,
}

impl Round {
    /// From the report of a load.
    pub fn of(round: usize, case: &Case, report: &LoadReport) -> Self {
        let stages = &report.stages;
        Self {
            round,
            proven: case.asked.is_none_or(|asked| CacheState::before(&report.cache).is(asked)),
            seconds: report.seconds,
            gb_per_s: report.gb_per_s,
            cpu_s: report.cpu_s,
            cache: report.cache,
            open_s: stages.open_s,
            pin_s: stages.pin_s,
            read_s: stages.read_s,
            copy_s: stages.copy_s,
            copy_hidden: stages.copy_hidden,
            copies: report.copies,
            pinned_bytes: report.peak_pinned_bytes,
            fallbacks: report.fallbacks.len(),
            engine: report.engine.clone(),
            gds: report.gds.clone(),
        }
    }
}

/// What a path's process paid once, before its first load and in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Start {
    /// Opening the device: a CUDA context; not in any load's seconds.
    pub device_s: f64,
    /// Opening cuFile's driver: in the first load's seconds and in no later one's. `None` where it is not used.
    pub cufile_s: Option<f64>,
    /// The first load, which is in no figures.
    pub first: Round,
}

impl Start {
    /// From a process's first load.
    pub fn new(device_s: f64, cufile_s: Option<f64>, first: Round) -> Self {
        Self { device_s, cufile_s, first }
    }
}

/// One case over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// In words: `direct (io-uring), cold`; or what it was instead of cold.
    pub label: String,
    /// What was asked.
    #[serde(flatten)]
    pub case: Case,
    /// `cold` or `warm` where every round in the figures was proven so; else `not cold`, `not warm`; `any` where nothing is read.
    pub state: String,
    /// Rounds that are not in the figures because the page cache did not hold what had been asked for.
    pub left_out: usize,
    /// Seconds of a load.
    pub seconds: Option<Summary>,
    /// The same as GB/s: bytes by each of these seconds.
    pub gb_per_s: Option<Summary>,
    /// User and system seconds per GB.
    pub cpu_s_per_gb: Option<Summary>,
    /// Seconds to pin, in each load.
    pub pin_s: Option<Summary>,
    /// What it has of the limit that binds it.
    pub limit: Option<ShareOfLimit>,
    /// Why the rate is above what this machine's memory can do.
    pub above_memory: Option<String>,
    /// What the process paid once.
    pub start: Option<Start>,
    /// Why there are no rounds, or no more.
    pub failure: Option<String>,
    /// Every round.
    pub rounds: Vec<Round>,
}

impl Row {
    /// Sums up the rounds of a case that loads `bytes`.
    pub fn of(case: Case, bytes: u64, rounds: Vec<Round>) -> Self {
        let mut row = Self {
            label: String::new(),
            case,
            state: String::new(),
            left_out: 0,
            seconds: None,
            gb_per_s: None,
            cpu_s_per_gb: None,
            pin_s: None,
            limit: None,
            above_memory: None,
            start: None,
            failure: None,
            rounds,
        };
        let proven = row.rounds.iter().any(|round| round.proven);
        row.state = match case.asked {
            None => "any".to_owned(),
            Some(asked) if proven || row.rounds.is_empty() => asked.as_str().to_owned(),
            Some(asked) => format!("not {}", asked.as_str()),
        };
        let what = Case { asked: None, ..case };
        row.label = if case.asked.is_some() { format!("{what}, {}", row.state) } else { what.to_string() };
        if proven {
            row.left_out = row.rounds.iter().filter(|round| !round.proven).count();
        }
        let gb = bytes as f64 / 1e9;
        row.seconds = row.summary(|round| round.seconds);
        row.gb_per_s = row.seconds.as_ref().and_then(|seconds| seconds.rate_of(gb));
        row.cpu_s_per_gb = row.summary(|round| round.cpu_s / gb);
        row.pin_s = row.summary(|round| round.pin_s);
        row
    }

    /// The rounds that are in the figures: those that were as asked, or all where none was.
    pub fn counted(&self) -> impl Iterator<Item = &Round> {
        let any = self.rounds.iter().any(|round| round.proven);
        self.rounds.iter().filter(move |round| round.proven || !any)
    }

    /// Whether every round in the figures was as asked.
    pub fn is_proven(&self) -> bool {
        self.rounds.iter().any(|round| round.proven)
    }

    fn summary(&self, figure: impl Fn(&Round) -> f64) -> Option<Summary> {
        Summary::of(self.counted().map(figure))
    }

    /// One figure of each counted round, with the round's number.
    fn figures<'a>(&'a self, figure: impl Fn(&Round) -> f64 + 'a) -> impl Iterator<Item = (usize, f64)> + 'a {
        self.counted().map(move |round| (round.round, figure(round)))
    }

    /// How many times as fast as `other`, within each round.
    pub fn speed_over(&self, other: &Self) -> Option<Summary> {
        paired(other.figures(|round| round.seconds), self.figures(|round| round.seconds))
    }

    /// Finds the limit that binds this row, and its share of that in each round.
    pub fn bind(&mut self, limits: &[Limit], to_gpu: bool) {
        let applies = |limit: &&Limit| match limit.limit {
            LimitKind::Storage => self.reads_storage(),
            LimitKind::Memory => self.passes_host(),
            LimitKind::Link => to_gpu,
        };
        let median = |limit: &&Limit| limit.gb_per_s.map(|summary| summary.median);
        let tightest = limits
            .iter()
            .filter(applies)
            .filter(|limit| limit.gb_per_s.is_some())
            .min_by(|a, b| median(a).unwrap_or(f64::MAX).total_cmp(&median(b).unwrap_or(f64::MAX)));
        self.limit = tightest.and_then(|limit| {
            let of_limit = limit.rounds.iter().map(|round| (round.round, round.gb_per_s));
            let share = paired(self.figures(|round| round.gb_per_s), of_limit)?;
            Some(ShareOfLimit { limit: limit.limit, share })
        });
    }

    /// Whether its bytes come from storage in every round: where the page cache is passed by, or was empty.
    fn reads_storage(&self) -> bool {
        let past_the_cache =
            matches!(self.case.lane.path, PathKind::Gds | PathKind::GdsCompat | PathKind::Direct);
        past_the_cache || (self.case.asked == Some(Asked::Cold) && self.is_proven())
    }

    fn passes_host(&self) -> bool {
        self.case.lane.path != PathKind::Gds
    }

    /// Notes why the rate is above the memory's, where it is.
    pub fn doubt(&mut self, subject: &Subject, machine: &Machine, limits: &[Limit]) {
        let memory = limits.iter().find(|limit| limit.limit == LimitKind::Memory);
        let (Some(memory), Some(rate)) = (memory.and_then(|limit| limit.gb_per_s), self.gb_per_s) else {
            return;
        };
        self.above_memory = Claim {
            gb_per_s: rate.median,
            // The best round: what the machine can do, not what it did while others used it.
            memory_gb_per_s: memory.max,
            bytes: subject.bytes,
            processor_cache: machine.cpu_cache,
            passes_host: self.passes_host(),
            simulated: machine.is_simulated(),
        }
        .explain();
    }
}

/// What no load can beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LimitKind {
    /// Direct reads of the same files into memory that is used again.
    Storage,
    /// Copies within the host's memory by all cores.
    Memory,
    /// Copies from pinned memory to the GPU.
    Link,
}

impl LimitKind {
    /// `storage`, `memory`, `link`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Memory => "memory",
            Self::Link => "link",
        }
    }
}

/// A limit, measured in the same rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limit {
    /// Which.
    pub limit: LimitKind,
    /// How it was measured, in words.
    pub how: String,
    /// GB/s over the rounds.
    pub gb_per_s: Option<Summary>,
    /// Why there is no figure.
    pub failure: Option<String>,
    /// Every round.
    pub rounds: Vec<LimitRound>,
}

/// A limit in one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LimitRound {
    /// Which round, from 0.
    pub round: usize,
    /// Bytes.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
    /// `bytes / seconds / 10^9`.
    pub gb_per_s: f64,
}

impl LimitRound {
    /// From copies.
    pub fn of_copies(round: usize, copies: Copies) -> Self {
        Self { round, bytes: copies.bytes, seconds: copies.seconds, gb_per_s: copies.gb_per_s() }
    }

    /// From reads; `None` where they were not from storage, so that they say nothing about it.
    pub fn of_reads(round: usize, report: &RawReport) -> Option<Self> {
        CacheState::before(&report.cache).is(Asked::Cold).then_some(Self {
            round,
            bytes: report.bytes,
            seconds: report.seconds,
            gb_per_s: report.gb_per_s,
        })
    }
}

impl Limit {
    /// From its rounds.
    pub fn of(limit: LimitKind, how: String, rounds: Vec<LimitRound>, failure: Option<String>) -> Self {
        let gb_per_s = Summary::of(rounds.iter().map(|round| round.gb_per_s));
        Self { limit, how, gb_per_s, failure, rounds }
    }
}

/// What a row has of a limit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShareOfLimit {
    /// Of which.
    pub limit: LimitKind,
    /// Its rate over the limit's, within each round.
    pub share: Summary,
}

/// GPUDirect Storage against direct reads through the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Headline {
    /// `cold` or `warm`.
    pub asked: Asked,
    /// The row by GPUDirect Storage.
    pub gds: String,
    /// The row through the host: the faster one by its median.
    pub host: String,
    /// How many times as fast as that, within each round.
    pub speed: Summary,
    /// CPU seconds per GB by GPUDirect Storage.
    pub gds_cpu_s_per_gb: Option<f64>,
    /// The same through the host.
    pub host_cpu_s_per_gb: Option<f64>,
    /// What cuFile's statistics say of the last round.
    pub proof: Option<GdsReport>,
}

impl Headline {
    /// From the rows of loads of one temperature, where both are there and proven.
    pub fn of(rows: &[Row], asked: Asked) -> Option<Self> {
        let of_path = |path| {
            rows.iter().filter(move |row| {
                let Case { lane, asked: cache, measure } = row.case;
                lane.path == path && cache == Some(asked) && measure == Measure::Pipelined && row.is_proven()
            })
        };
        let gds = of_path(PathKind::Gds).next()?;
        let seconds = |row: &&Row| row.seconds.map_or(f64::MAX, |seconds| seconds.median);
        let host = of_path(PathKind::Direct).min_by(|a, b| seconds(a).total_cmp(&seconds(b)))?;
        let cpu = |row: &Row| row.cpu_s_per_gb.map(|summary| summary.median);
        Some(Self {
            asked,
            gds: gds.label.clone(),
            host: host.label.clone(),
            speed: gds.speed_over(host)?,
            gds_cpu_s_per_gb: cpu(gds),
            host_cpu_s_per_gb: cpu(host),
            proof: gds.counted().last().and_then(|round| round.gds.clone()),
        })
    }
}

/// How well a path hides its copies behind its reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Overlap {
    /// Which path, and how the files lay.
    pub label: String,
    /// `cold` or `warm`.
    pub asked: Asked,
    /// Seconds with nothing in flight twice.
    pub serial: Summary,
    /// Seconds of reading alone.
    pub read_alone: Summary,
    /// Seconds of copying alone.
    pub copy_alone: Summary,
    /// Seconds of a load.
    pub pipelined: Summary,
    /// Pipelined over the longer of reading alone and copying alone, within each round: 1 is perfect.
    pub over_longer: Summary,
    /// Serial over pipelined, within each round.
    pub gain: Summary,
}

impl Overlap {
    /// From the four rows.
    pub fn of(serial: &Row, read: &Row, copy: &Row, pipelined: &Row) -> Option<Self> {
        let seconds = |round: &Round| round.seconds;
        let copying: Vec<(usize, f64)> = copy.figures(seconds).collect();
        let longer = read.figures(seconds).filter_map(|(round, reading)| {
            let (_, copying) = copying.iter().find(|(other, _)| *other == round)?;
            Some((round, reading.max(*copying)))
        });
        Some(Self {
            label: pipelined.label.clone(),
            asked: pipelined.case.asked?,
            serial: serial.seconds?,
            read_alone: read.seconds?,
            copy_alone: copy.seconds?,
            pipelined: pipelined.seconds?,
            over_longer: paired(pipelined.figures(seconds), longer)?,
            gain: pipelined.speed_over(serial)?,
        })
    }
}

/// The same bytes by one copy a piece and by one copy a tensor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TwoWays {
    /// As loads copy: the medians of the rounds.
    pub pieces: Copies,
    /// Each tensor by a copy of its own.
    pub tensors: Copies,
    /// Seconds of the second over those of the first, within each round.
    pub tensors_over_pieces: Summary,
    /// What both say about the price of a copy; `None` where they are too alike in number to tell. Where more copies did not take
    /// longer in three quarters of the rounds, the price is 0.
    pub price: Option<PriceOfCopies>,
}

impl TwoWays {
    /// From both rows of `bytes` each.
    pub fn of(pieces: &Row, tensors: &Row, bytes: u64) -> Option<Self> {
        let copies = |row: &Row| {
            let seconds = row.summary(|round| round.copy_s)?.median;
            let copies = row.counted().last()?.copies;
            (copies > 0 && seconds > 0.0).then(|| Copies::new(copies, bytes, seconds))
        };
        let copying = |round: &Round| round.copy_s;
        let tensors_over_pieces = paired(tensors.figures(copying), pieces.figures(copying))?;
        let (pieces, tensors) = (copies(pieces)?, copies(tensors)?);
        // The middle ratio rather than the ratio of the middles, and no price where it is within the spread.
        let longer = if tensors_over_pieces.lower_quartile > 1.0 { tensors_over_pieces.median } else { 1.0 };
        let price = PriceOfCopies::of(pieces, Copies { seconds: pieces.seconds * longer, ..tensors });
        Some(Self { pieces, tensors, tensors_over_pieces, price })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Lane;

    fn round(number: usize, seconds: f64, resident: Option<f64>, asked: Asked) -> Round {
        let cache = CacheReport { resident_before: resident, resident_after: None };
        Round {
            round: number,
            proven: CacheState::before(&cache).is(asked),
            seconds,
            gb_per_s: 2.0 / seconds,
            cpu_s: 0.5,
            cache,
            open_s: 0.0,
            pin_s: 0.0,
            read_s: 0.0,
            copy_s: 0.0,
            copy_hidden: None,
            copies: 0,
            pinned_bytes: 0,
            fallbacks: 0,
            engine: None,
            gds: None,
        }
    }

    fn row(path: PathKind, asked: Asked, rounds: &[(f64, Option<f64>)]) -> Row {
        let case = Case::new(Lane::of(path), Some(asked), Measure::Pipelined);
        let rounds = rounds
            .iter()
            .enumerate()
            .map(|(number, (seconds, resident))| round(number, *seconds, *resident, asked))
            .collect();
        Row::of(case, 2_000_000_000, rounds)
    }

    #[test]
    fn a_round_that_was_not_cold_is_in_no_cold_figure() {
        let row = row(PathKind::Direct, Asked::Cold, &[(1.0, Some(0.0)), (0.1, Some(0.9)), (2.0, Some(0.0))]);
        assert_eq!((row.state.as_str(), row.left_out), ("cold", 1));
        let seconds = row.seconds.unwrap();
        assert_eq!((seconds.count, seconds.median, seconds.min), (2, 1.5, 1.0));
        assert_eq!(row.gb_per_s.unwrap().median, 2.0 / 1.5);
        assert_eq!(row.cpu_s_per_gb.unwrap().median, 0.25);
        assert_eq!(row.rounds.len(), 3, "every round is in the report");
    }

    #[test]
    fn a_row_that_was_never_cold_is_not_called_cold() {
        for resident in [Some(1.0), Some(0.5), None] {
            let row = row(PathKind::Buffered, Asked::Cold, &[(0.1, resident), (0.2, resident)]);
            assert_eq!((row.state.as_str(), row.label.as_str()), ("not cold", "buffered, not cold"));
            assert_eq!((row.seconds.unwrap().count, row.left_out), (2, 0));
        }
        let row = row(PathKind::Buffered, Asked::Warm, &[(0.1, Some(0.5))]);
        assert_eq!(row.state, "not warm");
    }

    #[test]
    fn the_headline_pairs_rounds() {
        // The disk slows down; gds is twice as fast in every round.
        let gds = row(PathKind::Gds, Asked::Cold, &[(1.0, Some(0.0)), (2.0, Some(0.0)), (4.0, Some(0.0))]);
        let direct =
            row(PathKind::Direct, Asked::Cold, &[(2.0, Some(0.0)), (4.0, Some(0.0)), (8.0, Some(0.0))]);
        let headline = Headline::of(&[direct.clone(), gds], Asked::Cold).unwrap();
        assert_eq!((headline.speed.min, headline.speed.median, headline.speed.max), (2.0, 2.0, 2.0));
        let warm = row(PathKind::Gds, Asked::Cold, &[(1.0, Some(1.0))]);
        assert!(
            Headline::of(&[direct, warm], Asked::Cold).is_none(),
            "a row that was not cold is no headline"
        );
    }

    #[test]
    fn the_limit_that_binds_is_the_least_that_applies() {
        let limit = |limit, gb_per_s| {
            let round = LimitRound { round: 0, bytes: 1, seconds: 1.0, gb_per_s };
            Limit::of(limit, String::new(), vec![round], None)
        };
        let limits =
            [limit(LimitKind::Storage, 4.0), limit(LimitKind::Memory, 10.0), limit(LimitKind::Link, 8.0)];
        let bound = |path, asked, resident, to_gpu| {
            let mut row = row(path, asked, &[(1.0, Some(resident))]);
            row.bind(&limits, to_gpu);
            let share = row.limit.unwrap();
            (share.limit, share.share.median)
        };
        assert_eq!(bound(PathKind::Direct, Asked::Cold, 0.0, true), (LimitKind::Storage, 0.5));
        assert_eq!(bound(PathKind::Direct, Asked::Warm, 1.0, true), (LimitKind::Storage, 0.5));
        assert_eq!(bound(PathKind::Buffered, Asked::Warm, 1.0, true), (LimitKind::Link, 0.25));
        assert_eq!(bound(PathKind::Buffered, Asked::Warm, 1.0, false), (LimitKind::Memory, 0.2));
        // What was to be cold and was not is bound by memory.
        assert_eq!(bound(PathKind::Buffered, Asked::Cold, 1.0, false), (LimitKind::Memory, 0.2));
    }

    #[test]
    fn overlap_is_against_the_longer_of_both() {
        let row = |seconds: &[f64]| {
            let rounds: Vec<_> = seconds.iter().map(|seconds| (*seconds, Some(0.0))).collect();
            row(PathKind::Direct, Asked::Cold, &rounds)
        };
        let overlap =
            Overlap::of(&row(&[3.0, 3.0]), &row(&[2.0, 1.0]), &row(&[1.0, 2.0]), &row(&[2.2, 2.2])).unwrap();
        assert!(
            (overlap.over_longer.median - 1.1).abs() < 1e-9 && (overlap.over_longer.max - 1.1).abs() < 1e-9
        );
        assert!((overlap.gain.median - 3.0 / 2.2).abs() < 1e-9);
    }
}
