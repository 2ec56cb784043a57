//! A manifest in the making.

use super::Manifest;
use super::layout::{FileLayout, FileSums};
use super::sums::Sums;

/// Makes a manifest from bytes in any order: those that a save writes, or that a verification reads.
#[derive(Debug)]
pub struct Builder {
    files: Vec<FileLayout>,
    sums: Sums,
}

/// Bytes of a file have not been added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: not all of its bytes have been added to the manifest")]
pub struct NotComplete {
    /// The file's name.
    pub file: String,
}

impl Builder {
    /// Of these files, which [`Builder::add`] calls by their position.
    pub fn new(files: Vec<FileLayout>) -> Self {
        let segments = (0..).zip(&files).flat_map(|(file, layout)| layout.segments(file)).collect();
        Self { files, sums: Sums::new(segments) }
    }

    /// Adds `bytes`, which are at `offset` of a file, in any order and from any thread. Every byte of every file, its header
    /// included, must be added once.
    pub fn add(&self, file: usize, offset: u64, bytes: &[u8]) {
        if let Ok(file) = u32::try_from(file) {
            self.sums.add(file, offset, bytes);
        }
    }

    /// The files.
    pub fn files(&self) -> &[FileLayout] {
        &self.files
    }

    /// The checksums so far.
    pub(crate) fn sums(&self) -> Vec<FileSums> {
        let mut sums = self.sums.checksums().into_iter();
        self.files.iter().map(|layout| FileSums::take(layout, &mut sums)).collect()
    }

    /// The manifest.
    ///
    /// # Errors
    /// [`NotComplete`] for the first file of which bytes are missing.
    pub fn finish(&self) -> Result<Manifest, NotComplete> {
        let record = |(layout, sums): (&FileLayout, FileSums)| {
            layout.record(&sums).ok_or_else(|| NotComplete { file: layout.name.to_string() })
        };
        Ok(Manifest { files: self.files.iter().zip(self.sums()).map(record).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Checksum;
    use super::*;
    use crate::format::Header;
    use proptest::prelude::*;

    /// A file of these tensors' lengths, position-coded.
    fn file(lens: &[u64]) -> (Vec<u8>, Header) {
        let mut end = 0;
        let entries = lens.iter().enumerate().map(|(index, len)| {
            end += len;
            format!(r#""t{index}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{},{end}]}}"#, end - len)
        });
        let text = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend((0..end).map(|k| (k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8));
        let header = Header::parse(text.as_bytes(), bytes.len() as u64).unwrap();
        (bytes, header)
    }

    proptest! {
        #[test]
        fn it_is_the_manifest_of_the_whole_files(
            lens in prop::collection::vec(0_u64..400, 0..8),
            step in 1_usize..500,
            backwards in any::<bool>(),
        ) {
            let (bytes, header) = file(&lens);
            let index = b"{\"weight_map\": {}}";
            let layouts = vec![
                FileLayout::safetensors("a.safetensors", &header),
                FileLayout::other("a.safetensors.index.json", index.len() as u64),
            ];
            let builder = Builder::new(layouts);
            builder.add(1, 0, index);
            let mut starts: Vec<_> = (0..bytes.len()).step_by(step).collect();
            if backwards {
                starts.reverse();
            }
            for &start in &starts {
                prop_assert!(builder.finish().is_err());
                builder.add(0, start as u64, &bytes[start..(start + step).min(bytes.len())]);
            }
            let manifest = builder.finish().unwrap();
            let [of_file, of_index] = manifest.files() else { panic!() };
            prop_assert_eq!((of_file.length, of_file.checksum), (bytes.len() as u64, Checksum::of(&bytes)));
            prop_assert_eq!(of_index.checksum, Checksum::of(index));
            for (tensor, entry) in of_file.tensors.iter().zip(&header.tensors) {
                let range = entry.offset as usize..(entry.offset + entry.len) as usize;
                prop_assert_eq!(tensor.checksum, Checksum::of(&bytes[range]));
            }
            let head = Checksum::of(&bytes[..header.data_offset as usize]);
            prop_assert!(of_file.has_head(header.data_offset, head));
            prop_assert!(!of_file.has_head(header.data_offset, Checksum::of(b"another")));
            let recorded = FileLayout::recorded(of_file);
            prop_assert_eq!(&recorded, &builder.files()[0]);
            prop_assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
        }
    }
}
