//! Threads that share some work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder, ScopedJoinHandle};

/// Lets up to `most` threads do `work` side by side, each taking what is left of it, and gives what each of them came to; `None` for
/// one that panicked. Fewer are slower; where none can be started, the caller's does all of it.
#[doc(hidden)]
pub fn share_out<R: Send>(name: &str, most: usize, work: impl Fn() -> R + Sync) -> Vec<Option<R>> {
    thread::scope(|scope| {
        let start = |index| Builder::new().name(format!("{name}-{index}")).spawn_scoped(scope, &work);
        let said = |error: &_| tracing::warn!(%error, "a thread could not be started; going on with fewer");
        let started: Vec<_> = (0..most).map_while(|index| start(index).inspect_err(said).ok()).collect();
        let alone = (started.is_empty() && most > 0).then(|| catch_unwind(AssertUnwindSafe(&work)));
        started.into_iter().map(ScopedJoinHandle::join).chain(alone).map(Result::ok).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn shared_work_is_done_once_whoever_panics() {
        let next = AtomicUsize::new(0);
        let work = || match next.fetch_add(1, Ordering::Relaxed) {
            2 => panic!("on purpose"),
            index => index,
        };
        let mut done = share_out("test", 4, work);
        done.sort_unstable();
        assert_eq!(done, [None, Some(0), Some(1), Some(3)]);
        assert_eq!(share_out("test", 0, || 1), []);
    }
}
