//! Threads for work that is done side by side: headers, hashing, questions to the kernel. Fewer are slower, none is no failure.
//!
//! Rayon's own pool is not relied on: where its threads cannot be started, as under a limit on processes, it panics. Ours has as many
//! threads as can be had; with none, the work is done one after another by whoever asks for it.

use std::sync::OnceLock;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::process::Owner;

/// Does `work`, whose parallel iterators use the threads there are.
#[doc(hidden)]
pub fn in_parallel<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    static OWNER: Owner = Owner::nobody();
    // Within a pool already: ours, or the caller's own.
    if rayon::current_thread_index().is_some() {
        return work();
    }
    // The child of a fork has the pool without its threads.
    let pool = OWNER.claim().then(|| POOL.get_or_init(|| most_threads(start)).as_ref()).flatten();
    match pool {
        Some(pool) => pool.install(work),
        None => {
            // From now on this thread is a pool of one, which is never ended. Where even that is refused, rayon decides.
            let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
            let _forever = std::mem::ManuallyDrop::new(alone);
            work()
        }
    }
}

/// A pool of so many threads; of as many as rayon finds right, for 0.
fn start(threads: usize) -> Option<ThreadPool> {
    let name = |index| format!("gds-pool-{index}");
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    pool.inspect_err(|error| tracing::debug!(%error, threads, "a pool of threads could not be started")).ok()
}

/// What `start` gives for 0, else for as many threads as it can.
fn most_threads<P>(start: impl Fn(usize) -> Option<P>) -> Option<P> {
    let wanted = thread::available_parallelism().map_or(1, usize::from);
    start(0).or_else(|| {
        let fewer =
            std::iter::successors(Some(wanted), |threads| Some(threads / 2).filter(|threads| *threads > 0));
        fewer.skip(1).find_map(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    #[test]
    fn as_many_threads_as_there_are() {
        let wanted = thread::available_parallelism().unwrap().get();
        let only = |most| move |threads: usize| (threads != 0 && threads <= most).then_some(threads);
        assert_eq!(most_threads(Some), Some(0), "as many as are right");
        assert_eq!(most_threads(only(0)), None);
        if wanted > 1 {
            assert_eq!(most_threads(only(1)), Some(1));
        }
    }

    #[test]
    fn work_within_work_ends() {
        let sums: Vec<u64> = in_parallel(|| {
            (0..8_u64).into_par_iter().map(|k| in_parallel(|| (0..=k).into_par_iter().sum())).collect()
        });
        assert_eq!(sums, [0, 1, 3, 6, 10, 15, 21, 28]);
    }
}
