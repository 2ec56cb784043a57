//! Registering memory of a pool (`cuMemAllocAsync`) with libcufile: the loader takes none, since that may be refused. Is it?

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use cuda_staging::Device;
use cuda_staging::cudarc::driver::{result, sys};
use gds_loader::cufile::{CuFile, RegisteredBuffer};
use serde_json::{Value, json};

use super::cufile::open;
use super::{beginning, judge};

/// Allocates from the pool, registers, reads.
pub(super) fn register(path: &Path) -> Result<Value> {
    let (driver, device) = (open()?, Device::cuda(0)?);
    let expected = beginning(path)?;
    let stream = device.stream()?;
    let raw = stream.raw().context("a stream of a CUDA device has a handle")?.cast::<sys::CUstream_st>();
    device.make_current()?;
    // SAFETY: the stream is alive and the device's context current. The memory is never freed: the process ends soon.
    let address = unsafe {
        let address = result::malloc_async(raw, expected.len());
        result::stream::synchronize(raw).and(address)
    };
    let address = address.map_err(|error| anyhow!("cuMemAllocAsync: {error:?}"))?;
    // SAFETY: just allocated, for so many bytes; nothing else knows it.
    let memory = unsafe { device.adopt(address, expected.len() as u64)? };
    let file = CuFile::open(&driver, path)?;
    let mut buffer = match RegisteredBuffer::register(&driver, memory) {
        Ok(buffer) => buffer,
        Err((_, error)) => {
            return Ok(
                json!({"outcome": "refused", "said": format!("memory of a pool is not registered: {error}")}),
            );
        }
    };
    file.read_exact(&mut buffer, 0)?;
    let found =
        json!({"library": driver.library().path(), "mode": driver.mode().to_string(), "registered": true});
    judge(&device, buffer.into_region(), &expected, found)
}
