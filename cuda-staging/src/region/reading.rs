//! A region whose bytes an engine writes behind the compiler's back.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::RegionMut;

/// A region of the CPU device whose memory is the kernel's for now. Dropping it leaks the memory, which may still be written.
#[must_use = "dropping a region that is being read into leaks its memory"]
pub struct ReadingRegion {
    region: ManuallyDrop<RegionMut>,
    start: NonNull<u8>,
}

// SAFETY: `start` points into the region's memory, which this value owns as the region does.
unsafe impl Send for ReadingRegion {}
// SAFETY: as above; a shared reference gives the length only.
unsafe impl Sync for ReadingRegion {}

impl RegionMut {
    /// Gives the memory to an engine that writes it behind the compiler's back, as the kernel does under io_uring.
    ///
    /// # Errors
    /// This value, unchanged, where it is not host memory.
    pub fn begin_read(mut self) -> Result<ReadingRegion, Self> {
        match self.host_bytes_mut().and_then(|bytes| NonNull::new(bytes.as_mut_ptr())) {
            Some(start) => Ok(ReadingRegion { region: ManuallyDrop::new(self), start }),
            None => Err(self),
        }
    }
}

impl ReadingRegion {
    /// Where to read to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Whether the memory was adopted: its owner may free it whatever is in flight, so that leaking it protects nothing.
    pub fn is_adopted(&self) -> bool {
        self.region.is_adopted()
    }

    /// Takes the memory back.
    ///
    /// # Safety
    /// - Nothing writes the memory any more: every read into it has completed or was never submitted.
    pub unsafe fn complete(self) -> RegionMut {
        ManuallyDrop::into_inner(self.region)
    }
}

impl fmt::Debug for ReadingRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadingRegion").field(&*self.region).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_behind_its_back_is_there_when_it_is_complete() {
        let (carved, mut parts) = RegionMut::from_vec(vec![1; 8]).carve(&[0..4, 4..8]).unwrap();
        let mut reading = parts.pop().unwrap().begin_read().unwrap();
        assert_eq!((reading.len(), reading.is_adopted()), (4, false));
        // SAFETY: the four bytes are this region's alone.
        unsafe { reading.as_mut_ptr().write_bytes(7, 4) };
        // SAFETY: nothing else writes them.
        let region = unsafe { reading.complete() };
        assert_eq!(region.host_bytes().unwrap(), [7; 4]);
        drop((region, parts));
        assert_eq!(carved.reunite().unwrap().host_bytes().unwrap(), [1, 1, 1, 1, 7, 7, 7, 7]);
    }

    #[test]
    fn dropped_before_that_it_keeps_its_memory_for_ever() {
        let (carved, mut parts) = RegionMut::from_vec(vec![1; 8]).carve(&[0..8]).unwrap();
        drop(parts.remove(0).begin_read().unwrap());
        assert!(carved.reunite().is_err(), "a part that may still be written is not gone");
    }
}
