//! Reads by way of memory that the kernel can write, for destinations that it cannot though the CPU can: a device's memory mapped into
//! the process, of which the kernel has no pages.

use std::ops::Range;

use cuda_staging::Device;

use crate::error::Result;
use crate::plan::align_up;
use crate::transport::{HostReads, ReadFailure, read_extent};

/// Reads `extent` of a file of `file_len` bytes into memory of our own, and copies it from there; returns how many bytes arrived.
///
/// # Errors
/// The outer one where there is no memory.
pub(super) fn read(
    reads: &dyn HostReads,
    into: &mut [u8],
    extent: Range<u64>,
    file_len: u64,
) -> Result<Result<u64, ReadFailure>> {
    let len = align_up(into.len() as u64, reads.alignment());
    let mut bounce = Device::cpu().allocate(len, reads.alignment())?;
    let own = bounce.host_bytes_mut().unwrap_or_default();
    Ok(read_extent(reads, own, extent, file_len).inspect(|&arrived| {
        let arrived = (arrived as usize).min(into.len());
        into[..arrived].copy_from_slice(&own[..arrived]);
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::PathKind;
    use std::io;

    /// Reads 1, 2, 3, ... into any memory but that at this address, which the kernel cannot write.
    #[derive(Debug)]
    struct Elsewhere(usize);

    impl HostReads for Elsewhere {
        fn kind(&self) -> PathKind {
            PathKind::Direct
        }

        fn alignment(&self) -> u64 {
            512
        }

        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            if into.as_ptr().addr() == self.0 {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            assert!(into.as_ptr().addr().is_multiple_of(512), "direct reads need aligned memory");
            into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = at as u8);
            Ok(into.len())
        }
    }

    #[test]
    fn what_the_kernel_cannot_write_is_copied_there() {
        let mut into = vec![0xaa; 2048];
        let reads = Elsewhere(into.as_ptr().addr());
        let failure = read_extent(&reads, &mut into, 512..2560, 1 << 20).unwrap_err();
        assert!(failure.is_bad_address(), "{failure:?}");
        let arrived = read(&reads, &mut into, 512..2560, 1 << 20).unwrap().unwrap();
        assert_eq!(arrived, 2048);
        assert!(into.iter().zip(512_u64..).all(|(byte, at)| *byte == at as u8));
    }
}
