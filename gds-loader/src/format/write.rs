//! Writing a header: the inverse of [`header`](super::header), and as strict.
//!
//! What this refuses no reader should be given: a name the format keeps for itself, a name twice, a size that is none, and a
//! header longer than readers take. The text is padded with spaces, which the format allows, so that the data begins on a
//! multiple of [`DATA_ALIGNMENT`]: then direct I/O, page tables and GPUDirect Storage need no help with the first tensor, nor with any
//! that follows whole pages.

use std::collections::{BTreeMap, HashSet};
use std::io;

use super::dtype::Dtype;
use super::geometry::LENGTH_FIELD;
use super::header::HeaderLimits;
use super::printable::Name;
use super::shape::{Brief, Shape, SizeFault};
use super::table::METADATA;

/// What the start of the data is a multiple of, in bytes: a page, and the largest sector in use.
pub const DATA_ALIGNMENT: u64 = 4096;

/// What it is a multiple of where padding to [`DATA_ALIGNMENT`] would exceed the limit: the reference's own padding.
const LEAST_ALIGNMENT: u64 = 8;

/// A tensor to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: &'a Shape,
}

/// A header as it stands in its file, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHeader {
    /// The beginning of the file up to the data: the length field, the text, spaces.
    pub bytes: Vec<u8>,
    /// Where each tensor's bytes begin, in bytes from the start of the file, in the order given.
    pub offsets: Vec<u64>,
    /// Length of the file in bytes.
    pub file_len: u64,
}

/// Why tensors cannot be written to a file, or to a set of files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteFault {
    /// A tensor has the name that the format keeps for itself.
    #[error(
        "a tensor is called `__metadata__`, which is where the format keeps its metadata: give it another name"
    )]
    ReservedName,
    /// Two tensors have the same name.
    #[error("two tensors are called `{}`; a file has room for one of them", Name(tensor))]
    RepeatedName {
        /// The name.
        tensor: String,
    },
    /// Shape and dtype have no size in bytes.
    #[error("tensor `{}` of {dtype} {}: {fault}", Name(tensor), Brief(shape))]
    Size {
        /// The tensor.
        tensor: String,
        /// The type of its elements.
        dtype: Dtype,
        /// Its dimensions.
        shape: Shape,
        /// Why.
        fault: SizeFault,
    },
    /// The header would be longer than readers take.
    #[error(
        "the header would have {header_len} bytes, and readers take at most {max_bytes}: \
         save fewer tensors to a file, in shards"
    )]
    HeaderTooLarge {
        /// Bytes of its text.
        header_len: u64,
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// The index of a set would be longer than readers take.
    #[error(
        "the index would have {index_len} bytes, and readers take at most {max_bytes}: \
         save fewer tensors to a set, or call them by shorter names"
    )]
    IndexTooLarge {
        /// Bytes of its text, where every shard has the longest name that it may get.
        index_len: u64,
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// The file would be longer than a file can be.
    #[error("the tensors together have more bytes than a file can hold")]
    LengthOverflow,
}

/// The header of a file of `tensors`, whose bytes follow it in the order given, without holes.
///
/// # Errors
/// Any [`WriteFault`].
pub fn header(
    tensors: &[NewTensor<'_>],
    metadata: &BTreeMap<String, String>,
    limits: &HeaderLimits,
) -> Result<NewHeader, WriteFault> {
    let mut names = HashSet::with_capacity(tensors.len());
    let mut ends = Vec::with_capacity(tensors.len());
    let mut end = 0_u64;
    for &NewTensor { name, dtype, shape } in tensors {
        if name == METADATA {
            return Err(WriteFault::ReservedName);
        }
        if !names.insert(name) {
            return Err(WriteFault::RepeatedName { tensor: name.to_owned() });
        }
        let len = shape.byte_len(dtype).map_err(|fault| WriteFault::Size {
            tensor: name.to_owned(),
            dtype,
            shape: shape.clone(),
            fault,
        })?;
        end = end.checked_add(len).ok_or(WriteFault::LengthOverflow)?;
        ends.push((end - len, end));
    }
    // Text that serde_json writes to memory cannot fail; were it to, there would be no room for it.
    let mut bytes = text(tensors, &ends, metadata).map_err(|_| WriteFault::LengthOverflow)?;
    let data_offset = pad(&mut bytes, limits.effective())?;
    let file_len = data_offset.checked_add(end).filter(|&len| i64::try_from(len).is_ok());
    let offsets = ends.iter().map(|(start, _)| data_offset.saturating_add(*start)).collect();
    Ok(NewHeader { bytes, offsets, file_len: file_len.ok_or(WriteFault::LengthOverflow)? })
}

/// The JSON, after room for its length.
fn text(
    tensors: &[NewTensor<'_>],
    ends: &[(u64, u64)],
    metadata: &BTreeMap<String, String>,
) -> io::Result<Vec<u8>> {
    let mut out = vec![0; LENGTH_FIELD as usize];
    let mut separator = b'{';
    if !metadata.is_empty() {
        out.push(separator);
        serde_json::to_writer(&mut out, METADATA)?;
        out.push(b':');
        serde_json::to_writer(&mut out, metadata)?;
        separator = b',';
    }
    for (tensor, (start, end)) in tensors.iter().zip(ends) {
        out.push(separator);
        serde_json::to_writer(&mut out, tensor.name)?;
        out.extend_from_slice(br#":{"dtype":"#);
        serde_json::to_writer(&mut out, &tensor.dtype)?;
        out.extend_from_slice(br#","shape":"#);
        serde_json::to_writer(&mut out, tensor.shape)?;
        out.extend_from_slice(br#","data_offsets":"#);
        serde_json::to_writer(&mut out, &[start, end])?;
        out.push(b'}');
        separator = b',';
    }
    if separator == b'{' {
        out.push(separator);
    }
    out.push(b'}');
    Ok(out)
}

/// Pads the text with spaces and fills in its length. Where the data begins.
fn pad(bytes: &mut Vec<u8>, max_bytes: u64) -> Result<u64, WriteFault> {
    let len = bytes.len() as u64;
    let within = |end: &u64| end - LENGTH_FIELD <= max_bytes;
    let padded = [DATA_ALIGNMENT, LEAST_ALIGNMENT].map(|alignment| len.next_multiple_of(alignment));
    let too_large = WriteFault::HeaderTooLarge { header_len: padded[1] - LENGTH_FIELD, max_bytes };
    let data_offset = padded.into_iter().find(within).ok_or(too_large)?;
    bytes.resize(data_offset as usize, b' ');
    bytes[..LENGTH_FIELD as usize].copy_from_slice(&(data_offset - LENGTH_FIELD).to_le_bytes());
    Ok(data_offset)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::header::Header;
    use super::*;

    fn written(tensors: &[(&str, Dtype, &[u64])], limits: HeaderLimits) -> Result<NewHeader, WriteFault> {
        let shapes: Vec<Shape> = tensors.iter().map(|(_, _, shape)| Shape::from(*shape)).collect();
        let tensors: Vec<NewTensor<'_>> = tensors
            .iter()
            .zip(&shapes)
            .map(|(&(name, dtype, _), shape)| NewTensor { name, dtype, shape })
            .collect();
        header(&tensors, &BTreeMap::from([("format".to_owned(), "pt".to_owned())]), &limits)
    }

    /// What our own reader makes of it.
    fn read(header: &NewHeader) -> Header {
        Header::parse(&header.bytes[LENGTH_FIELD as usize..], header.file_len).unwrap()
    }

    fn dtypes() -> impl Strategy<Value = Dtype> {
        prop::sample::select(Dtype::ALL.as_slice())
    }

    proptest! {
        #[test]
        fn both_readers_read_what_was_written(
            tensors in prop::collection::btree_map(".{0,12}", (dtypes(), prop::collection::vec(0_u64..5, 0..4)), 0..12),
            metadata in prop::collection::btree_map(".{0,6}", ".{0,20}", 0..4),
        ) {
            let sized: Vec<(String, Dtype, Shape)> = tensors
                .into_iter()
                .map(|(name, (dtype, mut shape))| {
                    shape.push(8);
                    (name, dtype, Shape::from(shape))
                })
                .collect();
            let new: Vec<NewTensor<'_>> =
                sized.iter().map(|(name, dtype, shape)| NewTensor { name, dtype: *dtype, shape }).collect();
            let written = header(&new, &metadata, &HeaderLimits::default()).unwrap();
            prop_assert_eq!(written.bytes.len() as u64 % DATA_ALIGNMENT, 0);

            let ours = read(&written);
            prop_assert_eq!(&ours.metadata, &metadata);
            prop_assert_eq!(ours.data_offset, written.bytes.len() as u64);
            let mut file = written.bytes.clone();
            file.resize(written.file_len as usize, 0);
            let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
            prop_assert_eq!(theirs.len(), new.len());
            for (tensor, offset) in new.iter().zip(&written.offsets) {
                let entry = ours.tensors.iter().find(|entry| &*entry.name == tensor.name).unwrap();
                prop_assert_eq!((entry.dtype, &entry.shape, entry.offset), (tensor.dtype, tensor.shape, *offset));
                let view = theirs.tensor(tensor.name).unwrap();
                let shape: Vec<u64> = view.shape().iter().map(|&dimension| dimension as u64).collect();
                prop_assert_eq!((view.dtype().to_string(), shape.as_slice()), (tensor.dtype.to_string(), &**tensor.shape));
                prop_assert_eq!(view.data().as_ptr() as u64 - file.as_ptr() as u64, *offset);
            }
        }
    }

    #[test]
    fn no_tensors_and_no_metadata_are_an_empty_object() {
        let header = header(&[], &BTreeMap::new(), &HeaderLimits::default()).unwrap();
        assert_eq!(header.bytes.len() as u64, DATA_ALIGNMENT);
        assert_eq!(header.file_len, DATA_ALIGNMENT);
        assert!(header.bytes[8..].starts_with(b"{}  "));
        assert!(read(&header).tensors.is_empty());
    }

    #[test]
    fn the_limit_of_readers_is_held_while_writing() {
        let tensors: [(&str, Dtype, &[u64]); 1] = [("weight", Dtype::F32, &[2])];
        let unpadded = {
            let header = written(&tensors, HeaderLimits { max_bytes: 200 }).unwrap();
            // Too small for 4096 bytes: padded as little as may be.
            assert!(header.bytes.len() < 200 && header.bytes.len().is_multiple_of(8));
            read(&header);
            header.bytes.len() as u64 - LENGTH_FIELD
        };
        assert_eq!(written(&tensors, HeaderLimits { max_bytes: 4088 }).unwrap().bytes.len(), 4096);
        assert!(written(&tensors, HeaderLimits { max_bytes: unpadded }).is_ok());
        let max_bytes = unpadded - 1;
        assert_eq!(
            written(&tensors, HeaderLimits { max_bytes }),
            Err(WriteFault::HeaderTooLarge { header_len: unpadded, max_bytes })
        );
    }

    #[test]
    fn what_no_file_can_say_is_refused() {
        let refusal =
            |tensors: &[(&str, Dtype, &[u64])]| written(tensors, HeaderLimits::default()).unwrap_err();
        assert_eq!(refusal(&[("__metadata__", Dtype::U8, &[1])]), WriteFault::ReservedName);
        assert_eq!(
            refusal(&[("a", Dtype::U8, &[1]), ("a", Dtype::U8, &[1])]),
            WriteFault::RepeatedName { tensor: "a".into() }
        );
        let size = |refusal| match refusal {
            WriteFault::Size { fault, .. } => fault,
            other => panic!("{other}"),
        };
        assert_eq!(size(refusal(&[("a", Dtype::F4, &[3])])), SizeFault::PartialByte { bits: 12 });
        assert_eq!(size(refusal(&[("a", Dtype::U8, &[1 << 63, 4])])), SizeFault::Overflow);
        // 2^60 bytes are a legal tensor, and eight of them more than an offset in a file can say.
        let eight =
            ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, Dtype::U8, &[1_u64 << 60] as &[u64]));
        assert!(written(&eight[..7], HeaderLimits::default()).is_ok());
        assert_eq!(refusal(&eight), WriteFault::LengthOverflow);
    }
}
