//! Calls for the stacks of threads, which libc and Rust's runtime make and cannot do without.

use std::sync::atomic::{AtomicU64, Ordering};

use super::answer::perform;

/// Stacks that are known at once.
const MOST: usize = 1024;

/// Threads that begin or end at once.
const AT_ONCE: usize = 64;

/// Bytes of the stacks that are known.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of the stacks of intercepted threads. libc may keep that of one that has ended until the next begins.
pub fn stack_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// What the supervisor remembers of threads' stacks.
pub(super) struct Stacks {
    /// Where libc put them: first address and one beyond the last; 0 where there is none.
    stacks: [(u64, u64); MOST],
    /// Threads between two calls for the stack of their signals, by number; 0 where there is none. Not by a part of the number:
    /// threads that share it would make each other's stacks count.
    at_signals: [u32; AT_ONCE],
}

impl Stacks {
    pub(super) const fn new() -> Self {
        Self { stacks: [(0, 0); MOST], at_signals: [0; AT_ONCE] }
    }

    /// Whether a call is for a stack; with the answer where it was made here, to learn the stack's place.
    pub(super) fn take(&mut self, thread: u32, call: &libc::seccomp_data) -> Option<Option<i64>> {
        let [first, length, ..] = call.args;
        let place = |of: u32| self.at_signals.iter().position(|thread| *thread == of);
        let (at_signals, free) = (place(thread), place(0));
        match i64::from(call.nr) {
            libc::SYS_sigaltstack => {
                if let Some(place) = at_signals.or(free) {
                    self.at_signals[place] = if asks_or_disables(first) { thread } else { 0 };
                }
                Some(None)
            }
            // Straight after it was asked whether there is one, Rust maps one and protects its end; straight after it was
            // disabled, it unmaps it.
            libc::SYS_mmap | libc::SYS_mprotect if at_signals.is_some() => Some(None),
            libc::SYS_munmap if at_signals.is_some() => {
                // The last call of its own that an ending thread makes here: its place is for another.
                self.at_signals = self.at_signals.map(|known| if known == thread { 0 } else { known });
                Some(None)
            }
            libc::SYS_mmap if call.args[3] & libc::MAP_STACK as u64 != 0 => {
                let start = perform(call, &call.args);
                let free = self.stacks.iter_mut().find(|(_, end)| *end == 0)?;
                if start > 0 {
                    *free = (start as u64, start as u64 + length);
                    BYTES.fetch_add(length, Ordering::Relaxed);
                }
                Some(Some(start))
            }
            libc::SYS_mprotect | libc::SYS_madvise | libc::SYS_munmap => {
                let of = |(start, end): &&mut (u64, u64)| *start <= first && first < *end;
                let stack = self.stacks.iter_mut().find(of)?;
                if i64::from(call.nr) == libc::SYS_munmap {
                    BYTES.fetch_sub(stack.1 - stack.0, Ordering::Relaxed);
                    *stack = (0, 0);
                }
                Some(None)
            }
            _ => {
                if let Some(place) = at_signals {
                    self.at_signals[place] = 0;
                }
                None
            }
        }
    }
}

/// Whether sigaltstack(2) is called with this first argument to ask, or to have none any more.
fn asks_or_disables(stack: u64) -> bool {
    let stack = stack as *const libc::stack_t;
    // SAFETY: the caller waits in the call meanwhile, and its argument, where there is one, points to such a structure in this process.
    stack.is_null() || unsafe { (*stack).ss_flags } & libc::SS_DISABLE != 0
}
