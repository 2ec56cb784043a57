//! Syncing many files as a group.
//!
//! One fsync after another waits for the disk once a file; on a journaling file system each commits the journal. So write-back of
//! all is started first, then the fsyncs run side by side and share commits. syncfs would do it in one call, but waits for, and reports the
//! errors of, whatever else is being written to the file system.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::error::PublishError;
use super::temp::TempFile;

/// Threads that do nothing but wait.
const AT_ONCE: usize = 16;

/// Waits until the bytes of every file are on the disk. The first error is returned, once no call is running any more.
pub(super) fn group(files: &[TempFile]) -> Result<(), PublishError> {
    if let [file] = files {
        return file.sync();
    }
    for file in files {
        file.start_write_back(0, 0);
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            file.sync()?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let mut helpers = Vec::new();
        for _ in 1..files.len().min(AT_ONCE) {
            // Where no thread is to be had, those that are there do it all.
            let Ok(helper) = thread::Builder::new().name("gds-sync".to_owned()).spawn_scoped(scope, work)
            else {
                break;
            };
            helpers.push(helper);
        }
        let mut result = work();
        for helper in helpers {
            let theirs = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(theirs);
        }
        result
    })
}
