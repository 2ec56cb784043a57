//! The calls that run when the library ends.
//!
//! NVIDIA's takes down in a destructor what its functions use, and a call that another thread is in then crashes, or not, as it
//! happens. Here it always does: the process is aborted, and told which call it was.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the end of the process is held up for calls that run. One that hangs is not met, as in a process that is gone.
const LIMIT: Duration = Duration::from_millis(500);
/// How long it is held up for calls that begin: threads that make one after the other may all be between two.
const AT_LEAST: Duration = Duration::from_millis(20);

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread that ends the process may call from later destructors: nothing is taken down under it. No destructor of its own,
    /// so that it can be read then.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// A call, from before it until after it.
pub(crate) struct Running(&'static str);

impl Running {
    pub(crate) fn begin(name: &'static str) -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let running = Self(name);
        running.check("began after");
        running
    }

    fn check(&self, what: &str) {
        if ENDED.load(Ordering::SeqCst) && !ENDS.get() {
            eprintln!("cufile-sim: {} {what} the end of the library, on another thread than its", self.0);
            std::process::abort();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.check("ran at");
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends the library: what runs, or begins, on other threads aborts the process.
pub(crate) fn end() {
    ENDS.set(true);
    ENDED.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while start.elapsed() < AT_LEAST || (RUNNING.load(Ordering::SeqCst) > 0 && start.elapsed() < LIMIT) {
        thread::sleep(Duration::from_millis(1));
    }
}
