//! What is taken away from a child before it begins.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use test_support::{IoUring, refuse_io_uring};

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    None,
    /// So many bytes for the process and its file cache.
    Memory(u64),
    /// So many bytes that may be locked, for a user without privileges.
    Memlock(u64),
    /// So many open descriptors.
    Descriptors(u64),
    /// io_uring, as containers refuse it.
    IoUring,
}

/// The user that has no privileges, "nobody".
const NOBODY: u32 = 65_534;

/// Lets `command` begin without what `pressure` takes; a cgroup has been made already.
pub(crate) fn put_on(command: &mut Command, pressure: Pressure, group: Option<&File>) {
    match pressure {
        Pressure::None => {}
        Pressure::Memory(_) => {
            let procs = group.map(|procs| procs.as_raw_fd());
            // SAFETY: between fork and exec only write is called, which may be, on a descriptor that the parent holds open until the
            // child has ended.
            unsafe {
                command.pre_exec(move || match procs {
                    Some(procs) if libc::write(procs, c"0".as_ptr().cast(), 1) != 1 => {
                        Err(io::Error::last_os_error())
                    }
                    _ => Ok(()),
                })
            };
        }
        Pressure::Memlock(bytes) => {
            limit(command, libc::RLIMIT_MEMLOCK, bytes);
            // SAFETY: asks for a number.
            if unsafe { libc::geteuid() } == 0 {
                command.uid(NOBODY).gid(NOBODY);
            }
        }
        Pressure::Descriptors(count) => limit(command, libc::RLIMIT_NOFILE, count),
        Pressure::IoUring => refuse_io_uring(command, IoUring::Forbidden),
    }
}

fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: between fork and exec only setrlimit is called, which may be; the structure is the closure's own.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    };
}
