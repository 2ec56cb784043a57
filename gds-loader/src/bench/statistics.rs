//! What several rounds say together: medians and how far the rounds lie apart. Never a mean, which one bad round moves.

use serde::{Deserialize, Serialize};

/// Several rounds of one figure. The middle, not the mean; the extremes and the quartiles beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// How many rounds there are.
    pub count: usize,
    /// The value in the middle; of an even count the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// A quarter of the rounds are below.
    pub lower_quartile: f64,
    /// A quarter of the rounds are above.
    pub upper_quartile: f64,
    /// `max / min`: 1 where all rounds agree; `null` where the least is 0.
    pub max_over_min: Option<f64>,
}

impl Summary {
    /// Of these values; `None` where there are none, or one that is no number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.iter().any(|value| !value.is_finite()) {
            return None;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self {
            count: sorted.len(),
            median: quantile(&sorted, 0.5),
            min,
            max,
            lower_quartile: quantile(&sorted, 0.25),
            upper_quartile: quantile(&sorted, 0.75),
            max_over_min: (min > 0.0).then(|| max / min),
        })
    }

    /// The same rounds as rates: `amount` per each of these values, which are seconds. So a table's seconds and its rates
    /// always fit together, which the medians of both by themselves need not.
    pub fn rate_of(&self, amount: f64) -> Option<Self> {
        (self.min > 0.0).then(|| Self {
            count: self.count,
            median: amount / self.median,
            min: amount / self.max,
            max: amount / self.min,
            lower_quartile: amount / self.upper_quartile,
            upper_quartile: amount / self.lower_quartile,
            max_over_min: self.max_over_min,
        })
    }
}

/// Between the two nearest of these sorted values, of which there is at least one.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// The ratio of two figures within each round that has both. Both were measured within seconds of each other, so that a disk that is
/// slow for a minute slows both; the ratio of two medians has no such protection.
pub fn paired(
    above: impl IntoIterator<Item = (usize, f64)>,
    below: impl IntoIterator<Item = (usize, f64)>,
) -> Option<Summary> {
    let below: Vec<(usize, f64)> = below.into_iter().collect();
    let partner = |round: usize| below.iter().find(|(other, _)| *other == round).map(|(_, value)| *value);
    Summary::of(
        above
            .into_iter()
            .filter_map(|(round, value)| Some(value / partner(round).filter(|partner| *partner > 0.0)?)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_is_not_the_mean() {
        let summary = Summary::of([1.0, 100.0, 2.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.count, summary.median, summary.min, summary.max), (5, 2.0, 1.0, 100.0));
        assert_eq!((summary.lower_quartile, summary.upper_quartile), (2.0, 3.0));
        assert_eq!(summary.max_over_min, Some(100.0));
        assert_eq!(Summary::of([1.0, 4.0, 2.0, 8.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of([0.0, 1.0]).unwrap().max_over_min, None);
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn a_ratio_pairs_rounds_and_not_positions() {
        // The second machine's first round is missing, and the disk was four times as slow in the last.
        let ours = [(0, 2.0), (1, 2.0), (2, 0.5)];
        let theirs = [(2, 0.25), (1, 1.0)];
        let ratio = paired(ours, theirs).unwrap();
        assert_eq!((ratio.count, ratio.min, ratio.max), (2, 2.0, 2.0));
        assert_eq!(paired(ours, [(7, 1.0)]), None);
        assert_eq!(paired(ours, [(0, 0.0)]), None);
    }

    proptest! {
        #[test]
        fn summaries_are_in_order_and_blind_to_it(values in prop::collection::vec(0.001_f64..1e6, 1..40)) {
            let summary = Summary::of(values.iter().copied()).unwrap();
            prop_assert!(summary.min <= summary.lower_quartile);
            prop_assert!(summary.lower_quartile <= summary.median);
            prop_assert!(summary.median <= summary.upper_quartile);
            prop_assert!(summary.upper_quartile <= summary.max);
            let at_most = values.iter().filter(|value| **value <= summary.median).count();
            let at_least = values.iter().filter(|value| **value >= summary.median).count();
            prop_assert!(2 * at_most >= values.len() && 2 * at_least >= values.len());
            prop_assert_eq!(Summary::of(values.iter().rev().copied()), Some(summary));
        }

        #[test]
        fn rates_fit_their_seconds(values in prop::collection::vec(0.001_f64..1e3, 1..20), amount in 1.0_f64..1e12) {
            let seconds = Summary::of(values).unwrap();
            let rate = seconds.rate_of(amount).unwrap();
            prop_assert!((rate.median * seconds.median / amount - 1.0).abs() < 1e-9);
            prop_assert!(rate.min <= rate.median && rate.median <= rate.max);
            prop_assert!(rate.lower_quartile <= rate.upper_quartile);
        }

        #[test]
        fn a_drift_that_both_feel_leaves_the_ratio(drift in prop::collection::vec(0.1_f64..10.0, 1..20)) {
            let ours = drift.iter().enumerate().map(|(round, factor)| (round, 3.0 * factor));
            let theirs = drift.iter().enumerate().map(|(round, factor)| (round, 2.0 * factor));
            let ratio = paired(ours, theirs).unwrap();
            prop_assert!((ratio.min - 1.5).abs() < 1e-9 && (ratio.max - 1.5).abs() < 1e-9);
        }
    }
}
