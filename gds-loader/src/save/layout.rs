//! Which tensor goes where: shards by size, the order within each, names, the index. Pure.
//!
//! # Order
//!
//! The format wants tensors back to back, so a tensor begins where the one before it ends, and whether it is aligned is decided
//! by the order alone. Tensors are sorted by the largest power of two, up to a page, that divides their length, and among equals the
//! large ones come first. So every tensor is aligned to that power: those of whole pages, which are nearly all bytes of nearly all
//! models, to pages, and every tensor to its elements, since its length is a multiple of theirs. (The reference sorts by dtype, which
//! gives the latter only.)
//!
//! # Shards
//!
//! Tensors fill shards in the order given, as transformers does it, so that a layer's stay together; one that is larger than a
//! shard may be gets a shard of its own.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::format::write::DATA_ALIGNMENT;

/// The index's name.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// The tensors of each file, as positions in `tensors` (names and lengths in bytes), in the order of their bytes.
///
/// All in one file where `shard_size` is `None`.
pub(crate) fn shards(tensors: &[(&str, u64)], shard_size: Option<u64>) -> Vec<Vec<usize>> {
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let mut bytes = 0_u64;
    for (index, (_, len)) in tensors.iter().enumerate() {
        let full = shard_size.is_some_and(|most| bytes > 0 && *len > 0 && bytes.saturating_add(*len) > most);
        match shards.last_mut() {
            Some(shard) if !full => shard.push(index),
            _ => {
                shards.push(vec![index]);
                bytes = 0;
            }
        }
        bytes = bytes.saturating_add(*len);
    }
    for shard in &mut shards {
        shard.sort_by_key(|&index| {
            let (name, len) = tensors[index];
            (Reverse(alignment(len)), Reverse(len), name)
        });
    }
    shards
}

/// The largest power of two that divides `len`, up to a page.
fn alignment(len: u64) -> u64 {
    1 << (len | DATA_ALIGNMENT).trailing_zeros()
}

/// The name of a shard, counted from 0.
pub(crate) fn shard_name(index: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", index + 1)
}

/// The text of an index that gives each tensor its shard, as transformers writes it.
pub(crate) fn index(total_size: u64, weight_map: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut text = Vec::new();
    write_index(&mut text, total_size, weight_map);
    text
}

/// Bytes of that text, at no memory for it.
pub(crate) fn index_len(total_size: u64, weight_map: &BTreeMap<&str, &str>) -> u64 {
    struct Counter(u64);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    write_index(&mut counter, total_size, weight_map);
    counter.0
}

/// `to` takes everything.
fn write_index(to: &mut impl Write, total_size: u64, weight_map: &BTreeMap<&str, &str>) {
    #[derive(Serialize)]
    struct Index<'a> {
        metadata: Metadata,
        weight_map: &'a BTreeMap<&'a str, &'a str>,
    }
    #[derive(Serialize)]
    struct Metadata {
        total_size: u64,
    }
    let index = Index { metadata: Metadata { total_size }, weight_map };
    // Strings and a number: there is nothing that could not be written.
    let written = serde_json::to_writer_pretty(&mut *to, &index).map_err(io::Error::from);
    let written = written.and_then(|()| to.write_all(b"\n"));
    debug_assert!(written.is_ok(), "{written:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(lens: &[u64]) -> Vec<(&'static str, u64)> {
        lens.iter().map(|&len| ("", len)).collect()
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_place_and_aligned_to_what_divides_its_length(
            lens in prop::collection::vec(prop_oneof![0_u64..20, (0_u64..20).prop_map(|k| k * 512), (0_u64..9).prop_map(|k| k * 4096)], 0..30),
            shard_size in prop::option::of(1_u64..40_000),
        ) {
            let shards = shards(&named(&lens), shard_size);
            let mut seen: Vec<usize> = shards.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lens.len()).collect::<Vec<_>>());
            for shard in &shards {
                let mut offset = 0;
                for &index in shard {
                    prop_assert_eq!(offset % alignment(lens[index]), 0);
                    offset += lens[index];
                }
                prop_assert!(shard_size.is_none_or(|most| offset <= most || shard.iter().filter(|&&index| lens[index] > 0).count() == 1));
            }
        }
    }

    #[test]
    fn large_tensors_come_first_and_those_of_odd_length_last() {
        let lens = [2, 4096, 6, 3, 1 << 20, 8192 + 1024, 0];
        assert_eq!(shards(&named(&lens), None), [vec![4, 1, 6, 5, 2, 0, 3]]);
    }

    #[test]
    fn shards_are_filled_in_the_order_given() {
        let lens = [10, 20, 100, 5, 5, 0, 30];
        let groups = |most| {
            let mut groups = shards(&named(&lens), Some(most));
            groups.iter_mut().for_each(|group| group.sort_unstable());
            groups
        };
        // What is larger than a shard may be has one of its own.
        assert_eq!(groups(30), [vec![0, 1], vec![2], vec![3, 4, 5], vec![6]]);
        assert_eq!(groups(1).len(), 6, "{:?}", groups(1));
        assert_eq!(groups(u64::MAX), [vec![0, 1, 2, 3, 4, 5, 6]]);
        assert_eq!(shards(&[], Some(30)), [Vec::<usize>::new()]);
    }

    #[test]
    fn names_and_index_are_those_of_transformers() {
        assert_eq!(shard_name(0, 4), "model-00001-of-00004.safetensors");
        let text = index(42, &BTreeMap::from([("b", "one"), ("a", "two")]));
        let expected = "{\n  \"metadata\": {\n    \"total_size\": 42\n  },\n  \"weight_map\": {\n    \"a\": \"two\",\n    \"b\": \"one\"\n  }\n}\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
