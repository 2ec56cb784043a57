//! What the kernel allows the process.

use rustix::process::{Resource, Rlimit, setrlimit};

/// The resource that `RLIMIT_` constants name.
#[cfg(target_env = "gnu")]
type Name = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Name = libc::c_int;

/// The soft and the hard limit on `resource`; `None` where the kernel does not say, as under a filter of calls.
fn limits(resource: Name) -> Option<libc::rlimit> {
    // rustix's panics where the call is refused.
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is writable.
    let asked = unsafe { libc::getrlimit(resource, &raw mut limits) };
    (asked == 0).then_some(limits)
}

fn finite(limit: libc::rlim_t) -> Option<u64> {
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

/// The length in bytes that a file may have which is written; `None` where there is no limit.
#[doc(hidden)]
pub fn file_size_limit() -> Option<u64> {
    finite(limits(libc::RLIMIT_FSIZE)?.rlim_cur)
}

/// Makes a write beyond [`file_size_limit`] fail, as any other that is refused; else it ends the process by a signal.
#[doc(hidden)]
pub fn refuse_writes_beyond_the_limit() {
    // SAFETY: an ignored signal runs no code, and SIGXFSZ has no other use than the one given up here.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// How many files may be open at once; `None` where there is no limit.
pub(crate) fn descriptors() -> Option<u64> {
    finite(limits(libc::RLIMIT_NOFILE)?.rlim_cur)
}

/// Lets the process open as many files as it may: a model of many files is loaded with all of them open.
#[doc(hidden)]
pub fn raise_descriptor_limit() {
    if let Some(limits) = limits(libc::RLIMIT_NOFILE)
        && limits.rlim_cur != limits.rlim_max
    {
        let (current, maximum) = (finite(limits.rlim_max), finite(limits.rlim_max));
        // Without it files take turns.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}
