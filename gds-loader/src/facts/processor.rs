//! The processor's caches, as sysfs lists them.

use super::root::Root;

/// Bytes of the first processor's last-level cache (`cache/index*/size`, sysfs-devices-system-cpu). None where the kernel does
/// not say. A virtual machine may be shown all of a cache that it has a share of.
pub fn last_level_cache(root: &Root) -> Option<u64> {
    let caches = "sys/devices/system/cpu/cpu0/cache";
    let cache = |index: String| {
        let of = |attribute: &str| root.read(&format!("{caches}/{index}/{attribute}"));
        let kib = of("size")?.strip_suffix('K')?.parse::<u64>().ok()?;
        (of("type")? != "Instruction").then_some((of("level")?.parse::<u32>().ok()?, kib << 10))
    };
    let known = root.list(caches).into_iter().filter_map(cache);
    known.max_by_key(|&(level, _)| level).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        assert_eq!(last_level_cache(&root), None);
        let caches = [
            ("Data", 1, "48K"),
            ("Instruction", 1, "32K"),
            ("Unified", 2, "2048K"),
            ("Unified", 3, "32768K"),
        ];
        for (index, (kind, level, size)) in caches.into_iter().enumerate() {
            let folder = root.join(&format!("sys/devices/system/cpu/cpu0/cache/index{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("type"), kind).unwrap();
            std::fs::write(folder.join("level"), format!("{level}\n")).unwrap();
            std::fs::write(folder.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(last_level_cache(&root), Some(32 << 20));
    }
}
