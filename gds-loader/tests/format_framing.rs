//! Bytes that come before any number can be trusted: the length field and the text of the header.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::fs::File;

use format_support::{agreed, entry, file_bytes, one, read, read_limited, write};
use gds_loader::format::{FileKind, Header, HeaderFault, HeaderLimits};

fn json_fault(json: &str) -> HeaderFault {
    agreed(&file_bytes(json, 4)).unwrap_err()
}

#[test]
fn a_header_above_the_limit_is_refused_by_its_length_alone() {
    let limits = HeaderLimits { max_bytes: 4096 };
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path().join("x.safetensors"), 4097u64.to_le_bytes());
    File::options().write(true).open(&path).unwrap().set_len(4096 + 100).unwrap();
    let error = Header::read(&File::open(&path).unwrap(), &path, &limits).unwrap_err().to_string();
    assert!(error.contains("4097") && error.contains("4096"), "{error}");

    let at_limit = |len: usize| format!("{:len$}", one("F32", "[1]", 0, 4));
    assert!(read_limited(&file_bytes(at_limit(4096), 4), &limits).is_ok());
    let fault = HeaderFault::HeaderTooLarge { header_len: 4097, max_bytes: 4096 };
    assert_eq!(read_limited(&file_bytes(at_limit(4097), 4), &limits), Err(fault));
}

#[test]
fn the_default_limit_is_the_references() {
    assert_eq!(HeaderLimits::default().max_bytes, 100_000_000);
    let folder = tempfile::tempdir().unwrap();
    // The issue's prefix: 132,095,296 bytes of header in a file of 7 GB.
    let path = write(folder.path().join("x.safetensors"), [0x40, 0x9d, 0xdf, 0x07, 0, 0, 0, 0]);
    File::options().write(true).open(&path).unwrap().set_len(7_000_000_000).unwrap();
    let error =
        Header::read(&File::open(&path).unwrap(), &path, &HeaderLimits::default()).unwrap_err().to_string();
    assert!(error.contains("132095296") && error.contains("100000000"), "{error}");
}

#[test]
fn what_is_not_safetensors_is_named() {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a\nsize 4987202208\n";
    let mut gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec();
    gzip.resize(600_000, b'\xaa');
    let files: [(&[u8], FileKind, &str); 8] = [
        (lfs, FileKind::LfsPointer { size: Some(4_987_202_208) }, "4987202208"),
        (b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl", FileKind::Zip, "zip"),
        (b"\x80\x02}q\0(X\x06\0\0\0weightq\x01", FileKind::Pickle, "pickle"),
        (b"<!DOCTYPE html><html><body>404", FileKind::Html, "HTML"),
        // Its first 8 bytes are a plausible length.
        (&gzip, FileKind::Compressed { by: "gzip" }, "gzip"),
        (b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0", FileKind::Gguf, "GGUF"),
        (br#"{"weight_map":{"a":"b"}}"#, FileKind::Json, "JSON"),
        (b"Entry not found", FileKind::Text { first_line: "Entry not found".into() }, "Entry not found"),
    ];
    for (bytes, kind, word) in files {
        let fault = agreed(bytes).unwrap_err();
        assert_eq!(fault, HeaderFault::NotSafetensors(kind));
        let message = fault.to_string();
        assert!(message.contains(word) && !message.contains("limit"), "{message}");
    }
}

#[test]
fn a_truncated_file_is_not_taken_for_something_else() {
    // As a length, 640 and 1152 begin like pickles do, and 0x5a42 like bzip2 would without its h.
    for header_len in [640u64, 1152, 0x5a42, 0x8b1f] {
        let json = format!("{:width$}", one("F32", "[1]", 0, 4), width = header_len as usize);
        let bytes = file_bytes(json, 4);
        for len in [8, 9, 100] {
            let fault = agreed(&bytes[..len]).unwrap_err();
            assert_eq!(fault, HeaderFault::HeaderBeyondFile { header_len, file_len: len as u64 });
        }
        assert!(agreed(&bytes).is_ok());
    }
}

#[test]
fn files_too_short_for_a_header() {
    for len in 0..8 {
        assert_eq!(agreed(&vec![0; len]), Err(HeaderFault::HeaderTooSmall { file_len: len as u64 }));
    }
    assert_eq!(agreed(&[0; 8]), Err(HeaderFault::EmptyHeader));
    assert_eq!(agreed(&[0; 4096]), Err(HeaderFault::EmptyHeader));
    let fault = HeaderFault::HeaderBeyondFile { header_len: 1, file_len: 8 };
    assert_eq!(agreed(&1u64.to_le_bytes()), Err(fault));
}

#[test]
fn padding_is_of_spaces() {
    let json = one("F32", "[1]", 0, 4);
    for count in 1..=8 {
        let padded = |pad: &str| file_bytes(format!("{json}{}", pad.repeat(count)), 4);
        assert_eq!(agreed(&padded("\0")), Err(HeaderFault::NulPadding { count }));
        let mut spaced = agreed(&padded(" ")).unwrap();
        spaced.tensors[0].offset -= count as u64;
        assert_eq!(spaced.tensors, agreed(&file_bytes(&json, 4)).unwrap().tensors);
    }
    assert!(HeaderFault::NulPadding { count: 3 }.to_string().contains("3 NUL bytes"));
}

#[test]
fn zeros_that_stand_for_what_was_never_written_are_not_called_padding() {
    let json = one("F32", "[1]", 0, 4);
    let header_len = json.len();
    for written in 0..header_len {
        let text = format!("{}{}", &json[..written], "\0".repeat(header_len - written));
        let fault = agreed(&file_bytes(text, 4)).unwrap_err();
        assert_eq!(
            fault,
            HeaderFault::Unwritten { written: written as u64, header_len: header_len as u64 },
            "{fault}"
        );
    }
    // What is wrong before the zeros is said first.
    let twice = format!("{{{0},{0}}}\0\0", entry("a", "F32", "[1]", 0, 4));
    assert!(matches!(read(&file_bytes(twice, 4)), Err(HeaderFault::DuplicateKey { .. })));
    assert_eq!(json_fault("[]\0"), HeaderFault::NotAnObject { found: "an array" });
    assert_eq!(json_fault(&format!("\u{feff}{json}")), HeaderFault::ByteOrderMark);
    assert!(matches!(json_fault(&format!("{json}\0 ")), HeaderFault::Json { .. }));
}

#[test]
fn metadata_must_be_strings() {
    for (value, found) in [
        ("0", "a number"),
        ("-1.5", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
        ("[1,[2]]", "an array"),
        (r#"{"deep":{}}"#, "an object"),
    ] {
        let entry = entry("a", "F32", "[1]", 0, 4);
        let fault = json_fault(&format!(r#"{{"__metadata__":{{"good":"x","n":{value}}},{entry}}}"#));
        assert_eq!(fault, HeaderFault::MetadataValue { key: "n".into(), found });
    }
    for value in ["[]", "7", "\"text\"", "true"] {
        let fault = json_fault(&format!(r#"{{"__metadata__":{value},{}}}"#, entry("a", "F32", "[1]", 0, 4)));
        assert!(matches!(fault, HeaderFault::Metadata { .. }), "{fault}");
    }
    let absent = format!(r#"{{"__metadata__":null,{}}}"#, entry("a", "F32", "[1]", 0, 4));
    assert!(agreed(&file_bytes(absent, 4)).unwrap().metadata.is_empty());
}

#[test]
fn no_tensors_is_legal() {
    for json in
        ["{}", "{}      ", r#"{"__metadata__":{}}"#, r#"{"__metadata__":{"format":"pt","é":"\u00fc"}}"#]
    {
        let header = agreed(&file_bytes(json, 0)).unwrap();
        assert!(header.tensors.is_empty());
        assert_eq!(header.data_offset, header.file_len);
    }
}

#[test]
fn a_key_must_not_appear_twice_at_any_level() {
    let a = |begin, end| entry("a", "U8", &format!("[{}]", end - begin), begin, end);
    let cases = [
        (format!("{{{},{}}}", a(0, 2), a(2, 4)), "a", "the header"),
        (format!("{{{},{}}}", a(0, 4), a(0, 4)), "a", "the header"),
        (format!("{{{},{}}}", a(0, 0), a(0, 4)), "a", "the header"),
        // The same name, differently written.
        (
            format!(r#"{{{},"\u0061":{{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}}}"#, a(0, 4)),
            "a",
            "the header",
        ),
        (format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{}}}"#, a(0, 4)), "__metadata__", "the header"),
        (format!(r#"{{"__metadata__":null,{},"__metadata__":{{}}}}"#, a(0, 4)), "__metadata__", "the header"),
        (format!(r#"{{"__metadata__":{{"k":"1","k":"1"}},{}}}"#, a(0, 4)), "k", "`__metadata__`"),
        (
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#.to_owned(),
            "dtype",
            "the entry of tensor `a`",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"shape":[4]}}"#.to_owned(),
            "shape",
            "the entry of tensor `a`",
        ),
        (
            r#"{"a":{"data_offsets":[0,4],"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#.to_owned(),
            "data_offsets",
            "the entry of tensor `a`",
        ),
        (
            r#"{"a":{"x":1,"x":1,"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#.to_owned(),
            "x",
            "the entry of tensor `a`",
        ),
        (
            r#"{"a":{"x":[{"y":1,"y":2}],"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#.to_owned(),
            "y",
            "the entry of tensor `a`",
        ),
    ];
    for (json, key, within) in cases {
        let fault = read(&file_bytes(&json, 4)).unwrap_err();
        assert_eq!(fault, HeaderFault::DuplicateKey { key: key.into(), within: within.into() }, "{json}");
        assert!(fault.to_string().contains("twice"), "{fault}");
    }
}

#[test]
fn a_header_of_any_length_around_any_buffer_size_is_whole() {
    let json = one("F32", "[1]", 0, 4);
    for size in [512usize, 1024, 4096, 8192, 65_536, 100_000, 1 << 20] {
        for len in size - 9..=size + 9 {
            let padded = format!("{json}{}", " ".repeat(len - json.len()));
            let header = agreed(&file_bytes(padded, 4)).unwrap();
            assert_eq!(header.data_offset, 8 + len as u64);
            // The same length where the last bytes matter: a tensor's name fills it.
            let name = "n".repeat(len - entry("", "F32", "[1]", 0, 4).len() - 2);
            let full = format!("{{{}}}", entry(&name, "F32", "[1]", 0, 4));
            assert_eq!(full.len(), len);
            assert_eq!(agreed(&file_bytes(full, 4)).unwrap().tensors[0].name.len(), name.len());
        }
    }
}

#[test]
fn absurd_lengths_are_compared_without_overflow() {
    let good = file_bytes(one("F32", "[1]", 0, 4), 4);
    let len = good.len() as u64;
    for header_len in [u64::MAX, u64::MAX - 7, i64::MAX as u64, len, len - 7] {
        let mut bytes = good.clone();
        bytes[..8].copy_from_slice(&header_len.to_le_bytes());
        let fault = HeaderFault::HeaderBeyondFile { header_len, file_len: len };
        assert_eq!(agreed(&bytes), Err(fault));
    }
    // The header may reach to the end of the file, so that the data is taken for JSON.
    let mut bytes = good;
    bytes[..8].copy_from_slice(&(len - 8).to_le_bytes());
    assert!(matches!(agreed(&bytes), Err(HeaderFault::Json { .. })));
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let deep = "[".repeat(100_000);
    assert_eq!(json_fault(&deep), HeaderFault::NotAnObject { found: "an array" });
    for json in [
        format!(r#"{{"a":{deep}"#),
        format!(r#"{{"a":{{"shape":{deep}"#),
        format!(r#"{{"a":{{"unknown":{deep}"#),
        format!(r#"{{"__metadata__":{{"k":{deep}"#),
        r#"{"a":"#.repeat(100_000),
        format!(r#"{{"a":{{"unknown":{}"#, r#"{"a":"#.repeat(100_000)),
    ] {
        json_fault(&json);
    }
    // Closed properly, and just deep enough to be refused by the reference too.
    for depth in [100, 120, 124, 125, 126, 127, 128, 200] {
        let value = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let json = format!(r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4],"unknown":{value}}}}}"#);
        let _verdict = agreed(&file_bytes(json, 4));
    }
}

#[test]
fn a_header_must_be_an_object() {
    for (json, found) in [
        ("[]", "an array"),
        ("\"text\"", "a string"),
        ("17", "a number"),
        ("-1", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
        ("     ", "nothing but blanks"),
    ] {
        assert_eq!(agreed(&file_bytes(json, 4)), Err(HeaderFault::NotAnObject { found }));
    }
    for json in ["{", "{]", "{}{}", "{},", "{} x", "{'a':1}"] {
        let fault = agreed(&file_bytes(json, 4)).unwrap_err();
        assert!(matches!(fault, HeaderFault::Json { .. }), "{fault}");
    }
}

#[test]
fn a_header_must_be_text() {
    for (position, byte) in [(0, 0xff), (2, 0xc3), (20, 0x80)] {
        let mut json = one("F32", "[1]", 0, 4).into_bytes();
        json[position] = byte;
        let fault = agreed(&file_bytes(json, 4)).unwrap_err();
        assert_eq!(fault, HeaderFault::NotUtf8 { valid_up_to: position });
    }
    let surrogate = format!("{{{}}}", entry(r"\ud800", "F32", "[1]", 0, 4));
    assert!(agreed(&file_bytes(surrogate, 4)).is_err());
}

#[test]
fn blanks_before_the_object_and_fields_nobody_knows_are_accepted_as_by_the_reference() {
    let json = r#"
        {"a": {"extra": {"x": [1, 2.5e3, null, "s"]}, "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    assert_eq!(agreed(&file_bytes(json, 4)).unwrap().tensors.len(), 1);
    assert_eq!(agreed(&file_bytes(r#"{"a":["F32",[1],[0,4]]}"#, 4)).unwrap().tensors.len(), 1);
    assert_eq!(
        agreed(&file_bytes(r#"{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4))
            .unwrap()
            .tensors
            .len(),
        1
    );
    assert!(agreed(&file_bytes(r#"{"a":["F32",[1],[0,4],1]}"#, 4)).is_err());
    assert!(agreed(&file_bytes(r#"{"a":["F32",[1]]}"#, 4)).is_err());
}

#[test]
fn a_dtype_may_be_written_as_serde_writes_an_enum() {
    for dtype in [r#"{"F32":null}"#, r#"{"F32":{}}"#, r#"{"F32":1}"#, r#"["F32"]"#, "0", "null"] {
        let json = format!(r#"{{"a":{{"dtype":{dtype},"shape":[1],"data_offsets":[0,4]}}}}"#);
        let _verdict = agreed(&file_bytes(json, 4));
    }
}
