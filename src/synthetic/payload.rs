//! The position code: what stands at a tensor's byte `n`.
//!
//! A tensor's data is a sequence of 64-bit little-endian words; word `i` is the `i`-th output of SplitMix64 started from a key made
//! of the seed and the tensor's name. Any word is computed from its index alone, in about a nanosecond, so a slice at any offset is
//! verified without the file and without what stands before it. The values are arbitrary bit patterns, floats among them NaNs.
//!
//! Source of the rule: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), for the mixing; FNV-1a for
//! the name.

/// SplitMix64's increment, 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD: usize = size_of::<u64>();

/// The payload of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    key: u64,
}

impl Payload {
    /// The payload of tensor `name` in the checkpoint of `seed`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self { key: mix(mix(seed.wrapping_add(GAMMA)) ^ hash) }
    }

    /// The word at byte `8 * index`.
    fn word(self, index: u64) -> [u8; WORD] {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(GAMMA))).to_le_bytes()
    }

    /// Writes the bytes `[offset, offset + into.len())` of the tensor.
    pub(crate) fn fill(self, offset: u64, into: &mut [u8]) {
        let (mut index, head) = self.split(offset, into.len());
        let (first, rest) = into.split_at_mut(head.len());
        first.copy_from_slice(&self.word(index)[head.clone()]);
        index += u64::from(!head.is_empty());
        let (words, last) = rest.as_chunks_mut::<WORD>();
        for word in words {
            *word = self.word(index);
            index += 1;
        }
        last.copy_from_slice(&self.word(index)[..last.len()]);
    }

    /// Compares `bytes`, which stand at `offset` in the tensor, with what they must be: the offset in the tensor of the first byte that
    /// differs.
    pub(crate) fn first_difference(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let (mut index, head) = self.split(offset, bytes.len());
        let (first, rest) = bytes.split_at(head.len());
        if first != &self.word(index)[head.clone()] {
            return differs(offset, first, &self.word(index)[head]);
        }
        index += u64::from(!head.is_empty());
        let mut at = offset + head.len() as u64;
        let (words, last) = rest.as_chunks::<WORD>();
        for word in words {
            let expected = self.word(index);
            if *word != expected {
                return differs(at, word, &expected);
            }
            index += 1;
            at += WORD as u64;
        }
        differs(at, last, &self.word(index))
    }

    /// The word in which `offset` lies, and the part of it that comes before the first whole word: empty where `offset` is a
    /// multiple of eight.
    fn split(self, offset: u64, len: usize) -> (u64, std::ops::Range<usize>) {
        let within = (offset % WORD as u64) as usize;
        let end = if within == 0 { 0 } else { WORD.min(within + len) };
        (offset / WORD as u64, within..end.max(within))
    }
}

fn differs(offset: u64, found: &[u8], expected: &[u8]) -> Option<u64> {
    found.iter().zip(expected).position(|(found, expected)| found != expected).map(|at| offset + at as u64)
}

/// SplitMix64's finaliser, a bijection of the 64-bit words.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rule_is_splitmix64() {
        // Published first outputs of SplitMix64 seeded with 1234567.
        let payload = Payload { key: 1_234_567 };
        let words: Vec<u64> = (0..3).map(|index| u64::from_le_bytes(payload.word(index))).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn seed_name_and_position_all_matter() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..4 {
            for name in ["a", "b", "ab", "ba", ""] {
                for index in 0..100 {
                    assert!(seen.insert(Payload::new(seed, name).word(index)));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_slice_equals_the_same_part_of_the_whole(start in 0usize..200, len in 0usize..200, seed: u64) {
            let payload = Payload::new(seed, "tensor");
            let mut whole = vec![0; 400];
            payload.fill(0, &mut whole);
            let mut slice = vec![0; len];
            payload.fill(start as u64, &mut slice);
            prop_assert_eq!(&slice, &whole[start..start + len]);
            prop_assert_eq!(payload.first_difference(start as u64, &slice), None);
        }

        #[test]
        fn one_flipped_bit_is_found_where_it_is(start in 0usize..200, len in 1usize..200, at: prop::sample::Index, bit in 0u8..8) {
            let payload = Payload::new(7, "tensor");
            let mut slice = vec![0; len];
            payload.fill(start as u64, &mut slice);
            let at = at.index(len);
            slice[at] ^= 1 << bit;
            prop_assert_eq!(payload.first_difference(start as u64, &slice), Some((start + at) as u64));
        }
    }
}
