//! Checksums of many ranges of files at once, from bytes that arrive in any order and from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::checksum::{Checksum, Share};

/// A range of a file whose checksum is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Index of the file.
    pub(crate) file: u32,
    /// Its first byte in the file.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
}

impl Segment {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// The shares of each segment that have arrived.
///
/// Each byte must be added once. A byte that is missing is noticed, one that is added twice makes the checksum wrong: either way
/// nothing passes as right that is not.
#[derive(Debug)]
pub(crate) struct Sums {
    /// In the order of files and offsets, disjoint.
    segments: Vec<Segment>,
    arrived: Vec<Arrived>,
    /// Time spent, summed over the threads.
    nanoseconds: AtomicU64,
}

#[derive(Debug, Default)]
struct Arrived {
    share: AtomicU64,
    bytes: AtomicU64,
}

impl Sums {
    /// Of these segments, which are disjoint and in the order of files and offsets.
    pub(crate) fn new(segments: Vec<Segment>) -> Self {
        let arrived = segments.iter().map(|_| Arrived::default()).collect();
        Self { segments, arrived, nanoseconds: AtomicU64::new(0) }
    }

    /// Adds `bytes`, which are at `offset` in the file. Bytes that belong to no segment are passed over.
    pub(crate) fn add(&self, file: u32, offset: u64, bytes: &[u8]) {
        let start = Instant::now();
        let end = offset.saturating_add(bytes.len() as u64);
        let first = self.segments.partition_point(|segment| (segment.file, segment.end()) <= (file, offset));
        for (segment, arrived) in self.segments.iter().zip(&self.arrived).skip(first) {
            if (segment.file, segment.offset) >= (file, end) {
                break;
            }
            let (from, to) = (segment.offset.max(offset), segment.end().min(end));
            let stretch = &bytes[(from - offset) as usize..(to - offset) as usize];
            let share = Checksum::of(stretch).share(segment.end() - to);
            arrived.share.fetch_xor(share.0, Ordering::Relaxed);
            arrived.bytes.fetch_add(to - from, Ordering::Relaxed);
        }
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
    }

    /// The checksum of each segment, in their order; `None` where bytes of it have not arrived.
    ///
    /// The threads that add must have been joined.
    pub(crate) fn checksums(&self) -> Vec<Option<Checksum>> {
        let whole = |(segment, arrived): (&Segment, &Arrived)| {
            let all = arrived.bytes.load(Ordering::Relaxed) == segment.len;
            all.then(|| Share(arrived.share.load(Ordering::Relaxed)).whole())
        };
        self.segments.iter().zip(&self.arrived).map(whole).collect()
    }

    /// Time spent on checksums so far, summed over the threads.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Segments with gaps between them, in two files of `len` bytes each.
    fn segments() -> impl Strategy<Value = Vec<Segment>> {
        let lens = prop::collection::vec((0_u64..300, prop_oneof![Just(0), 0_u64..50]), 0..10);
        (lens.clone(), lens).prop_map(|files| {
            let mut segments = Vec::new();
            for (file, lens) in [files.0, files.1].into_iter().enumerate() {
                let mut offset = 0;
                for (len, gap) in lens {
                    segments.push(Segment { file: file as u32, offset: offset + gap, len });
                    offset += gap + len;
                }
            }
            segments
        })
    }

    fn contents(file: u32) -> Vec<u8> {
        (0..4000_u32)
            .map(|k| (k.wrapping_mul(0x9e37_79b9) >> 24) as u8 ^ (file as u8).wrapping_mul(91))
            .collect()
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_give_the_checksum_of_each_segment(
            segments in segments(),
            cuts in prop::collection::vec(1_usize..4000, 0..12),
            order in any::<u64>(),
            left_out in any::<Option<prop::sample::Index>>(),
        ) {
            let sums = Sums::new(segments.clone());
            let mut cuts = [cuts, vec![0, 4000]].concat();
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<_> = (0..2_u32).flat_map(|file| cuts.windows(2).map(move |pair| (file, pair[0], pair[1]))).collect();
            pieces.sort_by_key(|&(file, start, _)| (order ^ start as u64 ^ u64::from(file) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let gone = left_out.map(|index| pieces.remove(index.index(pieces.len())));
            for (file, start, end) in pieces {
                sums.add(file, start as u64, &contents(file)[start..end]);
            }
            for (segment, found) in segments.iter().zip(sums.checksums()) {
                let bytes = &contents(segment.file)[segment.offset as usize..][..segment.len as usize];
                let lacks = gone.is_some_and(|(file, start, end)| {
                    file == segment.file && segment.len > 0 && segment.offset < end as u64 && (start as u64) < segment.end()
                });
                prop_assert_eq!(found, (!lacks).then(|| Checksum::of(bytes)));
            }
        }
    }

    #[test]
    fn threads_add_without_losing_a_byte() {
        let bytes = contents(0);
        let sums = Sums::new(vec![Segment { file: 0, offset: 0, len: 4000 }]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (sums, bytes) = (&sums, &bytes);
                scope.spawn(move || {
                    for start in (thread * 10..4000).step_by(40) {
                        sums.add(0, start as u64, &bytes[start..start + 10]);
                    }
                });
            }
        });
        assert_eq!(sums.checksums(), [Some(Checksum::of(&bytes))]);
        assert!(sums.time() > Duration::ZERO);
    }
}
