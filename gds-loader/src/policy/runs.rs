//! Which stretches of a half-resident file are read through the page cache.
//!
//! Reading what is resident from memory saves the device the work, but each change of path costs it its stride: a disk that
//! reads 2 MiB, skips 2 MiB and reads again is no faster than one that reads all 6. So only long resident stretches count, and
//! what is missing in them is read through the cache too where it is short.

use std::ops::Range;

use crate::facts::ResidencyMap;

/// A window counts as resident from this share on.
const MOSTLY_RESIDENT: f64 = 0.9;

/// Resident stretches shorter than this are read directly with what surrounds them, in bytes: two reads.
const ISLAND: u64 = 8 << 20;

/// What is missing between two resident stretches is read through the page cache up to this length, in bytes: half a read.
const GAP: u64 = 2 << 20;

/// The stretches of a file that are read through the page cache: in order, apart, and not empty.
pub(crate) fn cached_runs(map: &ResidencyMap) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut len = 0;
    for (window, share) in map.windows() {
        len = window.end;
        match runs.last_mut() {
            _ if share < MOSTLY_RESIDENT => {}
            Some(last) if last.end == window.start => last.end = window.end,
            _ => runs.push(window),
        }
    }
    // Islands first: else many of them, close together, would pass for a continent.
    let island = ISLAND.min(len);
    runs.retain(|run| run.end - run.start >= island);
    runs.dedup_by(|next, run| {
        let close = next.start - run.end <= GAP;
        if close {
            run.end = next.end;
        }
        close
    });
    runs
}

/// Whether `runs` holds all of `range`.
pub(crate) fn covers(runs: &[Range<u64>], range: &Range<u64>) -> bool {
    let after = runs.partition_point(|run| run.start <= range.start);
    after > 0 && runs[after - 1].end >= range.end
}

/// Ranges in any order as few: sorted, and joined where they meet or overlap.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let meets = next.start <= range.end;
        if meets {
            range.end = range.end.max(next.end);
        }
        meets
    });
    ranges
}

/// What two lists of ranges, each in order and apart, have in common.
pub(crate) fn common(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let both = a.start.max(b.start)..a.end.min(b.end);
        if !both.is_empty() {
            found.push(both);
        }
        if a.end < b.end { i += 1 } else { j += 1 }
    }
    found
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, of which some have one")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: u64 = 2 << 20;

    /// The runs of a map of windows of 2 MiB, in windows.
    fn runs(shares: &[f64]) -> Vec<Range<u64>> {
        let map = ResidencyMap::from_shares(WINDOW, shares);
        cached_runs(&map).iter().map(|run| run.start / WINDOW..run.end / WINDOW).collect()
    }

    #[test]
    fn one_half_is_one_run() {
        assert_eq!(runs(&[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]), [0..4]);
        assert_eq!(runs(&[0.0, 0.0, 0.0, 0.95, 1.0, 1.0, 1.0, 0.5]), [3..7]);
        assert_eq!(runs(&[0.0; 8]), []);
        assert_eq!(runs(&[1.0; 8]), [0..8]);
        assert_eq!(runs(&[1.0]), [0..1], "a short file is no island");
    }

    #[test]
    fn alternating_islands_do_not_break_a_sequential_read() {
        let alternating: Vec<f64> = (0..64).map(|k| f64::from(k % 2)).collect();
        assert_eq!(runs(&alternating), []);
        let in_threes: Vec<f64> = (0..64).map(|k| if k % 4 == 3 { 0.0 } else { 1.0 }).collect();
        assert_eq!(runs(&in_threes), []);
    }

    #[test]
    fn a_short_gap_in_what_is_resident_does_not_break_it() {
        assert_eq!(runs(&[1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]), [0..9]);
        assert_eq!(runs(&[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), [0..4, 6..10]);
        assert_eq!(runs(&[1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), [0..4], "an island closes no gap");
    }

    #[test]
    fn ranges_cover_join_and_meet() {
        let runs = [10..20, 30..40];
        for (range, expected) in
            [(10..20, true), (12..15, true), (5..12, false), (15..35, false), (40..41, false)]
        {
            assert_eq!(covers(&runs, &range), expected, "{range:?}");
        }
        assert_eq!(joined(vec![30..40, 10..20, 20..25, 35..36]), [10..25, 30..40]);
        assert_eq!(common(&[0..15, 18..35], &runs), [10..15, 18..20, 30..35]);
    }

    proptest! {
        #[test]
        fn runs_are_long_and_mostly_resident(shares in prop::collection::vec(0.0_f64..=1.0, 1..200)) {
            let resident = |k: u64| shares[k as usize] * 255.0 >= MOSTLY_RESIDENT * 255.0 + 1.0;
            let runs = runs(&shares);
            for (index, run) in runs.iter().enumerate() {
                prop_assert!((run.end - run.start) * WINDOW >= ISLAND.min(shares.len() as u64 * WINDOW));
                prop_assert!(index == 0 || (run.start - runs[index - 1].end) * WINDOW > GAP);
                let missing = run.clone().filter(|&k| shares[k as usize] < MOSTLY_RESIDENT).count() as u64;
                prop_assert!(missing * 4 <= run.end - run.start);
            }
            // A long resident stretch is never missed.
            for start in 0..shares.len() as u64 {
                let stretch = start..start + ISLAND / WINDOW;
                if stretch.end <= shares.len() as u64 && stretch.clone().all(resident) {
                    prop_assert!(covers(&runs, &stretch), "{stretch:?} in {runs:?}");
                }
            }
        }
    }
}
