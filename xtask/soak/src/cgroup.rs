//! A cgroup with a limit on memory, of either version.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A group of our own, removed when dropped.
pub(crate) struct Cgroup {
    folder: PathBuf,
    procs: File,
    events: &'static str,
}

/// Where the hierarchies are mounted.
const MOUNTS: &str = "/sys/fs/cgroup";

impl Cgroup {
    /// A group below this process's, or beside it, whose processes may use `bytes` together, file cache included.
    ///
    /// # Errors
    /// Why there is none, of any version: a reason for people.
    pub(crate) fn with_memory(name: &str, bytes: u64) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for (mount, limit, events) in [
            (Path::new(MOUNTS).join("memory"), "memory.limit_in_bytes", "memory.oom_control"),
            (PathBuf::from(MOUNTS), "memory.max", "memory.events"),
            (Path::new(MOUNTS).join("unified"), "memory.max", "memory.events"),
        ] {
            if !mount.join("cgroup.procs").is_file() {
                continue;
            }
            let folder = mount.join(format!("gds-soak-{}-{name}", std::process::id()));
            match Self::make(folder.clone(), limit, events, bytes) {
                Ok(group) => return Ok(group),
                Err(error) => {
                    // Made, and without a limit: of no use.
                    let _ = fs::remove_dir(&folder);
                    reasons.push(format!("{}: {error}", folder.display()));
                }
            }
        }
        match reasons.is_empty() {
            true => Err(format!("no cgroups below {MOUNTS}")),
            false => Err(format!("no memory cgroup can be made: {}", reasons.join("; "))),
        }
    }

    fn make(folder: PathBuf, limit: &str, events: &'static str, bytes: u64) -> io::Result<Self> {
        fs::create_dir(&folder)?;
        // A limit that cannot be opened is one that this hierarchy does not have.
        OpenOptions::new().write(true).open(folder.join(limit))?;
        fs::write(folder.join(limit), bytes.to_string())?;
        let procs = OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?;
        Ok(Self { folder, procs, events })
    }

    /// Processes join by writing "0" here.
    pub(crate) fn procs(&self) -> &File {
        &self.procs
    }

    /// How many of its processes the kernel has killed for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        let events = fs::read_to_string(self.folder.join(self.events)).unwrap_or_default();
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may be leaving still.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
