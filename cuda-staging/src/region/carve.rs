//! Many disjoint parts of one region at once.

use std::fmt;
use std::ops::Range;

use super::{Lease, RegionMut, check_inside};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// A region that has been handed out in parts. It comes back when every part is gone.
///
/// Dropping it does not end the parts: each keeps the allocation alive.
pub struct Carved {
    whole: RegionMut,
    /// The lease of the parts, and of nothing else.
    lease: Arc<Lease>,
}

impl RegionMut {
    /// Hands out the given ranges, in bytes from the start of this region, in any order: the i-th part is the i-th
    /// range. What no range covers is reachable again after [`Carved::reunite`].
    ///
    /// Costs a sort of the ranges where they are out of order, and about 10 ns a part.
    ///
    /// # Errors
    /// Where a range is reversed or reaches beyond the end, or two overlap; the region is gone then.
    pub fn carve(self, ranges: &[Range<u64>]) -> Result<(Carved, Vec<Self>)> {
        for range in ranges {
            check_inside(range, self.len)?;
        }
        check_disjoint(ranges)?;
        let lease = Arc::new(Lease {
            allocation: Arc::clone(&self.lease.allocation),
            _parent: Some(Arc::clone(&self.lease)),
        });
        let parts = ranges
            .iter()
            .map(|range| Self {
                lease: Arc::clone(&lease),
                offset: self.offset + range.start,
                len: range.end - range.start,
            })
            .collect();
        Ok((Carved { whole: self, lease }, parts))
    }
}

fn check_disjoint(ranges: &[Range<u64>]) -> Result<()> {
    let in_order = ranges.is_sorted_by(|a, b| a.end <= b.start);
    if in_order {
        return Ok(());
    }
    let mut sorted: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    match sorted.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(Error::invalid(format!(
            "the parts {}..{} and {}..{} of a region overlap",
            pair[0].start, pair[0].end, pair[1].start, pair[1].end
        ))),
        None => Ok(()),
    }
}

impl Carved {
    /// The whole region again.
    ///
    /// # Errors
    /// This value, unchanged, while a part is alive: in a worker, in a copy, frozen or carved further.
    pub fn reunite(mut self) -> std::result::Result<RegionMut, Self> {
        // `get_mut`, unlike `strong_count`, also makes what other threads did with their parts visible here.
        match Arc::get_mut(&mut self.lease) {
            Some(_) => Ok(self.whole),
            None => Err(self),
        }
    }
}

impl fmt::Debug for Carved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Arc::strong_count(&self.lease) - 1;
        f.debug_struct("Carved").field("whole", &self.whole).field("parts_alive", &parts).finish()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one part is a legal carving")]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_reunited_only_when_all_are_gone() {
        let (carved, mut parts) = RegionMut::from_vec(vec![0; 10]).carve(&[5..10, 0..5]).unwrap();
        parts[1].host_bytes_mut().unwrap().fill(7);
        let frozen = parts.pop().unwrap().freeze();
        drop(parts);
        let carved = carved.reunite().unwrap_err();
        drop(frozen);
        assert_eq!(carved.reunite().unwrap().host_bytes().unwrap(), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn parts_of_parts_count() {
        let (carved, mut parts) = RegionMut::from_vec(vec![1; 10]).carve(&[2..8]).unwrap();
        let (inner, inner_parts) = parts.remove(0).carve(&[0..3]).unwrap();
        drop(inner);
        let carved = carved.reunite().unwrap_err();
        assert_eq!(inner_parts[0].host_bytes().unwrap(), [1, 1, 1]);
        drop(inner_parts);
        assert_eq!(carved.reunite().unwrap().len(), 10);
    }

    #[test]
    fn parts_outlive_the_carved_region() {
        let (carved, parts) = RegionMut::from_vec(vec![3; 8]).carve(&[0..4]).unwrap();
        drop(carved);
        assert_eq!(parts[0].host_bytes().unwrap(), [3; 4]);
    }

    #[test]
    fn overlap_and_overrun_are_refused() {
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let bad: [&[Range<u64>]; 5] = [&[0..5, 4..6], &[4..6, 0..5], &[0..11], &[6..5], &[0..4, 8..9, 2..3]];
        for ranges in bad {
            let outcome = RegionMut::from_vec(vec![0; 10]).carve(ranges);
            assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{ranges:?}");
        }
    }

    #[test]
    fn empty_parts_may_lie_anywhere_inside() {
        let (_, parts) = RegionMut::from_vec(vec![0; 10]).carve(&[0..5, 3..3, 10..10, 5..10, 0..0]).unwrap();
        assert_eq!(parts.iter().map(RegionMut::len).collect::<Vec<_>>(), [5, 0, 0, 5, 0]);
    }

    proptest! {
        /// Against the obvious oracle: a byte of a plain array may belong to one range only.
        #[test]
        fn carving_agrees_with_an_array_of_owners(
            ranges in prop::collection::vec((0u64..64, 0u64..12), 0..10)
                .prop_map(|pairs| pairs.into_iter().map(|(start, len)| start..start + len).collect::<Vec<_>>())
        ) {
            const LEN: u64 = 64;
            let mut owner = [None; LEN as usize];
            let mut legal = ranges.iter().all(|range| range.end <= LEN);
            for (index, range) in ranges.iter().enumerate() {
                for byte in range.start..range.end.min(LEN) {
                    legal &= owner[byte as usize].replace(index as u8 + 1).is_none();
                }
            }
            let outcome = RegionMut::from_vec(vec![0; LEN as usize]).carve(&ranges);
            prop_assert_eq!(outcome.is_ok(), legal);
            if let Ok((carved, parts)) = outcome {
                // Each part writes its number, all at once; afterwards every byte must name its owner.
                thread::scope(|scope| {
                    for (index, mut part) in parts.into_iter().enumerate() {
                        scope.spawn(move || part.host_bytes_mut().unwrap().fill(index as u8 + 1));
                    }
                });
                let whole = carved.reunite().unwrap();
                let expected: Vec<u8> = owner.iter().map(|owner| owner.unwrap_or(0)).collect();
                prop_assert_eq!(whole.host_bytes().unwrap(), expected);
            }
        }
    }
}
