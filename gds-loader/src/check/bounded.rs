//! Questions that may never be answered: a driver that hangs, a file server that is gone.
//!
//! Each is asked on a thread of its own and waited for until a deadline. A thread that does not answer is left behind:
//! nothing can stop it, and it does not keep the process from ending.

use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

/// An answer on its way.
pub(super) struct Pending<T>(Receiver<T>);

/// Asks on a thread of its own.
pub(super) fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // Where no thread can be made, the sender is dropped with the closure, and the answer is None at once.
    let _ = std::thread::Builder::new().name("gds-check".into()).spawn(move || {
        // Nobody may be waiting any more.
        let _ = sender.send(question());
    });
    Pending(receiver)
}

impl<T> Pending<T> {
    /// The answer, if it comes before the deadline.
    pub(super) fn by(self, deadline: Instant) -> Option<T> {
        self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
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
