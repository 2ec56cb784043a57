//! Small checkpoints: the same tensors in all of them, every byte of one being its fill.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::source::{Source, SourceError};

use super::super::{Durability, Publication, PublishError, Synced, System, Target};

/// The index of every set.
pub(super) const INDEX: &str = "model.safetensors.index.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) fill: u8,
    pub(super) shards: usize,
    /// Bytes of each tensor, of which a shard has two.
    pub(super) tensor: usize,
}

impl Checkpoint {
    pub(super) fn new(fill: u8, shards: usize) -> Self {
        Self { fill, shards, tensor: 600 }
    }

    fn tensors(self, shard: usize) -> [String; 2] {
        [format!("t{}", 2 * shard), format!("t{}", 2 * shard + 1)]
    }

    pub(super) fn names(self) -> Vec<String> {
        (1..=self.shards).map(|shard| format!("model-{shard:05}-of-{:05}.safetensors", self.shards)).collect()
    }

    pub(super) fn index(self, names: &[String]) -> Vec<u8> {
        let map: serde_json::Map<_, _> = (0..self.shards)
            .flat_map(|shard| self.tensors(shard).map(|tensor| (tensor, names[shard].as_str().into())))
            .collect();
        serde_json::json!({ "metadata": {}, "weight_map": map }).to_string().into_bytes()
    }

    /// The bytes of a shard: its header and its data.
    pub(super) fn parts(self, shard: usize) -> [Vec<u8>; 2] {
        let [a, b] = self.tensors(shard);
        let (middle, end) = (self.tensor, 2 * self.tensor);
        let json = format!(
            r#"{{"{a}":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{middle}]}},"{b}":{{"dtype":"U8","shape":[{0}],"data_offsets":[{middle},{end}]}}}}"#,
            self.tensor
        );
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json.as_bytes());
        [header, vec![self.fill; end]]
    }

    /// Saves it to one file, which then has the tensors of the first shard.
    pub(super) fn save_file(
        self,
        system: Arc<dyn System>,
        path: &Path,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        self.save(system, Target::File(path.to_owned()), 1, durability)
    }

    pub(super) fn save_set(
        self,
        system: Arc<dyn System>,
        folder: &Path,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        let shards = self.names();
        let target = Target::Set { folder: folder.to_owned(), index: INDEX.to_owned(), shards };
        self.save(system, target, self.shards, durability)
    }

    fn save(
        self,
        system: Arc<dyn System>,
        target: Target,
        files: usize,
        durability: Durability,
    ) -> Result<Synced, PublishError> {
        let mut publication = Publication::begin(system, target, durability)?;
        for shard in 0..files {
            let [header, data] = self.parts(shard);
            let file = publication.create(shard, (header.len() + data.len()) as u64)?;
            file.write_all_at(&header, 0)?;
            file.write_all_at(&data, header.len() as u64)?;
        }
        publication.commit(&|names| self.index(names))
    }

    /// Writes it as a file by plain means.
    pub(super) fn write_file(self, path: &Path) {
        fs::write(path, self.parts(0).concat()).unwrap();
    }

    /// Writes it as a set by plain means.
    pub(super) fn write_set(self, folder: &Path) {
        let names = self.names();
        for (shard, name) in names.iter().enumerate() {
            fs::write(folder.join(name), self.parts(shard).concat()).unwrap();
        }
        fs::write(folder.join(INDEX), self.index(&names)).unwrap();
    }
}

/// What a path means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// This many tensors, whole, of one fill.
    Whole { fill: u8, tensors: usize },
    /// No checkpoint.
    Nothing,
    /// Something that should not be.
    Bad(String),
}

impl Found {
    pub(super) fn set(checkpoint: Checkpoint) -> Self {
        Self::Whole { fill: checkpoint.fill, tensors: 2 * checkpoint.shards }
    }

    pub(super) fn file(checkpoint: Checkpoint) -> Self {
        Self::Whole { fill: checkpoint.fill, tensors: 2 }
    }
}

/// Opens `path` as the loader does, and reads every byte of every tensor.
pub(super) fn find(path: &Path) -> Found {
    let source = match Source::open(path) {
        Ok(source) => source,
        // Shards without an index that are not all there are no checkpoint to any reader.
        Err(
            SourceError::NotFound { .. } | SourceError::NoWeights { .. } | SourceError::Incomplete { .. },
        ) => {
            return Found::Nothing;
        }
        Err(error) => return Found::Bad(error.to_string()),
    };
    let mut fills = std::collections::BTreeSet::new();
    for (shard, entry) in source.iter() {
        let mut bytes = vec![0; entry.len as usize];
        shard.file.open().unwrap().read_exact_at(&mut bytes, entry.offset).unwrap();
        fills.extend(bytes);
    }
    let tensors = source.tensors.len();
    match Vec::from_iter(fills).as_slice() {
        [fill] => Found::Whole { fill: *fill, tensors },
        other => Found::Bad(format!("{tensors} tensors with bytes of {other:?}")),
    }
}

/// The names in a folder, sorted.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}
