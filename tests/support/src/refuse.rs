//! A kernel that refuses io_uring, as seccomp makes it in most containers.

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;

/// How it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// As Docker's default profile does it: `EPERM`.
    Forbidden,
    /// As a kernel without it does it: `ENOSYS`.
    Unknown,
}

impl IoUring {
    fn code(self) -> i32 {
        match self {
            Self::Forbidden => libc::EPERM,
            Self::Unknown => libc::ENOSYS,
        }
    }
}

/// Runs `body` on a thread whose calls to io_uring, and those of the threads it starts, are refused; `None` where the kernel
/// takes no such filter.
///
/// # Panics
/// Where `body` does.
pub fn without_io_uring<R: Send>(how: IoUring, body: impl FnOnce() -> R + Send) -> Option<R> {
    let refused = || refuse(&IO_URING_CALLS, how.code()).is_ok().then(body);
    thread::scope(|scope| match scope.spawn(refused).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The calls of io_uring: setup, enter and register. The same numbers on every architecture.
pub const IO_URING_CALLS: RangeInclusive<u32> = 425..=427;

/// Lets a child begin with its calls to io_uring refused; it cannot start where the kernel takes no such filter.
pub fn refuse_io_uring(command: &mut Command, how: IoUring) {
    refuse_calls(command, IO_URING_CALLS, how);
}

/// The same for some of its calls.
pub fn refuse_calls(command: &mut Command, calls: RangeInclusive<u32>, how: IoUring) {
    let code = how.code();
    // SAFETY: between fork and exec only prctl is called, which may be: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || refuse(&calls, code)) };
}

/// Installs a filter on the calling thread that answers these calls with `code`.
fn refuse(calls: &RangeInclusive<u32>, code: i32) -> io::Result<()> {
    /// Jumps skip so many instructions: where the comparison holds, and where it does not.
    const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    let mut filter = [
        // The number of the call is the first word of seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 2, *calls.start()),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 0, *calls.end()),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | code as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if privileges != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `program` and the instructions it points to live through the call, which copies them.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if filtered == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Option<i32> {
        // SAFETY: with no parameters the call fails before it does anything.
        let outcome = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null::<u8>()) };
        (outcome < 0).then(|| io::Error::last_os_error().raw_os_error()).flatten()
    }

    #[test]
    fn the_calls_of_a_thread_and_its_children_are_refused_and_of_no_other() {
        let before = setup();
        for (how, code) in [(IoUring::Forbidden, libc::EPERM), (IoUring::Unknown, libc::ENOSYS)] {
            let inside = without_io_uring(how, || (setup(), thread::spawn(setup).join().unwrap()));
            match inside {
                Some(inside) => assert_eq!(inside, (Some(code), Some(code))),
                None => crate::not_run("refuse", "the kernel takes no seccomp filter"),
            }
        }
        assert_eq!(setup(), before);
    }
}
