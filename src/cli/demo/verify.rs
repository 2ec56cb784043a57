//! The proof: every byte that arrived, read back from the device, against what it must be.

use anyhow::{Context, bail, ensure};
use cuda_staging::{Device, RingOptions, SlotCopy};
use gds_loader::{Model, Tensor, in_parallel};
use rayon::prelude::*;

use crate::cli::progress::Progress;
use crate::synthetic::Layout;
use crate::synthetic::payload::Payload;

/// Bytes read back at a time, by each thread.
const CHUNK: u64 = 4 << 20;

/// Checks that `model` holds exactly the tensors of `layout`, and every byte of them. `progress` advances by as many.
pub(super) fn verify(model: &Model, layout: &Layout, progress: &Progress) -> anyhow::Result<()> {
    let mut chunks: Vec<(Tensor, Payload, u64)> = Vec::new();
    for expected in layout.shards.iter().flat_map(|shard| &shard.tensors) {
        let name = expected.name.as_str();
        let tensor = model.get(name).with_context(|| format!("tensor {name} was not loaded"))?;
        ensure!(
            tensor.dtype() == layout.recipe.dtype
                && tensor.shape() == expected.shape
                && tensor.len() == expected.len,
            "tensor {name} came back as {} {:?}",
            tensor.dtype(),
            tensor.shape(),
        );
        let payload = layout.payload(name);
        chunks.extend(
            (0..tensor.len()).step_by(CHUNK as usize).map(|offset| (tensor.clone(), payload, offset)),
        );
    }
    ensure!(model.len() == layout.tensors(), "more tensors were loaded than the checkpoint has");
    let check = |buffer: &mut Vec<u8>, (tensor, payload, offset): &(Tensor, Payload, u64)| {
        verify_chunk(model.device(), tensor, *payload, *offset, buffer)?;
        progress.advance(buffer.len() as u64);
        Ok(())
    };
    in_parallel(|| chunks.par_iter().try_for_each_init(Vec::new, check))
}

fn verify_chunk(
    device: &Device,
    tensor: &Tensor,
    payload: Payload,
    offset: u64,
    buffer: &mut Vec<u8>,
) -> anyhow::Result<()> {
    let len = CHUNK.min(tensor.len() - offset);
    buffer.resize(len as usize, 0);
    device.copy_to_host(&tensor.region().slice(offset..offset + len)?, buffer)?;
    match payload.first_difference(offset, buffer) {
        None => Ok(()),
        Some(at) => bail!("tensor {} is wrong from its byte {at} on", tensor.name()),
    }
}

/// Bytes of a slot for [`scrub`].
const SLOT: usize = 8 << 20;

/// Overwrites `bytes` of a GPU's free memory with zeros, so that what an earlier load left there cannot pass for a later one's work.
/// The CPU device's memory is fresh zeros by itself.
pub(super) fn scrub(device: &Device, bytes: u64) -> anyhow::Result<()> {
    if !device.is_cuda() {
        return Ok(());
    }
    let region = device.allocate(bytes, 1)?;
    let ranges: Vec<_> =
        (0..bytes).step_by(SLOT).map(|start| start..bytes.min(start + SLOT as u64)).collect();
    let (_carved, parts) = region.carve(&ranges)?;
    let mut ring = device.ring(RingOptions { slots: 2, slot_size: SLOT })?;
    for part in parts {
        let zeros = |slot: &mut [u8]| {
            slot.fill(0);
            Ok::<usize, cuda_staging::Error>(slot.len())
        };
        let slot = ring.take()?.fill(zeros).map_err(|(_, error)| error)?;
        ring.launch(slot, vec![SlotCopy { slot_offset: 0, to: part }])?;
    }
    Ok(ring.drain()?)
}
