//! What this machine and this process allow.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Bytes of a page of host memory: 4 KiB on most machines, 64 KiB on some.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Bytes of the huge pages that the kernel makes of ordinary memory where it is asked to: 2 MiB on most machines, 512 MiB on some.
/// None where it makes none.
pub fn huge_page_size() -> Option<usize> {
    static SIZE: OnceLock<Option<usize>> = OnceLock::new();
    *SIZE.get_or_init(|| huge_page_size_below(Path::new("/")))
}

/// As [`huge_page_size`], with the `sys` folder below `root`; for tests, on recorded trees.
pub fn huge_page_size_below(root: &Path) -> Option<usize> {
    let say = |name| fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage").join(name)).ok();
    let never = say("enabled")?.contains("[never]");
    let size: usize = say("hpage_pmd_size")?.trim().parse().ok()?;
    (!never && size.is_power_of_two() && size > page_size()).then_some(size)
}

/// The NUMA node of the PCI device with this bus id ("0000:04:00.0"); None where the machine has one node only, or
/// does not say.
pub(crate) fn numa_node(root: &Path, pci_bus_id: &str) -> Option<u32> {
    let has_several = root.join("sys/devices/system/node/node1").exists();
    // Linux writes the id in lower case; the driver, in older versions, with a domain of eight digits.
    let id = pci_bus_id.to_ascii_lowercase();
    let id = id.get(id.len().checked_sub("0000:04:00.0".len())?..)?;
    let node = fs::read_to_string(root.join("sys/bus/pci/devices").join(id).join("numa_node"));
    // -1 is "none known", and no unsigned number.
    node.ok()?.trim().parse().ok().filter(|_| has_several)
}

/// How many bytes more the cgroups of this process let it use: the tightest of its own and all above it. None where
/// none of them sets a limit.
///
/// A cgroup's use is counted without its file cache, which the kernel gives up before it refuses memory; otherwise
/// anyone who had read large files would seem to have none left. Swap is not counted.
///
/// Both versions of cgroups are looked at, since either can hold the memory controller.
pub fn memory_limit() -> Option<u64> {
    memory_limit_below(Path::new("/"))
}

/// As [`memory_limit`], with the `proc` and `sys` folders below `root`; for tests, on recorded trees.
pub fn memory_limit_below(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups
        .lines()
        .flat_map(|line| hierarchies(root, line))
        .filter_map(|(files, group)| files.tightest(&group))
        .min()
}

/// What the process's own limits let it map, in words; `None` where it has no such limits.
pub(crate) fn mappable(root: &Path) -> Option<String> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let finite = |name| {
        limits
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    let each =
        [("Max address space", "of address space (ulimit -v)"), ("Max data size", "of data (ulimit -d)")];
    let words = each.into_iter().filter_map(|(name, what)| Some(format!("{} bytes {what}", finite(name)?)));
    Some(words.collect::<Vec<_>>().join(" and ")).filter(|words| !words.is_empty())
}

/// The names of one version's files, and where the hierarchy is mounted.
struct Hierarchy {
    mount: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// The keys of `memory.stat` that make up the file cache, the groups below included.
    file_cache: [&'static str; 2],
}

/// The hierarchies that a line of /proc/self/cgroup (`id:controllers:path`) may mean, and the group's path in them.
fn hierarchies(root: &Path, line: &str) -> Vec<(Hierarchy, PathBuf)> {
    let mut fields = line.splitn(3, ':');
    let (Some(id), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    let mounts = root.join("sys/fs/cgroup");
    // Relative, so that joining it stays below the mount; a group outside this namespace (/../x) is not visible.
    let group: PathBuf = group.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
    if id == "0" && controllers.is_empty() {
        // Version 2, alone or beside version 1.
        let version_2 = |mount| Hierarchy {
            mount,
            limit: "memory.max",
            usage: "memory.current",
            file_cache: ["inactive_file", "active_file"],
        };
        vec![(version_2(mounts.join("unified")), group.clone()), (version_2(mounts), group)]
    } else if controllers.split(',').any(|controller| controller == "memory") {
        let version_1 = Hierarchy {
            mount: mounts.join("memory"),
            limit: "memory.limit_in_bytes",
            usage: "memory.usage_in_bytes",
            file_cache: ["total_inactive_file", "total_active_file"],
        };
        vec![(version_1, group)]
    } else {
        Vec::new()
    }
}

impl Hierarchy {
    /// The least that `group` or one above it leaves. Groups that cannot be seen count for nothing: a container
    /// without a namespace of its own sees its group at the mount, under a path that is not there.
    fn tightest(&self, group: &Path) -> Option<u64> {
        group.ancestors().filter_map(|group| self.left_in(&self.mount.join(group))).min()
    }

    fn left_in(&self, folder: &Path) -> Option<u64> {
        // Version 1 writes "no limit" as the largest number of whole pages.
        const NO_LIMIT: u64 = 1 << 62;
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        // Version 2 writes it as "max", which is no number.
        let limit = number(self.limit).filter(|&limit| limit < NO_LIMIT)?;
        let usage = number(self.usage).unwrap_or(0);
        Some(limit.saturating_sub(usage.saturating_sub(self.file_cache_in(folder))))
    }

    fn file_cache_in(&self, folder: &Path) -> u64 {
        let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        statistics
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(key, _)| self.file_cache.contains(key))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_as_large_as_the_kernel_says() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
        assert_eq!(huge_page_size_below(root.path()), None, "a kernel without them");
        fs::create_dir_all(&folder).unwrap();
        for (enabled, size, expected) in [
            ("always [madvise] never\n", "2097152\n", Some(2 << 20)),
            ("[always] madvise never\n", "536870912\n", Some(512 << 20)),
            ("always madvise [never]\n", "2097152\n", None),
            ("always [madvise] never\n", "0\n", None),
            ("always [madvise] never\n", "3000000\n", None),
        ] {
            fs::write(folder.join("enabled"), enabled).unwrap();
            fs::write(folder.join("hpage_pmd_size"), size).unwrap();
            assert_eq!(huge_page_size_below(root.path()), expected, "{enabled} {size}");
        }
    }

    #[test]
    fn the_processs_own_limits_are_told_where_there_are_any() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(mappable(root.path()), None);
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let told = |data: &str, addresses: &str| {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data:<20} unlimited            bytes     \n\
                 Max stack size            8388608              unlimited            bytes     \n\
                 Max address space         {addresses:<20} unlimited            bytes     \n"
            );
            fs::write(root.path().join("proc/self/limits"), text).unwrap();
            mappable(root.path())
        };
        assert_eq!(told("unlimited", "unlimited"), None);
        assert_eq!(told("unlimited", "157286400").unwrap(), "157286400 bytes of address space (ulimit -v)");
        let both = "2 bytes of address space (ulimit -v) and 1 bytes of data (ulimit -d)";
        assert_eq!(told("1", "2").unwrap(), both);
    }

    #[test]
    fn a_devices_numa_node() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("sys/bus/pci/devices/0000:9a:00.0/numa_node", "1\n");
        write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1\n");
        assert_eq!(numa_node(root.path(), "0000:9A:00.0"), None, "the machine has one node");
        write("sys/devices/system/node/node1/cpulist", "8-15\n");
        assert_eq!(numa_node(root.path(), "0000:9A:00.0"), Some(1));
        assert_eq!(numa_node(root.path(), "00000000:9A:00.0"), Some(1));
        assert_eq!(numa_node(root.path(), "0000:1b:00.0"), None, "the machine does not say");
        for id in ["0000:ff:00.0", "", "9a", "ééééééééé"] {
            assert_eq!(numa_node(root.path(), id), None, "{id}");
        }
    }
}
