//! One extent on its way into memory.

use std::io;
use std::ops::Range;

use super::{HostReads, ReadFailure};
use crate::plan::align_down;

/// Longest single call: the kernel stops at 0x7ffff000 bytes whatever is asked, so no call asks for more.
const LONGEST_CALL: u64 = 1 << 30;

/// What is left of an extent, by the one rule that makes every read exact, whoever carries the calls out.
///
/// A call that brings less than it was asked for is no failure while the next one can be aligned: it is continued from the
/// last aligned byte. Bytes beyond the length the file had when it was opened are asked for, since direct reads are aligned,
/// and not expected.
#[derive(Debug)]
pub(crate) struct Extent {
    start: u64,
    len: u64,
    expected: u64,
    done: u64,
    alignment: u64,
}

impl Extent {
    /// The bytes of `extent` that lie inside a file of `file_len` bytes, by calls aligned to `alignment`, a power of two.
    pub(crate) fn new(extent: &Range<u64>, file_len: u64, alignment: u64) -> Self {
        let expected = extent.end.min(file_len).saturating_sub(extent.start);
        Self { start: extent.start, len: extent.end - extent.start, expected, done: 0, alignment }
    }

    /// Bytes that have to arrive.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// What the next call is to fill, from the beginning of the extent's memory; `None` once everything has arrived.
    pub(crate) fn next_call(&self) -> Option<Range<usize>> {
        let end = self.len.min(self.done + LONGEST_CALL);
        (self.done < self.expected).then_some(self.done as usize..end as usize)
    }

    /// Where in the file the next call reads.
    pub(crate) fn offset(&self) -> u64 {
        self.start + self.done
    }

    /// Takes note of what a call said: how many bytes it brought, or that it was interrupted.
    ///
    /// # Errors
    /// Where the call failed, or brought an end of file before the length the file had: it shrank.
    pub(crate) fn advance(&mut self, said: io::Result<usize>) -> Result<(), ReadFailure> {
        match said {
            Ok(count) => {
                let reached = self.done + count as u64;
                let aligned = align_down(reached, self.alignment);
                if reached >= self.expected {
                    self.done = self.expected;
                } else if aligned > self.done {
                    self.done = aligned;
                } else {
                    // Less than one sector, and not the file's end: it could be asked for for ever.
                    return Err(self.failure(None));
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.failure(Some(error))),
        }
    }

    /// Why the rest of it cannot be had.
    pub(crate) fn failure(&self, error: Option<io::Error>) -> ReadFailure {
        let (offset, got, expected) = (self.offset(), self.done, self.expected);
        ReadFailure { offset, got, expected, source: error.map(Into::into) }
    }
}

/// Reads all of `extent` that lies inside a file of `file_len` bytes into the start of `into`, and returns how many bytes that is.
///
/// # Errors
/// The first failing call, or an end of file before `file_len`: the file shrank.
pub(crate) fn read_extent(
    transport: &dyn HostReads,
    into: &mut [u8],
    extent: Range<u64>,
    file_len: u64,
) -> Result<u64, ReadFailure> {
    let mut extent = Extent::new(&extent, file_len, transport.alignment());
    while let Some(call) = extent.next_call() {
        let said = transport.read_at(into.get_mut(call).unwrap_or_default(), extent.offset());
        extent.advance(said)?;
    }
    Ok(extent.expected())
}

#[cfg(test)]
mod tests {
    use super::super::{PathKind, ReadCause};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// A file in memory that enforces an alignment and answers as its script says.
    #[derive(Debug)]
    struct Scripted {
        bytes: Vec<u8>,
        alignment: u64,
        script: Mutex<Vec<Answer>>,
    }

    #[derive(Clone, Debug)]
    enum Answer {
        Short(usize),
        Fail(i32),
    }

    impl HostReads for Scripted {
        fn kind(&self) -> PathKind {
            PathKind::Direct
        }

        fn alignment(&self) -> u64 {
            self.alignment
        }

        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            if !(offset | into.len() as u64).is_multiple_of(self.alignment) {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let start = (offset as usize).min(self.bytes.len());
            let mut count = into.len().min(self.bytes.len() - start);
            match self.script.lock().unwrap().pop() {
                Some(Answer::Short(most)) => count = count.min(most.max(1)),
                Some(Answer::Fail(code)) => return Err(io::Error::from_raw_os_error(code)),
                None => {}
            }
            into[..count].copy_from_slice(&self.bytes[start..start + count]);
            Ok(count)
        }
    }

    fn scripted(len: usize, alignment: u64, script: Vec<Answer>) -> Scripted {
        let bytes = (0..len).map(|k| (k * 31 % 251) as u8).collect();
        Scripted { bytes, alignment, script: Mutex::new(script) }
    }

    proptest! {
        #[test]
        fn short_counts_and_interruptions_do_not_change_a_byte(
            len in 1_usize..20_000,
            start in 0_usize..20,
            blocks in 1_usize..20,
            script in prop::collection::vec(
                prop_oneof![(512_usize..5000).prop_map(Answer::Short), Just(Answer::Fail(libc::EINTR))], 0..8),
        ) {
            let file = scripted(len, 512, script);
            let extent = start as u64 * 512..(start + blocks) as u64 * 512;
            let mut into = vec![0xaa; blocks * 512];
            let got = read_extent(&file, &mut into, extent.clone(), len as u64).unwrap() as usize;
            let end = (extent.end as usize).min(len);
            let wanted = file.bytes.get(extent.start as usize..end).unwrap_or_default();
            prop_assert_eq!(&into[..got], wanted);
        }
    }

    #[test]
    fn the_kernel_s_own_cap_does_not_truncate() {
        let file = scripted(100_000, 1, vec![Answer::Short(7); 50]);
        let mut into = vec![0; 100_000];
        assert_eq!(read_extent(&file, &mut into, 0..100_000, 100_000).unwrap(), 100_000);
        assert_eq!(into, file.bytes);
    }

    #[test]
    fn a_file_that_shrank_is_an_error_with_its_place() {
        let file = scripted(1000, 512, vec![]);
        let failure = read_extent(&file, &mut vec![0; 2048], 0..2048, 2000).unwrap_err();
        assert_eq!((failure.offset, failure.got, failure.expected), (512, 512, 2000));
        assert!(failure.source.is_none());
        // With no alignment to keep, the end shows as a count of 0.
        let file = scripted(1000, 1, vec![]);
        let failure = read_extent(&file, &mut vec![0; 2048], 0..2048, 2000).unwrap_err();
        assert_eq!((failure.offset, failure.got, failure.expected), (1000, 1000, 2000));
        assert!(failure.source.is_none());
    }

    #[test]
    fn a_failing_call_is_reported_unchanged() {
        let file = scripted(4096, 512, vec![Answer::Fail(libc::EIO), Answer::Short(1024)]);
        let failure = read_extent(&file, &mut vec![0; 4096], 0..4096, 4096).unwrap_err();
        assert_eq!(failure.offset, 1024);
        let Some(ReadCause::System(error)) = failure.source else { panic!("{failure:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_count_below_one_sector_ends_instead_of_repeating_for_ever() {
        let file = scripted(4096, 512, vec![Answer::Short(100)]);
        assert!(read_extent(&file, &mut vec![0; 4096], 0..4096, 4096).is_err());
    }
}
