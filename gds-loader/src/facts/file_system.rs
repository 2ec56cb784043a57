//! The kind of file system a file lies on, as far as the choice of path cares.
//!
//! Asked of `fstatfs(2)`; where its magic number stands for many (FUSE) or for none that is known, the mount's type in
//! `/proc/self/mountinfo` decides. Both are recorded data to [`FileSystem::recognise`], which asks nobody.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::fs::fstatfs;

use super::mount::Mount;
use super::root::Root;

/// The kind of file system a file lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Memory: tmpfs or ramfs. There is no disk below it to read directly from.
    Memory,
    /// A network or cluster file system, or a share of a host with its guest.
    Network {
        /// Which.
        kind: Network,
        /// Bytes that the client asks the server for at a time, where the mount tells (NFS, SMB: `rsize`).
        read_size: Option<u64>,
    },
    /// Anything else: taken to be on a disk of this machine.
    Local,
}

/// A file system whose bytes come from another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// NFS, any version.
    Nfs,
    /// Lustre.
    Lustre,
    /// SMB, also known as CIFS.
    Smb,
    /// The kernel's client of Ceph.
    Ceph,
    /// GPFS, also known as Storage Scale.
    Gpfs,
    /// BeeGFS.
    BeeGfs,
    /// WekaFS.
    Weka,
    /// A share of a host with its guest: 9p, virtiofs.
    Share,
    /// A program's (FUSE): an object store mostly.
    Fuse,
    /// Another one.
    Other,
}

impl Network {
    /// The name people know it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nfs => "NFS",
            Self::Lustre => "Lustre",
            Self::Smb => "SMB",
            Self::Ceph => "Ceph",
            Self::Gpfs => "GPFS",
            Self::BeeGfs => "BeeGFS",
            Self::Weka => "WekaFS",
            Self::Share => "a share of the host",
            Self::Fuse => "FUSE",
            Self::Other => "a network file system",
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Magic numbers of the kernel's `linux/magic.h` and, for file systems outside it, of their own sources.
const NETWORK: [(u64, Network); 14] = [
    (0x6969, Network::Nfs),
    (0x0bd0_0bd0, Network::Lustre),
    (0x517b, Network::Smb),
    (0xff53_4d42, Network::Smb),
    (0xfe53_4d42, Network::Smb),
    (0x00c3_6400, Network::Ceph),
    (0x4750_4653, Network::Gpfs),
    (0x1983_0326, Network::BeeGfs),
    (0x0102_1997, Network::Share),
    (0x6573_5546, Network::Fuse),
    (0x5346_414f, Network::Other),
    (0x6b41_4653, Network::Other),
    (0x7375_7245, Network::Other),
    (0xaad7_aaea, Network::Other),
];

/// Types of mounts, for what shares a magic number or has none that is known.
const TYPES: [(&str, Network); 6] = [
    ("wekafs", Network::Weka),
    ("lustre", Network::Lustre),
    ("beegfs", Network::BeeGfs),
    ("gpfs", Network::Gpfs),
    ("virtiofs", Network::Share),
    ("ceph", Network::Ceph),
];

/// FUSE programs whose files lie on disks of this machine.
const LOCAL_FUSE: [&str; 5] =
    ["fuseblk", "fuse.mergerfs", "fuse.bindfs", "fuse.fuse-overlayfs", "fuse.ntfs-3g"];

/// File systems of which the magic number says all there is to know.
const PLAIN: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

impl FileSystem {
    /// Asks the kernel about the file system of `file`, which has the device number `number` ("0:52").
    pub(super) fn of(root: &Root, file: &File, number: &str) -> Self {
        let Ok(answer) = fstatfs(file.as_fd()) else { return Self::Local };
        let magic = answer.f_type as u64 & 0xffff_ffff;
        if PLAIN.contains(&magic) || MEMORY.contains(&magic) {
            return Self::recognise(magic, number, "");
        }
        Self::recognise(magic, number, &root.read("proc/self/mountinfo").unwrap_or_default())
    }

    /// What `f_type` of `fstatfs(2)`, cut to 32 bits, and the line of a mountinfo with the device's number say.
    pub fn recognise(magic: u64, number: &str, mountinfo: &str) -> Self {
        if MEMORY.contains(&magic) {
            return Self::Memory;
        }
        let mount = Mount::numbered(mountinfo, number);
        let named = |mount: &Mount| TYPES.iter().find(|(name, _)| *name == mount.kind).map(|(_, kind)| *kind);
        let by_magic = NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind);
        let kind = match (mount.as_ref().and_then(named), by_magic) {
            (Some(kind), _) => kind,
            (None, Some(Network::Fuse)) if mount.as_ref().is_some_and(is_local_fuse) => return Self::Local,
            (None, Some(kind)) => kind,
            (None, None) => return Self::Local,
        };
        let read_size = mount.and_then(|mount| mount.option("rsize")?.parse().ok());
        Self::Network { kind, read_size }
    }
}

fn is_local_fuse(mount: &Mount) -> bool {
    LOCAL_FUSE.contains(&mount.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as kernels print them.
    const MOUNTINFO: &str = "\
        22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n\
        97 22 0:52 / /models rw,relatime shared:60 - nfs4 filer:/export/models rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,nconnect=8\n\
        98 22 0:53 /lustre /scratch rw,noatime - lustre 10.0.0.1@tcp:/fs rw,flock,lazystatfs\n\
        99 22 0:54 / /weka rw,relatime - wekafs backend/default rw,writecache\n\
        100 22 0:55 / /s3 rw,nosuid - fuse.s3fs s3fs rw,user_id=0\n\
        101 22 0:56 / /pool rw,relatime - fuse.mergerfs 1:2 rw,user_id=0\n\
        102 22 0:57 / /share rw,relatime - virtiofs models rw\n\
        103 22 0:58 / /win rw,relatime - cifs //host/x rw,vers=3.1.1,rsize=4194304\n";

    #[test]
    fn network_file_systems_are_recognised_by_number_or_name() {
        let network = |kind, read_size| FileSystem::Network { kind, read_size };
        for (magic, number, expected) in [
            (0x0102_1994, "0:30", FileSystem::Memory),
            (0x8584_58f6, "0:30", FileSystem::Memory),
            (0xef53, "259:2", FileSystem::Local),
            (0x794c_7630, "0:60", FileSystem::Local),
            (0x6969, "0:52", network(Network::Nfs, Some(1 << 20))),
            (0x6969, "0:99", network(Network::Nfs, None)),
            (0x0bd0_0bd0, "0:53", network(Network::Lustre, None)),
            // A client whose magic number nobody wrote down.
            (0x1234_5678, "0:54", network(Network::Weka, None)),
            (0x6573_5546, "0:55", network(Network::Fuse, None)),
            (0x6573_5546, "0:56", FileSystem::Local),
            (0x6573_5546, "0:57", network(Network::Share, None)),
            (0xff53_4d42, "0:58", network(Network::Smb, Some(4 << 20))),
            (0x0102_1997, "0:99", network(Network::Share, None)),
            (0x1983_0326, "0:99", network(Network::BeeGfs, None)),
            (0x4750_4653, "0:99", network(Network::Gpfs, None)),
            (0x00c3_6400, "0:99", network(Network::Ceph, None)),
        ] {
            assert_eq!(FileSystem::recognise(magic, number, MOUNTINFO), expected, "{magic:#x} at {number}");
        }
    }
}
