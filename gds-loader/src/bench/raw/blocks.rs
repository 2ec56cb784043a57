//! Which block is read next: files as one row of blocks, in order or shuffled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Pattern;

/// A block to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Which file.
    pub(super) file: usize,
    /// Where in it, in bytes.
    pub(super) offset: u64,
    /// How long: a whole block but at a file's end.
    pub(super) len: u64,
}

/// The blocks of some files, dealt to threads until all were read or time is up.
#[derive(Debug)]
pub(super) struct Blocks {
    size: u64,
    lens: Vec<u64>,
    /// For each file the number of its first block, and at the end the number of all.
    first: Vec<u64>,
    shuffle: Option<Shuffle>,
    next: AtomicU64,
    /// When to stop; without it when each was read once.
    until: Option<Instant>,
}

impl Blocks {
    /// `size` is not 0.
    pub(super) fn new(lens: Vec<u64>, size: u64, pattern: Pattern, until: Option<Instant>) -> Self {
        let mut first = vec![0];
        let mut count = 0_u64;
        for len in &lens {
            // Sparse files can claim more than 64 bits together.
            count = count.saturating_add(len.div_ceil(size));
            first.push(count);
        }
        let shuffle = match pattern {
            Pattern::Sequential => None,
            Pattern::Random { seed } => Some(Shuffle::new(count, seed)),
        };
        Self { size, lens, first, shuffle, next: AtomicU64::new(0), until }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.first.last().copied().unwrap_or(0)
    }

    /// The next one, for whichever thread asks.
    pub(super) fn deal(&self) -> Option<Block> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let go_on = match self.until {
            Some(until) => Instant::now() < until,
            None => turn < self.count(),
        };
        if go_on { self.at(turn.checked_rem(self.count())?) } else { None }
    }

    fn at(&self, place: u64) -> Option<Block> {
        let number = self.shuffle.as_ref().map_or(place, |shuffle| shuffle.at(place));
        let file = self.first.partition_point(|first| *first <= number).checked_sub(1)?;
        let offset = (number - self.first[file]) * self.size;
        Some(Block { file, offset, len: self.size.min(self.lens[file] - offset) })
    }
}

/// The numbers below `count` in an order that looks random, each once, without a list of them: a Feistel network over the
/// least even number of bits that holds them, repeated while it leads outside.
#[derive(Debug)]
struct Shuffle {
    count: u64,
    half: u32,
    seed: u64,
}

impl Shuffle {
    fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half: bits.div_ceil(2).max(1), seed }
    }

    fn at(&self, place: u64) -> u64 {
        let mut number = place;
        loop {
            number = self.encrypt(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn encrypt(&self, number: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(right ^ self.seed.rotate_left(16 * round)) & mask));
        }
        (left << self.half) | right
    }
}

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value =
        (value.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn all(blocks: &Blocks) -> Vec<Block> {
        std::iter::from_fn(|| blocks.deal()).collect()
    }

    proptest! {
        #[test]
        fn every_byte_is_read_once_in_either_order(
            lens in prop::collection::vec(0_u64..5000, 0..6),
            size in 1_u64..700,
            seed: u64,
        ) {
            let in_order = all(&Blocks::new(lens.clone(), size, Pattern::Sequential, None));
            for (file, len) in lens.iter().enumerate() {
                let mut end = 0;
                for block in in_order.iter().filter(|block| block.file == file) {
                    prop_assert!(block.offset == end && block.len > 0 && block.len <= size);
                    prop_assert_eq!(block.offset % size, 0);
                    end += block.len;
                }
                prop_assert_eq!(end, *len);
            }
            let mut shuffled = all(&Blocks::new(lens, size, Pattern::Random { seed }, None));
            shuffled.sort_by_key(|block| (block.file, block.offset));
            prop_assert_eq!(shuffled, in_order);
        }
    }

    #[test]
    fn random_is_not_sequential() {
        let blocks = Blocks::new(vec![1000], 1, Pattern::Random { seed: 1 }, None);
        let follow = all(&blocks).windows(2).filter(|pair| pair[1].offset == pair[0].offset + 1).count();
        assert!(follow < 20, "{follow} of 999 blocks follow their neighbour");
    }

    #[test]
    fn files_may_claim_more_than_can_be_counted() {
        for pattern in [Pattern::Sequential, Pattern::Random { seed: 1 }] {
            let blocks = Blocks::new(vec![i64::MAX as u64; 3], 1, pattern, None);
            assert_eq!(blocks.count(), u64::MAX);
            assert!(blocks.deal().is_some_and(|block| block.len == 1));
        }
    }

    #[test]
    fn time_goes_round_and_ends() {
        let blocks =
            Blocks::new(vec![2], 1, Pattern::Sequential, Some(Instant::now() + Duration::from_millis(20)));
        let read = all(&blocks);
        assert!(read.len() > 4 && read[0] == read[2]);
        // Nothing to read is no endless loop.
        let until = Some(Instant::now() + Duration::from_secs(60));
        assert_eq!(all(&Blocks::new(vec![0], 1, Pattern::Sequential, until)), []);
    }
}
