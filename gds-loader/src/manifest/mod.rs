//! Manifests: what a checkpoint's bytes were, to be held against what they are.
//!
//! A manifest has the length and the checksum of every file, and name, dtype, shape and checksum of every tensor. It is made from a
//! checkpoint that is known to be good ([`Verifier::read`](crate::Verifier::read)) or while one is being written ([`Builder`]), and
//! held against files ([`Verifier::check`](crate::Verifier::check)) or against the bytes of a load
//! ([`Loader::manifest`](crate::Loader::manifest)).
//!
//! # What it protects against
//!
//! Accidents: bits that flipped on a disk, in memory or on a bus, files cut short or patched together from two downloads, tensors or
//! shards mixed up, another version of the same model. A change of up to 64 bits in a row is found always, any other with a
//! chance of all but 2^-64. It does *not* protect against an adversary: a CRC can be forged by whoever can write the file, as
//! can the manifest beside it. Where that matters, compare the SHA-256 of `gds load --digest` with ones from a trusted place.
//!
//! # The file
//!
//! JSON, by convention `model.gds-manifest.json` beside the model ([`Manifest::beside`]), a name that no reader takes for an index:
//!
//! ```json
//! {"format": "gds-manifest", "version": 1, "algorithm": "crc64-nvme", "files": [
//!   {"name": "model.safetensors", "length": 4112, "checksum": "9a1f04be27c3d508", "tensors": [
//!     {"name": "w", "dtype": "F32", "shape": [2, 2], "length": 16, "checksum": "03e0c0a5b7716f21"}]}]}
//! ```
//!
//! `name` is relative to the model's folder. Tensors are in the order of their bytes, which end where the file ends; what comes before
//! the first is the header. An index is a file without tensors. Other versions and algorithms, fields nobody knows and repeated
//! names are refused.
//!
//! # The checksum
//!
//! CRC-64/NVME by the crate `crc-fast` (MIT or Apache-2.0; also under AWS's SDK for Rust), about 25 GB/s a core out of memory with AVX-512, and
//! *combinable*: a load's workers take the checksum of each piece as it arrives, in any order, and nothing is read twice. A
//! cryptographic hash has to see the bytes in order, and is ten times slower or more.

mod builder;
mod checksum;
mod compare;
mod layout;
mod load;
mod parse;
mod sums;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::format::{Dtype, Shape};

pub use builder::{Builder, NotComplete};
pub use checksum::{Checksum, NoChecksum};
pub use compare::{Difference, What};
pub use layout::FileLayout;
pub use load::{ManifestMode, Proven, Verified};
pub use parse::{ManifestError, ManifestFault};

pub(crate) use load::{Check, name_of};
pub(crate) use sums::{Segment, Sums};

/// What the files of a checkpoint hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pub(crate) files: Vec<ManifestFile>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ManifestFile {
    /// Its path below the model's folder.
    pub name: Box<str>,
    /// Its length in bytes.
    pub length: u64,
    /// The checksum of all of it, its header included.
    pub checksum: Checksum,
    /// Its tensors, in the order of their bytes, which end where the file ends.
    pub tensors: Vec<ManifestTensor>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ManifestTensor {
    /// Its name.
    pub name: Box<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Shape,
    /// Its length in bytes.
    pub length: u64,
    /// The checksum of its bytes.
    pub checksum: Checksum,
}

impl Manifest {
    /// The files, in the order of the text.
    pub fn files(&self) -> &[ManifestFile] {
        &self.files
    }

    /// Where each file is in [`Manifest::files`], by name: for looking many up.
    pub(crate) fn places(&self) -> HashMap<&str, usize> {
        self.files.iter().enumerate().map(|(place, file)| (&*file.name, place)).collect()
    }

    /// The file of this name.
    pub fn file(&self, name: &str) -> Option<&ManifestFile> {
        self.files.iter().find(|file| *file.name == *name)
    }

    /// How many tensors there are in all files.
    pub fn tensors(&self) -> usize {
        self.files.iter().map(|file| file.tensors.len()).sum()
    }

    /// Where the manifest of the model at `path` is by convention: in the model's folder, as `model.gds-manifest.json` for a folder and
    /// for files called after `model`.
    pub fn beside(path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let (folder, name) = match (path.is_dir(), path.file_name()) {
            (false, Some(name)) => (path.parent().unwrap_or(Path::new("")), name.as_encoded_bytes()),
            _ => (path, &b"model"[..]),
        };
        let endings = [".safetensors.index.json", ".safetensors"];
        let stem = endings.iter().find_map(|ending| name.strip_suffix(ending.as_bytes())).unwrap_or(name);
        let mut file: OsString = std::os::unix::ffi::OsStringExt::from_vec(stem.to_vec());
        file.push(".gds-manifest.json");
        folder.join(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_beside_a_model_is_no_index_s() {
        let folder = tempfile::tempdir().unwrap();
        let here = |name: &str| folder.path().join(name);
        assert_eq!(Manifest::beside(folder.path()), here("model.gds-manifest.json"));
        assert_eq!(Manifest::beside(here("model.safetensors")), here("model.gds-manifest.json"));
        assert_eq!(Manifest::beside(here("a.safetensors.index.json")), here("a.gds-manifest.json"));
        assert_eq!(Manifest::beside("a.bin"), Path::new("a.bin.gds-manifest.json"));
    }
}
