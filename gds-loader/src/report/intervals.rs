//! Unions of time intervals: how long something was in flight, and how much of that something else was too.

use std::time::{Duration, Instant};

/// A set of time intervals, kept as their union.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intervals(Vec<(Instant, Instant)>);

impl Intervals {
    /// The union of `intervals`, in any order.
    pub(crate) fn union(intervals: impl IntoIterator<Item = (Instant, Instant)>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut union: Vec<(Instant, Instant)> = Vec::new();
        for (start, end) in sorted {
            match union.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => union.push((start, end)),
            }
        }
        Self(union)
    }

    /// Total length.
    pub(crate) fn length(&self) -> Duration {
        self.0.iter().map(|(start, end)| *end - *start).sum()
    }

    /// Share of this set's length that lies within `other`; `None` where this set is empty.
    pub(crate) fn share_within(&self, other: &Self) -> Option<f64> {
        let length = self.length();
        (!length.is_zero()).then(|| self.common(other).as_secs_f64() / length.as_secs_f64())
    }

    fn common(&self, other: &Self) -> Duration {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Duration::ZERO;
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            common += a.1.min(b.1).saturating_duration_since(a.0.max(b.0));
            if a.1 < b.1 {
                ours.next()
            } else {
                theirs.next()
            };
        }
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(base: Instant, list: &[(u64, u64)]) -> Intervals {
        let instant = |ms| base + Duration::from_millis(ms);
        Intervals::union(list.iter().map(|&(a, b)| (instant(a), instant(b))))
    }

    proptest! {
        #[test]
        fn agrees_with_counting_milliseconds(
            a in prop::collection::vec((0_u64..60, 0_u64..20), 0..12),
            b in prop::collection::vec((0_u64..60, 0_u64..20), 0..12),
        ) {
            let base = Instant::now();
            let ends = |list: &[(u64, u64)]| list.iter().map(|&(s, l)| (s, s + l)).collect::<Vec<_>>();
            let (a, b) = (ends(&a), ends(&b));
            let covers = |list: &[(u64, u64)], ms| list.iter().any(|&(s, e)| s <= ms && ms < e);
            let length = (0..90).filter(|&ms| covers(&a, ms)).count() as u64;
            let common = (0..90).filter(|&ms| covers(&a, ms) && covers(&b, ms)).count() as u64;
            let (ours, theirs) = (at(base, &a), at(base, &b));
            prop_assert_eq!(ours.length(), Duration::from_millis(length));
            prop_assert_eq!(ours.common(&theirs), Duration::from_millis(common));
            prop_assert_eq!(theirs.common(&ours), Duration::from_millis(common));
        }
    }

    #[test]
    fn nothing_copied_has_no_share() {
        let base = Instant::now();
        assert_eq!(at(base, &[]).share_within(&at(base, &[(0, 5)])), None);
        assert_eq!(at(base, &[(0, 10)]).share_within(&at(base, &[(5, 20)])), Some(0.5));
    }
}
