//! libcufile through the safe API: its driver, and the reads that differ from plain ones.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_staging::{Device, RegionMut};
use gds_loader::cufile::{
    Batch, Buffer, Completion, CuFile, CuFileStream, Driver, Mode, Operation, RegisteredBuffer, StreamFlags,
};
use serde_json::{Value, json};

use super::{beginning, judge};

/// No read of what is tried takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// Straight where the machine can, else bounced.
pub(super) fn open() -> Result<Driver> {
    Ok(Driver::open(Mode::Direct).or_else(|_| Driver::open(Mode::Compat))?)
}

/// What is to be known of every try.
fn about(driver: &Driver, file: &CuFile) -> Value {
    json!({
        "library": driver.library().path(),
        "version": driver.library().version().map(|version| version.to_string()),
        "mode": driver.mode().to_string(),
        "file_is_direct": file.is_direct(),
    })
}

/// Which library in which mode, why not directly, and one read.
pub(super) fn driver(path: &Path) -> Result<Value> {
    let refused = Driver::open(Mode::Direct).err().map(|error| error.to_string());
    let (driver, device) = (open()?, Device::cuda(0)?);
    let file = CuFile::open(&driver, path)?;
    let mut found = about(&driver, &file);
    found["direct_mode_refused"] = json!(refused);
    found["opened_in_s"] = json!(driver.opened_in().as_secs_f64());
    found["bar_size_kib"] = json!(driver.bar_size_kib(0).ok().flatten());
    found["properties"] = json!(driver.properties().map(|properties| format!("{properties:?}")).ok());
    let expected = beginning(path)?;
    let mut memory = device.allocate(expected.len() as u64, 4096)?;
    file.read_exact(&mut memory, 0)?;
    judge(&device, memory, &expected, found)
}

/// A read in a stream's order.
pub(super) fn stream_read(path: &Path, registered: bool) -> Result<Value> {
    let (driver, device) = (open()?, Device::cuda(0)?);
    let file = CuFile::open(&driver, path)?;
    let expected = beginning(path)?;
    let len = expected.len() as u64;
    let memory = device.allocate(len, 4096)?;
    let buffer: Buffer = match registered {
        true => RegisteredBuffer::register(&driver, memory).map_err(|(_, error)| error)?.into(),
        false => memory.into(),
    };
    let stream = CuFileStream::register(&driver, device.stream()?, StreamFlags::FIXED)?;
    let start = Instant::now();
    let operation = stream.read(&file, 0, len, buffer, 0).map_err(|(error, _)| error)?;
    let enqueued = start.elapsed();
    let buffer = operation.finish_exact(LIMIT).map_err(|(error, _)| error)?;
    let mut found = about(&driver, &file);
    found["enqueued_in_s"] = json!(enqueued.as_secs_f64());
    found["done_in_s"] = json!(start.elapsed().as_secs_f64());
    let memory = match registered {
        true => buffer.into_registered().map(RegisteredBuffer::into_region),
        false => buffer.into_region(),
    };
    judge(&device, memory.context("the memory did not come back")?, &expected, found)
}

/// Bytes of each read of a batch.
const PIECE: u64 = 1 << 20;

/// Reads in one batch, into parts of one registration.
pub(super) fn batch_read(path: &Path) -> Result<Value> {
    let (driver, device) = (open()?, Device::cuda(0)?);
    let file = CuFile::open(&driver, path)?;
    let mut expected = beginning(path)?;
    let pieces = (expected.len() as u64 / PIECE).min(16);
    anyhow::ensure!(pieces > 0, "{} is shorter than one read", path.display());
    expected.truncate(usize::try_from(pieces * PIECE)?);
    let memory = device.allocate(pieces * PIECE, 4096)?;
    let mut rest = RegisteredBuffer::register(&driver, memory).map_err(|(_, error)| error)?;
    let mut operations = Vec::new();
    for piece in 0..pieces {
        let (part, after) = rest.split_at(PIECE)?;
        operations.push(Operation::read(&file, piece * PIECE, PIECE, part, 0)?);
        rest = after;
    }
    let start = Instant::now();
    let mut batch = Batch::new(&driver, u32::try_from(pieces)?)?;
    batch.submit(operations).map_err(|refused| refused.error)?;
    let mut done = Vec::new();
    while (done.len() as u64) < pieces && start.elapsed() < LIMIT {
        done.extend(batch.wait(1, LIMIT)?);
    }
    anyhow::ensure!(done.len() as u64 == pieces, "{} of {pieces} reads ended", done.len());
    let mut found = about(&driver, &file);
    found["reads"] = json!(pieces);
    found["done_in_s"] = json!(start.elapsed().as_secs_f64());
    judge_parts(&device, done, &expected, found)
}

/// Each part against its piece of the file.
fn judge_parts(device: &Device, done: Vec<Completion>, expected: &[u8], found: Value) -> Result<Value> {
    let mut parts = Vec::new();
    for completion in done {
        completion.outcome?;
        let buffer = completion.operation.context("a read did not give its memory back")?.into_buffer();
        parts.push(buffer.into_registered().context("it was registered")?.into_region());
    }
    // Reads end in any order; the addresses say which part is which.
    parts.sort_by_key(RegionMut::address);
    let said = format!("{} reads of {PIECE} bytes are right", parts.len());
    for (part, expected) in parts.into_iter().zip(expected.chunks_exact(usize::try_from(PIECE)?)) {
        let verdict = judge(device, part, expected, Value::Null)?;
        if verdict["outcome"] != "passed" {
            return Ok(verdict);
        }
    }
    Ok(json!({"outcome": "passed", "said": said, "found": found}))
}
