//! The header of one safetensors file: read, bounded, checked.
//!
//! The length field is compared with the limit and with the length of the file before anything is allocated for it, and every
//! number of the table is checked against the others and against the file. What comes out may be trusted:
//! tensors are in the order of their bytes, cover the file's data exactly, and end where the file ends.
//!
//! # Stricter than the reference
//!
//! The verdict is that of the `safetensors` crate 0.8, except that these are refused too:
//!
//! - a key that appears twice in any object (tensor names, the fields of an entry, `__metadata__` and its keys, objects inside
//!   fields the format does not know), because readers disagree on which one counts;
//! - a shape whose dimensions other than 0 overflow 64 bits when multiplied, wherever the 0 stands: the reference accepts
//!   `[0, 2^63, 2^63]` and refuses `[2^63, 2^63, 0]`;
//! - tensors whose ends overflow 64 bits together with the header, where the reference's sum wraps in a release build.
//!
//! A header limit other than the default [`HeaderLimits`] also changes the verdict, in the direction of the change.
//! The limit holds while reading; a writer of this format must hold it too, or it writes what nobody reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::dtype::Dtype;
use super::fault::{FormatError, HeaderFault};
use super::geometry::{self, LENGTH_FIELD};
use super::shape::Shape;
use super::sniff::{self, FileKind};
use super::table;

/// How much JSON is read at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderLimits {
    /// The longest header or index in bytes; memory in this order is spent on it. Above `u32::MAX` it counts as that.
    pub max_bytes: u64,
}

impl HeaderLimits {
    /// The limit in force: within it, tensors are few enough to be numbered in 32 bits.
    pub(crate) fn effective(&self) -> u64 {
        self.max_bytes.min(u32::MAX.into())
    }
}

impl Default for HeaderLimits {
    /// 100,000,000 bytes, as in the reference.
    fn default() -> Self {
        HeaderLimits { max_bytes: 100_000_000 }
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name, unique in the file.
    pub name: Box<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Shape,
    /// Where its bytes begin, in bytes from the start of the file.
    pub offset: u64,
    /// How many bytes it has: what shape and dtype need, which may be 0.
    pub len: u64,
}

/// A header that agrees with itself and with the length of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their bytes; empty ones that share an offset in the order of the header.
    pub tensors: Vec<TensorEntry>,
    /// `__metadata__`, empty where there is none.
    pub metadata: BTreeMap<String, String>,
    /// Where the tensors' bytes begin, in bytes from the start of the file.
    pub data_offset: u64,
    /// Length of the file in bytes: where the last tensor ends.
    pub file_len: u64,
}

impl Header {
    /// Reads the header of `file`, an open regular file that messages call `path`, and checks it against the file's length.
    ///
    /// # Errors
    /// [`FormatError::Header`] where the bytes are wrong, [`FormatError::Io`] where they cannot be read.
    pub fn read(file: &File, path: &Path, limits: &HeaderLimits) -> Result<Header, FormatError> {
        let located = |error| match error {
            ReadError::Fault(fault) => FormatError::Header { path: path.to_owned(), fault },
            ReadError::Io(doing, source) => FormatError::Io { path: path.to_owned(), doing, source },
        };
        let metadata =
            file.metadata().map_err(|error| located(ReadError::Io("ask for its length", error)))?;
        read(file, metadata.len(), limits).map_err(located)
    }

    /// Parses the text of a header, which is all that stands between the length field and the data, and checks it against the
    /// length of the file in bytes.
    ///
    /// # Errors
    /// Any [`HeaderFault`] but those about the length field.
    pub fn parse(text: &[u8], file_len: u64) -> Result<Header, HeaderFault> {
        let table::Table { mut tensors, metadata } = table::parse(text)?;
        let data_offset = geometry::settle(&mut tensors, text.len() as u64, file_len)?;
        Ok(Header { tensors, metadata, data_offset, file_len })
    }
}

/// A failure that does not know its path yet.
#[derive(Debug)]
enum ReadError {
    Fault(HeaderFault),
    Io(&'static str, io::Error),
}

impl ReadError {
    /// Of a read within a file that was `file_len` bytes long: where it ends there, it has been cut meanwhile.
    fn of(doing: &'static str, error: io::Error, file_len: u64) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => HeaderFault::HeaderCutShort { file_len }.into(),
            _ => ReadError::Io(doing, error),
        }
    }
}

impl From<HeaderFault> for ReadError {
    fn from(fault: HeaderFault) -> Self {
        ReadError::Fault(fault)
    }
}

/// Reads by position, so that the file may be shared; `read_exact_at` goes on after short and interrupted reads.
fn read(file: &impl FileExt, file_len: u64, limits: &HeaderLimits) -> Result<Header, ReadError> {
    let Some(after_length) = file_len.checked_sub(LENGTH_FIELD) else {
        return Err(HeaderFault::HeaderTooSmall { file_len }.into());
    };
    let mut length = [0u8; LENGTH_FIELD as usize];
    let failed = |doing| move |error| ReadError::of(doing, error, file_len);
    file.read_exact_at(&mut length, 0).map_err(failed("read the length of its header"))?;
    let header_len = u64::from_le_bytes(length);
    if header_len == 0 {
        return Err(HeaderFault::EmptyHeader.into());
    }
    let max_bytes = limits.effective();
    let too_large = header_len > max_bytes;
    if too_large || header_len > after_length {
        // The first 8 bytes of a text are a number larger than any file.
        if let Some(kind) = other_kind(file, file_len, too_large && header_len > after_length) {
            return Err(HeaderFault::NotSafetensors(kind).into());
        }
        return Err(if header_len > after_length {
            HeaderFault::HeaderBeyondFile { header_len, file_len }.into()
        } else {
            HeaderFault::HeaderTooLarge { header_len, max_bytes }.into()
        });
    }
    let mut text = vec![0u8; header_len as usize];
    file.read_exact_at(&mut text, LENGTH_FIELD).map_err(failed("read its header"))?;
    Header::parse(&text, file_len).map_err(|fault| match other_kind(file, file_len, false) {
        Some(kind) => HeaderFault::NotSafetensors(kind).into(),
        None => fault.into(),
    })
}

/// What the file is instead, if its first bytes tell. A header that begins as one should is never doubted, unless its length
/// is absurd.
fn other_kind(file: &impl FileExt, file_len: u64, absurd_length: bool) -> Option<FileKind> {
    let mut prefix = vec![0u8; file_len.min(sniff::PREFIX_LEN) as usize];
    file.read_exact_at(&mut prefix, 0).ok()?;
    let begins_well =
        matches!(prefix.get(LENGTH_FIELD as usize), None | Some(b'{' | b' ' | b'\n' | b'\t' | b'\r'));
    if begins_well && !absurd_length { None } else { FileKind::sniff(&prefix) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A file that gives at most `most` bytes a call and is interrupted before each.
    struct Stuttering {
        bytes: Vec<u8>,
        most: usize,
        interrupted: Cell<bool>,
        reads: Cell<usize>,
    }

    impl FileExt for Stuttering {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            self.interrupted.set(!self.interrupted.get());
            if self.interrupted.get() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.reads.set(self.reads.get() + 1);
            let from = &self.bytes[(offset as usize).min(self.bytes.len())..];
            let count = into.len().min(from.len()).min(self.most);
            into[..count].copy_from_slice(&from[..count]);
            Ok(count)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn file(text: &str, data_len: usize, most: usize) -> Stuttering {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len() + data_len, 7);
        Stuttering { bytes, most, interrupted: Cell::new(false), reads: Cell::new(0) }
    }

    const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    #[test]
    fn short_and_interrupted_reads_are_continued() {
        for most in [1, 3, 7, 8, 9, 1000] {
            let file = file(ONE, 8, most);
            let header = read(&file, file.bytes.len() as u64, &HeaderLimits::default()).unwrap();
            assert_eq!(header.tensors[0].offset, 8 + ONE.len() as u64);
            assert_eq!(header.tensors[0].len, 8);
            assert!(file.reads.get() >= file.bytes.len().saturating_sub(8).div_ceil(most));
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_an_error() {
        let promised = file(ONE, 8, 1000).bytes.len() as u64;
        // Within the header's text, and within its length.
        for left in [30, 5, 0] {
            let mut file = file(ONE, 8, 1000);
            file.bytes.truncate(left);
            match read(&file, promised, &HeaderLimits::default()) {
                Err(ReadError::Fault(fault)) => {
                    assert_eq!(fault, HeaderFault::HeaderCutShort { file_len: promised });
                    assert!(fault.to_string().contains("load it again"), "{fault}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_refused_length_reads_no_header() {
        for length in [u64::MAX, i64::MAX as u64, 101, 63, 62 + 1] {
            let mut file = file(ONE, 8, 1000);
            file.bytes[..8].copy_from_slice(&length.to_le_bytes());
            let len = file.bytes.len() as u64;
            assert_eq!(len, 70);
            let result = read(&file, len, &HeaderLimits { max_bytes: 100 });
            assert!(
                matches!(result, Err(ReadError::Fault(HeaderFault::HeaderBeyondFile { .. }))),
                "{result:?}"
            );
            assert_eq!(file.reads.get(), 2, "the length field and the look at the first bytes");
        }
    }
}
