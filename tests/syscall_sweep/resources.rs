//! What this process holds.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use test_support::syscalls::stack_bytes;

/// Descriptors by what they refer to, threads by name, mapped and locked bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    descriptors: BTreeMap<String, usize>,
    threads: BTreeMap<String, usize>,
    /// Without the heap, of which malloc gives nothing back, and threads' stacks.
    mapped: u64,
    locked: u64,
}

impl Resources {
    pub(crate) fn now() -> Self {
        let mut resources = Self::default();
        for entry in fs::read_dir("/proc/self/fd").unwrap() {
            if let Ok(link) = fs::read_link(entry.unwrap().path()) {
                *resources.descriptors.entry(link.display().to_string()).or_default() += 1;
            }
        }
        for entry in fs::read_dir("/proc/self/task").unwrap() {
            if let Ok(name) = fs::read_to_string(entry.unwrap().path().join("comm")) {
                *resources.threads.entry(name).or_default() += 1;
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let lengths = maps.lines().filter(|line| !line.ends_with("[heap]")).map(length);
        resources.mapped = lengths.sum::<u64>().saturating_sub(stack_bytes());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let lines =
            status.lines().filter_map(|line| line.strip_prefix("VmLck:").or(line.strip_prefix("VmPin:")));
        resources.locked =
            lines.filter_map(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).sum();
        resources
    }

    /// What differs from `before`, once it has had time to settle; `None` where nothing does. Mappings do not count where
    /// unmapping was what failed, and what is locked is for [`Resources::locked_since`].
    pub(crate) fn changed_since(before: &Self, unmapping_failed: bool) -> Option<String> {
        let start = Instant::now();
        loop {
            let mut now = Self::now();
            now.locked = before.locked;
            if unmapping_failed {
                now.mapped = before.mapped;
            }
            if now == *before {
                return None;
            }
            if start.elapsed() > Duration::from_secs(2) {
                return Some(now.against(before));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is locked more than `before`, once the kernel has had time to let go; unmapping failed `kept` times.
    pub(crate) fn locked_since(before: &Self, kept: u64) -> Option<String> {
        /// The most that one mapping of a ring has.
        const RING: u64 = 64;
        let start = Instant::now();
        loop {
            let locked = Self::now().locked;
            if locked <= before.locked + kept * RING {
                return None;
            }
            if start.elapsed() > Duration::from_secs(5) {
                return Some(format!("{locked} kB are locked or pinned, {} were before", before.locked));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn against(&self, before: &Self) -> String {
        let mut said = Vec::new();
        for (what, now, before) in [
            ("descriptor", &self.descriptors, &before.descriptors),
            ("thread", &self.threads, &before.threads),
        ] {
            let names = now.keys().chain(before.keys()).collect::<std::collections::BTreeSet<_>>();
            for name in names {
                let [now, before] = [now, before].map(|counts| counts.get(name).copied().unwrap_or(0));
                if now != before {
                    said.push(format!("{what} {}: {now} instead of {before}", name.trim()));
                }
            }
        }
        for (what, now, before) in
            [("mapped", self.mapped, before.mapped), ("locked or pinned", self.locked, before.locked)]
        {
            if now != before {
                said.push(format!("{what}: {now} instead of {before}"));
            }
        }
        said.join("; ")
    }
}

/// The length of a mapping, from its line "start-end ...".
fn length(line: &str) -> u64 {
    let range = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
    let [start, end] = [range.0, range.1].map(|number| u64::from_str_radix(number, 16).unwrap());
    end - start
}
