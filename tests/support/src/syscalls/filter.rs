//! The filter that hands calls over.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// Calls that are not handed over: they cannot fail, or only the runtime makes them, and has no way to go on where they do. Waiting
/// and sleeping are among them: a futex that returns early is asked again by whoever waits.
pub(super) const LEFT_ALONE: [libc::c_long; 22] = [
    libc::SYS_arch_prctl,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_geteuid,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_tgkill,
    libc::SYS_tkill,
];

/// Installs it on the calling thread; what the calls are then read from.
pub(super) fn install() -> io::Result<OwnedFd> {
    const fn instruction(code: u32, jt: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf: 0, k }
    }
    // The number of the call is the first word of seccomp_data.
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, call) in LEFT_ALONE.iter().enumerate() {
        // Where it is this one, to the last instruction.
        let skip = (LEFT_ALONE.len() - index) as u8;
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, *call as u32));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF));
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `program` and the instructions it points to live through the call, which copies them.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let listener = i32::try_from(listener).ok().filter(|listener| *listener >= 0);
    // SAFETY: the kernel just made it, for us alone.
    listener.map(|listener| unsafe { OwnedFd::from_raw_fd(listener) }).ok_or_else(io::Error::last_os_error)
}
