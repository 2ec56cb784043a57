//! Plain writes through the page cache, paced.
//!
//! A writer that is faster than the disk fills the page cache with dirty pages until the kernel stops it
//! (`/proc/sys/vm/dirty_ratio`), together with everybody else who writes to that disk, for as long as the disk wants. So each extent's
//! write-back is started as soon as it is written, and beyond a fixed number of bytes under way the oldest is waited for: writes
//! then proceed at the disk's speed, none stalls for long, and the fsync at the end finds little left to do.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::sink::HostSink;
use crate::save::durable::{PublishError, TempFile};
use crate::transport::PathKind;

/// Bytes of write-back under way in one file at most: enough to keep a fast array busy.
const UNDER_WAY: u64 = 64 << 20;

/// The file as it is.
#[derive(Debug)]
pub(super) struct Buffered {
    file: TempFile,
    pace: Mutex<Pace>,
}

/// Ranges whose write-back was started, the oldest first.
#[derive(Debug, Default)]
struct Pace {
    ranges: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Pace {
    /// Adds a range; the ones to wait for now.
    fn add(&mut self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        self.ranges.push_back((offset, len));
        self.bytes += len;
        let mut due = Vec::new();
        while self.bytes > UNDER_WAY
            && self.ranges.len() > 1
            && let Some(oldest) = self.ranges.pop_front()
        {
            self.bytes -= oldest.1;
            due.push(oldest);
        }
        due
    }
}

impl Buffered {
    pub(super) fn open(file: &TempFile) -> Self {
        Self { file: file.clone(), pace: Mutex::default() }
    }
}

impl HostSink for Buffered {
    fn kind(&self) -> PathKind {
        PathKind::Buffered
    }

    fn alignment(&self) -> u64 {
        1
    }

    fn write_all(&self, bytes: &[u8], offset: u64) -> Result<(), PublishError> {
        self.file.write_all_at(bytes, offset)?;
        let len = bytes.len() as u64;
        self.file.start_write_back(offset, len);
        // Others write on while this one waits.
        let due = self.pace.lock().unwrap_or_else(PoisonError::into_inner).add(offset, len);
        due.into_iter().try_for_each(|(offset, len)| self.file.wait_write_back(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_waited_for_once_too_much_is_under_way() {
        let mut pace = Pace::default();
        let step = UNDER_WAY / 2;
        assert!(pace.add(0, step).is_empty());
        assert!(pace.add(step, step).is_empty());
        assert_eq!(pace.add(2 * step, step), [(0, step)]);
        assert_eq!(pace.add(3 * step, 2 * UNDER_WAY), [(step, step), (2 * step, step)]);
        assert_eq!(pace.ranges.len(), 1, "what was just written is not waited for");
    }
}
