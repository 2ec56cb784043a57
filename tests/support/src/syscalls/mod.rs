//! System calls of this process that are counted, and fail where a test says so.
//!
//! A thread installs a seccomp filter that hands its calls, and those of every thread it starts, to a supervisor: a thread without
//! the filter, in the same process. So whatever enters the kernel is seen, by libc or past it, and nothing is built for it. The supervisor
//! lets a call go on, answers it with an error, or makes it itself with fewer bytes, since memory and descriptors are its own too.
//!
//! Not handed over are calls that cannot fail or belong to the runtime alone ([`filter::LEFT_ALONE`]). Seen and let go on is what Rust's
//! runtime and libc do for a thread's stacks ([`runtime`]): they abort where that fails, before any code of ours is asked.
//! malloc must take its memory from brk alone ([`ENVIRONMENT`]), for the same reason.

mod answer;
mod filter;
mod names;
mod runtime;

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

pub use answer::Effect;
pub use names::name;
pub use runtime::stack_bytes;

use answer::{Answer, Concern};

/// What a process that intercepts its calls must be started with: no memory of malloc's from mmap, no stacks kept for later.
pub const ENVIRONMENT: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.pthread.stack_cache_size=0");

/// Numbers of calls are below this.
const CALLS: usize = 512;

/// One fault: the K-th use of a call, counted from 1, has this effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The call's number.
    pub call: i64,
    /// Which use of it.
    pub k: u64,
    /// What happens then.
    pub effect: Effect,
}

/// What was seen while armed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Uses of each call that was used, by number.
    pub uses: Vec<(i64, u64)>,
    /// The call that the fault hit, described; `None` where it did not fire.
    pub hit: Option<String>,
}

/// The supervisor's state. No call that is handed over is made while it is locked.
struct State {
    armed: bool,
    fault: Option<Fault>,
    /// Only calls about files below this folder count, and io_uring's; all where it is empty.
    within: Text,
    uses: [u64; CALLS],
    hit: Option<Text>,
}

static STATE: Mutex<State> =
    Mutex::new(State { armed: false, fault: None, within: Text::EMPTY, uses: [0; CALLS], hit: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text of a bounded length, kept without allocating.
#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl Text {
    const EMPTY: Self = Self { bytes: [0; 512], len: 0 };

    fn new(bytes: &[u8]) -> Self {
        let mut text = Self::EMPTY;
        text.len = bytes.len().min(text.bytes.len());
        text.bytes[..text.len].copy_from_slice(&bytes[..text.len]);
        text
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Calls that are intercepted. One exists, on the thread that [`intercepted`] runs.
#[derive(Debug)]
pub struct Calls(());

impl Calls {
    /// From now on calls are counted, all or those about files `within` a folder, and `fault` fires.
    ///
    /// # Panics
    /// Where the folder's path is too long to be kept.
    pub fn arm(&self, fault: Option<Fault>, within: Option<&Path>) {
        let path = within.map_or(&b""[..], |path| path.as_os_str().as_encoded_bytes());
        let within = Text::new(path);
        assert_eq!(within.as_bytes(), path, "a shorter path");
        *state() = State { armed: true, fault, within, uses: [0; CALLS], hit: None };
    }

    /// Nothing is counted any more; what was.
    pub fn disarm(&self) -> Seen {
        let (fault, uses, hit) = {
            let mut state = state();
            state.armed = false;
            (state.fault, state.uses, state.hit)
        };
        let uses = uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        let describe = |(fault, what): (Fault, Text)| {
            let what = String::from_utf8_lossy(what.as_bytes()).into_owned();
            format!("{} {} ({what}): {}", name(fault.call), fault.k, fault.effect)
        };
        Seen {
            uses: uses.map(|(call, uses)| (call as i64, *uses)).collect(),
            hit: fault.zip(hit).map(describe),
        }
    }
}

/// Runs `body` on a thread of its own, whose calls are intercepted, as are those of the threads it starts, for as long as these live.
///
/// # Errors
/// Where the kernel takes no such filter.
///
/// # Panics
/// Where `body` does.
pub fn intercepted<R: Send>(body: impl FnOnce(&Calls) -> R + Send) -> std::io::Result<R> {
    let (listener, listeners) = mpsc::sync_channel(1);
    // For ever: threads of pools that outlive `body` have the filter too, and their calls would fail without a supervisor.
    thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
        if let Ok(listener) = listeners.recv() {
            answer::supervise(&listener, decide);
        }
    })?;
    let filtered = move || {
        let supervised = filter::install()?;
        // It waits for this alone.
        let _ = listener.send(supervised);
        Ok(body(&Calls(())))
    };
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, filtered)?.join() {
        Ok(outcome) => outcome,
        Err(panic) => resume_unwind(panic),
    })
}

/// What becomes of a call.
fn decide(call: &libc::seccomp_data) -> Answer {
    let mut state = state();
    let Ok(index) = usize::try_from(call.nr) else { return Answer::GoOn };
    // What a call is about takes a call to find out.
    if !state.armed || index >= CALLS {
        return Answer::GoOn;
    }
    let concern = Concern::of(call);
    if !concern.is_within(state.within.as_bytes()) {
        return Answer::GoOn;
    }
    state.uses[index] += 1;
    match state.fault {
        Some(fault) if fault.call == i64::from(call.nr) && fault.k == state.uses[index] => {
            state.hit = Some(Text::new(concern.path()));
            Answer::Fail(fault.effect)
        }
        _ => Answer::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn the_kth_use_fails_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        let done = intercepted(|calls| {
            let file = File::open(&path).unwrap();
            let read = |bytes: &mut [u8]| file.read_at(bytes, 0);
            let mut bytes = vec![0; 8192];
            let fault = |effect| Some(Fault { call: libc::SYS_pread64, k: 2, effect });

            calls.arm(fault(Effect::Errno(libc::EIO)), None);
            let outcomes = [read(&mut bytes), read(&mut bytes), read(&mut bytes)];
            let seen = calls.disarm();
            assert_eq!(outcomes[1].as_ref().unwrap_err().raw_os_error(), Some(libc::EIO));
            assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
            assert!(seen.hit.unwrap().contains(path.to_str().unwrap()));
            assert_eq!(seen.uses, [(libc::SYS_pread64, 3)]);

            calls.arm(fault(Effect::Short), Some(folder.path()));
            bytes.fill(0);
            let whole = read(&mut bytes).unwrap();
            bytes.fill(0);
            let short = read(&mut bytes).unwrap();
            assert!(calls.disarm().hit.is_some() && short > 0 && short < whole, "{short} of {whole}");
            assert!(
                bytes.iter().take(short).all(|byte| *byte == 7)
                    && bytes.iter().skip(short).all(|byte| *byte == 0)
            );

            // A thread that was started under the filter is seen, files elsewhere are not.
            calls.arm(fault(Effect::Nothing), Some(folder.path()));
            thread::scope(|scope| scope.spawn(|| read(&mut bytes).unwrap()).join().unwrap());
            File::open("/proc/self/stat").unwrap().read_exact(&mut [0; 4]).unwrap();
            assert_eq!(read(&mut bytes).unwrap(), 0);
            assert_eq!(calls.disarm().uses, [(libc::SYS_pread64, 2)]);
        });
        if let Err(error) = done {
            crate::not_run("syscalls", &format!("the kernel takes no such filter: {error}"));
        }
    }
}
