//! A load held against a manifest: what can be known before any data moves, and the bytes.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use cuda_staging::{Device, Region};
use serde::{Deserialize, Serialize};

use super::compare::{Difference, What};
use super::layout::FileLayout;
use super::{Checksum, Manifest, Sums};
use crate::digest;
use crate::error::{Error, Result};
use crate::source::{Origin, Shard, Source, TensorRef};

/// Which bytes of a load are held against a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManifestMode {
    /// Those that arrive in host memory, as they pass: nothing is read twice. Where they do not pass there, as with GPUDirect
    /// Storage, all are read back from the device.
    #[default]
    Host,
    /// All as read back from the device, which proves the copies too.
    Device,
}

/// Which bytes were held against a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Proven {
    /// Those that arrived in host memory. That they reached a device unchanged is not proven.
    Slots,
    /// Those on the device.
    Device,
}

impl Proven {
    /// `slots` or `device`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Device => "device",
        }
    }
}

/// What of a load is as its manifest says: all that was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verified {
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Which bytes these are.
    pub proven: Proven,
    /// What it took: seconds within the workers, summed over them, and seconds of reading back.
    pub seconds: f64,
}

/// What a load is held against.
#[derive(Debug)]
pub(crate) struct Check {
    mode: ManifestMode,
    /// In the order of what is loaded.
    tensors: Vec<Wanted>,
}

#[derive(Debug)]
struct Wanted {
    file: Box<str>,
    name: Box<str>,
    offset: u64,
    len: u64,
    expected: Checksum,
}

impl Check {
    /// Holds files and headers against the manifest, and prepares to do so with the bytes of the chosen tensors.
    ///
    /// # Errors
    /// [`Error::Manifest`] with everything that differs.
    pub(crate) fn prepare(
        manifest: &Manifest,
        mode: ManifestMode,
        source: &Source,
        chosen: &[TensorRef],
    ) -> Result<Self> {
        let names: Vec<_> = source.shards.iter().map(|shard| name_of(&source.origin, &shard.path)).collect();
        let places = manifest.places();
        let mut differences = Vec::new();
        let mut files = Vec::with_capacity(names.len());
        for (name, shard) in names.iter().zip(&source.shards) {
            let file = places.get(&**name).map(|place| &manifest.files[*place]);
            match file {
                None => differences.push(Difference::of_file(name, What::Extra)),
                Some(file) => {
                    let layout = FileLayout::safetensors(&**name, &shard.header);
                    differences.extend(file.compare_layout(&layout));
                    if !file.has_head(layout.data_offset(), head_of(shard)?) {
                        differences.push(Difference::of_file(name, What::Header));
                    }
                }
            }
            // By name: tensors without bytes have no order that a header would have to keep.
            let sums: HashMap<&str, Checksum> =
                file.iter().flat_map(|file| &file.tensors).map(|of| (&*of.name, of.checksum)).collect();
            files.push(sums);
        }
        if !matches!(source.origin, Origin::File) {
            let found: HashSet<&str> = names.iter().map(|name| &**name).collect();
            let with_tensors = manifest.files.iter().filter(|file| !file.tensors.is_empty());
            let missing = with_tensors.filter(|file| !found.contains(&*file.name));
            differences.extend(missing.map(|file| Difference::of_file(&file.name, What::Missing)));
        }
        if !differences.is_empty() {
            return Err(Error::Manifest { path: source.path.clone(), differences });
        }
        // Nothing differs, so that each file's tensors are those of its header.
        let wanted = |tensor: &TensorRef| {
            let entry = source.entry(*tensor);
            Some(Wanted {
                file: names[tensor.shard as usize].as_str().into(),
                name: entry.name.clone(),
                offset: entry.offset,
                len: entry.len,
                expected: *files[tensor.shard as usize].get(&*entry.name)?,
            })
        };
        let tensors = chosen.iter().map(wanted).collect::<Option<Vec<_>>>();
        let tensors = tensors.ok_or_else(|| Error::Manifest {
            path: source.path.clone(),
            differences: names.iter().map(|name| Difference::of_file(name, What::Header)).collect(),
        })?;
        Ok(Self { mode, tensors })
    }

    /// Whether the bytes are wanted as they pass.
    pub(crate) fn watches(&self) -> bool {
        self.mode == ManifestMode::Host
    }

    /// Holds what arrived against the manifest: `sums` of the chosen tensors' bytes as they passed, where that was watched, and
    /// where it was not, or something passed by, their regions on the device.
    ///
    /// # Errors
    /// [`Error::Manifest`] with everything that differs, and those of the device.
    pub(crate) fn judge(
        &self,
        path: &Path,
        sums: Option<&Sums>,
        device: &Device,
        regions: impl FnOnce() -> Result<Vec<Region>>,
    ) -> Result<Verified> {
        let passed = sums.and_then(|sums| sums.checksums().into_iter().collect::<Option<Vec<_>>>());
        let (found, proven, time) = match (passed, sums) {
            (Some(found), Some(sums)) => (found, Proven::Slots, sums.time()),
            _ => {
                let start = std::time::Instant::now();
                let regions = regions()?;
                let found = digest::of_regions::<Checksum>(device, &regions.iter().collect::<Vec<_>>())?;
                (found, Proven::Device, start.elapsed())
            }
        };
        let differs = |(tensor, found): (&Wanted, Checksum)| {
            let place = (tensor.offset, tensor.len);
            Difference::of_bytes(&tensor.file, &tensor.name, place, tensor.expected, found)
        };
        let differences: Vec<_> = self.tensors.iter().zip(found).filter_map(differs).collect();
        if !differences.is_empty() {
            return Err(Error::Manifest { path: path.to_path_buf(), differences });
        }
        let bytes = self.tensors.iter().map(|tensor| tensor.len).sum();
        Ok(Verified { tensors: self.tensors.len(), bytes, proven, seconds: time.as_secs_f64() })
    }
}

/// What a manifest calls the file at `path`: its path below the model's folder. One that is no text is escaped, by which two files have
/// two names; with the backslashes of that, no manifest may have it.
pub(crate) fn name_of(origin: &Origin, path: &Path) -> String {
    let folder = match origin {
        Origin::Folder(folder) => Some(folder.as_path()),
        Origin::Index(index) => index.parent(),
        Origin::File => path.parent(),
    };
    let below = folder.and_then(|folder| path.strip_prefix(folder).ok()).unwrap_or(path);
    match below.to_str() {
        Some(name) => name.to_owned(),
        None => below.as_os_str().as_encoded_bytes().escape_ascii().to_string(),
    }
}

/// The checksum of everything before the first tensor.
fn head_of(shard: &Shard) -> Result<Checksum> {
    let mut head = vec![0; shard.header.data_offset as usize];
    let read = shard.file.open().and_then(|file| file.read_exact_at(&mut head, 0));
    read.map_err(|source| {
        Error::Source(crate::source::SourceError::Io {
            path: shard.path.clone(),
            doing: "read its header again",
            source,
        })
    })?;
    Ok(Checksum::of(&head))
}
