//! Memory that files are read into and written from.
//!
//! The library takes an address, and for registered memory wants the registration's own address and an offset from it.
//! So every kind of memory gives a [`Span`]: base, offset and length in bytes. What may give one is closed: unique access
//! for reading into it, any access for writing from it.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr;

use cuda_staging::{Device, Region, RegionMut};

use super::buffer::RegisteredBuffer;
use super::error::{CuFileError, CuFileResult};

/// Where bytes lie, as the library wants to hear it. Plain numbers: who may use the bytes, and how long they live, is for
/// the holder of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    base: u64,
    offset: u64,
    len: u64,
}

impl Span {
    pub(super) fn new(base: u64, offset: u64, len: u64) -> Self {
        Self { base, offset, len }
    }

    pub(super) fn len(self) -> u64 {
        self.len
    }

    /// The base for the library. Every kind of memory exposed the provenance of its address.
    pub(super) fn base(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.base as usize)
    }

    /// The first byte.
    pub(super) fn start(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut((self.base + self.offset) as usize)
    }

    pub(super) fn offset(self) -> CuFileResult<i64> {
        signed(self.offset, "an offset in memory")
    }

    /// A part of it, in bytes from its start.
    pub(super) fn part(self, range: &Range<u64>) -> CuFileResult<Self> {
        if range.start > range.end || range.end > self.len {
            let Range { start, end } = range;
            return Err(CuFileError::usage(format!("bytes {start}..{end} of {} bytes of memory", self.len)));
        }
        Ok(Self { offset: self.offset + range.start, len: range.end - range.start, ..self })
    }

    /// What is left of it behind the first `count` bytes, which it has.
    pub(super) fn after(self, count: u64) -> Self {
        Self { offset: self.offset + count, len: self.len - count, ..self }
    }
}

/// An offset as the C library takes it.
pub(super) fn signed(offset: u64, what: &str) -> CuFileResult<i64> {
    i64::try_from(offset).map_err(|_| CuFileError::usage(format!("{offset} is no offset: {what}")))
}

pub(super) mod sealed {
    use super::{Device, Span};

    /// Memory this module can point the library at.
    pub trait Memory {
        /// The device it is on; `None` for plain host memory.
        fn device(&self) -> Option<&Device>;
    }

    pub trait Readable: Memory {
        fn span(&self) -> Span;
    }

    pub trait Writable: Memory {
        fn span_mut(&mut self) -> Span;
    }
}

/// Memory that a file can be read into: unique access to it.
pub trait ReadBuffer: sealed::Writable {}

/// Memory that a file can be written from.
pub trait WriteBuffer: sealed::Readable {}

macro_rules! memory {
    ($($type:ty: $device:expr, $span:expr $(, mut $span_mut:expr)?;)*) => {$(
        impl sealed::Memory for $type {
            fn device(&self) -> Option<&Device> {
                ($device as fn(&Self) -> Option<&Device>)(self)
            }
        }

        impl sealed::Readable for $type {
            fn span(&self) -> Span {
                ($span as fn(&Self) -> Span)(self)
            }
        }

        impl WriteBuffer for $type {}

        $(impl sealed::Writable for $type {
            fn span_mut(&mut self) -> Span {
                ($span_mut as fn(&mut Self) -> Span)(self)
            }
        }

        impl ReadBuffer for $type {})?
    )*};
}

memory! {
    Region: |region| Some(region.device()), |region| Span::new(region.address(), 0, region.len());
    RegionMut:
        |region| Some(region.device()),
        |region| Span::new(region.address(), 0, region.len()),
        mut |region| Span::new(region.address(), 0, region.len());
    RegisteredBuffer: |buffer| Some(buffer.device()), |buffer| buffer.place(), mut |buffer| buffer.place();
    [u8]:
        |_| None,
        |bytes| Span::new(bytes.as_ptr().expose_provenance() as u64, 0, bytes.len() as u64),
        mut |bytes| Span::new(bytes.as_mut_ptr().expose_provenance() as u64, 0, bytes.len() as u64);
}

/// Memory that an operation in flight owns. Host memory is a region of the CPU device
/// ([`RegionMut::from_vec`]).
pub enum Buffer {
    /// Memory that is not registered.
    Region(RegionMut),
    /// Registered memory.
    Registered(RegisteredBuffer),
    /// Read-only memory, for writing to files.
    Shared(Region),
}

impl Buffer {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Region(region) => region.len(),
            Self::Registered(buffer) => buffer.len(),
            Self::Shared(region) => region.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        match self {
            Self::Region(region) => region.device(),
            Self::Registered(buffer) => buffer.device(),
            Self::Shared(region) => region.device(),
        }
    }

    /// The registered memory, if that is what it is.
    pub fn into_registered(self) -> Option<RegisteredBuffer> {
        match self {
            Self::Registered(buffer) => Some(buffer),
            Self::Region(_) | Self::Shared(_) => None,
        }
    }

    /// The memory to write, unless it is registered (see [`RegisteredBuffer::into_region`]) or read-only.
    pub fn into_region(self) -> Option<RegionMut> {
        match self {
            Self::Region(region) => Some(region),
            Self::Registered(_) | Self::Shared(_) => None,
        }
    }

    /// Where its bytes lie, for reading from them.
    pub(super) fn readable(&self) -> Span {
        match self {
            Self::Region(region) => sealed::Readable::span(region),
            Self::Registered(buffer) => buffer.place(),
            Self::Shared(region) => sealed::Readable::span(region),
        }
    }

    /// Where its bytes lie, for writing them.
    pub(super) fn writable(&mut self) -> CuFileResult<Span> {
        match self {
            Self::Shared(_) => Err(CuFileError::usage("read-only memory cannot be read into")),
            other => Ok(other.readable()),
        }
    }
}

impl From<RegionMut> for Buffer {
    fn from(region: RegionMut) -> Self {
        Self::Region(region)
    }
}

impl From<RegisteredBuffer> for Buffer {
    fn from(buffer: RegisteredBuffer) -> Self {
        Self::Registered(buffer)
    }
}

impl From<Region> for Buffer {
    fn from(region: Region) -> Self {
        Self::Shared(region)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(region) => region.fmt(f),
            Self::Registered(buffer) => buffer.fmt(f),
            Self::Shared(region) => region.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside() {
        let span = Span::new(4096, 100, 50);
        assert_eq!(span.part(&(10..50)).unwrap(), Span::new(4096, 110, 40));
        assert_eq!(span.after(50), Span::new(4096, 150, 0));
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let wrong = [0..51, 20..10, 50..u64::MAX];
        for range in wrong {
            assert!(matches!(span.part(&range), Err(CuFileError::Usage(_))), "{range:?}");
        }
    }

    #[test]
    fn read_only_memory_is_not_read_into() {
        let mut buffer = Buffer::from(RegionMut::from_vec(vec![0; 8]).freeze());
        assert_eq!((buffer.len(), buffer.readable().len()), (8, 8));
        assert!(matches!(buffer.writable(), Err(CuFileError::Usage(_))));
    }
}
