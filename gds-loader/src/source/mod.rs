//! What a path means: the files behind it and the tensors in them.
//!
//! A path is a safetensors file, a folder of them, an index of shards, a snapshot of the Hugging Face cache or a repository's folder
//! there. Opening a source reads headers only. Everything that can be known to be wrong by then is reported, for all files at once:
//! a source that opens has every shard, every shard has its whole length, and every tensor is in exactly one place.
//!
//! Trade-off: all files stay open, one descriptor each, so that what was checked is what is read later, even if names are
//! moved in the meantime. Where there are too few descriptors for that, files are opened again for every use ([`ShardFile`]).

mod error;
mod expect;
mod file;
mod layout;
mod names;
mod open;
mod reopen;
mod resolve;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rayon::prelude::*;

pub use error::{Absent, Duplicate, Mismatch, SourceError};
pub use expect::Expected;
pub use file::{OpenFile, ShardFile};
pub use resolve::Origin;

use crate::format::{Header, HeaderLimits, TensorEntry};
use crate::threads::in_parallel;
pub(crate) use file::{Keeping, advice};
pub(crate) use open::open_regular;
pub(crate) use reopen::reopen;
pub(crate) use resolve::{Resolved, State, resolve};

/// One file of a source.
#[derive(Debug)]
pub struct Shard {
    /// Its path, as resolved from the path of the source; links in it are not followed.
    pub path: PathBuf,
    /// The file, a regular one, for reading.
    pub file: ShardFile,
    /// Its header, checked against the length of the file.
    pub header: Header,
    /// When it was last written to, as of before its header was read.
    pub(crate) modified: SystemTime,
}

/// Where a tensor is: positions in [`Source::shards`] and in that shard's [`Header::tensors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorRef {
    /// Position in [`Source::shards`].
    pub shard: u32,
    /// Position in the [`Header::tensors`] of that shard.
    pub tensor: u32,
}

/// Opened weights: files, and the tensors they stand for.
#[derive(Debug)]
pub struct Source {
    /// The path given.
    pub path: PathBuf,
    /// Why these files were chosen.
    pub origin: Origin,
    /// The files, in the order of their names.
    pub shards: Vec<Shard>,
    /// The tensors that are meant, in the order of shards and offsets.
    pub tensors: Vec<TensorRef>,
    /// Tensors in the shards that are not meant, because the index gives them to another shard or does not name them.
    pub unindexed: Vec<TensorRef>,
    /// The shards' `__metadata__`; where two shards disagree on a key, the first one's value.
    pub metadata: BTreeMap<String, String>,
    names: names::Names,
}

/// How often a set may be replaced while it is being opened before that is an error.
const MOST_REPLACED: usize = 64;

impl Source {
    /// Opens what `path` means, with the default [`HeaderLimits`].
    ///
    /// # Errors
    /// [`SourceError`], before anything is allocated that a number in a file decides.
    pub fn open(path: impl AsRef<Path>) -> Result<Source, SourceError> {
        Source::open_with(path, &HeaderLimits::default())
    }

    /// Opens what `path` means.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_with(path: impl AsRef<Path>, limits: &HeaderLimits) -> Result<Source, SourceError> {
        let path = path.as_ref();
        let mut outcome = Err(SourceError::Replaced { path: path.to_owned() });
        for _ in 0..MOST_REPLACED {
            let resolved = resolve(path, limits)?;
            let (origin, before) = (resolved.origin.clone(), resolved.state);
            let opened = Self::open_resolved(path, resolved, limits);
            // A saver may have replaced the set since its index was read: then shards are gone, or are of two sets. It never
            // reuses a name that the index has; so the same index still means the same shards. What else happens in a folder
            // without one does not matter to what was opened.
            match (opened, &origin) {
                (Ok(source), Origin::Folder(_)) => return Ok(source),
                (opened, _) if State::now(&origin) == before => return opened,
                (Err(error), _) => outcome = Err(error),
                (Ok(_), _) => outcome = Err(SourceError::Replaced { path: path.to_owned() }),
            }
        }
        outcome
    }

    fn open_resolved(
        path: &Path,
        Resolved { origin, files, index, .. }: Resolved,
        limits: &HeaderLimits,
    ) -> Result<Source, SourceError> {
        let shards = open_shards(path, &origin, files, limits)?;
        let (tensors, unindexed, names) = match &index {
            None => {
                let (tensors, names) = names::unindexed(&shards).map_err(|duplicates| {
                    SourceError::DuplicateTensors { path: path.to_owned(), duplicates }
                })?;
                (tensors, Vec::new(), names)
            }
            Some(index) => {
                let names::Indexed { tensors, unindexed, names } = names::indexed(&shards, index)
                    .map_err(|absent| SourceError::AbsentTensors { path: path.to_owned(), absent })?;
                (tensors, unindexed, names)
            }
        };
        let mut metadata = BTreeMap::new();
        for (key, value) in shards.iter().flat_map(|shard| &shard.header.metadata) {
            if !metadata.contains_key(key) {
                metadata.insert(key.clone(), value.clone());
            }
        }
        Ok(Source { path: path.to_owned(), origin, shards, tensors, unindexed, metadata, names })
    }

    /// Where the tensor called `name` is, if it is meant.
    pub fn find(&self, name: &str) -> Option<TensorRef> {
        self.names.find(&self.shards, &self.tensors, name)
    }

    /// The tensor called `name` and the shard it is in.
    pub fn get(&self, name: &str) -> Option<(&Shard, &TensorEntry)> {
        self.find(name).map(|tensor| (self.shard(tensor), self.entry(tensor)))
    }

    /// The tensor at `tensor`, which must come from this source.
    pub fn entry(&self, tensor: TensorRef) -> &TensorEntry {
        &self.shard(tensor).header.tensors[tensor.tensor as usize]
    }

    /// The shard that holds `tensor`, which must come from this source.
    pub fn shard(&self, tensor: TensorRef) -> &Shard {
        &self.shards[tensor.shard as usize]
    }

    /// The tensors that are meant, each with its shard, in the order of shards and offsets.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Shard, &TensorEntry)> {
        self.tensors.iter().map(|&tensor| (self.shard(tensor), self.entry(tensor)))
    }

    /// Bytes of the tensors that are meant.
    pub fn bytes(&self) -> u64 {
        // Sparse files can claim more than 64 bits together.
        self.iter().fold(0, |sum, (_, entry)| sum.saturating_add(entry.len))
    }
}

/// Opens every file and reads its header, in parallel; every bad file is in the error.
fn open_shards(
    path: &Path,
    origin: &Origin,
    files: Vec<PathBuf>,
    limits: &HeaderLimits,
) -> Result<Vec<Shard>, SourceError> {
    let total = files.len();
    let keeping = Keeping::of(path, total)?;
    let open = |file| open_shard(file, limits, &keeping);
    let opened: Vec<_> = in_parallel(|| files.into_par_iter().map(open).collect());
    let mut shards = Vec::with_capacity(total);
    let mut faults = Vec::new();
    for shard in opened {
        match shard {
            Ok(shard) => shards.push(shard),
            Err(fault) => faults.push(fault),
        }
    }
    match (origin, faults.pop()) {
        (_, None) => Ok(shards),
        // The message already names the path that was given.
        (Origin::File, Some(fault)) => Err(fault),
        (_, Some(last)) => {
            faults.push(last);
            Err(SourceError::Shards { path: path.to_owned(), chosen: origin.to_string(), total, faults })
        }
    }
}

fn open_shard(path: PathBuf, limits: &HeaderLimits, keeping: &Keeping) -> Result<Shard, SourceError> {
    let _turn = keeping.turn();
    let file = open::open_regular(&path)?;
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    let modified = modified.map_err(|error| SourceError::io(&path, "ask when it was written", error))?;
    let header = Header::read(&file, &path, limits)?;
    let file = keeping.keep(file, &path);
    let file = file.map_err(|error| SourceError::io(&path, "ask which file it is", error))?;
    Ok(Shard { path, file, header, modified })
}
