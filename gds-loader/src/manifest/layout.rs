//! Where the parts of a file are whose checksums are taken: its header, and each of its tensors.

use super::checksum::{Checksum, Share};
use super::sums::Segment;
use super::{ManifestFile, ManifestTensor};
use crate::format::{Header, TensorEntry};

/// A file's parts: the header, then the tensors back to back to the end. A file that is not safetensors is all header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    pub(crate) name: Box<str>,
    pub(crate) len: u64,
    /// In the order of their bytes.
    pub(crate) tensors: Vec<TensorEntry>,
}

/// The checksums of a file's parts; `None` where bytes have not arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSums {
    /// Of everything before the first tensor.
    pub(crate) head: Option<Checksum>,
    pub(crate) tensors: Vec<Option<Checksum>>,
}

impl FileLayout {
    /// Of a safetensors file, called `name` below the model's folder.
    pub fn safetensors(name: impl Into<Box<str>>, header: &Header) -> Self {
        Self { name: name.into(), len: header.file_len, tensors: header.tensors.clone() }
    }

    /// Of any other file, such as an index, of `len` bytes.
    pub fn other(name: impl Into<Box<str>>, len: u64) -> Self {
        Self { name: name.into(), len, tensors: Vec::new() }
    }

    /// What a manifest says the file looks like, for one whose own header cannot be read.
    pub(crate) fn recorded(file: &ManifestFile) -> Self {
        let mut end = file.length;
        let entry = |tensor: &ManifestTensor| {
            end = end.saturating_sub(tensor.length);
            TensorEntry {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                offset: end,
                len: tensor.length,
            }
        };
        let mut tensors: Vec<_> = file.tensors.iter().rev().map(entry).collect();
        tensors.reverse();
        Self { name: file.name.clone(), len: file.length, tensors }
    }

    /// Where the header ends.
    pub(crate) fn data_offset(&self) -> u64 {
        self.tensors.first().map_or(self.len, |tensor| tensor.offset)
    }

    /// The parts of file number `file`: the header, then each tensor.
    pub(crate) fn segments(&self, file: u32) -> impl Iterator<Item = Segment> {
        let tensor = move |entry: &TensorEntry| Segment { file, offset: entry.offset, len: entry.len };
        let head = Segment { file, offset: 0, len: self.data_offset() };
        std::iter::once(head).chain(self.tensors.iter().map(tensor))
    }

    /// What a manifest says of the file; `None` where bytes have not arrived.
    pub(crate) fn record(&self, sums: &FileSums) -> Option<ManifestFile> {
        let record = |(entry, sum): (&TensorEntry, &Option<Checksum>)| {
            Some(ManifestTensor {
                name: entry.name.clone(),
                dtype: entry.dtype,
                shape: entry.shape.clone(),
                length: entry.len,
                checksum: (*sum)?,
            })
        };
        let tensors = self.tensors.iter().zip(&sums.tensors).map(record).collect::<Option<Vec<_>>>()?;
        let whole =
            tensors.iter().fold(sums.head?, |whole, next| whole.followed_by(next.checksum, next.length));
        Some(ManifestFile { name: self.name.clone(), length: self.len, checksum: whole, tensors })
    }
}

impl FileSums {
    /// Takes those of the next file from the checksums of all segments.
    pub(crate) fn take(layout: &FileLayout, from: &mut impl Iterator<Item = Option<Checksum>>) -> Self {
        let head = from.next().flatten();
        Self { head, tensors: from.take(layout.tensors.len()).collect() }
    }
}

impl ManifestFile {
    /// Where the header ends.
    pub(crate) fn data_offset(&self) -> u64 {
        self.tensors.iter().fold(self.length, |rest, tensor| rest.saturating_sub(tensor.length))
    }

    /// What the header contributes to the checksum of the file: all that the tensors do not.
    fn share_of_head(&self) -> Share {
        let (mut after, mut share) = (0, self.checksum.share(0));
        for tensor in self.tensors.iter().rev() {
            share = share.and(tensor.checksum.share(after));
            after += tensor.length;
        }
        share
    }

    /// Whether a header of `len` bytes with this checksum is the one recorded.
    pub(crate) fn has_head(&self, len: u64, head: Checksum) -> bool {
        len == self.data_offset() && head.share(self.length - len) == self.share_of_head()
    }
}
