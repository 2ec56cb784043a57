//! What the supervisor does with a call.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::mem::zeroed;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::runtime::Stacks;

/// What a fault does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// It fails with this code. A descriptor that was to be closed is closed nevertheless, as the kernel has it.
    Errno(i32),
    /// About half of the bytes are moved, and counted.
    Short,
    /// No byte is moved: the end of a file, or a disk that takes nothing.
    Nothing,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match *self {
            Self::Errno(libc::EINTR) => "EINTR",
            Self::Errno(libc::EAGAIN) => "EAGAIN",
            Self::Errno(libc::EIO) => "EIO",
            Self::Errno(libc::EINVAL) => "EINVAL",
            Self::Errno(libc::ENOMEM) => "ENOMEM",
            Self::Errno(libc::ENOSPC) => "ENOSPC",
            Self::Errno(code) => return write!(f, "errno {code}"),
            Self::Short => "short",
            Self::Nothing => "0 bytes",
        })
    }
}

impl Effect {
    /// Whether a call moves bytes and says how many.
    pub fn moves_bytes(call: i64) -> bool {
        matches!(
            call,
            libc::SYS_read
                | libc::SYS_pread64
                | libc::SYS_preadv
                | libc::SYS_preadv2
                | libc::SYS_process_vm_readv
                | libc::SYS_write
                | libc::SYS_pwrite64
                | libc::SYS_pwritev
                | libc::SYS_pwritev2
        )
    }
}

/// What becomes of a call.
pub(super) enum Answer {
    /// The kernel carries it out.
    GoOn,
    /// It has this effect.
    Fail(Effect),
}

/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, which the libc crate has not.
const SYNC_WAKE_UP: u64 = 1;

/// Answers calls for ever.
pub(super) fn supervise(listener: &OwnedFd, decide: impl Fn(&libc::seccomp_data) -> Answer) {
    // The two threads take turns: on one CPU they do not wait for another to wake up. Older kernels (before 6.6) refuse.
    // SAFETY: this request takes a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    let mut stacks = Box::new(Stacks::new());
    loop {
        // SAFETY: plain data, for which zeros are valid; the kernel wants them.
        let mut call: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: `call` is writable and of the type that this request fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } != 0 {
            continue; // The thread has gone.
        }
        // SAFETY: as above.
        let mut response: libc::seccomp_notif_resp = unsafe { zeroed() };
        response.id = call.id;
        let made = match stacks.take(call.pid, &call.data) {
            Some(made) => made,
            None => match decide(&call.data) {
                Answer::GoOn => None,
                Answer::Fail(effect) => Some(have(effect, &call.data)),
            },
        };
        match made {
            None => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            Some(value) if value < 0 => response.error = value as i32,
            Some(value) => response.val = value,
        }
        // SAFETY: `response` is readable and of the type that this request takes. Where it fails, the thread has gone.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    }
}

/// Lets a call have an effect; what it returns, an error as a negative number.
fn have(effect: Effect, call: &libc::seccomp_data) -> i64 {
    match effect {
        Effect::Errno(code) => {
            if i64::from(call.nr) == libc::SYS_close {
                perform(call, &call.args);
            }
            -i64::from(code)
        }
        Effect::Nothing => 0,
        Effect::Short => short(call),
    }
}

/// Makes a call with about half of its bytes.
fn short(call: &libc::seccomp_data) -> i64 {
    let mut args = call.args;
    match i64::from(call.nr) {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_write | libc::SYS_pwrite64 => {
            args[2] = half(args[2]);
            perform(call, &args)
        }
        _ => {
            // SAFETY: the caller waits in the call, and this argument points to an array of these, which is not empty.
            let mut first = unsafe { *(args[1] as *const libc::iovec) };
            first.iov_len = half(first.iov_len as u64) as usize;
            (args[1], args[2]) = (&raw const first as u64, 1);
            perform(call, &args)
        }
    }
}

/// Half of a length, in whole blocks where there are several: direct I/O moves nothing else.
fn half(length: u64) -> u64 {
    let half = length / 2;
    [4096, 512].into_iter().find(|block| half >= *block).map_or(half, |block| half - half % block)
}

/// Makes a call in place of the caller; what it returns, an error as a negative number.
pub(super) fn perform(call: &libc::seccomp_data, args: &[u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = *args;
    // SAFETY: the caller, who waits for the answer, vouches for this call with its own arguments, and these ask for no more.
    let outcome = unsafe { libc::syscall(libc::c_long::from(call.nr), a, b, c, d, e, f) };
    // SAFETY: the address of this thread's own errno.
    if outcome < 0 { -i64::from(unsafe { *libc::__errno_location() }) } else { outcome }
}

/// What a call is about.
#[allow(clippy::large_enum_variant, reason = "one is made at a time, where nothing may allocate")]
pub(super) enum Concern {
    /// A file, by this path.
    Path([u8; 512], usize),
    /// io_uring.
    Ring,
    /// Something else.
    Else,
}

impl Concern {
    pub(super) fn of(call: &libc::seccomp_data) -> Self {
        let args = call.args;
        match i64::from(call.nr) {
            libc::SYS_io_uring_setup | libc::SYS_io_uring_enter | libc::SYS_io_uring_register => Self::Ring,
            libc::SYS_openat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_mkdirat
            | libc::SYS_unlinkat
            | libc::SYS_linkat
            | libc::SYS_renameat
            | libc::SYS_renameat2
            | libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_readlinkat => Self::at(args[0], args[1]),
            libc::SYS_open | libc::SYS_stat | libc::SYS_lstat | libc::SYS_statfs | libc::SYS_readlink => {
                Self::at(libc::AT_FDCWD as u64, args[0])
            }
            libc::SYS_mmap if args[3] & libc::MAP_ANONYMOUS as u64 == 0 => Self::descriptor(args[4]),
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_close
            | libc::SYS_fstat
            | libc::SYS_fstatfs
            | libc::SYS_lseek
            | libc::SYS_getdents64
            | libc::SYS_fcntl
            | libc::SYS_flock
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_sync_file_range
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_fadvise64
            | libc::SYS_readahead
            | libc::SYS_fchmod
            | libc::SYS_fchown
            | libc::SYS_ioctl
            | CACHESTAT => Self::descriptor(args[0]),
            _ => Self::Else,
        }
    }

    /// The path, as far as there is one.
    pub(super) fn path(&self) -> &[u8] {
        match self {
            Self::Path(bytes, len) => &bytes[..*len],
            Self::Ring => b"a ring",
            Self::Else => b"no file",
        }
    }

    /// Whether it is about something below `folder`, io_uring, or, where that is empty, anything.
    pub(super) fn is_within(&self, folder: &[u8]) -> bool {
        folder.is_empty() || matches!(self, Self::Ring) || self.path().starts_with(folder)
    }

    fn at(folder: u64, path: u64) -> Self {
        if path == 0 {
            return Self::descriptor(folder);
        }
        // SAFETY: the caller waits in the call, and its argument is a C string of this process.
        let path = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes();
        let mut place = match (path.first(), folder as i32) {
            (Some(b'/'), _) | (_, libc::AT_FDCWD) => Self::Path([0; 512], 0),
            _ => Self::descriptor(folder),
        };
        if let Self::Path(bytes, len) = &mut place {
            let parts = if *len > 0 && !path.is_empty() { [&b"/"[..], path] } else { [&b""[..], path] };
            for part in parts {
                let fits = part.len().min(bytes.len() - *len);
                bytes[*len..*len + fits].copy_from_slice(&part[..fits]);
                *len += fits;
            }
        }
        place
    }

    fn descriptor(descriptor: u64) -> Self {
        let (mut link, mut bytes) = (*b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0", [0; 512]);
        let mut digits = [0; 10];
        let (mut rest, mut count) = (descriptor as u32, 0);
        while count == 0 || rest > 0 {
            digits[count] = b'0' + (rest % 10) as u8;
            (rest, count) = (rest / 10, count + 1);
        }
        let start = link.len() - 12;
        (0..count).for_each(|index| link[start + index] = digits[count - 1 - index]);
        // SAFETY: `link` is a C string, `bytes` is writable for its length.
        let len = unsafe { libc::readlink(link.as_ptr().cast(), bytes.as_mut_ptr().cast(), bytes.len()) };
        usize::try_from(len).map_or(Self::Else, |len| Self::Path(bytes, len))
    }
}

/// Younger than the libc crate's list for this target.
const CACHESTAT: i64 = 451;
