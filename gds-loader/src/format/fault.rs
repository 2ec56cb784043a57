//! What can be wrong with a file, as types that say what was expected, what was found and what to do.

use std::io;
use std::path::PathBuf;

use super::dtype::Dtype;
use super::printable::{Name, Shown};
use super::shape::{Brief, Shape, SizeFault};
use super::sniff::FileKind;

/// A file could not be read as safetensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Its bytes are not a valid safetensors file.
    #[error("{}: {fault}", Shown(path))]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// The operating system would not give the bytes.
    #[error("{}: cannot {doing}: {source}", Shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The answer.
        source: io::Error,
    },
}

impl FormatError {
    /// Whether the bytes are at fault, and not the reading of them: the same file would be refused anywhere.
    pub fn is_invalid_data(&self) -> bool {
        matches!(self, FormatError::Header { .. })
    }
}

/// What is wrong with a safetensors header, or with the file length next to it. All lengths and offsets are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// Shorter than the length field every file begins with.
    #[error(
        "is {}, shorter than the 8-byte length that a safetensors file begins with; \
         probably a placeholder or a failed download: fetch it again",
        if *file_len == 0 { "empty (0 bytes)".to_owned() } else { format!("{file_len} bytes long") }
    )]
    HeaderTooSmall {
        /// Length of the file.
        file_len: u64,
    },
    /// The length field is 0.
    #[error(
        "declares a header of 0 bytes, and even a file without tensors has `{{}}` (2 bytes); \
         probably zeros of an unfinished download: fetch it again"
    )]
    EmptyHeader,
    /// The header is longer than this reader is willing to read.
    #[error(
        "declares a header of {header_len} bytes, more than the {max_bytes} that are read \
         (the reference has a limit of 100000000); spread the tensors over more shards"
    )]
    HeaderTooLarge {
        /// Declared length of the header.
        header_len: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The header would reach beyond the end of the file.
    #[error(
        "declares a header of {header_len} bytes, but only {} bytes follow the length field; \
         the file is truncated or is not safetensors: fetch it again",
        file_len.saturating_sub(8)
    )]
    HeaderBeyondFile {
        /// Declared length of the header.
        header_len: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// The file ended within its header, although it was long enough when it was opened.
    #[error(
        "was {file_len} bytes long when it was opened and ends within its header now; \
         it is being written or was cut off: load it again when its writer is done"
    )]
    HeaderCutShort {
        /// Length of the file when it was opened.
        file_len: u64,
    },
    /// It is something else.
    #[error("is not safetensors: it is {0}")]
    NotSafetensors(FileKind),
    /// The header is not text.
    #[error(
        "the header is not UTF-8 from its byte {valid_up_to} on; the file is damaged or is not safetensors"
    )]
    NotUtf8 {
        /// How many bytes of the header are text.
        valid_up_to: usize,
    },
    /// The JSON is followed by zero bytes.
    #[error(
        "the header is padded with {count} NUL bytes after its JSON; the format pads with spaces (0x20), \
         so have its writer do so"
    )]
    NulPadding {
        /// How many.
        count: usize,
    },
    /// The JSON breaks off, and zero bytes follow.
    #[error(
        "the header's JSON breaks off after {written} of {header_len} bytes, and the rest are zeros; \
         probably an unfinished download: fetch it again"
    )]
    Unwritten {
        /// Bytes of the header before the zeros.
        written: u64,
        /// Length of the header.
        header_len: u64,
    },
    /// A byte order mark, which JSON forbids.
    #[error(
        "the header begins with a byte order mark, which JSON does not allow: have its writer leave it out"
    )]
    ByteOrderMark,
    /// The header is JSON, but no object.
    #[error("the header must be a JSON object, found {found}")]
    NotAnObject {
        /// What it is, in the terms of JSON.
        found: &'static str,
    },
    /// The header is no valid JSON.
    #[error("the header is not valid JSON: {message}")]
    Json {
        /// The parser's words, with line and column.
        message: String,
    },
    /// A key appears twice in one object, so that readers would disagree on which counts.
    #[error(
        "the key `{}` appears twice in {within}; readers disagree on which of the two counts, so neither does",
        Name(key)
    )]
    DuplicateKey {
        /// The repeated key.
        key: String,
        /// Which object holds it.
        within: String,
    },
    /// `__metadata__` is a map of strings to strings.
    #[error("`__metadata__` maps strings to strings, but its key `{}` holds {found}", Name(key))]
    MetadataValue {
        /// The key.
        key: String,
        /// What its value is, in the terms of JSON.
        found: &'static str,
    },
    /// `__metadata__` itself is not an object.
    #[error("`__metadata__` must be an object of strings: {message}")]
    Metadata {
        /// The parser's words.
        message: String,
    },
    /// A tensor's entry does not say what it must in the types it must.
    #[error("tensor `{}`: expected {{dtype, shape, data_offsets: [begin, end]}}: {message}", Name(tensor))]
    Entry {
        /// The tensor.
        tensor: String,
        /// The parser's words.
        message: String,
    },
    /// The end of a tensor's bytes lies before their beginning.
    #[error("tensor `{}`: its data_offsets [{begin}, {end}] end before they begin", Name(tensor))]
    OffsetsReversed {
        /// The tensor.
        tensor: String,
        /// Declared beginning.
        begin: u64,
        /// Declared end.
        end: u64,
    },
    /// Shape and dtype give no size.
    #[error("tensor `{}` of dtype {dtype} and shape {}: {fault}", Name(tensor), Brief(shape))]
    Size {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Shape,
        /// Why.
        fault: SizeFault,
    },
    /// Shape and dtype need another number of bytes than the offsets give.
    #[error(
        "tensor `{}` of dtype {dtype} and shape {} needs {expected} bytes, but its data_offsets span {found}",
        Name(tensor),
        Brief(shape)
    )]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Shape,
        /// What shape and dtype need.
        expected: u64,
        /// What the offsets give.
        found: u64,
    },
    /// Bytes that belong to no tensor.
    #[error(
        "tensor `{}` begins at data offset {found}, but the bytes before it end at {expected}: a hole",
        Name(tensor)
    )]
    Hole {
        /// The tensor after the hole.
        tensor: String,
        /// Where it must begin.
        expected: u64,
        /// Where it begins.
        found: u64,
    },
    /// Bytes that belong to two tensors.
    #[error(
        "tensor `{}` begins at data offset {found}, inside another that ends at {expected}: an overlap",
        Name(tensor)
    )]
    Overlap {
        /// The tensor that begins too early.
        tensor: String,
        /// Where it must begin.
        expected: u64,
        /// Where it begins.
        found: u64,
    },
    /// The tensors end where no file can.
    #[error("the tensors end at data offset {data_len}, which together with the header overflows 64 bits")]
    LengthOverflow {
        /// Where the last tensor ends.
        data_len: u64,
    },
    /// The file ends before its last tensor does.
    #[error(
        "is truncated: header and tensors need {expected} bytes, the file has {found} \
         ({} missing); fetch it again", expected.saturating_sub(*found)
    )]
    Truncated {
        /// What header and tensors need.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// The file goes on after its last tensor.
    #[error(
        "header and tensors end at byte {expected}, but the file has {found}: bytes that belong to no tensor"
    )]
    TrailingBytes {
        /// What header and tensors need.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
}
