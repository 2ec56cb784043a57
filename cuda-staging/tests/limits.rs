//! The cgroups' memory limit, on recorded trees.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::fs;
use std::path::Path;

use cuda_staging::limits::{memory_limit, memory_limit_below, page_size};
use tempfile::TempDir;

/// A root with the given files in it.
fn root(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn limit(files: &[(&str, &str)]) -> Option<u64> {
    memory_limit_below(root(files).path())
}

#[test]
fn no_cgroups_no_limit() {
    assert_eq!(memory_limit_below(Path::new("/nowhere at all")), None);
    assert_eq!(limit(&[("proc/self/cgroup", "")]), None);
    assert_eq!(limit(&[("proc/self/cgroup", "nonsense\n0\n0:\n")]), None);
}

#[test]
fn version_2_takes_the_tightest_group_on_the_way_up() {
    let files = [
        ("proc/self/cgroup", "0::/user.slice/job.scope/worker\n"),
        ("sys/fs/cgroup/user.slice/memory.max", "9000\n"),
        ("sys/fs/cgroup/user.slice/memory.current", "1000\n"),
        ("sys/fs/cgroup/user.slice/job.scope/memory.max", "5000\n"),
        ("sys/fs/cgroup/user.slice/job.scope/memory.current", "100\n"),
        ("sys/fs/cgroup/user.slice/job.scope/worker/memory.max", "max\n"),
        ("sys/fs/cgroup/user.slice/job.scope/worker/memory.current", "100\n"),
        ("sys/fs/cgroup/user.slice/other/memory.max", "1\n"),
    ];
    assert_eq!(limit(&files), Some(4900));
}

#[test]
fn a_full_group_above_leaves_nothing() {
    let files = [
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/a/memory.max", "1000\n"),
        ("sys/fs/cgroup/a/memory.current", "1200\n"),
        ("sys/fs/cgroup/a/b/memory.max", "800\n"),
        ("sys/fs/cgroup/a/b/memory.current", "0\n"),
    ];
    assert_eq!(limit(&files), Some(0));
}

#[test]
fn file_cache_is_not_counted_as_used() {
    let files = [
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/a/memory.max", "10000\n"),
        ("sys/fs/cgroup/a/memory.current", "9500\n"),
        (
            "sys/fs/cgroup/a/memory.stat",
            "anon 500\nfile 9000\ninactive_file 8000\nactive_file 1000\nshmem 0\n",
        ),
    ];
    assert_eq!(limit(&files), Some(9500));
}

#[test]
fn unlimited_is_no_limit() {
    assert_eq!(limit(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]), None);
    let version_1 = [
        ("proc/self/cgroup", "4:memory:/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n"),
    ];
    assert_eq!(limit(&version_1), None);
}

#[test]
fn version_1_beside_an_empty_version_2() {
    let files = [
        ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n"),
        ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "7000\n"),
        ("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3000\n"),
        (
            "sys/fs/cgroup/memory/docker/abc/memory.stat",
            "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 0\n",
        ),
        ("sys/fs/cgroup/unified/cgroup.procs", ""),
    ];
    assert_eq!(limit(&files), Some(4500));
}

#[test]
fn a_container_sees_its_group_at_the_mount() {
    let files = [
        ("proc/self/cgroup", "4:memory:/docker/0123456789abcdef\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n"),
    ];
    assert_eq!(limit(&files), Some(4000));
}

#[test]
fn version_2_mounted_beside_version_1() {
    let files = [
        ("proc/self/cgroup", "1:name=systemd:/\n0::/a\n"),
        ("sys/fs/cgroup/unified/a/memory.max", "600\n"),
        ("sys/fs/cgroup/unified/a/memory.current", "100\n"),
    ];
    assert_eq!(limit(&files), Some(500));
}

#[test]
fn a_group_outside_the_namespace_does_not_lead_out_of_the_tree() {
    let files = [
        ("proc/self/cgroup", "0::/../../a\n"),
        ("a/memory.max", "1\n"),
        ("sys/a/memory.max", "2\n"),
        ("sys/fs/cgroup/memory.max", "3000\n"),
    ];
    assert_eq!(limit(&files), Some(3000));
}

#[test]
fn this_machine_has_an_answer() {
    assert!(page_size().is_power_of_two() && page_size() >= 4096);
    // Whatever the limit is here, this test is using less than all of it.
    assert_ne!(memory_limit(), Some(0));
}
