//! What differs between a manifest and files, said so that one can go and look.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use super::checksum::Checksum;
use super::layout::{FileLayout, FileSums};
use super::{ManifestFile, ManifestTensor};
use crate::format::{Brief, Name, TensorEntry};

/// One thing that is not as the manifest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The file's name below the model's folder.
    pub file: String,
    /// The tensor; absent where it is the file, or its header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// Where its bytes begin in the file, and how many they are; absent where it has none there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// What differs.
    #[serde(flatten)]
    pub what: What,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The first one's offset in the file.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
}

/// How something differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum What {
    /// It is in the manifest and not in the model.
    Missing,
    /// It is in the model and not in the manifest.
    Extra,
    /// The file's length, in bytes.
    Length {
        /// The manifest's.
        expected: u64,
        /// The file's.
        found: u64,
    },
    /// The tensor's dtype and shape.
    Type {
        /// The manifest's.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The bytes.
    Checksum {
        /// The manifest's.
        expected: Checksum,
        /// That of the bytes.
        found: Checksum,
    },
    /// The bytes before the first tensor: names, dtypes, shapes, metadata.
    Header,
    /// It cannot be read.
    Unreadable {
        /// Why not.
        reason: String,
    },
}

impl Difference {
    pub(crate) fn of_file(file: &str, what: What) -> Self {
        Self { file: file.to_owned(), tensor: None, place: None, what }
    }

    fn of_tensor(file: &str, tensor: &str, place: Option<(u64, u64)>, what: What) -> Self {
        let place = place.map(|(offset, length)| Place { offset, length });
        Self { file: file.to_owned(), tensor: Some(tensor.to_owned()), place, what }
    }

    /// The difference between the checksum of a tensor's bytes and the manifest's, if there is one.
    pub(crate) fn of_bytes(
        file: &str,
        tensor: &str,
        (offset, len): (u64, u64),
        expected: Checksum,
        found: Checksum,
    ) -> Option<Self> {
        let what = What::Checksum { expected, found };
        (expected != found).then(|| Self::of_tensor(file, tensor, Some((offset, len)), what))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", Name(&self.file))?;
        if let Some(tensor) = &self.tensor {
            write!(formatter, "tensor \"{}\"", Name(tensor))?;
            if let Some(Place { offset, length }) = self.place {
                write!(formatter, " ({length} bytes at offset {offset})")?;
            }
            write!(formatter, " ")?;
        }
        match &self.what {
            What::Missing => write!(formatter, "is in the manifest and not in the model"),
            What::Extra => write!(formatter, "is in the model and not in the manifest"),
            What::Length { expected, found } => {
                write!(formatter, "has {found} bytes, the manifest says {expected}")
            }
            What::Type { expected, found } => write!(formatter, "is {found}, the manifest says {expected}"),
            What::Checksum { expected, found } => {
                write!(formatter, "has the checksum {found}, the manifest says {expected}")
            }
            What::Header => write!(
                formatter,
                "the header (names, dtypes, shapes, metadata) is not the one that the manifest was made with"
            ),
            What::Unreadable { reason } => write!(formatter, "cannot be read: {reason}"),
        }
    }
}

impl ManifestFile {
    /// What differs by length and header alone, before any byte of a tensor is looked at.
    pub(crate) fn compare_layout(&self, layout: &FileLayout) -> Vec<Difference> {
        let mut differences = Vec::new();
        if layout.len != self.length {
            let what = What::Length { expected: self.length, found: layout.len };
            differences.push(Difference::of_file(&self.name, what));
        }
        let found: HashMap<&str, &TensorEntry> =
            layout.tensors.iter().map(|entry| (&*entry.name, entry)).collect();
        for tensor in &self.tensors {
            match found.get(&*tensor.name) {
                None => {
                    differences.push(Difference::of_tensor(&self.name, &tensor.name, None, What::Missing))
                }
                Some(entry) => differences.extend(self.compare_type(tensor, entry)),
            }
        }
        let recorded: HashSet<&str> = self.tensors.iter().map(|tensor| &*tensor.name).collect();
        let extra = layout.tensors.iter().filter(|entry| !recorded.contains(&*entry.name));
        differences.extend(extra.map(|entry| {
            Difference::of_tensor(&self.name, &entry.name, Some((entry.offset, entry.len)), What::Extra)
        }));
        differences
    }

    fn compare_type(&self, tensor: &ManifestTensor, entry: &TensorEntry) -> Option<Difference> {
        let same = (tensor.dtype, &tensor.shape) == (entry.dtype, &entry.shape);
        let what = || What::Type {
            expected: format!("{} {}", tensor.dtype, Brief(&tensor.shape)),
            found: format!("{} {}", entry.dtype, Brief(&entry.shape)),
        };
        let place = Some((entry.offset, entry.len));
        (!same).then(|| Difference::of_tensor(&self.name, &tensor.name, place, what()))
    }

    /// What differs by the bytes. `unreadable` says why those are missing that have not arrived.
    pub(crate) fn compare_bytes(
        &self,
        layout: &FileLayout,
        sums: &FileSums,
        unreadable: &str,
    ) -> Vec<Difference> {
        let reason = || What::Unreadable { reason: unreadable.to_owned() };
        let plain = self.tensors.is_empty() && layout.tensors.is_empty();
        let of_head = match sums.head {
            None => Some(reason()),
            Some(found) if plain => {
                let what = What::Checksum { expected: self.checksum, found };
                (found != self.checksum).then_some(what)
            }
            Some(found) => (!self.has_head(layout.data_offset(), found)).then_some(What::Header),
        };
        let of_head = of_head.map(|what| Difference::of_file(&self.name, what));
        let expected: HashMap<&str, Checksum> =
            self.tensors.iter().map(|tensor| (&*tensor.name, tensor.checksum)).collect();
        let tensors = layout.tensors.iter().zip(&sums.tensors).filter_map(|(entry, sum)| {
            let (name, place) = (&*entry.name, (entry.offset, entry.len));
            let expected = *expected.get(name)?;
            match sum {
                Some(found) => Difference::of_bytes(&self.name, name, place, expected, *found),
                None => Some(Difference::of_tensor(&self.name, name, Some(place), reason())),
            }
        });
        of_head.into_iter().chain(tensors).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_has_a_megabyte() {
        let (long, shape) = ("é".repeat(1_000_000), crate::format::Shape::from(vec![1; 1_000_000]));
        let tensor = ManifestTensor {
            name: long.as_str().into(),
            dtype: crate::format::Dtype::U8,
            shape: shape.clone(),
            length: 1,
            checksum: Checksum::OF_NOTHING,
        };
        let file = ManifestFile {
            name: long.as_str().into(),
            length: 1,
            checksum: Checksum::OF_NOTHING,
            tensors: vec![tensor],
        };
        let dtype = crate::format::Dtype::I8;
        let entry = TensorEntry { name: long.as_str().into(), dtype, shape, offset: 0, len: 1 };
        let difference = file.compare_type(&file.tensors[0], &entry).unwrap();
        let text = difference.to_string();
        assert!(text.contains("I8 [1, 1, ") && text.len() < 2000, "{} bytes", text.len());
    }

    #[test]
    fn messages_name_tensor_file_and_place() {
        let difference = Difference::of_bytes(
            "a.safetensors",
            "w\n",
            (4096, 16),
            Checksum::OF_NOTHING,
            Checksum::of(b"x"),
        );
        let difference = difference.unwrap();
        let text = difference.to_string();
        for words in
            ["a.safetensors", "\"w\\n\"", "16 bytes at offset 4096", "the manifest says 0000000000000000"]
        {
            assert!(text.contains(words), "{text}");
        }
        let json = serde_json::to_value(&difference).unwrap();
        assert_eq!(json["kind"], "checksum");
        assert_eq!(json["place"]["offset"], 4096);
        let file = Difference::of_file("b", What::Length { expected: 2, found: 1 });
        assert_eq!(file.to_string(), "b: has 1 bytes, the manifest says 2");
        assert_eq!(
            serde_json::to_value(&file).unwrap(),
            serde_json::json!({"file": "b", "kind": "length", "expected": 2, "found": 1})
        );
    }
}
