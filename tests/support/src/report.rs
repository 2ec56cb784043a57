//! The simulator's report.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A count and the bytes it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// How many bytes together.
    pub bytes: u64,
}

/// What happened to one simulated device.
#[derive(Clone, Debug, Deserialize)]
pub struct DeviceUse {
    /// Its number.
    pub index: u32,
    /// Bytes of memory it has.
    pub memory: u64,
    /// Bytes in use at the end.
    pub used: u64,
    /// Most bytes in use at once.
    pub peak: u64,
}

/// The copies that ran.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Copies {
    /// How many.
    pub count: u64,
    /// How many bytes they moved.
    pub bytes: u64,
    /// How many were corrupted on purpose.
    pub corrupted: u64,
}

/// What one process did with the simulated driver, as of its end.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// The process.
    pub pid: u32,
    /// The devices.
    pub devices: Vec<DeviceUse>,
    /// Calls of driver functions.
    pub total_calls: u64,
    /// Calls of each driver function.
    pub calls: BTreeMap<String, u64>,
    /// Faults that fired, by function.
    pub faults: BTreeMap<String, u64>,
    /// Copies that ran.
    pub copies: Copies,
    alive: Vec<Account>,
    dropped_with_context: Vec<Account>,
}

#[derive(Clone, Debug, Deserialize)]
struct Account {
    /// The file of the library, or of the program, that made them.
    library: PathBuf,
    #[serde(flatten)]
    kinds: BTreeMap<String, Tally>,
}

impl Account {
    /// NVIDIA's library leaks on its own; everything else is ours.
    fn is_ours(&self) -> bool {
        !self.library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcufile"))
    }
}

impl Report {
    /// Reads a report's text.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("the simulator's report: {error}\n{text}"))
    }

    /// The reports in `folder`, one per process.
    pub fn read_all(folder: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).expect("the folder of reports");
        let paths = entries.map(|entry| entry.expect("the folder of reports").path());
        let reports = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        reports.map(|path| Self::parse(&fs::read_to_string(path).expect("a report"))).collect()
    }

    /// What we made and never released, by kind ("allocations", "pins", "contexts", "retains", "streams", "events",
    /// "pools"); what went with its context counts. Empty where all is well.
    pub fn ours_alive(&self) -> BTreeMap<String, Tally> {
        let mut sums = BTreeMap::new();
        for account in self.alive.iter().chain(&self.dropped_with_context).filter(|account| account.is_ours())
        {
            for (kind, tally) in account.kinds.iter().filter(|(_, tally)| tally.count > 0) {
                let sum: &mut Tally = sums.entry(kind.clone()).or_default();
                sum.count += tally.count;
                sum.bytes += tally.bytes;
            }
        }
        sums
    }

    /// Calls of `function`, whatever its version suffix.
    pub fn calls_of(&self, function: &str) -> u64 {
        let of =
            |name: &str| name == function || name.strip_prefix(function).is_some_and(|v| v.starts_with("_v"));
        self.calls.iter().filter(|(name, _)| of(name)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nvidia_leaks_is_not_ours() {
        let report = Report::parse(
            r#"{"format": 1, "pid": 7, "command": ["x"], "total_calls": 3,
                "devices": [{"index": 0, "memory": 9, "used": 1, "peak": 2, "bar1": 3, "bar1_used": 0}],
                "calls": {"cuMemAlloc_v2": 2, "cuMemAllocHost_v2": 1}, "faults": {},
                "copies": {"count": 1, "bytes": 8, "corrupted": 0},
                "alive": [{"library": "/x/libcufile.so.0", "retains": {"count": 7, "bytes": 0}},
                          {"library": "/x/gds", "retains": {"count": 0, "bytes": 0}, "events": {"count": 1, "bytes": 0}}],
                "dropped_with_context": [{"library": "/x/gds", "events": {"count": 2, "bytes": 0}}]}"#,
        );
        assert_eq!(
            report.ours_alive(),
            BTreeMap::from([("events".to_owned(), Tally { count: 3, bytes: 0 })])
        );
        assert_eq!(report.calls_of("cuMemAlloc"), 2);
    }
}
