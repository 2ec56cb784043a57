//! What this process may use: locked memory, its cgroups' memory, io_uring.

use cuda_staging::limits::memory_limit_below;

use super::finding::{Finding, size};
use super::probes::Probes;
use crate::facts::Root;

/// Slots that a load pins by default, in bytes.
const SLOTS: u64 = 64 << 20;
/// Below this the loader takes fewer slots, and the process hardly has room for headers.
const LITTLE_MEMORY: u64 = 512 << 20;

pub(super) fn findings(root: &Root, probes: &Probes) -> Vec<Finding> {
    let mut findings = vec![memory(root), locked(root)];
    findings.extend(io_uring(root, probes));
    findings
}

fn memory(root: &Root) -> Finding {
    const ID: &str = "limits.memory";
    match memory_limit_below(root.path()) {
        None => Finding::ok(ID, "no memory limit by cgroups"),
        Some(left) if left < LITTLE_MEMORY => {
            Finding::warning(ID, format!("the cgroup's memory limit leaves {}", size(left)))
                .why(
                    "pinned buffers count against it; gds takes fewer of them, and other programs are killed",
                )
                .advice("raise memory.max (docker run --memory)")
        }
        Some(left) => Finding::ok(ID, format!("the cgroup's memory limit leaves {}", size(left))),
    }
}

fn locked(root: &Root) -> Finding {
    const ID: &str = "limits.memlock";
    let limits = root.read("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => Finding::ok(ID, "no limit on locked memory"),
        Some((_, Ok(bytes))) if bytes >= SLOTS => Finding::ok(ID, format!("{} may be locked", size(bytes))),
        Some((_, Ok(bytes))) => Finding::info(
            ID,
            format!(
                "{} may be locked: too little for io_uring's registered buffers; CUDA's pinning is not limited by it",
                size(bytes)
            ),
        ),
        _ => Finding::info(ID, "the limit on locked memory is not known"),
    }
}

fn io_uring(root: &Root, probes: &Probes) -> Option<Finding> {
    const ID: &str = "limits.io_uring";
    Some(match probes.io_uring.as_ref()? {
        Ok(()) => Finding::ok(ID, "io_uring may be used"),
        Err(reason) => {
            let by = match root.number("proc/sys/kernel/io_uring_disabled") {
                Some(2) => "kernel.io_uring_disabled is 2",
                Some(1) => "kernel.io_uring_disabled is 1: for the privileged only",
                _ => "a sandbox or the container's seccomp profile forbids it, or the kernel lacks it",
            };
            Finding::info(ID, format!("io_uring may not be used ({reason}; {by}); gds reads with threads"))
        }
    })
}
