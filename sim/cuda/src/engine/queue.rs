//! A stream's work, done in order on a thread of its own.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use super::Completion;
use crate::code::{CONTEXT_IS_DESTROYED, Code, OPERATING_SYSTEM, Result, UNKNOWN};
use crate::sync::lock;

/// Whether a context can still be used.
#[derive(Default)]
pub(crate) struct Health {
    sticky: AtomicI32,
    destroyed: AtomicBool,
}

impl Health {
    pub(crate) fn check(&self) -> Result {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        match self.sticky.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// The first error stays.
    pub(crate) fn poison(&self, code: Code) {
        let _ = self.sticky.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Release);
    }
}

/// One piece of work.
pub(crate) enum Work {
    /// Something to do; an error breaks the context. Left out once the context is broken.
    Do(Box<dyn FnOnce() -> Result + Send>),
    /// Tells those who wait that all work before it is done. Never left out.
    Signal(Arc<Completion>),
    /// Waits for a point of another queue.
    Wait(Arc<Completion>),
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    started: bool,
    sleeping: bool,
    closed: bool,
}

/// A stream's queue. The thread starts with the first work and ends when the queue is closed and empty.
pub(crate) struct Queue {
    state: Mutex<State>,
    woken: Condvar,
    /// Work submitted and not done.
    pending: AtomicUsize,
    health: Arc<Health>,
}

impl Queue {
    pub(crate) fn new(health: Arc<Health>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            woken: Condvar::new(),
            pending: AtomicUsize::new(0),
            health,
        })
    }

    /// Adds work at the end.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) -> Result {
        let mut state = lock(&self.state);
        if !state.started {
            let queue = Arc::clone(self);
            let thread = thread::Builder::new().name("cuda-sim stream".to_owned());
            thread.spawn(move || queue.serve()).map_err(|_| OPERATING_SYSTEM)?;
            state.started = true;
        }
        self.pending.fetch_add(1, Ordering::AcqRel);
        state.work.push_back(work);
        if state.sleeping {
            self.woken.notify_one();
        }
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// A completion that is reached when all work submitted so far is done.
    pub(crate) fn mark(self: &Arc<Self>) -> Result<Arc<Completion>> {
        let completion = Completion::new();
        self.submit(Work::Signal(Arc::clone(&completion)))?;
        Ok(completion)
    }

    /// Waits until all work submitted so far is done.
    pub(crate) fn drain(self: &Arc<Self>) -> Result {
        if !self.is_idle() {
            self.mark()?.wait();
        }
        Ok(())
    }

    /// No work will follow; what is there will be done.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.woken.notify_one();
    }

    /// Waits for work and takes all there is, so that the lock is not fought over for every piece.
    fn take(&self) -> Option<VecDeque<Work>> {
        let mut state = lock(&self.state);
        loop {
            if !state.work.is_empty() {
                return Some(mem::take(&mut state.work));
            }
            if state.closed {
                return None;
            }
            state.sleeping = true;
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping = false;
        }
    }

    fn serve(&self) {
        block_signals();
        while let Some(batch) = self.take() {
            batch.into_iter().for_each(|work| self.perform(work));
        }
    }

    fn perform(&self, work: Work) {
        match work {
            Work::Do(action) => {
                if self.health.check().is_ok() {
                    let outcome = catch_unwind(AssertUnwindSafe(action)).unwrap_or(Err(UNKNOWN));
                    let _ = outcome.map_err(|code| self.health.poison(code));
                }
                self.done();
            }
            Work::Signal(completion) => {
                // Done first: whoever saw the completion finds the stream idle.
                self.done();
                completion.reach();
            }
            Work::Wait(completion) => {
                completion.wait();
                self.done();
            }
        }
    }

    fn done(&self) {
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The program's signal handlers run on its own threads only.
fn block_signals() {
    // SAFETY: sigfillset initialises the set before it is used; the call changes this thread's mask only.
    unsafe {
        let mut all = mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
