//! Copies out of a mapping of the file.
//!
//! The mapping is read by `process_vm_readv(2)` on our own process, not by the CPU: it runs at `memcpy` speed, and where the
//! file has been truncated it returns a short count, whereas touching the page would kill the process with `SIGBUS`.

use std::io;

use memmap2::{Mmap, MmapOptions};

use super::advice::ReadAhead;
use super::{HostReads, PathKind, Target};
use crate::source::ShardFile;

/// A read-only mapping of the whole file.
#[derive(Debug)]
pub(crate) struct Mapped {
    file: ShardFile,
    map: Mmap,
    ahead: ReadAhead,
}

impl Mapped {
    /// Maps `target`.
    ///
    /// # Errors
    /// What `mmap(2)` says: `ENODEV` where the file system cannot map, `ENOMEM` where the address space is full.
    pub(crate) fn open(target: &Target<'_>) -> io::Result<Self> {
        let len = usize::try_from(target.len).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: memmap2 asks that nobody changes the file while a slice of it exists. None ever does: the mapping is only
        // handed to the kernel as an address, so a changed file gives changed bytes and a shrunk one a short count.
        let map = unsafe { MmapOptions::new().len(len).map(&*target.file.open()?) }?;
        Ok(Self { file: target.file.clone(), map, ahead: ReadAhead::new(target.read_ahead) })
    }
}

impl HostReads for Mapped {
    fn kind(&self) -> PathKind {
        PathKind::Mmap
    }

    fn alignment(&self) -> u64 {
        1
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest =
            usize::try_from(offset).ok().and_then(|offset| self.map.len().checked_sub(offset)).unwrap_or(0);
        let len = into.len().min(rest);
        if len == 0 {
            return Ok(0);
        }
        // The mapping and the descriptor share their pages.
        let file = self.file.open()?;
        self.ahead.expect(&file, offset, len as u64);
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec {
            // In bounds: `len` bytes from `offset` lie inside the mapping, as computed above.
            iov_base: self.map.as_ptr().cast_mut().wrapping_add(offset as usize).cast(),
            iov_len: len,
        };
        // SAFETY: `local` is `into`, exclusively borrowed for the call and at least `len` long; `remote` is only read, by the
        // kernel, which checks every page of it.
        let count =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(count) {
            // The last page of a file cut meanwhile reads as zeros up to its end: only bytes still in the file count.
            Ok(count) => Ok(count.min(file.metadata()?.len().saturating_sub(offset) as usize)),
            Err(_) => match io::Error::last_os_error() {
                // The first page cannot be had. Where the file still reaches it, its read failed, which for a mapping the kernel
                // does not tell from an address that is none; else the file was cut at or before `offset`.
                error if error.raw_os_error() == Some(libc::EFAULT) => match file.metadata()?.len() {
                    len if len > offset => Err(io::Error::from_raw_os_error(libc::EIO)),
                    _ => Ok(0),
                },
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;
    use std::path::Path;

    fn mapped(len: usize) -> (File, Mapped, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|k| (k % 253) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let shard = ShardFile::kept(file.try_clone().unwrap());
        let target = Target {
            path: Path::new("temporary"),
            file: &shard,
            len: len as u64,
            direct_alignment: 1,
            in_memory: false,
            read_ahead: Some(128 << 10),
        };
        let map = Mapped::open(&target).unwrap();
        (file, map, bytes)
    }

    #[test]
    fn reads_what_the_file_holds() {
        let (_file, map, bytes) = mapped(100_000);
        let mut into = vec![0; 5000];
        assert_eq!(map.read_at(&mut into, 12_345).unwrap(), 5000);
        assert_eq!(into, bytes[12_345..17_345]);
        assert_eq!(map.read_at(&mut into, 99_999).unwrap(), 1);
        assert_eq!(map.read_at(&mut into, 100_000).unwrap(), 0);
        assert_eq!(map.read_at(&mut into, u64::MAX).unwrap(), 0);
    }

    #[test]
    fn a_truncated_file_gives_a_short_count_and_not_a_signal() {
        let (file, map, bytes) = mapped(1 << 20);
        file.set_len(512 << 10).unwrap();
        let mut into = vec![0; 1 << 20];
        let got = map.read_at(&mut into, 256 << 10).unwrap();
        assert!(got <= 256 << 10);
        assert_eq!(into[..got], bytes[256 << 10..(256 << 10) + got]);
        assert_eq!(map.read_at(&mut into, 768 << 10).unwrap(), 0);
    }

    #[test]
    fn zeros_that_stand_for_bytes_cut_off_within_a_page_do_not_count() {
        let (file, map, bytes) = mapped(4000);
        file.set_len(1000).unwrap();
        let mut into = vec![0; 4000];
        assert_eq!(map.read_at(&mut into, 100).unwrap(), 900);
        assert_eq!(into[..900], bytes[100..1000]);
    }
}
