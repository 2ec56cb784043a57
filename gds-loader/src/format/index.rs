//! `*.safetensors.index.json`: which shard holds which tensor.
//!
//! The text is not trusted: shard names are judged here, as text and before any file is opened. A name is a path below the index's
//! folder; plain sub-directories (`part/model.safetensors`) are allowed, whatever could lead elsewhere is not.
//! What the folder's owner made of those names (symlinks into a cache, say) is followed later, since the owner, unlike the
//! author of the text, may point anywhere.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::json::{self, Skip, Text};
use super::printable::{Name, words};
use super::sniff::{FileKind, PREFIX_LEN};

/// An index: every tensor it names with the shard that holds it.
#[derive(Debug)]
pub struct Index {
    files: Vec<Box<str>>,
    tensors: Vec<(Box<str>, u32)>,
    by_name: HashTable<u32>,
    hasher: RandomState,
}

/// What is wrong with the text of an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// No text at all.
    #[error("the index is empty (0 bytes); probably a placeholder or a failed download: fetch it again")]
    Empty,
    /// Longer than this reader is willing to read.
    #[error("the index has {len} bytes, more than the {max_bytes} that are read")]
    TooLarge {
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// A byte order mark, which JSON forbids.
    #[error("the index begins with a byte order mark, which JSON does not allow: save it as plain UTF-8")]
    ByteOrderMark,
    /// Not text.
    #[error("the index is not UTF-8 from its byte {valid_up_to} on")]
    NotUtf8 {
        /// How many bytes are text.
        valid_up_to: usize,
    },
    /// JSON, but no object.
    #[error("the index must be a JSON object with a `weight_map`, found {found}")]
    NotAnObject {
        /// What it is, in the terms of JSON.
        found: &'static str,
    },
    /// No valid JSON.
    #[error("the index is not valid JSON: {message}")]
    Json {
        /// The parser's words, with line and column.
        message: String,
    },
    /// A key appears twice in one object.
    #[error(
        "the key `{}` appears twice in the index; readers disagree on which of the two counts, so neither does",
        Name(key)
    )]
    DuplicateKey {
        /// The repeated key.
        key: String,
    },
    /// There is no `weight_map`.
    #[error("the index has no `weight_map`, the object that gives each tensor its shard")]
    NoWeightMap,
    /// `weight_map` is no object.
    #[error("the index's `weight_map` must be an object that gives each tensor its shard: {message}")]
    WeightMap {
        /// The parser's words.
        message: String,
    },
    /// `weight_map` names no tensor.
    #[error("the index's `weight_map` is empty: it names no tensor and no shard")]
    EmptyWeightMap,
    /// A tensor is given something other than the name of a shard.
    #[error("the index gives tensor `{}` {found} where the name of a shard must stand", Name(tensor))]
    ShardType {
        /// The tensor.
        tensor: String,
        /// What stands there, in the terms of JSON.
        found: &'static str,
    },
    /// A shard's name could lead out of the folder.
    #[error(
        "the index gives tensor `{}` the shard \"{}\", whose name {problem}; \
         a shard must be a plain relative path inside the index's folder",
        Name(tensor),
        Name(shard)
    )]
    ShardName {
        /// The tensor.
        tensor: String,
        /// The name.
        shard: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Index {
    /// Parses the text of an index and judges every shard's name.
    ///
    /// # Errors
    /// Any [`IndexError`]; [`IndexError::TooLarge`] only above 4 GiB, a smaller limit being for the reader of the file.
    pub fn parse(text: &[u8]) -> Result<Index, IndexError> {
        Index::parse_json(text).map_err(|fault| match fault {
            IndexError::Json { message } => IndexError::Json { message: named(text, message) },
            fault => fault,
        })
    }

    fn parse_json(text: &[u8]) -> Result<Index, IndexError> {
        if text.is_empty() {
            return Err(IndexError::Empty);
        }
        // Within this limit, tensors are few enough to be numbered in 32 bits.
        let (len, max_bytes) = (text.len() as u64, u64::from(u32::MAX));
        if len > max_bytes {
            return Err(IndexError::TooLarge { len, max_bytes });
        }
        if text.starts_with(b"\xef\xbb\xbf") {
            return Err(IndexError::ByteOrderMark);
        }
        let json = std::str::from_utf8(text)
            .map_err(|error| IndexError::NotUtf8 { valid_up_to: error.valid_up_to() })?;
        match json::kind_of(text) {
            "an object" | "no JSON" => {}
            found => return Err(IndexError::NotAnObject { found }),
        }
        let fault = Fault::default();
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let parsed =
            IndexSeed(&fault).deserialize(&mut deserializer).and_then(|map| deserializer.end().map(|()| map));
        let parsed = parsed
            .map_err(|error| fault.0.take().unwrap_or_else(|| IndexError::Json { message: words(&error) }))?;
        let builder = parsed.ok_or(IndexError::NoWeightMap)?;
        if builder.index.tensors.is_empty() { Err(IndexError::EmptyWeightMap) } else { Ok(builder.finish()) }
    }

    /// The shards' names, sorted; each names at least one tensor's place.
    pub fn files(&self) -> &[Box<str>] {
        &self.files
    }

    /// Every tensor with the position of its shard in [`Index::files`], in the order of the text.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.tensors.iter().map(|(name, file)| (&**name, *file as usize))
    }

    /// The tensor called `name`: its position in [`Index::tensors`], and that of its shard in [`Index::files`].
    pub fn position(&self, name: &str) -> Option<(usize, usize)> {
        let hash = self.hasher.hash_one(name);
        let at = *self.by_name.find(hash, |&at| &*self.tensors[at as usize].0 == name)? as usize;
        Some((at, self.tensors[at].1 as usize))
    }
}

/// The parser's `message`, after what the text is instead, if that can be told.
fn named(text: &[u8], message: String) -> String {
    match FileKind::sniff(text.get(..PREFIX_LEN as usize).unwrap_or(text)) {
        // Of these the parser says more.
        None | Some(FileKind::Json | FileKind::Text { .. }) => message,
        Some(kind) => format!("it is {kind} ({message})"),
    }
}

/// What is wrong with `name` as the name of a shard, judged as text alone.
pub(crate) fn shard_name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.contains('\0') {
        return Some("contains a NUL");
    }
    if name.contains('\\') {
        return Some("contains a backslash");
    }
    if name.starts_with('/') {
        return Some("is absolute");
    }
    if name.ends_with('/') {
        return Some("ends with a slash");
    }
    name.split('/').find_map(|component| match component {
        "" => Some("has an empty component"),
        "." => Some("has a component `.`"),
        ".." => Some("has a component `..`"),
        _ => None,
    })
}

#[derive(Default)]
struct Fault(RefCell<Option<IndexError>>);

impl Fault {
    fn note(&self, fault: IndexError) {
        self.0.borrow_mut().get_or_insert(fault);
    }

    fn fail<E: Error>(&self, fault: IndexError) -> E {
        let error = E::custom(&fault);
        self.note(fault);
        error
    }
}

/// An index in the making, its shards numbered in the order met.
struct Builder {
    index: Index,
    file_numbers: HashMap<Box<str>, u32>,
}

impl Builder {
    fn new() -> Builder {
        let index = Index {
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashTable::new(),
            hasher: RandomState::new(),
        };
        Builder { index, file_numbers: HashMap::new() }
    }

    fn add(&mut self, tensor: Box<str>, file: &str) -> Result<(), IndexError> {
        let number = match self.file_numbers.get(file) {
            Some(&number) => number,
            None => {
                if let Some(problem) = shard_name_problem(file) {
                    return Err(IndexError::ShardName {
                        tensor: tensor.into(),
                        shard: file.to_owned(),
                        problem,
                    });
                }
                let number = self.index.files.len() as u32;
                self.index.files.push(file.into());
                self.file_numbers.insert(file.into(), number);
                number
            }
        };
        let Index { tensors, by_name, hasher, .. } = &mut self.index;
        let hash = hasher.hash_one(&*tensor);
        if by_name.find(hash, |&at| tensors[at as usize].0 == tensor).is_some() {
            return Err(IndexError::DuplicateKey { key: tensor.into() });
        }
        by_name.insert_unique(hash, tensors.len() as u32, |&at| hasher.hash_one(&*tensors[at as usize].0));
        tensors.push((tensor, number));
        Ok(())
    }

    /// Sorts the shards and renumbers them.
    fn finish(mut self) -> Index {
        self.index.files.sort_unstable();
        let mut renumbered = vec![0u32; self.index.files.len()];
        for (new, file) in self.index.files.iter().enumerate() {
            if let Some(&old) = self.file_numbers.get(file) {
                renumbered[old as usize] = new as u32;
            }
        }
        for (_, file) in &mut self.index.tensors {
            *file = renumbered[*file as usize];
        }
        self.index
    }
}

struct IndexSeed<'a>(&'a Fault);

impl<'de> DeserializeSeed<'de> for IndexSeed<'_> {
    type Value = Option<Builder>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed<'_> {
    type Value = Option<Builder>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let fault = self.0;
        let repeated = |key: &str| fault.note(IndexError::DuplicateKey { key: key.to_owned() });
        let mut keys = std::collections::HashSet::new();
        let mut builder = None;
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(fault.fail(IndexError::DuplicateKey { key }));
            }
            if key == "weight_map" {
                builder = Some(map.next_value_seed(WeightMapSeed(fault)).inspect_err(|error| {
                    fault.note(IndexError::WeightMap { message: words(error) });
                })?);
            } else {
                map.next_value_seed(Skip { repeated: &repeated })?;
            }
            keys.insert(key);
        }
        Ok(builder)
    }
}

struct WeightMapSeed<'a>(&'a Fault);

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_> {
    type Value = Builder;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Builder, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_> {
    type Value = Builder;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensor names to shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Builder, A::Error> {
        let mut builder = Builder::new();
        while let Some(tensor) = map.next_key::<Box<str>>()? {
            match map.next_value()? {
                Text::Is(file) => builder.add(tensor, &file).map_err(|fault| self.0.fail(fault))?,
                Text::Not(found) => {
                    return Err(self.0.fail(IndexError::ShardType { tensor: tensor.into(), found }));
                }
            }
        }
        Ok(builder)
    }
}
