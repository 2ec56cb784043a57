//! Brings what a load reads into the page cache, ahead of it.
//!
//! Threads of their own ask the kernel for one stretch after the other (`POSIX_FADV_WILLNEED`); each call queues the reads and
//! waits only where the device's queue is full. There is no bound on how far ahead they run, since all of it is known to fit.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use crate::transport::ReadAhead;

/// Threads that ask; more would not make the device faster.
const THREADS: usize = 2;

/// Reading ahead for one load; ends when dropped.
#[derive(Debug)]
pub(crate) struct Prefetch {
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Work {
    stretches: Vec<(Arc<File>, Range<u64>)>,
    read_ahead: ReadAhead,
    next: AtomicUsize,
    over: AtomicBool,
}

impl Prefetch {
    /// Begins to bring these stretches in, in their order; the kernel takes `step` bytes for one piece of advice.
    pub(crate) fn start(stretches: Vec<(Arc<File>, Range<u64>)>, step: u64) -> Self {
        let read_ahead = ReadAhead::new(Some(step));
        let work =
            Arc::new(Work { stretches, read_ahead, next: AtomicUsize::new(0), over: AtomicBool::new(false) });
        let spawn = |index| {
            let work = Arc::clone(&work);
            let builder = Builder::new().name(format!("gds-prefetch-{index}"));
            // Without it the load is slower, and right.
            builder.spawn(move || work.bring()).ok()
        };
        let threads = (0..THREADS).filter_map(spawn).collect();
        Self { work, threads }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.work.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Work {
    fn bring(&self) {
        while !self.over.load(Ordering::Relaxed)
            && let Some((file, range)) = self.stretches.get(self.next.fetch_add(1, Ordering::Relaxed))
        {
            self.read_ahead.expect(file, range.start, range.end.saturating_sub(range.start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{evict, is_resident};
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_asked_for_comes_and_nothing_else() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 64 << 20]).unwrap();
        evict(&file).unwrap();
        let file = Arc::new(file);
        let stretches = [0..4 << 20, 16 << 20..20 << 20].map(|range| (Arc::clone(&file), range));
        let prefetch = Prefetch::start(stretches.to_vec(), 128 << 10);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !(is_resident(&file, 0..4 << 20) && is_resident(&file, 16 << 20..20 << 20)) {
            assert!(Instant::now() < deadline, "nothing is read ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(prefetch);
        assert!(!is_resident(&file, 40 << 20..64 << 20));
    }
}
