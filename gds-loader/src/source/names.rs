//! Finding tensors by name, and pairing an index with what the shards hold.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::error::{Absent, Duplicate};
use super::{Shard, TensorRef};
use crate::format::Index;

/// Positions in a list of tensors by the tensors' names, which stay in the headers.
#[derive(Debug, Default)]
pub(super) struct Names {
    positions: HashTable<u32>,
    hasher: RandomState,
}

impl Names {
    pub(super) fn find(&self, shards: &[Shard], tensors: &[TensorRef], name: &str) -> Option<TensorRef> {
        let at = |&position: &u32| tensors.get(position as usize).copied();
        let is_it = |position: &u32| at(position).is_some_and(|tensor| name_of(shards, tensor) == name);
        self.positions.find(self.hasher.hash_one(name), is_it).and_then(at)
    }
}

fn name_of(shards: &[Shard], tensor: TensorRef) -> &str {
    &shards[tensor.shard as usize].header.tensors[tensor.tensor as usize].name
}

/// Every tensor of the shards, in the order of shards and offsets.
fn all(shards: &[Shard]) -> impl Iterator<Item = TensorRef> {
    (0u32..).zip(shards).flat_map(|(shard, Shard { header, .. })| {
        (0u32..).zip(&header.tensors).map(move |(tensor, _)| TensorRef { shard, tensor })
    })
}

/// The tensors of shards without an index, each of which must be in one shard.
pub(super) fn unindexed(shards: &[Shard]) -> Result<(Vec<TensorRef>, Names), Vec<Duplicate>> {
    let tensors = all(shards).collect::<Vec<_>>();
    let hasher = RandomState::new();
    let mut positions = HashTable::with_capacity(tensors.len());
    let mut duplicates = Vec::new();
    for (position, &tensor) in (0u32..).zip(&tensors) {
        let name = name_of(shards, tensor);
        let hash = hasher.hash_one(name);
        let same_name = |&other: &u32| name_of(shards, tensors[other as usize]) == name;
        match positions.find(hash, same_name) {
            Some(&other) => duplicates.push(Duplicate {
                tensor: name.to_owned(),
                first: shards[tensors[other as usize].shard as usize].path.clone(),
                second: shards[tensor.shard as usize].path.clone(),
            }),
            None => {
                let rehash = |&other: &u32| hasher.hash_one(name_of(shards, tensors[other as usize]));
                positions.insert_unique(hash, position, rehash);
            }
        }
    }
    if duplicates.is_empty() { Ok((tensors, Names { positions, hasher })) } else { Err(duplicates) }
}

/// What an index makes of its shards.
pub(super) struct Indexed {
    pub(super) tensors: Vec<TensorRef>,
    pub(super) unindexed: Vec<TensorRef>,
    pub(super) names: Names,
}

/// The tensors that `index` means, and those of its shards that it gives elsewhere or does not name.
pub(super) fn indexed(shards: &[Shard], index: &Index) -> Result<Indexed, Vec<Absent>> {
    let mut found = vec![None; index.tensors().len()];
    let mut tensors = Vec::with_capacity(found.len());
    let mut unindexed = Vec::new();
    for tensor in all(shards) {
        match index.position(name_of(shards, tensor)) {
            Some((position, file)) if file == tensor.shard as usize => {
                found[position] = Some(tensors.len() as u32);
                tensors.push(tensor);
            }
            _ => unindexed.push(tensor),
        }
    }
    let absent = |((name, file), _): ((&str, usize), _)| Absent {
        tensor: name.to_owned(),
        shard: shards[file].path.clone(),
    };
    let absent =
        index.tensors().zip(&found).filter(|(_, found)| found.is_none()).map(absent).collect::<Vec<_>>();
    if !absent.is_empty() {
        return Err(absent);
    }
    let hasher = RandomState::new();
    let hash = |position: &u32| hasher.hash_one(name_of(shards, tensors[*position as usize]));
    let mut positions = HashTable::with_capacity(tensors.len());
    for position in (0u32..).take(tensors.len()) {
        positions.insert_unique(hash(&position), position, hash);
    }
    Ok(Indexed { tensors, unindexed, names: Names { positions, hasher } })
}
