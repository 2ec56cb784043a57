//! Header JSON straight into tensor entries, by one visitor and without a tree of values in between.
//!
//! serde's errors are text; what must be told apart by type is noted in a [`Faults`] on the way out.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::dtype::Dtype;
use super::fault::HeaderFault;
use super::header::TensorEntry;
use super::json::{self, Skip, Text};
use super::printable::{Name, words};
use super::shape::Shape;

/// The key that is no tensor.
pub(super) const METADATA: &str = "__metadata__";

/// What the JSON says. Offsets are relative to the data and not yet checked against anything but each other's order.
#[derive(Default)]
pub(super) struct Table {
    pub(super) tensors: Vec<TensorEntry>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Parses the text of a header.
pub(super) fn parse(text: &[u8]) -> Result<Table, HeaderFault> {
    let json = std::str::from_utf8(text)
        .map_err(|error| HeaderFault::NotUtf8 { valid_up_to: error.valid_up_to() })?;
    let written = json.trim_end_matches('\0');
    if written.len() < json.len() {
        return Err(zeros_fault(written, json.len()));
    }
    parse_json(json).map_err(|unparsed| unparsed.fault)
}

/// Why there is no table.
struct Unparsed {
    fault: HeaderFault,
    /// Whether more text could have made one.
    breaks_off: bool,
}

fn parse_json(json: &str) -> Result<Table, Unparsed> {
    if json.starts_with('\u{feff}') {
        return Err(Unparsed { fault: HeaderFault::ByteOrderMark, breaks_off: false });
    }
    let faults = Faults::default();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let parsed = TableSeed(&faults)
        .deserialize(&mut deserializer)
        .and_then(|table| deserializer.end().map(|()| table));
    match parsed {
        Ok(table) => match refuse_repeated_names(&table.tensors) {
            Ok(()) => Ok(table),
            Err(fault) => Err(Unparsed { fault, breaks_off: false }),
        },
        Err(error) => {
            let fault = faults.0.take().unwrap_or_else(|| syntax_fault(json.as_bytes(), &error));
            Err(Unparsed { fault, breaks_off: error.is_eof() })
        }
    }
}

/// What is wrong with a header of `len` bytes that are zeros after `written`: padding that is none, or a file that was not
/// written to its end.
fn zeros_fault(written: &str, len: usize) -> HeaderFault {
    match parse_json(written) {
        Ok(_) => HeaderFault::NulPadding { count: len - written.len() },
        Err(Unparsed { breaks_off: true, .. }) => {
            HeaderFault::Unwritten { written: written.len() as u64, header_len: len as u64 }
        }
        Err(Unparsed { fault, .. }) => fault,
    }
}

fn refuse_repeated_names(tensors: &[TensorEntry]) -> Result<(), HeaderFault> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(&*tensor.name)) {
        None => Ok(()),
        Some(tensor) => {
            Err(HeaderFault::DuplicateKey { key: tensor.name.to_string(), within: "the header".to_owned() })
        }
    }
}

fn syntax_fault(text: &[u8], error: &serde_json::Error) -> HeaderFault {
    match json::kind_of(text) {
        "an object" | "no JSON" => HeaderFault::Json { message: words(error) },
        found => HeaderFault::NotAnObject { found },
    }
}

/// The first fault that has a type of its own.
#[derive(Default)]
struct Faults(RefCell<Option<HeaderFault>>);

impl Faults {
    /// Notes `fault` unless an earlier one is the cause of it.
    fn note(&self, fault: HeaderFault) {
        self.0.borrow_mut().get_or_insert(fault);
    }

    /// Notes `fault` and makes the error that ends the parse.
    fn fail<E: Error>(&self, fault: HeaderFault) -> E {
        let error = E::custom(&fault);
        self.note(fault);
        error
    }
}

struct TableSeed<'a>(&'a Faults);

impl<'de> DeserializeSeed<'de> for TableSeed<'_> {
    type Value = Table;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Table, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TableSeed<'_> {
    type Value = Table;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
        let faults = self.0;
        let mut table = Table::default();
        let mut metadata = None;
        while let Some(name) = map.next_key::<Box<str>>()? {
            if &*name == METADATA {
                if metadata.is_some() {
                    let within = "the header".to_owned();
                    return Err(faults.fail(HeaderFault::DuplicateKey { key: METADATA.to_owned(), within }));
                }
                metadata = Some(map.next_value_seed(MetadataSeed(faults)).inspect_err(|error| {
                    faults.note(HeaderFault::Metadata { message: words(error) });
                })?);
                continue;
            }
            let entry = map.next_value_seed(EntrySeed { name: &name, faults }).inspect_err(|error| {
                faults.note(HeaderFault::Entry { tensor: name.to_string(), message: words(error) });
            })?;
            let Entry { dtype, shape, offsets: [begin, end] } = entry;
            let Some(len) = end.checked_sub(begin) else {
                return Err(faults.fail(HeaderFault::OffsetsReversed { tensor: name.into(), begin, end }));
            };
            table.tensors.push(TensorEntry { name, dtype, shape, offset: begin, len });
        }
        table.metadata = metadata.flatten().unwrap_or_default();
        Ok(table)
    }
}

/// `__metadata__`: an object of strings, or null, which the reference takes for its absence.
struct MetadataSeed<'a>(&'a Faults);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = Option<BTreeMap<String, String>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = Option<BTreeMap<String, String>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of strings")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match map.next_value()? {
                Text::Is(value) => value.into_owned(),
                Text::Not(found) => return Err(self.0.fail(HeaderFault::MetadataValue { key, found })),
            };
            if metadata.contains_key(&key) {
                return Err(self.0.fail(HeaderFault::DuplicateKey { key, within: format!("`{METADATA}`") }));
            }
            metadata.insert(key, value);
        }
        Ok(Some(metadata))
    }
}

/// One tensor as the JSON gives it.
struct Entry {
    dtype: Dtype,
    shape: Shape,
    offsets: [u64; 2],
}

struct EntrySeed<'a> {
    name: &'a str,
    faults: &'a Faults,
}

impl EntrySeed<'_> {
    fn repeated(&self, key: &str) {
        let within = format!("the entry of tensor `{}`", Name(self.name));
        self.faults.note(HeaderFault::DuplicateKey { key: key.to_owned(), within });
    }

    /// Reads the value of `field` into `slot`, which must not hold one yet.
    fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
        &self,
        field: &'static str,
        slot: &mut Option<T>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        if slot.is_some() {
            self.repeated(field);
            return Err(A::Error::duplicate_field(field));
        }
        *slot = Some(map.next_value()?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for EntrySeed<'_> {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_struct("TensorInfo", &["dtype", "shape", "data_offsets"], self)
    }
}

impl<'de> Visitor<'de> for EntrySeed<'_> {
    type Value = Entry;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        let mut unknown = HashSet::new();
        while let Some(field) = map.next_key()? {
            match field {
                Field::Dtype => self.read("dtype", &mut dtype, &mut map)?,
                Field::Shape => self.read("shape", &mut shape, &mut map)?,
                Field::DataOffsets => self.read("data_offsets", &mut offsets, &mut map)?,
                Field::Unknown(key) => {
                    if unknown.contains(&key) {
                        self.repeated(&key);
                        return Err(A::Error::custom("repeated key"));
                    }
                    unknown.insert(key);
                    map.next_value_seed(Skip { repeated: &|key| self.repeated(key) })?;
                }
            }
        }
        Ok(Entry {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }

    /// The reference also takes an entry written as `[dtype, shape, data_offsets]`, as serde's derive does for any struct.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entry, A::Error> {
        let short = |length| A::Error::invalid_length(length, &self);
        Ok(Entry {
            dtype: seq.next_element()?.ok_or_else(|| short(0))?,
            shape: seq.next_element()?.ok_or_else(|| short(1))?,
            offsets: seq.next_element()?.ok_or_else(|| short(2))?,
        })
    }
}

/// The keys of an entry; the reference ignores those it does not know.
enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Unknown(String),
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor;

        impl Visitor<'_> for FieldVisitor {
            type Value = Field;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_str<E: Error>(self, key: &str) -> Result<Field, E> {
                Ok(match key {
                    "dtype" => Field::Dtype,
                    "shape" => Field::Shape,
                    "data_offsets" => Field::DataOffsets,
                    _ => Field::Unknown(key.to_owned()),
                })
            }
        }

        deserializer.deserialize_identifier(FieldVisitor)
    }
}
