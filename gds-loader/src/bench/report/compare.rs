//! Rows against each other.

use serde::{Deserialize, Serialize};

use super::{Round, Row};
use crate::bench::judge::{Copies, PriceOfCopies};
use crate::bench::statistics::{Summary, paired};
use crate::bench::{Asked, Case};
use crate::pipeline::Measure;
use crate::report::GdsReport;
use crate::transport::PathKind;

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
