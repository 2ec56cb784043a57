//! Shape, dtype, offsets and file length must agree; legal but unusual geometry must be accepted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::fs::File;

use format_support::{agreed, entry, file_bytes, one, read, reference, write};
use gds_loader::format::shape::SizeFault;
use gds_loader::format::{Dtype, Header, HeaderFault, HeaderLimits};

fn header(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

#[test]
fn data_may_begin_at_any_byte() {
    for (dtype, size) in [("U8", 1u64), ("F16", 2), ("F32", 4), ("F64", 8)] {
        let json = one(dtype, "[3]", 0, 3 * size);
        for pad in 0..8 {
            let bytes = file_bytes(format!("{json}{}", " ".repeat(pad)), 3 * size as usize);
            let header = agreed(&bytes).unwrap();
            let tensor = &header.tensors[0];
            let (begin, end) = (tensor.offset as usize, (tensor.offset + tensor.len) as usize);
            assert_eq!(begin, 8 + json.len() + pad);
            let data = (0..end - begin).map(|at| at as u8 + 1).collect::<Vec<_>>();
            assert_eq!(bytes[begin..end], data);
        }
    }
}

#[test]
fn tensors_are_packed_without_alignment() {
    let json = header(&[
        entry("a", "U8", "[3]", 0, 3),
        entry("b", "F32", "[2]", 3, 11),
        entry("c", "F64", "[1]", 11, 19),
    ]);
    let header = agreed(&file_bytes(json, 19)).unwrap();
    let places = header.tensors.iter().map(|t| (t.offset - header.data_offset, t.len)).collect::<Vec<_>>();
    assert_eq!(places, [(0, 3), (3, 8), (11, 8)]);
}

#[test]
fn empty_tensors_are_legal_anywhere() {
    let empty = |name: &str, at: u64, shape: &str| entry(name, "F32", shape, at, at);
    let full = |name: &str, at: u64| entry(name, "U8", "[4]", at, at + 4);
    for (entries, data_len) in [
        (vec![empty("e", 0, "[0]")], 0),
        (vec![empty("e", 0, "[2,0]"), full("a", 0)], 4),
        (vec![full("a", 0), empty("e", 0, "[0]")], 4),
        (vec![full("a", 0), empty("e", 4, "[0]")], 4),
        (vec![full("a", 0), empty("e", 4, "[0,7]"), full("b", 4)], 8),
        (
            vec![
                full("b", 4),
                empty("f", 4, "[0]"),
                empty("e", 4, "[0,3]"),
                full("a", 0),
                empty("g", 8, "[0]"),
            ],
            8,
        ),
    ] {
        let count = entries.len();
        let header = agreed(&file_bytes(header(&entries), data_len)).unwrap();
        assert_eq!(header.tensors.len(), count);
    }
    for (shape, begin, end) in [("[1]", 0, 0), ("[]", 0, 0), ("[0]", 0, 4)] {
        assert!(agreed(&file_bytes(one("F32", shape, begin, end), end as usize)).is_err());
    }
    // Inside another tensor, or beyond the end, even nothing has no place.
    assert!(agreed(&file_bytes(header(&[full("a", 0), empty("e", 2, "[0]")]), 4)).is_err());
    assert!(agreed(&file_bytes(header(&[full("a", 0), empty("e", 5, "[0]")]), 4)).is_err());
}

#[test]
fn empty_tensors_at_one_offset_keep_the_order_of_the_header() {
    let names = ["z", "m", "a", "k"];
    let json = header(&names.map(|name| entry(name, "F32", "[0]", 0, 0)));
    let header = agreed(&file_bytes(json, 0)).unwrap();
    assert_eq!(header.tensors.iter().map(|t| &*t.name).collect::<Vec<_>>(), names);
}

#[test]
fn scalars_are_not_empty() {
    for (shape, len) in [("[]", 4), ("[0]", 0), ("[1]", 4), ("[1,1]", 4)] {
        let header = agreed(&file_bytes(one("F32", shape, 0, len), len as usize)).unwrap();
        assert_eq!(header.tensors[0].len, len);
    }
}

#[test]
fn every_dtype_has_the_references_size() {
    for dtype in Dtype::ALL {
        for elements in [0u64, 1, 2, 3, 4, 8] {
            let bits = elements * dtype.bits();
            let json = one(dtype.as_str(), &format!("[{elements}]"), 0, bits / 8);
            let result = agreed(&file_bytes(json, (bits / 8) as usize));
            match bits % 8 {
                0 => assert_eq!(result.unwrap().tensors[0].dtype, dtype),
                _ => assert!(matches!(
                    result,
                    Err(HeaderFault::Size { fault: SizeFault::PartialByte { bits: found }, .. }) if found == bits
                )),
            }
        }
    }
    let json = header(&[
        entry("a", "F4", "[1,1,2]", 0, 1),
        entry("b", "F32", "[1]", 1, 5),
        entry("c", "F6_E3M2", "[4]", 5, 8),
    ]);
    assert!(agreed(&file_bytes(json, 8)).is_ok());
}

#[test]
fn unknown_dtypes_are_named() {
    for dtype in ["F128", "f32", "", "BFLOAT16"] {
        match agreed(&file_bytes(one(dtype, "[1]", 0, 4), 4)) {
            Err(HeaderFault::Entry { tensor, message }) => {
                assert!(tensor == "a" && message.contains(dtype), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn offsets_must_be_two_whole_numbers_that_span_the_tensor() {
    for offsets in [
        "[0,4]",
        "[0,4000001]",
        "[4000000,0]",
        "[-4,4]",
        "[0,-4]",
        "[0.0,4000000.0]",
        "[0]",
        "[]",
        "[0,4000000,1]",
        "4000000",
        "null",
        "\"0\"",
        "[\"0\",\"4000000\"]",
        "{\"0\":0}",
        "[0,18446744073709551616]",
        "[-0,4000000]",
        "[0,4e6]",
        "[null,1]",
    ] {
        let json = format!(r#"{{"a":{{"dtype":"F32","shape":[1000,1000],"data_offsets":{offsets}}}}}"#);
        let fault = agreed(&file_bytes(&json, 4)).unwrap_err();
        assert!(fault.to_string().contains("`a`"), "{fault}");
    }
    let fault = agreed(&file_bytes(one("F32", "[1000,1000]", 0, 4), 4)).unwrap_err();
    assert!(matches!(fault, HeaderFault::SizeMismatch { expected: 4_000_000, found: 4, .. }), "{fault}");
    let fault = agreed(&file_bytes(one("F32", "[1]", 8, 4), 4)).unwrap_err();
    assert_eq!(fault, HeaderFault::OffsetsReversed { tensor: "a".into(), begin: 8, end: 4 });
    for missing in ["dtype", "shape", "data_offsets"] {
        let json = one("F32", "[1]", 0, 4).replace(missing, "other");
        let fault = agreed(&file_bytes(json, 4)).unwrap_err();
        assert!(fault.to_string().contains(missing), "{fault}");
    }
}

#[test]
fn dimensions_are_whole_numbers_whose_product_does_not_wrap() {
    for (shape, len) in [
        ("[4294967296,4294967296]", 0),
        ("[9223372036854775810,2]", 16),
        ("[-1,-4]", 16),
        ("[18446744073709551616]", 0),
        ("[1.5]", 6),
        ("[1e3]", 4000),
        ("[4611686018427387905]", 4),
        ("[2305843009213693952]", 0),
        ("[\"4\"]", 16),
        ("4", 16),
        ("null", 4),
        ("[null]", 4),
        ("[-0]", 0),
        ("{}", 4),
        ("[[4]]", 16),
    ] {
        let fault = agreed(&file_bytes(one("F32", shape, 0, len), len as usize)).unwrap_err();
        assert!(fault.to_string().contains("`a`"), "{shape}: {fault}");
    }
}

#[test]
fn a_zero_does_not_excuse_an_overflow_wherever_it_stands() {
    const HUGE: &str = "9223372036854775808";
    for (shape, reference_accepts) in [
        (format!("[0,{HUGE},{HUGE}]"), true),
        (format!("[{HUGE},0,{HUGE}]"), true),
        (format!("[{HUGE},{HUGE},0]"), false),
    ] {
        let bytes = file_bytes(one("F32", &shape, 0, 0), 0);
        assert_eq!(reference(&bytes).is_some(), reference_accepts);
        let fault = read(&bytes).unwrap_err();
        assert!(matches!(fault, HeaderFault::Size { fault: SizeFault::Overflow, .. }), "{fault}");
    }
    assert!(agreed(&file_bytes(one("F32", &format!("[{HUGE},0]"), 0, 0), 0)).is_ok());
    assert!(agreed(&file_bytes(one("F32", &format!("[0,{HUGE}]"), 0, 0), 0)).is_ok());
}

#[test]
fn ends_that_overflow_with_the_header_are_refused() {
    // Eight tensors of 2^61 - 1 bytes and one of 7: they end at 2^64 - 1.
    let size = (1u64 << 61) - 1;
    let mut entries = (0..8)
        .map(|at| entry(&at.to_string(), "U8", &format!("[{size}]"), at * size, (at + 1) * size))
        .collect::<Vec<_>>();
    entries.push(entry("rest", "U8", "[7]", 8 * size, u64::MAX));
    let fault = read(&file_bytes(header(&entries), 0)).unwrap_err();
    assert_eq!(fault, HeaderFault::LengthOverflow { data_len: u64::MAX });
}

#[test]
fn the_file_ends_where_the_tensors_do() {
    let json = header(&[entry("a", "U8", "[5000]", 0, 5000), entry("b", "F32", "[2000]", 5000, 13000)]);
    let good = file_bytes(&json, 13000);
    let expected = good.len() as u64;
    for found in [expected - 1, expected - 4096, 8 + json.len() as u64 + 7000, 8 + json.len() as u64] {
        let fault = agreed(&good[..found as usize]).unwrap_err();
        assert_eq!(fault, HeaderFault::Truncated { expected, found });
    }
    let file_len = 8 + json.len() as u64 - 1;
    let fault = agreed(&good[..file_len as usize]).unwrap_err();
    assert_eq!(fault, HeaderFault::HeaderBeyondFile { header_len: json.len() as u64, file_len });
    let mut longer = good;
    longer.push(0);
    assert_eq!(agreed(&longer), Err(HeaderFault::TrailingBytes { expected, found: expected + 1 }));
}

#[test]
fn holes_and_overlaps_are_refused() {
    let f32s = |places: &[(u64, u64)]| {
        let entry = |(at, &(begin, end)): (usize, &(u64, u64))| {
            entry(&format!("t{at}"), "F32", &format!("[{}]", (end - begin) / 4), begin, end)
        };
        header(&places.iter().enumerate().map(entry).collect::<Vec<_>>())
    };
    let fault = |places: &[(u64, u64)], len| agreed(&file_bytes(f32s(places), len)).unwrap_err();
    assert_eq!(
        fault(&[(0, 4), (8, 12)], 12),
        HeaderFault::Hole { tensor: "t1".into(), expected: 4, found: 8 }
    );
    assert_eq!(fault(&[(8, 12)], 12), HeaderFault::Hole { tensor: "t0".into(), expected: 0, found: 8 });
    assert_eq!(
        fault(&[(0, 8), (4, 12)], 12),
        HeaderFault::Overlap { tensor: "t1".into(), expected: 8, found: 4 }
    );
    assert_eq!(
        fault(&[(0, 8), (0, 8)], 8),
        HeaderFault::Overlap { tensor: "t1".into(), expected: 8, found: 0 }
    );
}

#[test]
fn the_order_of_keys_is_free() {
    let orders = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]];
    for order in orders {
        let entries = order.map(|at: u64| entry(&format!("t{at}"), "F32", "[1]", at * 4, at * 4 + 4));
        let header = agreed(&file_bytes(header(&entries), 20)).unwrap();
        let names = header.tensors.iter().map(|t| &*t.name).collect::<Vec<_>>();
        assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"], "in the order of their bytes");
    }
}

#[test]
fn tensors_may_be_larger_than_4_gib() {
    let folder = tempfile::tempdir().unwrap();
    let len = (5u64 << 30) + 3;
    let json = one("U8", &format!("[{len}]"), 0, len);
    let path = write(folder.path().join("x.safetensors"), file_bytes(&json, 0));
    File::options().write(true).open(&path).unwrap().set_len(8 + json.len() as u64 + len).unwrap();
    let header = Header::read(&File::open(&path).unwrap(), &path, &HeaderLimits::default()).unwrap();
    assert_eq!(header.tensors[0].len, len);
}

/// A header may give a tensor as many dimensions as it has room for.
#[test]
fn of_a_long_shape_a_message_has_the_beginning() {
    let dimensions = vec!["1"; 1_000_000].join(",");
    for (shape, len) in [(format!("[{dimensions}]"), 5), (format!("[{dimensions},18446744073709551615]"), 8)]
    {
        let message = agreed(&file_bytes(one("F32", &shape, 0, len), len as usize)).unwrap_err().to_string();
        assert!(message.contains("[1, 1, ") && message.len() < 2000, "{} bytes", message.len());
    }
}
