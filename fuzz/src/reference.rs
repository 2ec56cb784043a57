//! The `safetensors` crate as the oracle of headers, and where this reader is stricter on purpose.

use gds_loader::format::Header;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

/// The rules of `gds_loader::format::header` that the reference does not have: all of them. Whatever else the two disagree on is a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stricter {
    /// A key appears twice in one object.
    RepeatedKey,
    /// The dimensions other than 0 of a tensor without elements overflow when multiplied.
    OverflowBesideZero,
    /// Header and tensors together overflow, where the reference's sum wraps.
    LengthOverflow,
}

impl Stricter {
    /// The rule by which a header is refused that the reference accepts.
    pub(crate) fn of(text: &[u8], theirs: &Metadata) -> Option<Self> {
        let zeroed = |info: &&TensorInfo| {
            let others = info.shape.iter().filter(|&&dimension| dimension != 0);
            info.shape.contains(&0) && others.copied().try_fold(1_usize, usize::checked_mul).is_none()
        };
        if repeats_a_key(text) {
            Some(Self::RepeatedKey)
        } else if theirs.tensors().values().any(zeroed) {
            Some(Self::OverflowBesideZero)
        } else {
            (end_of(text, theirs.data_len()).is_none()).then_some(Self::LengthOverflow)
        }
    }
}

/// The reference's reading of a header in a file of this length. Its own reader wants the whole file in memory, and adds up without
/// looking: a panic in a build with overflow checks.
pub(crate) fn metadata(text: &[u8], file_len: u64) -> Option<Metadata> {
    let metadata = tables(text)?;
    let end = (metadata.data_len() as u64).wrapping_add(8).wrapping_add(text.len() as u64);
    (end == file_len).then_some(metadata)
}

/// The bytes of data that a header asks for, where the reference accepts it.
pub(crate) fn data_len(text: &[u8]) -> Option<u64> {
    tables(text).map(|metadata| metadata.data_len() as u64)
}

/// Whether the reference's sum of lengths wraps.
pub(crate) fn wraps(text: &[u8]) -> bool {
    tables(text).is_some_and(|metadata| end_of(text, metadata.data_len()).is_none())
}

fn tables(text: &[u8]) -> Option<Metadata> {
    serde_json::from_str(std::str::from_utf8(text).ok()?).ok()
}

fn end_of(text: &[u8], data_len: usize) -> Option<usize> {
    data_len.checked_add(8)?.checked_add(text.len())
}

/// Both readings mean the same.
pub(crate) fn same(header: &Header, reference: &Metadata) {
    let theirs = reference.tensors();
    assert_eq!(header.tensors.len(), theirs.len());
    let mut end = header.data_offset;
    for tensor in &header.tensors {
        let info = theirs[&*tensor.name];
        let shape: Vec<u64> = info.shape.iter().map(|&dimension| dimension as u64).collect();
        assert_eq!(tensor.dtype.to_string(), info.dtype.to_string());
        assert_eq!(*tensor.shape, *shape);
        assert_eq!(tensor.offset - header.data_offset, info.data_offsets.0 as u64);
        assert_eq!(tensor.len, (info.data_offsets.1 - info.data_offsets.0) as u64);
        assert_eq!(tensor.offset, end, "in the order of their bytes, without holes");
        end += tensor.len;
    }
    assert_eq!(end, header.file_len);
    let metadata = reference.metadata().clone().unwrap_or_default();
    assert_eq!(header.metadata, metadata.into_iter().collect());
}

/// Whether valid JSON has a key twice in one object: then it has more keys than entries once it is read.
pub(crate) fn repeats_a_key(text: &[u8]) -> bool {
    let (mut keys, mut within, mut escaped) = (0, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = within,
            b'"' => within = !within,
            b':' if !within => keys += 1,
            _ => {}
        }
    }
    let value: Value = serde_json::from_slice(text).expect("the JSON that the reference has read");
    keys != entries(&value)
}

fn entries(value: &Value) -> usize {
    match value {
        Value::Object(map) => map.len() + map.values().map(entries).sum::<usize>(),
        Value::Array(values) => values.iter().map(entries).sum(),
        _ => 0,
    }
}
