//! The benchmark as data: what `gds bench --json` prints, and the sums that make it.

mod compare;
mod limit;
mod row;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use compare::{Headline, Overlap, TwoWays};
pub use limit::{Limit, LimitKind, LimitRound, ShareOfLimit};
pub use row::Row;

use super::{CacheState, Case};
use crate::report::{CacheReport, DeviceReport, EngineReport, GdsReport, LoadReport};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Asked, Lane};
    use crate::pipeline::Measure;
    use crate::transport::PathKind;

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
