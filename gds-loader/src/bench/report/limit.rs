//! What no load can beat, measured in the same rounds.

use serde::{Deserialize, Serialize};

use crate::bench::judge::Copies;
use crate::bench::statistics::Summary;
use crate::bench::{Asked, CacheState, RawReport};

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
