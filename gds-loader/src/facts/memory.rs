//! How much memory there is for files' pages.

use cuda_staging::limits;

use super::root::Root;

/// Files are taken to fit into the page cache where they take at most this share of the available memory: what vLLM asks of
/// its prefetching too.
const SHARE_FOR_FILES: f64 = 0.9;

/// Bytes that can be had without swapping: what the kernel estimates (`MemAvailable`) and what the cgroups of this process
/// leave it, whichever is less. None where neither says.
pub fn available_memory(root: &Root) -> Option<u64> {
    let text = root.read("proc/meminfo").unwrap_or_default();
    let machine = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let machine = machine.map(|kib| kib.saturating_mul(1024));
    [machine, limits::memory_limit_below(root.path())].into_iter().flatten().min()
}

/// Whether files of `bytes` bytes together fit into the page cache when `available` bytes of memory can be had.
pub fn fit_in_memory(bytes: u64, available: u64) -> bool {
    bytes as f64 <= available as f64 * SHARE_FOR_FILES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_of_machine_and_cgroup_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(available_memory(&root), None);
        write("proc/meminfo", "MemTotal:       100 kB\nMemFree:  5 kB\nMemAvailable:         64 kB\n");
        assert_eq!(available_memory(&root), Some(64 << 10));
        write("proc/self/cgroup", "0::/job\n");
        write("sys/fs/cgroup/job/memory.max", "65536\n");
        write("sys/fs/cgroup/job/memory.current", "60000\n");
        // What the group's files take up is given up before memory is refused.
        write("sys/fs/cgroup/job/memory.stat", "anon 10000\ninactive_file 20000\nactive_file 10000\n");
        assert_eq!(available_memory(&root), Some(35_536));
    }

    #[test]
    fn nine_tenths_fit() {
        assert!(fit_in_memory(90, 100) && !fit_in_memory(91, 100));
    }
}
