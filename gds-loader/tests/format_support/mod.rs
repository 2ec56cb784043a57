//! Safetensors files written by hand, byte by byte, and the reference's verdict on them.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test support: a failure here is a failure of the test")]

use std::fs::File;
use std::path::{Path, PathBuf};

use gds_loader::format::{FormatError, Header, HeaderFault, HeaderLimits};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;

/// Length field, header, and `data_len` bytes that are never 0 and differ from their neighbours.
pub(crate) fn file_bytes(json: impl AsRef<[u8]>, data_len: usize) -> Vec<u8> {
    let json = json.as_ref();
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.extend((0..data_len).map(|at| (at % 251) as u8 + 1));
    bytes
}

/// An entry of a header.
pub(crate) fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of one tensor called `a`.
pub(crate) fn one(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!("{{{}}}", entry("a", dtype, shape, begin, end))
}

/// A file with F32 vectors of two elements, one for each name; `fill` is in every byte of the data.
pub(crate) fn vectors(names: &[&str], fill: u8) -> Vec<u8> {
    let entry = |(at, name): (usize, &&str)| entry(name, "F32", "[2]", at as u64 * 8, at as u64 * 8 + 8);
    let entries = names.iter().enumerate().map(entry).collect::<Vec<_>>();
    let json = format!("{{{}}}", entries.join(","));
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend(std::iter::repeat_n(fill, names.len() * 8));
    bytes
}

pub(crate) fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
    std::fs::write(path.as_ref(), bytes).unwrap();
    path.as_ref().to_owned()
}

/// Reads the header of a file with these bytes, from disk.
pub(crate) fn read(bytes: &[u8]) -> Result<Header, HeaderFault> {
    read_limited(bytes, &HeaderLimits::default())
}

pub(crate) fn read_limited(bytes: &[u8], limits: &HeaderLimits) -> Result<Header, HeaderFault> {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path().join("x.safetensors"), bytes);
    match Header::read(&File::open(&path).unwrap(), &path, limits) {
        Ok(header) => Ok(header),
        Err(error) => {
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "the message names the file: {error}"
            );
            assert!(error.is_invalid_data());
            match error {
                FormatError::Header { fault, .. } => Err(fault),
                other => unreachable!("a regular file can be read: {other}"),
            }
        }
    }
}

/// The reference's reading of the same bytes.
pub(crate) fn reference(bytes: &[u8]) -> Option<Metadata> {
    SafeTensors::read_metadata(bytes).ok().map(|(_, metadata)| metadata)
}

/// Reads bytes on which this reader and the reference must agree.
pub(crate) fn agreed(bytes: &[u8]) -> Result<Header, HeaderFault> {
    let (ours, theirs) = (read(bytes), reference(bytes));
    let shown = bytes.get(..300).unwrap_or(bytes).escape_ascii();
    assert_eq!(ours.is_ok(), theirs.is_some(), "{ours:?} for {shown}");
    if let (Ok(header), Some(metadata)) = (&ours, &theirs) {
        same_tables(header, metadata);
    }
    ours
}

/// Asserts that both readings mean the same.
pub(crate) fn same_tables(header: &Header, reference: &Metadata) {
    let theirs = reference.tensors();
    assert_eq!(header.tensors.len(), theirs.len());
    for tensor in &header.tensors {
        let info = theirs[&*tensor.name];
        let shape = info.shape.iter().map(|&dimension| dimension as u64).collect::<Vec<_>>();
        assert_eq!(tensor.dtype.to_string(), info.dtype.to_string());
        assert_eq!(*tensor.shape, *shape);
        assert_eq!(tensor.offset - header.data_offset, info.data_offsets.0 as u64);
        assert_eq!(tensor.len, (info.data_offsets.1 - info.data_offsets.0) as u64);
    }
    let metadata = reference.metadata().clone().unwrap_or_default();
    assert_eq!(header.metadata, metadata.into_iter().collect());
}
