//! What makes a row good or bad.

use serde::Serialize;

use crate::child::{TRIM_THRESHOLD, warm_up};
use crate::sample::Sample;
use crate::spec::Findings;

/// How a row ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Good,
    /// What is wrong.
    Bad(Vec<String>),
    /// The machine does not have what it needs.
    CouldNotRun(String),
}

impl Verdict {
    pub(crate) fn of(problems: Vec<String>) -> Self {
        if problems.is_empty() { Self::Good } else { Self::Bad(problems) }
    }

    pub(crate) fn is_good(&self) -> bool {
        matches!(self, Self::Good)
    }

    pub(crate) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad(_))
    }

    /// What there is to say of it.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &str> {
        let (bad, reason) = match self {
            Self::Good => (&[][..], None),
            Self::Bad(problems) => (problems.as_slice(), None),
            Self::CouldNotRun(reason) => (&[][..], Some(reason)),
        };
        bad.iter().chain(reason).map(String::as_str)
    }
}

/// Growth that is none: a process that loads a model every minute for a week, ten thousand times, would at this rate have added what the
/// slots of one load take, 64 MiB.
const MOST_PER_LOAD: f64 = (64 << 20) as f64 / 10_000.0;

/// What the C library's allocator keeps without being asked: what each of its arenas, eight for each core, may hold free
/// (mallopt(3): `M_ARENA_MAX`, `M_TRIM_THRESHOLD`).
fn kept_by_the_allocator() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * 8) as f64 * f64::from(TRIM_THRESHOLD)
}

/// Whether memory, descriptors and threads are what they were after the warm-up; what is not. Of threads that are not ours alone
/// nothing is said.
pub(crate) fn flatness(findings: &Findings, foreign_threads: bool) -> Vec<String> {
    let (Some(warm), Some(end)) = (findings.warm(), &findings.end) else {
        return vec!["it was never looked at".to_owned()];
    };
    let mut problems = Vec::new();
    let after = &findings.samples[warm_up(findings.samples.len() as u64) as usize - 1..];
    let slope = slope(after);
    let loads = (end.loads - warm.loads) as f64;
    if slope * loads > MOST_PER_LOAD * loads + kept_by_the_allocator() {
        problems.push(format!(
            "memory grows by {:.1} KiB a load: {} KiB after the warm-up, {} KiB at the end",
            slope / 1024.0,
            warm.rss_anon >> 10,
            end.rss_anon >> 10
        ));
    }
    let most = after.iter().map(|sample| sample.descriptors).max().unwrap_or(0);
    if end.descriptors != warm.descriptors || most != warm.descriptors {
        problems.push(format!(
            "descriptors: {} after the warm-up, {most} at most between loads, {} at the end",
            warm.descriptors, end.descriptors
        ));
    }
    let threads = steady_threads(after);
    if end.threads > threads && !foreign_threads {
        problems.push(format!("threads: {threads} after the warm-up, {} at the end", end.threads));
    }
    problems
}

/// The threads that stay: the fewest seen, since one that was joined a moment ago may be seen still.
pub(crate) fn steady_threads(samples: &[Sample]) -> u64 {
    samples.iter().map(|sample| sample.threads).min().unwrap_or(0)
}

/// Bytes of anonymous memory a load adds: the median of the slopes between all pairs of samples (Theil and Sen), which a step, or
/// an odd sample, does not move.
pub(crate) fn slope(samples: &[Sample]) -> f64 {
    let mut slopes: Vec<f64> = Vec::new();
    for (index, one) in samples.iter().enumerate() {
        let others = samples[index + 1..].iter().filter(|other| other.loads > one.loads);
        slopes.extend(
            others.map(|other| {
                (other.rss_anon as f64 - one.rss_anon as f64) / (other.loads - one.loads) as f64
            }),
        );
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred loads, with what `grows` says of each.
    fn findings(grows: impl Fn(u64) -> (u64, u64, u64)) -> Findings {
        let sample = |loads| {
            let (rss_anon, descriptors, threads) = grows(loads);
            Sample { loads, rss_anon, descriptors, threads }
        };
        Findings { samples: (1..=100).map(sample).collect(), end: Some(sample(100)), ..Findings::default() }
    }

    #[test]
    fn what_is_flat_is_good_and_what_grows_is_not() {
        // Noise, one step of the allocator's, and a growth before the warm-up.
        let noisy =
            |loads: u64| (20 << 20) + (loads * 7919 % 13 * 4096) + u64::from(loads > 50) * (300 << 10);
        let warming = |loads: u64| noisy(loads) - (20 - loads.min(20)) * (512 << 10);
        assert_eq!(flatness(&findings(|loads| (warming(loads), 9, 4)), false), Vec::<String>::new());

        let leaking = flatness(&findings(|loads| (noisy(loads) + loads * (64 << 10), 9, 4)), false);
        assert!(leaking.len() == 1 && leaking[0].contains("memory grows by 6"), "{leaking:?}");
        let leaking = flatness(&findings(|loads| (noisy(loads), 9 + loads, 4)), false);
        assert!(leaking.len() == 1 && leaking[0].contains("descriptors"), "{leaking:?}");
        let held = flatness(&findings(|loads| (noisy(loads), 9 + u64::from(loads == 70), 4)), false);
        assert!(held.len() == 1 && held[0].contains("10 at most"), "{held:?}");
        let leaking = flatness(&findings(|loads| (noisy(loads), 9, 4 + loads / 90)), false);
        assert!(leaking.len() == 1 && leaking[0].contains("threads"), "{leaking:?}");
    }
}
