//! Questions that may never be answered: a driver that hangs, a file server that is gone.
//!
//! Each is asked on a thread of its own and waited for until a deadline. A thread that does not answer is left behind: nothing can
//! stop it. Where it hangs in loading a library it has the dynamic linker's lock, which other loading waits for, and so does `exit`,
//! which runs the libraries' destructors under it: such a process ends by `_exit` or a signal alone.
//!
//! A thread that begins takes that lock too, since Rust registers a destructor for what is the thread's own; so does one that waits
//! on a channel for the first time, which is why there is none here.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// An answer on its way.
pub(crate) struct Pending<T>(Arc<Place<T>>);

/// Where an answer comes to.
struct Place<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Asked,
    /// The thread runs.
    Begun,
    Answered(T),
    /// There will be no answer.
    Over,
}

impl<T> Place<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state once it is no longer so, or the limit is over.
    fn after(&self, limit: Duration, so: impl Fn(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        let waited = self.changed.wait_timeout_while(self.state(), limit, |state| so(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The end of the one who is asked.
struct Asked<T>(Arc<Place<T>>);

impl<T> Asked<T> {
    fn begin(&self) {
        *self.0.state() = State::Begun;
        self.0.changed.notify_all();
    }

    fn answer(self, answer: T) {
        *self.0.state() = State::Answered(answer);
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(*state, State::Asked | State::Begun) {
            *state = State::Over;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Asks on a thread of its own, which has this name.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn ask<T: Send + 'static>(
    thread: &str,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Pending<T>> {
    let place = Arc::new(Place { state: Mutex::new(State::Asked), changed: Condvar::new() });
    let asked = Asked(Arc::clone(&place));
    let work = move || {
        asked.begin();
        asked.answer(question());
    };
    thread::Builder::new().name(thread.into()).spawn(work)?;
    Ok(Pending(place))
}

impl<T> Pending<T> {
    /// The answer, if it comes before the deadline.
    pub(crate) fn by(self, deadline: Instant) -> Option<T> {
        self.within(deadline.saturating_duration_since(Instant::now()))
    }

    /// The answer, if it comes in this time from now on.
    pub(crate) fn within(self, limit: Duration) -> Option<T> {
        let mut state = self.0.after(limit, |state| matches!(state, State::Asked | State::Begun));
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => Some(answer),
            State::Asked | State::Begun | State::Over => None,
        }
    }

    /// The same, once its thread runs or the deadline is over.
    pub(crate) fn begun_by(self, deadline: Instant) -> Self {
        let left = deadline.saturating_duration_since(Instant::now());
        drop(self.0.after(left, |state| matches!(state, State::Asked)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_time_and_one_that_never_comes() {
        let soon = Instant::now() + Duration::from_secs(20);
        assert_eq!(ask("test", || 7).unwrap().by(soon), Some(7));
        let start = Instant::now();
        let never = ask("test", || thread::sleep(Duration::from_secs(3600))).unwrap();
        assert_eq!(never.by(start + Duration::from_millis(50)), None);
        assert!(start.elapsed() < Duration::from_secs(20));
        let panics = ask("test", || std::panic::resume_unwind(Box::new(()))).unwrap();
        assert_eq!(panics.by(soon), None::<()>);
    }
}
