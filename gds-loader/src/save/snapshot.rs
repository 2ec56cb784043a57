//! Copies of all tensors within their device, so that the tensors themselves may change at once.

use cuda_staging::{Device, Region, RegionMut, SlotFetch, WindowRing};

use super::error::SaveError;
use super::write::{Bytes, Image};

/// Alignment of a copy's beginning, in bytes: what vectorised copies like.
const ALIGNMENT: u64 = 256;

/// The same files, from copies of their tensors' bytes: those of `device` on it, those of the host on the host.
///
/// # Errors
/// [`SaveError::Snapshot`] where memory does not suffice; those of the device.
pub(super) fn take(images: Vec<Image<'_>>, device: &Device) -> Result<Vec<Image<'static>>, SaveError> {
    let sources = || images.iter().flat_map(|image| &image.tensors);
    let mut on_device = Copies::default();
    let mut on_host = Copies::default();
    for source in sources() {
        let space = if source.host().is_some() { &mut on_host } else { &mut on_device };
        space.place(source.len());
    }
    let device_copy = on_device.copy_on_device(sources(), device)?;
    let host_copy = on_host.copy_on_host(sources())?;

    let (mut device_places, mut host_places) = (on_device.places.iter(), on_host.places.iter());
    let mut images_of_copies = Vec::with_capacity(images.len());
    for Image { header, tensors } in images {
        let mut copies = Vec::with_capacity(tensors.len());
        for source in &tensors {
            let (whole, place) = match source.host() {
                Some(_) => (&host_copy, host_places.next()),
                None => (&device_copy, device_places.next()),
            };
            let start = place.copied().unwrap_or_default();
            copies.push(Bytes::Region(whole.slice(start..start + source.len())?));
        }
        images_of_copies.push(Image { header, tensors: copies });
    }
    Ok(images_of_copies)
}

/// Where copies are in one allocation.
#[derive(Default)]
struct Copies {
    places: Vec<u64>,
    len: u64,
}

impl Copies {
    fn place(&mut self, len: u64) {
        self.places.push(self.len);
        self.len = (self.len + len).next_multiple_of(ALIGNMENT);
    }

    fn copy_on_device<'s>(
        &self,
        sources: impl Iterator<Item = &'s Bytes<'s>>,
        device: &Device,
    ) -> Result<Region, SaveError> {
        if self.len == 0 {
            return Ok(RegionMut::from_vec(Vec::new()).freeze());
        }
        let window = allocate(device, self.len)?;
        let regions = sources.filter_map(|source| match source {
            Bytes::Region(region) if region.host_bytes().is_none() => Some(region),
            _ => None,
        });
        let fetches = regions.zip(&self.places);
        let fetches = fetches
            .map(|(from, &offset)| SlotFetch { slot_offset: offset as usize, from: from.clone() })
            .collect();
        let mut ring: WindowRing<RegionMut> = device.window_ring()?;
        ring.launch_fetch(window, fetches)?;
        let window = ring.take_back()?;
        Ok(window.ok_or_else(|| SaveError::Worker { reason: "the snapshot is gone".into() })?.freeze())
    }

    fn copy_on_host<'s>(&self, sources: impl Iterator<Item = &'s Bytes<'s>>) -> Result<Region, SaveError> {
        let mut copy = allocate(&Device::cpu(), self.len)?;
        let into = copy.host_bytes_mut().unwrap_or_default();
        for (from, &offset) in sources.filter_map(Bytes::host).zip(&self.places) {
            into[offset as usize..][..from.len()].copy_from_slice(from);
        }
        Ok(copy.freeze())
    }
}

fn allocate(device: &Device, len: u64) -> Result<RegionMut, SaveError> {
    let free = device.memory()?.map(|memory| memory.free);
    let too_much = |free| SaveError::Snapshot { needed: len, free };
    if let Some(free) = free
        && free < len
    {
        return Err(too_much(Some(free)));
    }
    device.allocate(len, ALIGNMENT).map_err(|error| match error {
        cuda_staging::Error::OutOfMemory { .. } => too_much(free),
        other => other.into(),
    })
}
