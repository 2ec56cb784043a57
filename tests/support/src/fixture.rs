//! Safetensors files made by hand, apart from the code under test.
//!
//! Every 8-byte word of a tensor is a mix of the tensor's name and the word's position, so that a byte that lands in the
//! wrong place, twice or not at all is a wrong byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The format's name of its element type.
    pub dtype: &'static str,
    /// Its shape, in elements.
    pub shape: Vec<u64>,
}

impl Tensor {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        let bits = self.shape.iter().product::<u64>() * bits(self.dtype);
        assert!(bits.is_multiple_of(8), "{self:?} ends within a byte");
        usize::try_from(bits / 8).unwrap()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        payload(&self.name, self.len())
    }
}

/// Bits of an element.
fn bits(dtype: &str) -> u64 {
    match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        other => panic!("{other} is no dtype of safetensors"),
    }
}

/// The first `len` bytes of what a tensor of this name holds.
pub fn payload(name: &str, len: usize) -> Vec<u8> {
    // FNV-1a of the name, then SplitMix64 over the positions.
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    for position in 0..len.div_ceil(8) as u64 {
        let mut word = seed.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A safetensors file.
#[derive(Clone, Debug)]
pub struct File {
    tensors: Vec<Tensor>,
    metadata: BTreeMap<String, String>,
    data_alignment: usize,
    padding: usize,
}

impl Default for File {
    fn default() -> Self {
        Self::new()
    }
}

impl File {
    /// A file without tensors, whose data begin at a multiple of 8 bytes.
    pub fn new() -> Self {
        Self { tensors: Vec::new(), metadata: BTreeMap::new(), data_alignment: 8, padding: 0 }
    }

    /// Adds a tensor, whose bytes follow those of the last.
    pub fn tensor(mut self, name: &str, dtype: &'static str, shape: &[u64]) -> Self {
        self.tensors.push(Tensor { name: name.to_owned(), dtype, shape: shape.to_vec() });
        self
    }

    /// Adds an entry of `__metadata__`.
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Pads the header so that the data begin at a multiple of `bytes`; 1 leaves them where they fall.
    pub fn data_alignment(mut self, bytes: usize) -> Self {
        self.data_alignment = bytes;
        self
    }

    /// Adds so many spaces to the header on top of what the alignment asks for.
    pub fn padding(mut self, spaces: usize) -> Self {
        self.padding = spaces;
        self
    }

    /// Its tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Its header: the length field, then JSON padded with spaces.
    pub fn header(&self) -> Vec<u8> {
        let mut members = serde_json::Map::new();
        if !self.metadata.is_empty() {
            members.insert("__metadata__".to_owned(), json!(self.metadata));
        }
        let mut end = 0;
        for tensor in &self.tensors {
            let start = end;
            end += tensor.len();
            let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end] });
            assert!(members.insert(tensor.name.clone(), entry).is_none(), "{} twice", tensor.name);
        }
        let mut text = serde_json::to_vec(&members).unwrap();
        text.resize((8 + text.len()).next_multiple_of(self.data_alignment) - 8 + self.padding, b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        header
    }

    /// All of it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).unwrap();
        bytes
    }

    /// Writes it to `path`, and to the disk where it is on one: only then can its pages leave the page cache.
    pub fn write(&self, path: &Path) {
        let written = fs::File::create(path).and_then(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            self.write_to(&mut out)?;
            out.into_inner()?.sync_all()
        });
        written.unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
    }

    fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.header())?;
        self.tensors.iter().try_for_each(|tensor| out.write_all(&tensor.bytes()))
    }
}

/// Writes the shards and the index of a model into `folder`, named as Hugging Face names them; returns the index's path.
pub fn write_model(folder: &Path, shards: &[File]) -> PathBuf {
    let mut weight_map = serde_json::Map::new();
    let mut total_size = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        shard.write(&folder.join(&name));
        for tensor in shard.tensors() {
            total_size += tensor.len();
            weight_map.insert(tensor.name.clone(), json!(name));
        }
    }
    let index = folder.join("model.safetensors.index.json");
    let content = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    fs::write(&index, content.to_string()).unwrap();
    index
}

/// A file of every kind of tensor that is hard to place: every width of element, odd lengths that leave what follows
/// unaligned, scalars, empty ones, and stretches longer than a page and than a slot of 64 KiB.
pub fn awkward() -> File {
    File::new()
        .metadata("format", "pt")
        .tensor("embed", "BF16", &[211, 640])
        .tensor("scalar", "F32", &[])
        .tensor("odd.u8", "U8", &[7])
        .tensor("after.odd", "F32", &[3, 5])
        .tensor("empty.first", "F32", &[0])
        .tensor("empty.last", "I64", &[3, 0])
        .tensor("packed.f4", "F4", &[6])
        .tensor("packed.f6", "F6_E2M3", &[4, 5])
        .tensor("byte", "BOOL", &[1])
        .tensor("page", "U8", &[4096])
        .tensor("over.a.page", "I8", &[4097])
        .tensor("double", "F64", &[129])
        .tensor("complex", "C64", &[2, 2])
        .tensor("eight.bits", "F8_E4M3", &[3, 11])
        .tensor("long", "F16", &[1000, 333])
        .tensor("last", "U64", &[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_value() {
        let bytes: Vec<u8> = ["a", "b"].iter().flat_map(|name| payload(name, 80_000)).collect();
        let mut words: Vec<_> = bytes.chunks_exact(8).collect();
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(payload("a", 13), payload("a", 80)[..13]);
    }

    #[test]
    fn the_data_begin_where_asked() {
        for alignment in [1, 8, 512, 4096] {
            let header = awkward().data_alignment(alignment).header();
            assert_eq!(header.len() % alignment, 0);
            assert_eq!(u64::from_le_bytes(header[..8].try_into().unwrap()) as usize, header.len() - 8);
        }
    }
}
