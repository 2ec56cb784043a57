//! The checksum: CRC-64/NVME, and its arithmetic.
//!
//! A CRC is linear, which is what a parallel load needs: the checksum of a stretch, moved to its place within a longer one, is
//! that stretch's share of the longer one's checksum, and shares are xored in any order. `crc-fast` computes checksums, by the
//! processor's carry-less multiplication; moving them is the arithmetic here, which takes about two microseconds whatever the
//! distance (`crc-fast`'s own combining takes 60 for 4 MiB and 300 for a terabyte, and wants neighbours in order).

use std::fmt;
use std::str::FromStr;

use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;

/// CRC-64/NVME of some bytes: the one that the NVM Express specification and Amazon S3 use. As text 16 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(u64);

impl Checksum {
    /// The algorithm's name in manifests.
    pub const ALGORITHM: &'static str = "crc64-nvme";

    /// The checksum of no bytes.
    pub const OF_NOTHING: Self = Self(0);

    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(checksum(CrcAlgorithm::Crc64Nvme, bytes))
    }

    /// The checksum of these bytes followed by `len` bytes whose checksum is `next`.
    #[must_use]
    pub fn followed_by(self, next: Self, len: u64) -> Self {
        Self(self.share(len).0 ^ next.0)
    }

    /// What these bytes contribute to the checksum of a longer stretch in which `after` bytes follow them.
    pub(super) fn share(self, after: u64) -> Share {
        if after == 0 || self.0 == 0 { Share(self.0) } else { Share(multiply(power(after), self.0)) }
    }
}

/// The contribution of some bytes to a checksum. All of them xored are the checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share(pub(super) u64);

impl Share {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// The checksum, where nothing is missing.
    pub(super) fn whole(self) -> Checksum {
        Checksum(self.0)
    }
}

/// The polynomial without its highest term, the coefficient of x^0 in the highest bit.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x^0.
const ONE: u64 = 1 << 63;

/// x^(8 * 2^k), by k: what moves a checksum 2^k bytes on.
const POWERS: [u64; 64] = {
    let mut powers = [ONE >> 8; 64];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// x^(8 * bytes) modulo the polynomial.
fn power(bytes: u64) -> u64 {
    let set = (0..u64::BITS).filter(|k| bytes >> k & 1 == 1);
    set.fold(ONE, |product, k| multiply(POWERS[k as usize], product))
}

/// The product of two polynomials modulo the polynomial.
const fn multiply(a: u64, mut b: u64) -> u64 {
    let (mut product, mut term) = (0, ONE);
    while term != 0 {
        if a & term != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        term >>= 1;
    }
    product
}

/// Of bytes in their order.
impl Digest for Checksum {
    type Hasher = crc_fast::Digest;

    fn start() -> Self::Hasher {
        crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)
    }

    fn update(hasher: &mut Self::Hasher, bytes: &[u8]) {
        hasher.update(bytes);
    }

    fn finish(hasher: Self::Hasher) -> Self {
        Self(hasher.finalize())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A text that is no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no checksum: expected 16 lower-case hex digits")]
pub struct NoChecksum(String);

impl FromStr for Checksum {
    type Err = NoChecksum;

    fn from_str(text: &str) -> Result<Self, NoChecksum> {
        let plain = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let value = plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        value.map(Self).ok_or_else(|| NoChecksum(text.chars().take(40).collect()))
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_the_one_of_the_catalogue() {
        assert_eq!(Checksum::of(b"123456789").to_string(), "ae8b14860a799888");
        assert_eq!(Checksum::of(b""), Checksum::OF_NOTHING);
    }

    proptest! {
        #[test]
        fn followed_by_is_the_checksum_of_both(
            a in prop::collection::vec(any::<u8>(), 0..3000),
            b in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let both = [a.as_slice(), &b].concat();
            prop_assert_eq!(Checksum::of(&a).followed_by(Checksum::of(&b), b.len() as u64), Checksum::of(&both));
        }

        #[test]
        fn any_distance_is_as_the_library_combines(a in any::<u64>(), b in any::<u64>(), shift in 0_u32..62, low in any::<u64>()) {
            let len = (1_u64 << shift) | low & ((1_u64 << shift) - 1);
            let theirs = crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, a, b, len);
            prop_assert_eq!(Checksum(a).followed_by(Checksum(b), len), Checksum(theirs));
        }

        #[test]
        fn text_and_back(value in any::<u64>()) {
            let text = Checksum(value).to_string();
            prop_assert_eq!(text.len(), 16);
            prop_assert_eq!(text.parse(), Ok(Checksum(value)));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "0",
            "AE8B14860A799888",
            "ae8b14860a79988",
            "ae8b14860a7998880",
            "+e8b14860a799888",
            "ä8b14860a799888",
        ] {
            assert!(text.parse::<Checksum>().is_err(), "{text}");
        }
    }
}
