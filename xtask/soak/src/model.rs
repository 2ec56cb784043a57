//! The models that are loaded: of shards, long tensors and short ones of odd lengths among them.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use test_support::fixture::File;

use crate::oracle::Words;

/// A model, as both who makes it and who checks it know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Model {
    /// The file or folder to be loaded.
    pub(crate) path: PathBuf,
    /// Makes its bytes different from every other model's.
    pub(crate) number: u64,
    pub(crate) shards: usize,
    /// Bytes of each shard's tensors, about.
    pub(crate) shard_bytes: usize,
    /// The versions that may be there.
    pub(crate) versions: Vec<u32>,
}

/// The longest tensor: more than a read, less than a slot's worth of them.
pub(crate) const LONGEST: usize = 3 << 20;

impl Model {
    /// The names and lengths of a shard's tensors, in the order of their bytes.
    pub(crate) fn tensors(&self, shard: usize) -> Vec<(String, usize)> {
        let mut left = self.shard_bytes;
        let mut tensors = Vec::new();
        while left > 0 {
            // Long, odd, tiny, empty: what follows an odd one is aligned to nothing.
            let number = tensors.len();
            let len = match number % 5 {
                0 => LONGEST - 4096 * (number % 7),
                1 => 401,
                2 => 100_003,
                3 => 0,
                _ => 4096 * 9,
            };
            let len = len.min(left);
            left -= len;
            tensors.push((format!("m{}.s{shard}.t{number}", self.number), len));
        }
        tensors
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        (self.shards * self.shard_bytes) as u64
    }

    /// All bytes of a shard's file.
    pub(crate) fn file(&self, shard: usize, version: u32) -> Vec<u8> {
        let tensors = self.tensors(shard);
        let file =
            tensors.iter().fold(File::new(), |file, (name, len)| file.tensor(name, "U8", &[*len as u64]));
        let mut bytes = file.header();
        for (name, len) in &tensors {
            Words::new(self.number, version, name).write(*len, &mut bytes);
        }
        bytes
    }

    /// The files that there are as long as nobody replaces the set.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match self.shards {
            1 => vec![self.path.clone()],
            shards => (0..shards).map(|shard| self.path.join(shard_name(shard, shards, 0))).collect(),
        }
    }

    /// Makes it, to the disk: only then can its pages leave the page cache.
    pub(crate) fn make(&self) -> io::Result<()> {
        if self.shards == 1 {
            return write(&self.path, &self.file(0, 0));
        }
        fs::create_dir_all(&self.path)?;
        self.write_set(0)
    }

    /// Writes the set of a version under names of its own, then the index that means it over the one that is there.
    pub(crate) fn write_set(&self, version: u32) -> io::Result<()> {
        let mut weight_map = serde_json::Map::new();
        for shard in 0..self.shards {
            let name = shard_name(shard, self.shards, version);
            write(&self.path.join(&name), &self.file(shard, version))?;
            weight_map
                .extend(self.tensors(shard).into_iter().map(|(tensor, _)| (tensor, name.clone().into())));
        }
        let index = self.path.join("model.safetensors.index.json");
        let unfinished = index.with_extension("unfinished");
        let text =
            serde_json::json!({ "metadata": { "total_size": self.bytes() }, "weight_map": weight_map });
        write(&unfinished, text.to_string().as_bytes())?;
        fs::rename(unfinished, index)
    }

    /// Removes the files of a set that the index does not mean any more.
    pub(crate) fn remove_set(&self, version: u32) -> io::Result<()> {
        let name = |shard| shard_name(shard, self.shards, version);
        (0..self.shards).try_for_each(|shard| fs::remove_file(self.path.join(name(shard))))
    }
}

fn shard_name(shard: usize, shards: usize, version: u32) -> String {
    format!("model-v{version}-{:05}-of-{shards:05}.safetensors", shard + 1)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_as_many_bytes_as_asked() {
        let model = Model { path: "x".into(), number: 3, shards: 2, shard_bytes: 8 << 20, versions: vec![0] };
        let lens: Vec<usize> = model.tensors(1).into_iter().map(|(_, len)| len).collect();
        assert_eq!(lens.iter().sum::<usize>(), 8 << 20);
        assert!(lens.contains(&0) && lens.contains(&401));
        assert!(model.file(1, 0) != model.file(1, 1) && model.file(1, 0).len() == model.file(1, 1).len());
    }
}
