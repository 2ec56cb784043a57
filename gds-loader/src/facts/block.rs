//! A block device down to the drives it is made of: partitions, md RAID, device mapper (LVM, encryption), NVMe.

use serde::Serialize;

use super::root::Root;

/// Devices stacked deeper than this are not followed; a real stack has three or four floors.
const DEPTH: usize = 8;

/// A block device and what it lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockDevice {
    /// The kernel's name: `md0`, `nvme0n1p4`.
    pub name: String,
    /// Major and minor number: `9:0`.
    pub number: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: BlockKind,
    /// What it lies on.
    pub members: Vec<BlockDevice>,
}

/// What a block device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BlockKind {
    /// A part of the one device it lies on.
    Partition,
    /// Linux software RAID.
    Raid {
        /// `raid0`, `raid1`, ...
        level: String,
    },
    /// A device-mapper volume.
    Mapped {
        /// The name of the volume.
        volume: String,
        /// Who made it: `LVM`, `CRYPT`, `mpath`; empty where it does not say.
        by: String,
    },
    /// An NVMe namespace.
    Nvme {
        /// The PCI addresses of the controllers through which it is reached.
        controllers: Vec<String>,
        /// `pcie`, `rdma`, `tcp`.
        transport: String,
        /// Whether the kernel's own multipath layer lies between.
        multipath: bool,
    },
    /// Anything else.
    Other {
        /// The driver, as far as the name tells: `virtio`, `SCSI or SATA`, `loop`.
        driver: String,
    },
}

impl BlockDevice {
    /// The device with this number.
    pub(crate) fn of(root: &Root, number: &str) -> Option<Self> {
        Self::at(root, &root.resolve(&format!("sys/dev/block/{number}"))?, DEPTH)
    }

    /// The device of this folder below /sys/devices.
    fn at(root: &Root, folder: &str, depth: usize) -> Option<Self> {
        let (parent, name) = folder.rsplit_once('/')?;
        let number = root.read(&format!("{folder}/dev"))?;
        let below = |folders: Vec<String>| -> Vec<Self> {
            let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
            folders.iter().filter_map(|folder| Self::at(root, folder, depth)).collect()
        };
        let (kind, members) = if root.exists(&format!("{folder}/partition")) {
            (BlockKind::Partition, below(vec![parent.to_owned()]))
        } else if let Some(level) = root.read(&format!("{folder}/md/level")) {
            (BlockKind::Raid { level }, below(slaves(root, folder)))
        } else if root.exists(&format!("{folder}/dm")) {
            let volume = root.read(&format!("{folder}/dm/name")).unwrap_or_default();
            let uuid = root.read(&format!("{folder}/dm/uuid")).unwrap_or_default();
            let by = uuid.split_once('-').map_or("", |(by, _)| by).to_owned();
            (BlockKind::Mapped { volume, by }, below(slaves(root, folder)))
        } else if name.starts_with("nvme") {
            (nvme(root, folder, parent), Vec::new())
        } else {
            (BlockKind::Other { driver: driver(name).to_owned() }, Vec::new())
        };
        Some(Self { name: name.to_owned(), number, kind, members })
    }

    /// This device and all below it.
    pub(crate) fn all(&self) -> Vec<&Self> {
        std::iter::once(self).chain(self.members.iter().flat_map(Self::all)).collect()
    }

    /// The drives at the bottom.
    pub(crate) fn drives(&self) -> Vec<&Self> {
        self.all().into_iter().filter(|device| device.members.is_empty()).collect()
    }

    /// `md0 (raid0 of nvme1n1, nvme2n1)`.
    pub(crate) fn describe(&self) -> String {
        let members = self.members.iter().map(Self::describe).collect::<Vec<_>>().join(", ");
        let name = &self.name;
        match &self.kind {
            BlockKind::Partition => format!("{name} (a partition of {members})"),
            BlockKind::Raid { level } => format!("{name} ({level} of {members})"),
            BlockKind::Mapped { volume, by } => {
                let by = if by.is_empty() { "device mapper" } else { by };
                format!("{name} ({by} volume {volume} on {members})")
            }
            BlockKind::Nvme { transport, .. } if transport == "pcie" || transport.is_empty() => name.clone(),
            BlockKind::Nvme { transport, .. } => format!("{name} (NVMe over {transport})"),
            BlockKind::Other { driver } => format!("{name} ({driver})"),
        }
    }
}

fn slaves(root: &Root, folder: &str) -> Vec<String> {
    let folder = format!("{folder}/slaves");
    root.list(&folder).iter().filter_map(|slave| root.resolve(&format!("{folder}/{slave}"))).collect()
}

/// A namespace lies in its controller's folder, or, with the kernel's multipath layer, in that of a subsystem, which
/// has links to its controllers.
fn nvme(root: &Root, folder: &str, parent: &str) -> BlockKind {
    let address = |path: &str| path.split('/').rfind(|part| is_address(part)).map(str::to_owned);
    let transport = |controller: &str| root.read(&format!("{controller}/transport"));
    if !folder.contains("/nvme-subsystem/") {
        let controllers = address(folder).into_iter().collect();
        return BlockKind::Nvme {
            controllers,
            transport: transport(parent).unwrap_or_default(),
            multipath: false,
        };
    }
    let names = root.list(parent);
    let links = names.iter().map(|name| format!("{parent}/{name}")).filter(|path| transport(path).is_some());
    let links: Vec<String> = links.collect();
    let paths = links.iter().filter_map(|link| root.resolve(link));
    BlockKind::Nvme {
        controllers: paths.filter_map(|path| address(&path)).collect(),
        transport: links.first().and_then(|link| transport(link)).unwrap_or_default(),
        multipath: true,
    }
}

fn driver(name: &str) -> &'static str {
    let known = [
        ("vd", "virtio"),
        ("sd", "SCSI or SATA"),
        ("xvd", "Xen"),
        ("loop", "loop"),
        ("zram", "compressed memory"),
        ("ram", "memory"),
        ("pmem", "persistent memory"),
        ("nbd", "network block device"),
        ("rbd", "Ceph"),
        ("mmcblk", "SD card"),
    ];
    known.into_iter().find(|(prefix, _)| name.starts_with(prefix)).map_or("not NVMe", |(_, driver)| driver)
}

/// Whether `text` is an address such as "0000:1b:00.0". The domain has more digits behind some controllers.
pub(crate) fn is_address(text: &str) -> bool {
    let hexadecimal = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.split([':', '.']);
    let (Some(domain), Some(bus), Some(device), Some(function), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    hexadecimal(domain, 4..=8)
        && hexadecimal(bus, 2..=2)
        && hexadecimal(device, 2..=2)
        && hexadecimal(function, 1..=1)
        && text.contains('.')
}
