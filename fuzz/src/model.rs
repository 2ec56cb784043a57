//! Legal safetensors files with everything that is hard to place: sub-byte elements, odd lengths, scalars, empty tensors, names and
//! metadata of any characters.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use gds_loader::format::{Dtype, Shape};
use serde_json::json;
use test_support::fixture;

/// The most bytes of one tensor: several times the smallest slot.
const MOST_BYTES: u64 = 200 << 10;

/// One tensor.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) len: u64,
}

impl Tensor {
    /// Its bytes: its name and their position decide.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        fixture::payload(&self.name, self.len as usize)
    }
}

/// One file.
#[derive(Debug)]
pub(crate) struct Model {
    /// In the order of their bytes.
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Spaces after the header's JSON.
    padding: usize,
    /// How far the header's entries are turned against the order of the bytes.
    turned: usize,
}

impl Model {
    pub(crate) fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut tensors: Vec<Tensor> = Vec::new();
        for _ in 0..u.int_in_range(0..=24)? {
            let tensor = tensor(u)?;
            let mut name = tensor.name;
            while name == "__metadata__" || tensors.iter().any(|other| other.name == name) {
                name.push('#');
            }
            tensors.push(Tensor { name, ..tensor });
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..u.int_in_range(0..=2)? {
            metadata.insert(text(u)?, text(u)?);
        }
        let padding = match u.int_in_range(0..=3)? {
            0 => u.int_in_range(0..=5000)?,
            1 => 0,
            _ => u.int_in_range(0..=8)?,
        };
        Ok(Self { turned: u.int_in_range(0..=tensors.len())?, tensors, metadata, padding })
    }

    /// The text of the header.
    pub(crate) fn header_text(&self) -> Vec<u8> {
        let mut members = Vec::new();
        if !self.metadata.is_empty() {
            members.push(format!("\"__metadata__\":{}", json!(self.metadata)));
        }
        let mut end = 0;
        for tensor in &self.tensors {
            let begin = end;
            end += tensor.len;
            let entry = json!({
                "dtype": tensor.dtype.as_str(), "shape": tensor.shape, "data_offsets": [begin, end],
            });
            members.push(format!("{}:{entry}", json!(tensor.name)));
        }
        let turned = self.turned.min(members.len());
        members.rotate_left(turned);
        let mut text = format!("{{{}}}", members.join(",")).into_bytes();
        text.resize(text.len() + self.padding, b' ');
        text
    }

    /// Bytes of all tensors.
    pub(crate) fn data_len(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len).sum()
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let text = self.header_text();
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        self.tensors.iter().for_each(|tensor| bytes.extend(tensor.bytes()));
        bytes
    }
}

fn tensor(u: &mut Unstructured<'_>) -> Result<Tensor> {
    let dtype = *u.choose(&Dtype::ALL)?;
    let mut shape = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        shape.push(match u.int_in_range(0..=15)? {
            0 => 0,
            1 => u.int_in_range(0..=100_000)?,
            2 => u.int_in_range(4090..=4102)?,
            _ => u.int_in_range(1..=9)?,
        });
    }
    if !dtype.bits().is_multiple_of(8) {
        // Four elements of 4 or 6 bits are whole bytes.
        shape.push(4);
    }
    let len = |shape: &[u64]| Shape::from(shape).byte_len(dtype).unwrap_or(u64::MAX);
    if len(&shape) > MOST_BYTES {
        shape.iter_mut().for_each(|dimension| *dimension = (*dimension).min(4));
    }
    Ok(Tensor { name: name(u)?, dtype, len: len(&shape), shape })
}

fn name(u: &mut Unstructured<'_>) -> Result<String> {
    const NAMES: [&str; 6] = ["w", "model.layers.0.weight", "a b", "größe", "", "\u{1b}[2J"];
    if u.ratio(3, 4)? { Ok((*u.choose(&NAMES)?).to_owned()) } else { text(u) }
}

/// A short text of any characters, most of them of the kinds that matter to a terminal or to JSON.
pub(crate) fn text(u: &mut Unstructured<'_>) -> Result<String> {
    const CHARACTERS: [char; 20] = [
        'a', 'Z', '0', '.', '/', '*', ' ', '"', '\\', '\n', '\r', '\t', '\0', '\u{1b}', '\u{7f}', '\u{85}',
        '\u{9b}', '\u{202e}', '\u{2028}', 'é',
    ];
    let mut text = String::new();
    for _ in 0..u.int_in_range(0..=12)? {
        text.push(if u.ratio(7, 8)? { *u.choose(&CHARACTERS)? } else { u.arbitrary()? });
    }
    Ok(text)
}
