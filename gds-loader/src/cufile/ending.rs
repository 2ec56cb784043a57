//! The end of the process, while other threads are in the library.
//!
//! NVIDIA's takes down in a destructor what its functions use, and calls of other threads then crash: transfers, and registering
//! files and memory (seen with 1.20). So the calls that run are waited for before, a little, and no new one begins. Then comes what
//! is to be done last.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long calls are waited for: one that hangs is no reason for the process to stay.
const LIMIT: Duration = Duration::from_secs(2);

/// Calls that run, on all threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
/// The thread that ends the process, as pthread_self gives it: what it calls in destructors of its own must not wait for itself.
static ENDED_BY: AtomicUsize = AtomicUsize::new(0);
/// What is done last.
static LAST: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// Those of them that this thread is in, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A call of the library, from before it until after it; on the thread that makes it.
pub(super) struct Calling(PhantomData<*const ()>);

/// Has [`at_exit`] and [`in_child`] called.
fn install() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the handlers take and return nothing, and cannot panic. Where there is no room for them, all is as without.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// Has `last` called when the process ends, or a child of a fork. It must not panic, and the first one stays.
pub(super) fn do_last(last: fn()) {
    install();
    LAST.get_or_init(|| last);
}

/// Begins a call. Does not return where the process is ending, except to the thread that ends it, and to one whose outer call is
/// waited for.
pub(super) fn calling() -> Calling {
    install();
    CALLS.fetch_add(1, Ordering::SeqCst);
    let depth = DEPTH.replace(DEPTH.get() + 1);
    let call = Calling(PhantomData);
    if depth == 0 && ENDING.load(Ordering::SeqCst) && ENDED_BY.load(Ordering::SeqCst) != this_thread() {
        drop(call);
        loop {
            thread::park();
        }
    }
    call
}

impl Drop for Calling {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn this_thread() -> usize {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::pthread_self() as usize }
}

/// Runs in the child of a fork: of the threads that were in calls there is none but this one.
extern "C" fn in_child() {
    CALLS.store(DEPTH.get(), Ordering::SeqCst);
}

/// Runs before the destructors of every library.
extern "C" fn at_exit() {
    ENDED_BY.store(this_thread(), Ordering::SeqCst);
    ENDING.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while CALLS.load(Ordering::SeqCst) > DEPTH.get() && start.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(1));
    }
    if let Some(last) = LAST.get() {
        last();
    }
}
