//! Headers: this reader and the `safetensors` crate give the same verdict and read the same tensors, but for what
//! [`Stricter`] lists.

use std::fs::File;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use gds_loader::format::{Header, HeaderFault, HeaderLimits, NewTensor, write};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;

use crate::edit::edit;
use crate::model::Model;
use crate::reference::{self, Stricter};

/// Bytes before the header's text.
const LENGTH_FIELD: u64 = 8;

/// The first byte of an input says what the others are.
pub fn run(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => file(rest),
        1 => text(rest),
        _ => drop(edited(&mut Unstructured::new(rest)).map(|(json, file_len)| parse(&json, file_len))),
    }
}

/// The bytes of a whole file.
fn file(bytes: &[u8]) {
    static MEMORY: LazyLock<File> = LazyLock::new(|| {
        // SAFETY: the name is a C string.
        let descriptor = unsafe { libc::memfd_create(c"header".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just made, and nothing else owns it.
        unsafe { File::from_raw_fd(descriptor) }
    });
    MEMORY.set_len(bytes.len() as u64).unwrap();
    MEMORY.write_all_at(bytes, 0).unwrap();
    let ours = Header::read(&MEMORY, Path::new("x.safetensors"), &HeaderLimits::default());
    let text = text_of(bytes);
    let theirs = text.and_then(|text| reference::metadata(text, bytes.len() as u64));
    if text.is_none_or(|text| !reference::wraps(text)) {
        // What stands in for the reference where its sums would panic says what it says.
        assert_eq!(theirs.is_some(), SafeTensors::read_metadata(bytes).is_ok());
    }
    match ours {
        Ok(header) => compare(text.unwrap_or_default(), Ok(header), theirs),
        Err(error) => {
            let shown = error.to_string();
            assert!(error.is_invalid_data(), "{shown}");
            let fault = |text| Header::parse(text, bytes.len() as u64).err();
            match text.and_then(fault) {
                Some(fault) => compare(text.unwrap_or_default(), Err(fault), theirs),
                None => assert!(theirs.is_none(), "{shown}"),
            }
        }
    }
}

/// The text of a header in a file of the length that it asks for.
fn text(json: &[u8]) {
    let data_len = reference::data_len(json).unwrap_or_default();
    parse(json, (LENGTH_FIELD + json.len() as u64).wrapping_add(data_len));
}

/// A legal header, changed in a few places, and the length of its file, which may be another as well.
fn edited(u: &mut Unstructured<'_>) -> Result<(Vec<u8>, u64)> {
    let model = Model::arbitrary(u)?;
    let mut json = model.header_text();
    let file_len = LENGTH_FIELD + json.len() as u64 + model.data_len();
    let before = json.len();
    edit(u, &mut json)?;
    let file_len = file_len.wrapping_add(json.len() as u64).wrapping_sub(before as u64);
    let file_len = match u.int_in_range(0..=7)? {
        0 => file_len.wrapping_add_signed(i64::from(u.arbitrary::<i8>()?)),
        1 => u.arbitrary()?,
        // As long as the changed offsets ask for.
        2 | 3 => reference::data_len(&json)
            .map_or(file_len, |len| (LENGTH_FIELD + json.len() as u64).wrapping_add(len)),
        _ => file_len,
    };
    Ok((json, file_len))
}

fn parse(json: &[u8], file_len: u64) {
    compare(json, Header::parse(json, file_len), reference::metadata(json, file_len));
}

/// The header's text where the file has all of it.
fn text_of(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn compare(json: &[u8], ours: std::result::Result<Header, HeaderFault>, theirs: Option<Metadata>) {
    let stricter = theirs.as_ref().and_then(|theirs| Stricter::of(json, theirs));
    match (ours, theirs) {
        (Ok(header), Some(theirs)) => {
            assert_eq!(stricter, None, "accepted against the list");
            reference::same(&header, &theirs);
            written_again(&header);
        }
        (Ok(_), None) => panic!("this reader accepts what the reference refuses"),
        (Err(fault), Some(_)) => assert!(stricter.is_some(), "refused by this reader alone: {fault}"),
        // A message is made of whatever the file says.
        (Err(fault), None) => assert!(!fault.to_string().is_empty()),
    }
}

/// What was read is written so that both read the same again.
fn written_again(header: &Header) {
    let tensors: Vec<NewTensor<'_>> = header
        .tensors
        .iter()
        .map(|entry| NewTensor { name: &entry.name, dtype: entry.dtype, shape: &entry.shape })
        .collect();
    let Ok(written) = write::header(&tensors, &header.metadata, &HeaderLimits::default()) else {
        // Padding and plainer words may bring a file that just fits beyond what a file can be.
        assert!(header.file_len > i64::MAX as u64 - (1 << 20), "{} bytes cannot be written", header.file_len);
        return;
    };
    let text = &written.bytes[LENGTH_FIELD as usize..];
    let again = Header::parse(text, written.file_len).unwrap();
    assert_eq!(again.metadata, header.metadata);
    assert_eq!(again.tensors.len(), header.tensors.len());
    let shift = |offset: u64| offset - header.data_offset + written.bytes.len() as u64;
    for ((was, is), offset) in header.tensors.iter().zip(&again.tensors).zip(&written.offsets) {
        assert_eq!((&was.name, was.dtype, &was.shape, was.len), (&is.name, is.dtype, &is.shape, is.len));
        assert_eq!((shift(was.offset), *offset), (is.offset, is.offset));
    }
    let theirs = reference::metadata(text, written.file_len).expect("the reference reads it");
    reference::same(&again, &theirs);
}
