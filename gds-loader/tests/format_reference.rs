//! The `safetensors` crate as the oracle: on random tables, whole or damaged in one place, both readers agree.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use format_support::{file_bytes, reference, same_tables};
use gds_loader::format::shape::SizeFault;
use gds_loader::format::{Dtype, Header, HeaderFault};
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<String>,
    offsets: Vec<String>,
    extra: String,
}

#[derive(Debug, Clone)]
struct Table {
    metadata: Option<String>,
    tensors: Vec<Tensor>,
    data_len: usize,
}

impl Table {
    fn bytes(&self) -> Vec<u8> {
        let tensors = self.tensors.iter().map(|tensor| {
            let Tensor { name, dtype, shape, offsets, extra } = tensor;
            let (shape, offsets) = (shape.join(","), offsets.join(","));
            format!(r#""{name}":{{{extra}"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{offsets}]}}"#)
        });
        let metadata = self.metadata.iter().map(|text| format!(r#""__metadata__":{text}"#));
        file_bytes(format!("{{{}}}", metadata.chain(tensors).collect::<Vec<_>>().join(",")), self.data_len)
    }
}

/// Legal tables, their entries in any order.
fn tables() -> impl Strategy<Value = Table> {
    let shape = prop::collection::vec(0u64..5, 0..4);
    let tensor = (select(Dtype::ALL.to_vec()), shape, "[a-z.é\u{10348}]{0,6}", any::<bool>());
    let metadata = prop::option::of(select(vec!["{}", "null", r#"{"format":"pt"}"#, r#"{"a":"","b":"\n"}"#]));
    (prop::collection::vec(tensor, 0..7), metadata).prop_flat_map(|(tensors, metadata)| {
        let mut end = 0;
        let mut table = Vec::new();
        for (number, (dtype, mut shape, name, extra)) in tensors.into_iter().enumerate() {
            if dtype.bits() % 8 != 0 {
                shape.push(4);
            }
            let begin = end;
            end += shape.iter().product::<u64>() * dtype.bits() / 8;
            table.push(Tensor {
                name: format!("{name}{number}"),
                dtype: dtype.to_string(),
                shape: shape.iter().map(u64::to_string).collect(),
                offsets: vec![begin.to_string(), end.to_string()],
                extra: if extra { r#""note":{"k":[1,null]},"#.to_owned() } else { String::new() },
            });
        }
        let metadata = metadata.map(str::to_owned);
        Just(table).prop_shuffle().prop_map(move |tensors| Table {
            metadata: metadata.clone(),
            tensors,
            data_len: end as usize,
        })
    })
}

/// A number as somebody might write it into a header.
fn numbers() -> impl Strategy<Value = String> {
    let written = [
        "-1",
        "-0",
        "1.0",
        "1e2",
        "null",
        "\"1\"",
        "[]",
        "true",
        "4294967296",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e400",
        "01",
        "",
    ];
    prop_oneof![
        (0u64..40).prop_map(|number| number.to_string()),
        select(written.to_vec()).prop_map(str::to_owned)
    ]
}

#[derive(Debug, Clone)]
enum Damage {
    Offset(Index, Index, String),
    Dimension(Index, Index, String),
    ExtraDimension(Index, String),
    ExtraOffset(Index, String),
    LostOffset(Index),
    Dtype(Index, String),
    Extra(Index, String),
    Metadata(String),
    Data(isize),
    LengthField(isize),
    Byte(Index, u8),
    LostByte(Index),
}

fn damages() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    let dtypes = ["F32", "U8", "F4", "F6_E2M3", "C64", "f32", "F128", ""].map(str::to_owned).to_vec();
    let extras =
        [r#""x":1,"#, r#""x":{"F32":[{}]},"#, r#""x":1e999,"#, r#""shape":[1],"#, r#""x":"\ud800","#, ","];
    let metadata = ["[]", "1", r#"{"a":1}"#, r#"{"a":null}"#, r#"{"a":"b","c":{}}"#, "\"x\"", "{"];
    prop_oneof![
        (index(), index(), numbers()).prop_map(|(t, at, n)| Damage::Offset(t, at, n)),
        (index(), index(), numbers()).prop_map(|(t, at, n)| Damage::Dimension(t, at, n)),
        (index(), numbers()).prop_map(|(t, n)| Damage::ExtraDimension(t, n)),
        (index(), numbers()).prop_map(|(t, n)| Damage::ExtraOffset(t, n)),
        index().prop_map(Damage::LostOffset),
        (index(), select(dtypes)).prop_map(|(t, dtype)| Damage::Dtype(t, dtype)),
        (index(), select(extras.to_vec())).prop_map(|(t, extra)| Damage::Extra(t, extra.to_owned())),
        select(metadata.to_vec()).prop_map(|text| Damage::Metadata(text.to_owned())),
        (-9isize..9).prop_map(Damage::Data),
        (-9isize..9).prop_map(Damage::LengthField),
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        (index(), select(b"{}[]\":,0129 \\\0".to_vec())).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        index().prop_map(Damage::LostByte),
    ]
}

fn damaged(mut table: Table, damage: &Damage) -> Vec<u8> {
    let count = table.tensors.len();
    let mut change = |at: &Index, change: &dyn Fn(&mut Tensor)| {
        if count > 0 {
            change(&mut table.tensors[at.index(count)]);
        }
    };
    let replace = |list: &mut Vec<String>, at: &Index, text: &String| {
        if !list.is_empty() {
            let at = at.index(list.len());
            list[at].clone_from(text);
        }
    };
    match damage {
        Damage::Offset(t, at, text) => change(t, &|tensor| replace(&mut tensor.offsets, at, text)),
        Damage::Dimension(t, at, text) => change(t, &|tensor| replace(&mut tensor.shape, at, text)),
        Damage::ExtraDimension(t, text) => change(t, &|tensor| tensor.shape.push(text.clone())),
        Damage::ExtraOffset(t, text) => change(t, &|tensor| tensor.offsets.push(text.clone())),
        Damage::LostOffset(t) => change(t, &|tensor| drop(tensor.offsets.pop())),
        Damage::Dtype(t, dtype) => change(t, &|tensor| tensor.dtype.clone_from(dtype)),
        Damage::Extra(t, extra) => change(t, &|tensor| tensor.extra.clone_from(extra)),
        Damage::Metadata(text) => table.metadata = Some(text.clone()),
        Damage::Data(delta) => table.data_len = table.data_len.saturating_add_signed(*delta),
        _ => {}
    }
    let mut bytes = table.bytes();
    match damage {
        Damage::LengthField(delta) => {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            bytes[..8].copy_from_slice(&length.wrapping_add_signed(*delta as i64).to_le_bytes());
        }
        Damage::Byte(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Damage::LostByte(at) => {
            bytes.remove(at.index(bytes.len()));
        }
        _ => {}
    }
    bytes
}

/// Where this reader is stricter than the reference, by the list in the documentation of `format::header`.
fn documented_as_stricter(fault: &HeaderFault) -> bool {
    matches!(fault, HeaderFault::DuplicateKey { .. })
        || matches!(fault, HeaderFault::Size { fault: SizeFault::Overflow, shape, .. } if shape.contains(&0))
}

/// This reader's verdict without a disk: framing as in `Header::read`, the rest by `Header::parse`.
fn parse(bytes: &[u8]) -> Option<Result<Header, HeaderFault>> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().unwrap());
    let text = bytes.get(8..)?.get(..usize::try_from(length).ok()?)?;
    Some(Header::parse(text, bytes.len() as u64))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn legal_tables_are_accepted_and_mean_the_same(table in tables()) {
        let bytes = table.bytes();
        let header = parse(&bytes).unwrap().unwrap();
        same_tables(&header, &reference(&bytes).unwrap());
    }

    #[test]
    fn damaged_tables_get_the_same_verdict(table in tables(), damage in damages()) {
        let bytes = damaged(table, &damage);
        let theirs = reference(&bytes);
        match parse(&bytes) {
            Some(Ok(header)) => {
                let theirs = theirs.expect("the reference refuses what this reader accepts");
                same_tables(&header, &theirs);
            }
            Some(Err(fault)) => prop_assert!(theirs.is_none() || documented_as_stricter(&fault), "{fault}"),
            None => prop_assert!(theirs.is_none()),
        }
    }
}

proptest! {
    // Files on disk are slower than slices; they add only the framing.
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_get_the_verdict_of_their_bytes(table in tables(), damage in damages()) {
        let bytes = damaged(table, &damage);
        let from_disk = format_support::read(&bytes);
        match parse(&bytes) {
            Some(Ok(header)) => prop_assert_eq!(from_disk, Ok(header)),
            Some(Err(_)) | None => prop_assert!(from_disk.is_err()),
        }
    }
}
