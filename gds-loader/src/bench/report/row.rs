//! A row: one case over all rounds, and what it has of the limit that binds it.

use serde::{Deserialize, Serialize};

use super::{Limit, LimitKind, Round, ShareOfLimit, Start, Subject};
use crate::bench::judge::Claim;
use crate::bench::statistics::{Summary, paired};
use crate::bench::{Asked, Case, Machine};
use crate::transport::PathKind;

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

    pub(super) fn summary(&self, figure: impl Fn(&Round) -> f64) -> Option<Summary> {
        Summary::of(self.counted().map(figure))
    }

    /// One figure of each counted round, with the round's number.
    pub(super) fn figures<'a>(
        &'a self,
        figure: impl Fn(&Round) -> f64 + 'a,
    ) -> impl Iterator<Item = (usize, f64)> + 'a {
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
