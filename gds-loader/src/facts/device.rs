//! What a file's bytes lie on: asked of sysfs by the file's device number, down to the drives.
//!
//! Trade-off: only what changes how the storage is read best is asked for. A file system that spans devices by itself or lies
//! on another one (btrfs, ZFS, overlayfs) has a number of its own that leads nowhere, and its storage is unknown.

use std::fmt;

use super::block::{BlockDevice, BlockKind};
use super::file_system::FileSystem;
use super::root::Root;

/// The storage below a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageDevice {
    /// What it is.
    pub kind: StorageKind,
    /// The kernel's name of the device that is mounted (`nvme0n1p2`, `md0`); empty where there is none.
    pub name: String,
    /// Drives at the bottom; 0 where unknown.
    pub drives: usize,
    /// Requests that the kernel queues for a drive at most (`nr_requests`).
    pub queue_depth: Option<u64>,
    /// The longest request to a drive, in bytes (`max_sectors_kb`).
    pub longest_request: Option<u64>,
}

/// Kinds of storage that are read best in ways of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageKind {
    /// NVMe drives.
    Nvme,
    /// Other flash: SATA and SAS drives, cards.
    SolidState,
    /// Turning disks.
    Rotational,
    /// A virtual machine's disk. What it really is the host knows; that it calls itself rotational means nothing.
    Virtual,
    /// Another machine, through a network or cluster file system or a network block device.
    Network,
    /// Memory.
    Memory,
    /// Several kinds together, or a file of another file system (`loop`).
    Stacked,
    /// The kernel does not say.
    Unknown,
}

impl StorageKind {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::SolidState => "solid-state",
            Self::Rotational => "rotational",
            Self::Virtual => "virtual",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Stacked => "stacked",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl StorageDevice {
    /// Storage of this kind of which nothing else is known.
    pub fn of_kind(kind: StorageKind) -> Self {
        Self { kind, name: String::new(), drives: 0, queue_depth: None, longest_request: None }
    }

    /// What lies below a file on a file system of this kind, whose device has this number ("259:2").
    pub fn below(root: &Root, number: &str, file_system: FileSystem) -> Self {
        match file_system {
            FileSystem::Memory => return Self::of_kind(StorageKind::Memory),
            FileSystem::Network { .. } => return Self::of_kind(StorageKind::Network),
            FileSystem::Local if number.starts_with("0:") => return Self::of_kind(StorageKind::Unknown),
            FileSystem::Local => {}
        }
        let Some(device) = BlockDevice::of(root, number) else { return Self::of_kind(StorageKind::Unknown) };
        let drives = device.drives();
        let kinds: Vec<StorageKind> = drives.iter().map(|drive| kind_of(root, drive)).collect();
        let kind = match kinds.as_slice() {
            [] => StorageKind::Unknown,
            [first, rest @ ..] if rest.iter().all(|kind| kind == first) => *first,
            _ => StorageKind::Stacked,
        };
        let least = |file: &str| drives.iter().filter_map(|drive| queue(root, drive, file)).min();
        Self {
            kind,
            queue_depth: least("nr_requests"),
            longest_request: least("max_sectors_kb").map(|kib| kib.saturating_mul(1024)),
            drives: drives.len(),
            name: device.name.clone(),
        }
    }
}

fn queue(root: &Root, drive: &BlockDevice, file: &str) -> Option<u64> {
    root.number(&format!("sys/dev/block/{}/queue/{file}", drive.number))
}

/// Vendors of disks that only look like one, as hypervisors write them into SCSI's inquiry data.
const VIRTUAL_VENDORS: [&str; 6] = ["QEMU", "VMware", "Msft", "Google", "VBOX", "Xen"];

fn kind_of(root: &Root, drive: &BlockDevice) -> StorageKind {
    if matches!(drive.kind, BlockKind::Nvme { .. }) {
        return StorageKind::Nvme;
    }
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| drive.name.starts_with(prefix));
    let number = &drive.number;
    let vendor = root.read(&format!("sys/dev/block/{number}/device/vendor")).unwrap_or_default();
    if begins(&["vd", "xvd"]) || VIRTUAL_VENDORS.iter().any(|name| vendor.starts_with(name)) {
        StorageKind::Virtual
    } else if begins(&["nbd", "rbd", "drbd"]) {
        StorageKind::Network
    } else if begins(&["pmem", "ram", "zram"]) {
        StorageKind::Memory
    } else if begins(&["loop", "md", "dm-"]) {
        // A file below, or members that cannot be seen.
        StorageKind::Stacked
    } else {
        match queue(root, drive, "rotational") {
            Some(0) => StorageKind::SolidState,
            Some(_) => StorageKind::Rotational,
            None => StorageKind::Unknown,
        }
    }
}
