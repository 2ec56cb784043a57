//! What a path lies on: file system, mount, block devices down to the drives, and what cuFile makes of it.

use super::config::Config;
use super::driver::{Driver, registered};
use super::finding::Finding;
use super::probes::{Opening, PathProbe, Trial};
use crate::facts::{BlockDevice, BlockKind, DirectIo, FileFacts, Mount, Residency, Root};
use crate::policy;

/// The path and what it lies on.
#[derive(Clone, Debug)]
pub(super) struct Storage<'a> {
    probe: &'a PathProbe,
    mount: Option<Mount>,
    /// The block device, where the file system has one.
    pub(super) device: Option<BlockDevice>,
}

impl<'a> Storage<'a> {
    pub(super) fn of(root: &Root, probe: &'a PathProbe) -> Self {
        let facts = probe.answer.as_ref().ok();
        let mount = facts.and_then(|facts| Mount::of(root, facts.real.to_str()?));
        let device = mount.as_ref().and_then(|mount| BlockDevice::of(root, &mount.number));
        Self { probe, mount, device }
    }

    /// The PCI addresses of the NVMe controllers it lies on.
    pub(super) fn controllers(&self) -> Vec<String> {
        let drives = self.device.iter().flat_map(BlockDevice::drives);
        let mut controllers: Vec<String> = drives
            .flat_map(|drive| match &drive.kind {
                BlockKind::Nvme { controllers, .. } => controllers.clone(),
                _ => Vec::new(),
            })
            .collect();
        controllers.sort();
        controllers.dedup();
        controllers
    }

    pub(super) fn findings(
        &self,
        root: &Root,
        config: &Config,
        driver: &Driver,
        opening: &Opening,
    ) -> Vec<Finding> {
        let facts = match &self.probe.answer {
            Ok(facts) => facts,
            Err(reason) => {
                let found = format!("{} cannot be examined: {reason}", self.probe.given.display());
                return vec![
                    Finding::failure("storage.path", found)
                        .advice("check the path; a file server may be down"),
                ];
            }
        };
        let mut findings = vec![Finding::info("storage.path", facts.real.display().to_string())];
        if let Some(mount) = &self.mount {
            findings.push(file_system(mount, root));
            findings.extend(journal(mount));
            findings.extend(self.denied(mount, config));
            if let Some(device) = &self.device {
                findings.push(volume(device));
                findings.extend(nvme_driver(root, device, driver));
                findings.extend(multipath(device, driver));
                findings.push(record(root, device));
            }
        } else {
            findings.push(Finding::info("storage.file_system", "the mount it lies on is not known"));
        }
        findings.extend(facts.facts.as_ref().map(direct_io));
        findings.extend(trial(&facts.trial));
        let gds = matches!(opening, Opening::Opened);
        findings.extend(facts.facts.as_ref().map(|facts| automatic(facts, gds)));
        findings
    }

    fn denied(&self, mount: &Mount, config: &Config) -> Option<Finding> {
        let devices =
            self.device.iter().flat_map(BlockDevice::all).map(|device| format!("/dev/{}", device.name));
        let devices: Vec<String> = devices.collect();
        let entry = config
            .words("denylist.filesystems")
            .into_iter()
            .filter(|kind| *kind == mount.kind)
            .chain(config.words("denylist.mounts").into_iter().filter(|point| *point == mount.point))
            .chain(
                config
                    .words("denylist.devices")
                    .into_iter()
                    .filter(|device| devices.iter().any(|d| d == device)),
            )
            .next()?;
        Some(
            Finding::failure(
                "storage.denylist",
                format!("cufile.json's denylist names {entry}, which it lies on"),
            )
            .why("cuFile does not serve files there")
            .advice("take the entry out of denylist, if it is not meant"),
        )
    }
}

/// Names of network file systems, and the driver that registers with nvidia-fs for each.
const NETWORK: [(&str, &str); 8] = [
    ("nfs", "rpcrdma"),
    ("nfs4", "rpcrdma"),
    ("lustre", "lnet"),
    ("wekafs", "wekafsio"),
    ("beegfs", "beegfs"),
    ("gpfs", "mmfslinux"),
    ("scatefs", "scatefs"),
    ("panfs", "panfs"),
];

fn file_system(mount: &Mount, root: &Root) -> Finding {
    const ID: &str = "storage.file_system";
    let Mount { kind, point, source, .. } = mount;
    let on = format!("{kind}, mounted at {point}");
    if let Some((_, module)) = NETWORK.iter().find(|(name, _)| name == kind) {
        return network(mount, root, module);
    }
    match kind.as_str() {
        "ext4" | "xfs" => Finding::ok(ID, on),
        "overlay" => Finding::failure(ID, format!("it lies on {on}: a container's own file system"))
            .why("cuFile refuses files on overlayfs (5027)")
            .advice("keep the model on a volume of the host (docker run -v /data:/data), on ext4 or xfs over NVMe"),
        "tmpfs" | "ramfs" => Finding::failure(ID, format!("it lies in memory ({on})"))
            .why("there is no drive below it that could write into GPU memory; copying is the direct way")
            .advice("nothing: gds copies it through pinned memory"),
        "9p" | "virtiofs" | "drvfs" | "fuse" | "fuseblk" => Finding::failure(ID, format!("it lies on {on}: a share from outside ({source})"))
            .why("its files are not on a drive that this kernel reaches")
            .advice("copy the model to ext4 or xfs on a local NVMe drive"),
        _ => Finding::failure(ID, format!("it lies on {on}, which cuFile does not serve"))
            .why("cuFile serves ext4 and xfs on NVMe, and network file systems built for it")
            .advice("copy the model to ext4 or xfs on a local NVMe drive"),
    }
}

fn network(mount: &Mount, root: &Root, module: &str) -> Finding {
    const ID: &str = "storage.file_system";
    let Mount { kind, point, source, .. } = mount;
    let on = format!("{kind}, {source} mounted at {point}");
    let is_nfs = kind.starts_with("nfs");
    let protocol = mount.option("proto").unwrap_or("tcp");
    if is_nfs && protocol != "rdma" {
        return Finding::failure(ID, format!("it lies on {kind} over {protocol} ({source} mounted at {point})"))
            .why("cuFile serves NFS over RDMA alone")
            .advice("mount it with proto=rdma (and vers=3 or nconnect as the vendor says); gds reads it buffered, in large pieces");
    }
    if registered(root).iter().any(|name| name == module) {
        return Finding::ok(ID, format!("{on}; its client has registered with nvidia-fs"));
    }
    Finding::warning(
        ID,
        format!("{on}; its client has not registered with nvidia-fs (no {module} in the list)"),
    )
    .why("without that it reads into host memory only")
    .advice("install the vendor's client that is built for GPUDirect Storage")
}

/// cuFile wants to see that ext4 orders data before its journal; the kernel shows the default only where it was asked for.
fn journal(mount: &Mount) -> Option<Finding> {
    const ID: &str = "storage.ext4_journal";
    if mount.kind != "ext4" {
        return None;
    }
    Some(match mount.option("data") {
        Some("ordered") => Finding::ok(ID, "mounted with data=ordered"),
        Some(mode) => Finding::failure(ID, format!("mounted with data={mode}"))
            .why("cuFile takes ext4 in ordered mode only")
            .advice(format!("mount {} with data=ordered (in /etc/fstab)", mount.point)),
        None => Finding::warning(ID, "the mount table does not say data=ordered")
            .why("it is ext4's default, but cuFile looks for the words, and some versions refuse the file or copy without them")
            .advice(format!("mount {} with data=ordered (in /etc/fstab)", mount.point)),
    })
}

fn volume(device: &BlockDevice) -> Finding {
    const ID: &str = "storage.volume";
    let found = device.describe();
    for part in device.all() {
        match &part.kind {
            BlockKind::Mapped { by, .. } => {
                return Finding::failure(ID, format!("it lies on {found}"))
                    .why(format!(
                        "cuFile does not see through the device mapper ({}): registration fails with 5030, or it copies",
                        if by.is_empty() { "dm" } else { by }
                    ))
                    .advice("put the file system on the NVMe drive or on md RAID 0 itself");
            }
            BlockKind::Raid { level } if !matches!(level.as_str(), "raid0" | "raid1" | "raid10") => {
                return Finding::failure(ID, format!("it lies on {found}"))
                    .why(format!("cuFile serves md RAID 0, and in newer versions 1 and 10; not {level}"))
                    .advice("use RAID 0 of NVMe drives for what can be fetched again");
            }
            BlockKind::Other { .. } => {
                return Finding::failure(ID, format!("it lies on {found}, not on NVMe drives"))
                    .why(format!("no driver but nvme writes into GPU memory; that of {} does not", part.name))
                    .advice("copy the model to a local NVMe drive");
            }
            _ => {}
        }
    }
    Finding::ok(ID, found)
}

/// nvidia-fs serves a drive only where the kernel's nvme driver has registered with it.
fn nvme_driver(root: &Root, device: &BlockDevice, driver: &Driver) -> Option<Finding> {
    let drives = device.drives();
    let on_nvme = drives.iter().all(|drive| matches!(drive.kind, BlockKind::Nvme { .. }));
    let is_registered = registered(root).iter().any(|name| name.starts_with("nvme"));
    (on_nvme && driver.nvidia_fs && !driver.p2pdma() && !is_registered).then(|| {
        Finding::failure("storage.nvme_driver", "the nvme driver has not registered with nvidia-fs")
            .why("the kernel's own nvme driver cannot write GPU memory for nvidia-fs")
            .advice(
                "install NVIDIA's DOCA-OFED with its nvme modules, or use PCI peer-to-peer DMA (kernel 6.2 or newer, \
                 use_pci_p2pdma in cufile.json)",
            )
    })
}

fn multipath(device: &BlockDevice, driver: &Driver) -> Option<Finding> {
    let drives = device.drives();
    let drive = drives.iter().find(|drive| matches!(drive.kind, BlockKind::Nvme { multipath: true, .. }))?;
    let found = format!("{} is behind the kernel's NVMe multipath layer", drive.name);
    Some(if driver.nvidia_fs {
        Finding::info("storage.nvme_multipath", found)
    } else {
        Finding::warning("storage.nvme_multipath", found)
            .why("PCI peer-to-peer DMA does not pass through it")
            .advice("boot with nvme_core.multipath=N where drives have one path only")
    })
}

fn record(root: &Root, device: &BlockDevice) -> Finding {
    const ID: &str = "storage.udev";
    let file = format!("run/udev/data/b{}", device.number);
    let record = root.read(&file).unwrap_or_default();
    let has = |key: &str| {
        record.lines().any(|line| line.strip_prefix("E:").is_some_and(|line| line.starts_with(key)))
    };
    let missing: Vec<&str> = ["ID_FS_USAGE=", "ID_FS_TYPE="].into_iter().filter(|key| !has(key)).collect();
    if missing.is_empty() {
        return Finding::ok(ID, format!("udev knows {} (/{file})", device.name));
    }
    let found = if record.is_empty() {
        format!("udev has no record of {} (/{file})", device.name)
    } else {
        format!("udev's record of {} lacks {}", device.name, missing.join(" and ").replace('=', ""))
    };
    Finding::failure(ID, found)
        .why("cuFile reads file system and type from that record, and refuses the file without it (5027, 5030)")
        .advice(format!("run `udevadm trigger --name-match={}`; in a container, mount /run/udev from the host", device.name))
}

fn direct_io(facts: &FileFacts) -> Finding {
    const ID: &str = "storage.direct_io";
    match facts.direct_io {
        DirectIo::Supported { memory, offset } => {
            Finding::ok(ID, format!("direct I/O: offsets and lengths multiples of {offset} bytes, addresses of {memory}"))
        }
        DirectIo::Unsupported => Finding::failure(ID, "the kernel says that the file cannot be read with O_DIRECT")
            .why("cuFile reads around the page cache or not at all; encryption, compression or inline data stand in the way")
            .advice("copy the model to a file system without these features"),
        DirectIo::Unknown => Finding::info(ID, "the kernel does not say what direct I/O needs here; gds aligns to 4096 bytes"),
    }
}

fn trial(trial: &Trial) -> Option<Finding> {
    const ID: &str = "storage.trial";
    Some(match trial {
        Trial::NotTried => return None,
        Trial::Direct => {
            Finding::ok(ID, "a read by cuFile went straight into the GPU, as its statistics show")
        }
        Trial::Unverified(reason) => {
            Finding::info(ID, format!("cuFile registers it; whether reads go direct is not proven: {reason}"))
        }
        Trial::Bounced => {
            Finding::failure(ID, "a read by cuFile went through host memory, as its statistics show")
                .why("it registered the file and allowed no compatibility mode, and copied all the same")
                .advice("see the findings on file system, volume and udev record; cuFile's log may say more")
        }
        Trial::Refused(reason) => Finding::failure(ID, format!("cuFile does not serve it: {reason}"))
            .why("this file cannot go direct; others on another file system may")
            .advice("see the findings on its file system, volume and udev record"),
    })
}

/// What `auto` would do; `gds` says that cuFile opened for real, which is when it tries that first.
fn automatic(facts: &FileFacts, gds: bool) -> Finding {
    let (paths, reason) = if gds { policy::explain_with_gds(facts) } else { policy::explain(facts) };
    let resident = match facts.residency {
        Residency::Share(share) => format!("{:.0}% of it is in the page cache", share * 100.0),
        _ => "how much of it is in the page cache is not known".into(),
    };
    let mut names = paths.iter().map(|kind| kind.as_str());
    let first = names.next().unwrap_or("no path");
    let rest: Vec<&str> = names.collect();
    let then = if rest.is_empty() { String::new() } else { format!(", then {}", rest.join(", ")) };
    Finding::info("storage.auto", format!("`--backend auto` takes {first}{then}: {reason} ({resident})"))
}
