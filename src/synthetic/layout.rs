//! Which tensor goes into which file at which offset, and the headers that say so. Pure.
//!
//! The header is written by hand from the format's description: eight bytes of little-endian length, a JSON object padded with spaces
//! so that the data starts at a multiple of eight, then the data without holes. The format's own library checks it in the tests.

use anyhow::{bail, ensure};
use gds_loader::format::Dtype;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;

use super::payload::Payload;
use super::{Architecture, GENERATOR_KEY, LARGEST_BYTES, PAYLOAD_VERSION, Recipe, SEED_KEY, SMALLEST_BYTES};

/// One tensor of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    /// Bytes from the start of the file's data.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardLayout {
    pub(crate) file_name: String,
    pub(crate) tensors: Vec<PlacedTensor>,
    /// Everything before the data: length, JSON, padding.
    pub(crate) header: Vec<u8>,
}

impl ShardLayout {
    /// Tensor bytes.
    pub(crate) fn data_len(&self) -> u64 {
        self.tensors.last().map_or(0, |tensor| tensor.offset + tensor.len)
    }

    /// Bytes of the whole file.
    pub(crate) fn file_len(&self) -> u64 {
        self.header.len() as u64 + self.data_len()
    }
}

/// A whole checkpoint, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) recipe: Recipe,
    pub(crate) architecture: Architecture,
    pub(crate) shards: Vec<ShardLayout>,
}

impl Layout {
    /// Lays out what `recipe` asks for. Fails where it asks for too few bytes or for more files than there are tensors.
    pub(crate) fn new(recipe: Recipe) -> anyhow::Result<Self> {
        ensure!(
            recipe.bytes >= SMALLEST_BYTES,
            "a checkpoint of {} bytes is too small for this shape; ask for at least {SMALLEST_BYTES}",
            recipe.bytes
        );
        ensure!(
            recipe.bytes <= LARGEST_BYTES,
            "a checkpoint of {} bytes is more than any model; ask for at most {LARGEST_BYTES}",
            recipe.bytes
        );
        let architecture = Architecture::near(u64::try_from(
            u128::from(recipe.bytes) * 8 / u128::from(recipe.dtype.bits()),
        )?);
        let tensors = architecture.tensors();
        if recipe.shards == 0 || recipe.shards > tensors.len() {
            bail!(
                "{} shards were asked for, but there are {} tensors to put in them",
                recipe.shards,
                tensors.len()
            );
        }
        let groups = split(&recipe, tensors);
        let of = groups.len();
        let shards = groups
            .into_iter()
            .enumerate()
            .map(|(index, tensors)| -> anyhow::Result<ShardLayout> {
                let file_name = match of {
                    1 => "model.safetensors".to_owned(),
                    _ => format!("model-{:05}-of-{of:05}.safetensors", index + 1),
                };
                Ok(ShardLayout { file_name, header: header(&recipe, &tensors)?, tensors })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { recipe, architecture, shards })
    }

    /// Tensor bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(ShardLayout::data_len).sum()
    }

    /// Bytes of all files, headers included.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.shards.iter().map(ShardLayout::file_len).sum()
    }

    /// Number of tensors of all files.
    pub(crate) fn tensors(&self) -> usize {
        self.shards.iter().map(|shard| shard.tensors.len()).sum()
    }

    /// What every byte of tensor `name` must be.
    pub(crate) fn payload(&self, name: &str) -> Payload {
        Payload::new(self.recipe.seed, name)
    }

    /// The index beside several files; a single file has none.
    pub(crate) fn index(&self) -> anyhow::Result<Option<Vec<u8>>> {
        if self.shards.len() == 1 {
            return Ok(None);
        }
        let weight_map: serde_json::Map<String, serde_json::Value> = self
            .shards
            .iter()
            .flat_map(|shard| {
                shard.tensors.iter().map(|tensor| (tensor.name.clone(), shard.file_name.clone().into()))
            })
            .collect();
        let index = json!({ "metadata": { "total_size": self.bytes() }, "weight_map": weight_map });
        let mut text = serde_json::to_vec_pretty(&index)?;
        text.push(b'\n');
        Ok(Some(text))
    }
}

/// Cuts the list into files of about equal size; each gets at least one tensor.
fn split(recipe: &Recipe, tensors: Vec<(String, Vec<u64>)>) -> Vec<Vec<PlacedTensor>> {
    let len_of = |shape: &[u64]| bytes_of(recipe.dtype, shape);
    let total: u128 = tensors.iter().map(|(_, shape)| u128::from(len_of(shape))).sum();
    let count = tensors.len();
    let mut shards: Vec<Vec<PlacedTensor>> = vec![Vec::new()];
    let (mut before, mut offset) = (0u128, 0u64);
    for (index, (name, shape)) in tensors.into_iter().enumerate() {
        let len = len_of(&shape);
        let files_left = recipe.shards - shards.len();
        // A tensor goes where its middle falls, so that each file ends as near its share as can be.
        let middle_is_beyond =
            (before + u128::from(len) / 2) * recipe.shards as u128 >= total * shards.len() as u128;
        let each_needs_one = count - index <= files_left;
        if let Some(shard) = shards.last()
            && !shard.is_empty()
            && files_left > 0
            && (middle_is_beyond || each_needs_one)
        {
            shards.push(Vec::new());
            offset = 0;
        }
        if let Some(shard) = shards.last_mut() {
            shard.push(PlacedTensor { name, shape, offset, len });
        }
        before += u128::from(len);
        offset += len;
    }
    shards
}

/// Bytes of a tensor whose elements are a multiple of eight.
fn bytes_of(dtype: Dtype, shape: &[u64]) -> u64 {
    shape.iter().product::<u64>() / 8 * dtype.bits()
}

fn header(recipe: &Recipe, tensors: &[PlacedTensor]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; 8];
    serde_json::to_writer(&mut bytes, &HeaderJson { recipe, tensors })?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let length = (bytes.len() - 8) as u64;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// The header's JSON object, its tensors in file order.
struct HeaderJson<'a> {
    recipe: &'a Recipe,
    tensors: &'a [PlacedTensor],
}

impl Serialize for HeaderJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.tensors.len() + 1))?;
        map.serialize_entry(
            "__metadata__",
            &json!({
                "format": "pt",
                GENERATOR_KEY: PAYLOAD_VERSION,
                SEED_KEY: self.recipe.seed.to_string(),
            }),
        )?;
        for tensor in self.tensors {
            map.serialize_entry(
                &tensor.name,
                &json!({
                    "dtype": self.recipe.dtype.as_str(),
                    "shape": tensor.shape,
                    "data_offsets": [tensor.offset, tensor.offset + tensor.len],
                }),
            )?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: u64, dtype: &str, shards: usize) -> Layout {
        Layout::new(Recipe { bytes, dtype: dtype.parse().unwrap(), seed: 3, shards }).unwrap()
    }

    #[test]
    fn the_reference_reads_every_header() {
        for dtype in ["F4", "F6_E2M3", "U8", "F8_E4M3", "BF16", "F32", "I64", "C64"] {
            for shards in [1, 2, 5] {
                for shard in layout(1 << 20, dtype, shards).shards {
                    let mut file = shard.header.clone();
                    file.resize(file.len() + shard.data_len() as usize, 0);
                    assert_eq!(file.len() as u64, shard.file_len());
                    assert_eq!(shard.header.len() % 8, 0);
                    let read = safetensors::SafeTensors::deserialize(&file).unwrap();
                    assert_eq!(read.len(), shard.tensors.len());
                    for tensor in &shard.tensors {
                        let view = read.tensor(&tensor.name).unwrap();
                        assert_eq!(view.dtype().to_string(), dtype);
                        assert_eq!(view.data().len() as u64, tensor.len);
                        assert_eq!(
                            view.data().as_ptr() as usize - file.as_ptr() as usize - shard.header.len(),
                            tensor.offset as usize
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn files_are_balanced_and_never_empty() {
        let big = layout(2 << 30, "BF16", 4);
        assert_eq!(big.shards.len(), 4);
        for shard in &big.shards {
            let share = shard.data_len() as f64 / big.bytes() as f64;
            assert!((0.2..0.3).contains(&share), "{share}");
        }
        let tensors = layout(1 << 20, "BF16", 1).tensors();
        for shards in 1..=tensors {
            let layout = layout(1 << 20, "BF16", shards);
            assert_eq!(layout.shards.len(), shards);
            assert_eq!(layout.tensors(), tensors);
            assert!(layout.shards.iter().all(|shard| !shard.tensors.is_empty()));
        }
        let recipe = Recipe { bytes: 1 << 20, dtype: "BF16".parse().unwrap(), seed: 3, shards: tensors + 1 };
        assert!(Layout::new(recipe).is_err());
    }

    #[test]
    fn the_size_is_what_was_asked_for() {
        for dtype in ["F4", "BF16", "F32", "C64"] {
            for bytes in [SMALLEST_BYTES, 1 << 20, 100 << 20, 2 << 30, 300 << 30] {
                let off = layout(bytes, dtype, 1).bytes().abs_diff(bytes) as f64 / bytes as f64;
                assert!(off < 0.02, "{dtype} {bytes}: {off}");
            }
        }
    }
}
