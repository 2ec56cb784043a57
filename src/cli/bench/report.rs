//! The JSON object of `gds bench`.

use gds_loader::PathKind;
use gds_loader::bench::{Headline, Limit, Machine, Overlap, Row, Subject, TwoWays};
use serde::Serialize;

use super::worker::Settings;

/// Paths against each other.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    pub(super) subject: Subject,
    pub(super) settings: Settings,
    pub(super) rounds: u16,
    pub(super) seed: u64,
    /// Of the whole benchmark.
    pub(super) seconds: f64,
    pub(super) rows: Vec<Row>,
    pub(super) limits: Vec<Limit>,
    pub(super) gds_against_host: Vec<Headline>,
    pub(super) gds_absent: Option<String>,
    pub(super) overlap: Vec<Overlap>,
    pub(super) overlap_absent: Option<String>,
    pub(super) copies: Option<TwoWays>,
    pub(super) unavailable: Vec<Unavailable>,
}

/// A path that did not run, and why.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unavailable {
    pub(super) path: PathKind,
    /// The path and its engine, in words.
    pub(super) what: String,
    pub(super) reason: String,
}
