//! What the tests of NVIDIA's samples share. Each test file has `cufile_support` beside it.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::fs::OpenOptions;
use std::path::Path;

use cuda_staging::RegionMut;
use gds_loader::cufile::{CuFile, Driver, ReadBuffer, RegisteredBuffer};
use test_support::control;

use crate::cufile_support::{device_memory, look, pattern};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Device memory, registered or not.
pub(crate) trait Memory: ReadBuffer {
    fn region(&self) -> &RegionMut;
}

impl Memory for RegionMut {
    fn region(&self) -> &RegionMut {
        self
    }
}

impl Memory for RegisteredBuffer {
    fn region(&self) -> &RegionMut {
        RegisteredBuffer::region(self)
    }
}

/// Reads `count` bytes at `file_offset` into the memory from its byte `start` on; they must be those of `bytes`, the whole
/// file.
#[track_caller]
pub(crate) fn read_and_check(
    file: &CuFile,
    memory: &mut impl Memory,
    (start, count, file_offset): (u64, u64, u64),
    bytes: &[u8],
) {
    file.read_exact_at(memory, start..start + count, file_offset).unwrap();
    let arrived = look(memory.region().address() + start, count);
    assert!(arrived == bytes[file_offset as usize..(file_offset + count) as usize], "bytes at {file_offset}");
}

/// An empty file to write and read.
pub(crate) fn create(driver: &Driver, path: &Path) -> CuFile {
    let mut options = OpenOptions::new();
    CuFile::open_with(driver, path, options.read(true).write(true).create(true).truncate(true)).unwrap()
}

/// A file to read and write.
pub(crate) fn open_both(driver: &Driver, path: &Path) -> CuFile {
    CuFile::open_with(driver, path, OpenOptions::new().read(true).write(true)).unwrap()
}

/// Device memory that holds the pattern.
pub(crate) fn patterned(len: u64) -> RegionMut {
    let region = device_memory(len);
    control::write_device_memory(region.address(), &pattern(len as usize));
    region
}
