//! A loaded model: tensors by name, and the memory they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_staging::{Device, Region};

use crate::digest::{self, Sha256Hex};
use crate::error::Result;
use crate::format::{Dtype, Header, TensorEntry};
use crate::load::Loaded;
use crate::report::LoadReport;
use crate::source::TensorRef;

/// A model in device memory. Every tensor of it is whole: a model with a missing byte is an error and never this.
#[derive(Clone, Debug)]
pub struct Model {
    shared: Arc<Shared>,
    report: LoadReport,
}

/// What tensors keep alive.
#[derive(Debug)]
struct Shared {
    device: Device,
    headers: Vec<Header>,
    metadata: BTreeMap<String, String>,
    /// In the order of shards and offsets.
    tensors: Vec<(TensorRef, Region)>,
    /// Indices into `tensors`, by name.
    by_name: Vec<u32>,
}

impl Shared {
    fn entry(&self, index: u32) -> &TensorEntry {
        let tensor = self.tensors[index as usize].0;
        &self.headers[tensor.shard as usize].tensors[tensor.tensor as usize]
    }
}

/// One tensor of a [`Model`]. Cheap to clone; its memory lives as long as any clone of it, the model dropped or not.
#[derive(Clone)]
pub struct Tensor {
    shared: Arc<Shared>,
    index: u32,
}

impl Model {
    pub(crate) fn new(device: Device, loaded: Loaded, offsets: Vec<u64>) -> Result<Self> {
        let Loaded { headers, metadata, chosen, regions, report } = loaded;
        let mut tensors = Vec::with_capacity(chosen.len());
        if let Some(whole) = regions.first() {
            for (tensor, offset) in chosen.into_iter().zip(offsets) {
                let len = headers[tensor.shard as usize].tensors[tensor.tensor as usize].len;
                tensors.push((tensor, whole.slice(offset..offset + len)?));
            }
        }
        let mut shared = Shared { device, headers, metadata, tensors, by_name: Vec::new() };
        let mut by_name: Vec<u32> = (0..shared.tensors.len() as u32).collect();
        by_name.sort_unstable_by(|a, b| shared.entry(*a).name.cmp(&shared.entry(*b).name));
        shared.by_name = by_name;
        Ok(Self { shared: Arc::new(shared), report })
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.shared.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared.tensors.is_empty()
    }

    /// The tensors, in the order of their files and of their bytes in them.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor> + '_ {
        (0..self.shared.tensors.len() as u32).map(|index| self.at(index))
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        let by_name = &self.shared.by_name;
        let found = by_name.binary_search_by(|index| (*self.shared.entry(*index).name).cmp(name)).ok()?;
        Some(self.at(by_name[found]))
    }

    /// The `__metadata__` of its files, joined.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.shared.metadata
    }

    /// What the load did.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// SHA-256 of every tensor's bytes as read back from the device, in hex, by name.
    ///
    /// # Errors
    /// Those of the device.
    pub fn digests(&self) -> Result<BTreeMap<String, String>> {
        let regions: Vec<&Region> = self.shared.tensors.iter().map(|(_, region)| region).collect();
        let digests = digest::of_regions::<Sha256Hex>(self.device(), &regions)?;
        let digests = digests.into_iter().map(|Sha256Hex(hex)| hex);
        Ok(self.tensors().map(|tensor| tensor.name().to_owned()).zip(digests).collect())
    }

    fn at(&self, index: u32) -> Tensor {
        Tensor { shared: Arc::clone(&self.shared), index }
    }
}

impl Tensor {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.entry(self.index).name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.shared.entry(self.index).dtype
    }

    /// Its shape in elements, outermost dimension first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shared.entry(self.index).shape
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.region().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its first byte: a device pointer on a GPU, a host address on the CPU. Valid while a clone of this
    /// tensor lives.
    pub fn device_address(&self) -> u64 {
        self.region().address()
    }

    /// Its memory. A clone of it keeps the memory alive.
    pub fn region(&self) -> &Region {
        &self.shared.tensors[self.index as usize].1
    }

    /// Its bytes, where they are in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        self.region().host_bytes()
    }

    /// Copies its bytes to the host.
    ///
    /// # Errors
    /// Those of the device.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len() as usize];
        self.shared.device.copy_to_host(self.region(), &mut bytes)?;
        Ok(bytes)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("address", &format_args!("{:#x}", self.device_address()))
            .finish_non_exhaustive()
    }
}
