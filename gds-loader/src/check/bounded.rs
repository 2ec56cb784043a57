//! Questions that may never be answered: a driver that hangs, a file server that is gone.
//!
//! Each is asked on a thread of its own and waited for until a deadline. A thread that does not answer is left behind: nothing can
//! stop it. Where it hangs in loading a library it has the dynamic linker's lock, which other loading waits for, and so does `exit`,
//! which runs the libraries' destructors under it: such a process ends by `_exit` or a signal alone.
//!
//! A thread that begins takes that lock too, since Rust registers a destructor for what is the thread's own; so does one that waits
//! on a channel for the first time, which is why there is none here.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An answer on its way.
pub(super) struct Pending<T>(Arc<Place<T>>);

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

    /// The state once it is no longer so, or the deadline is over.
    fn after(&self, deadline: Instant, so: impl Fn(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.state(), left, |state| so(state));
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

/// Asks on a thread of its own.
pub(super) fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
    let place = Arc::new(Place { state: Mutex::new(State::Asked), changed: Condvar::new() });
    let asked = Asked(Arc::clone(&place));
    let work = move || {
        asked.begin();
        asked.answer(question());
    };
    // Where no thread can be made, it is dropped with the closure, and the answer is None at once.
    let _ = std::thread::Builder::new().name("gds-check".into()).spawn(work);
    Pending(place)
}

impl<T> Pending<T> {
    /// The answer, if it comes before the deadline.
    pub(super) fn by(self, deadline: Instant) -> Option<T> {
        let mut state = self.0.after(deadline, |state| matches!(state, State::Asked | State::Begun));
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => Some(answer),
            State::Asked | State::Begun | State::Over => None,
        }
    }

    /// The same, once its thread runs or the deadline is over.
    pub(super) fn begun_by(self, deadline: Instant) -> Self {
        drop(self.0.after(deadline, |state| matches!(state, State::Asked)));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_in_time_and_one_that_never_comes() {
        let soon = Instant::now() + Duration::from_secs(20);
        assert_eq!(ask(|| 7).by(soon), Some(7));
        let start = Instant::now();
        let never = ask(|| std::thread::sleep(Duration::from_secs(3600)));
        assert_eq!(never.by(start + Duration::from_millis(50)), None);
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(ask(|| std::panic::resume_unwind(Box::new(()))).by(soon), None::<()>);
    }
}
