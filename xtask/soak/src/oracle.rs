//! What every byte of a model must be, known from its position alone and without the code under test.
//!
//! A tensor's data are 64-bit words; each is a mix of the model, the version of its file, the tensor's name and the word's position. So
//! a byte in the wrong place is a wrong byte, and a tensor tells which version it is of.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD: usize = size_of::<u64>();

/// The words of one tensor.
#[derive(Clone, Copy)]
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn new(model: u64, version: u32, name: &str) -> Self {
        let start = mix(model.wrapping_mul(GAMMA) ^ u64::from(version));
        Self(name.bytes().fold(start, |hash, byte| mix(hash ^ u64::from(byte))))
    }

    fn at(self, index: usize) -> [u8; WORD] {
        mix(self.0.wrapping_add((index as u64).wrapping_mul(GAMMA))).to_le_bytes()
    }

    /// Appends the tensor's `len` bytes.
    pub(crate) fn write(self, len: usize, into: &mut Vec<u8>) {
        let end = into.len() + len;
        (0..len.div_ceil(WORD)).for_each(|index| into.extend_from_slice(&self.at(index)));
        into.truncate(end);
    }

    /// Where `bytes`, all of the tensor's, first differ from what they must be.
    pub(crate) fn first_difference(self, bytes: &[u8]) -> Option<usize> {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let differs = words.iter().enumerate().position(|(index, word)| *word != self.at(index));
        match differs {
            Some(index) => Some(index * WORD),
            None => (*rest != self.at(words.len())[..rest.len()]).then_some(words.len() * WORD),
        }
    }
}

/// SplitMix64's finaliser.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Which of `versions` a tensor is of, all of it.
///
/// # Errors
/// Where it is none of them: how it differs from the one it begins as.
pub(crate) fn version_of(model: u64, versions: &[u32], name: &str, bytes: &[u8]) -> Result<u32, String> {
    let mut furthest = (0, 0);
    for &version in versions {
        match Words::new(model, version, name).first_difference(bytes) {
            None => return Ok(version),
            Some(at) => furthest = furthest.max((at, version)),
        }
    }
    let (at, version) = furthest;
    let next = |&version: &u32| {
        let words = Words::new(model, version, name);
        bytes[at..].starts_with(&words.at(at / WORD)[..WORD.min(bytes.len() - at)])
    };
    let there = match versions.iter().find(|version| next(version)) {
        Some(other) => format!("goes on as version {other}"),
        None => "goes on as none that was ever there".to_owned(),
    };
    Err(format!("{name}: {at} of {} bytes are version {version}, then it {there}", bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_of_one_version_or_it_is_told_where_it_changes() {
        let tensor = |version, len| {
            let mut bytes = Vec::new();
            Words::new(7, version, "t").write(len, &mut bytes);
            bytes
        };
        for len in [0, 1, 7, 8, 9, 1001] {
            assert_eq!(version_of(7, &[0, 1], "t", &tensor(1, len)).ok(), Some(u32::from(len > 0)));
        }
        let mixed = [&tensor(0, 1001)[..512], &tensor(1, 1001)[512..]].concat();
        let said = version_of(7, &[0, 1], "t", &mixed).unwrap_err();
        assert!(said.contains("512 of 1001") && said.contains("as version 1"), "{said}");
        let mut zeros = tensor(0, 1001);
        zeros[800..].fill(0);
        let said = version_of(7, &[0, 1], "t", &zeros).unwrap_err();
        assert!(said.contains("800 of 1001") && said.contains("none"), "{said}");
        assert!(version_of(7, &[0], "u", &tensor(0, 9)).is_err(), "another tensor's bytes");
    }
}
