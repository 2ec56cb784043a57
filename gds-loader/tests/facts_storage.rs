//! What files lie on, by trees of sysfs written by hand after what such machines print.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod check_support;

use check_support::Tree;
use gds_loader::facts::{FileSystem, Network, Root, StorageDevice, StorageKind};

const NVME: &str = "pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme0/nvme0n1";

/// An NVMe drive and its first partition, 259:1.
fn nvme() -> String {
    format!(
        "block {NVME} 259:0\nblock {NVME}/nvme0n1p1 259:1\nsys/devices/{NVME}/nvme0n1p1/partition = 1\n\
         sys/devices/{NVME}/queue/rotational = 0\nsys/devices/{NVME}/queue/nr_requests = 1023\n\
         sys/devices/{NVME}/queue/max_sectors_kb = 128\n\
         sys/devices/pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme0/transport = pcie\n"
    )
}

/// A disk on SCSI or SATA, with its vendor.
fn scsi(name: &str, number: &str, vendor: &str, rotational: u8) -> String {
    let folder = format!(
        "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:{rotational}{}/block/{name}",
        &number[2..]
    );
    format!(
        "block {folder} {number}\nsys/devices/{folder}/queue/rotational = {rotational}\n\
         sys/devices/{folder}/queue/nr_requests = 64\nsys/devices/{folder}/queue/max_sectors_kb = 1280\n\
         sys/devices/{folder}/device/vendor = {vendor}\n"
    )
}

fn below(tree: &str, number: &str) -> StorageDevice {
    let tree = Tree::of(tree);
    StorageDevice::below(&Root::at(tree.path()), number, FileSystem::Local)
}

fn kind(tree: &str, number: &str) -> StorageKind {
    below(tree, number).kind
}

#[test]
fn a_partition_is_read_as_its_drive() {
    let device = below(&nvme(), "259:1");
    assert_eq!((device.kind, device.name.as_str(), device.drives), (StorageKind::Nvme, "nvme0n1p1", 1));
    assert_eq!((device.queue_depth, device.longest_request), (Some(1023), Some(128 << 10)));
}

#[test]
fn encryption_is_seen_through() {
    let tree = nvme()
        + "block virtual/block/dm-0 253:0\nsys/devices/virtual/block/dm-0/dm/name = luks-root\n\
           sys/devices/virtual/block/dm-0/dm/uuid = CRYPT-LUKS2-0123-luks-root\n\
           sys/devices/virtual/block/dm-0/queue/rotational = 0\n"
        + &format!("sys/devices/virtual/block/dm-0/slaves/nvme0n1p1 -> ../../../../{NVME}/nvme0n1p1\n");
    let device = below(&tree, "253:0");
    assert_eq!((device.kind, device.drives, device.queue_depth), (StorageKind::Nvme, 1, Some(1023)));
}

#[test]
fn an_array_has_all_its_drives() {
    let mut tree = "block virtual/block/md0 9:0\nsys/devices/virtual/block/md0/md/level = raid0\n".to_owned();
    for k in 0..4 {
        let folder = format!("pci0000:00/0000:0{k}:00.0/nvme/nvme{k}/nvme{k}n1");
        tree += &format!(
            "block {folder} 259:{k}\nsys/devices/{folder}/queue/nr_requests = {}\n\
             sys/devices/virtual/block/md0/slaves/nvme{k}n1 -> ../../../../{folder}\n",
            1023 - k
        );
    }
    let device = below(&tree, "9:0");
    assert_eq!((device.kind, device.drives), (StorageKind::Nvme, 4));
    assert_eq!((device.queue_depth, device.longest_request), (Some(1020), None), "the tightest drive's");
}

#[test]
fn a_virtual_disk_is_not_believed_to_turn() {
    let folder = "pci0000:00/0000:00:02.0/virtio1/block/vda";
    let virtio = format!("block {folder} 254:0\nsys/devices/{folder}/queue/rotational = 1\n");
    assert_eq!(kind(&virtio, "254:0"), StorageKind::Virtual);
    for vendor in ["QEMU", "VMware", "Msft"] {
        assert_eq!(kind(&scsi("sda", "8:0", vendor, 1), "8:0"), StorageKind::Virtual, "{vendor}");
    }
}

#[test]
fn disks_that_turn_and_disks_that_do_not() {
    assert_eq!(kind(&scsi("sda", "8:0", "ATA", 1), "8:0"), StorageKind::Rotational);
    assert_eq!(kind(&scsi("sda", "8:0", "ATA", 0), "8:0"), StorageKind::SolidState);
    // Nobody says what it is.
    assert_eq!(kind("block pci0000:00/block/sdx 65:0\n", "65:0"), StorageKind::Unknown);
}

#[test]
fn kinds_together_are_neither_of_them() {
    let (slow, fast) = (scsi("sda", "8:0", "ATA", 1), scsi("sdb", "8:16", "ATA", 0));
    let link = |tree: &str, name: &str| {
        let folder = tree.split_whitespace().nth(1).unwrap();
        format!("sys/devices/virtual/block/md1/slaves/{name} -> ../../../../{folder}\n")
    };
    let array = "block virtual/block/md1 9:1\nsys/devices/virtual/block/md1/md/level = raid1\n".to_owned()
        + &link(&slow, "sda")
        + &link(&fast, "sdb");
    let device = below(&(slow + &fast + &array), "9:1");
    assert_eq!((device.kind, device.drives), (StorageKind::Stacked, 2));
    let file = "block virtual/block/loop3 7:3\nsys/devices/virtual/block/loop3/queue/rotational = 0\n";
    assert_eq!(kind(file, "7:3"), StorageKind::Stacked);
}

#[test]
fn a_number_that_leads_nowhere_is_unknown() {
    // btrfs, ZFS, overlayfs; and a container that does not show its devices.
    for number in ["0:26", "259:7"] {
        assert_eq!(kind(&nvme(), number), StorageKind::Unknown, "{number}");
    }
}

#[test]
fn the_file_system_says_it_where_there_is_no_device() {
    let tree = Tree::of("");
    let root = Root::at(tree.path());
    let of = |file_system| StorageDevice::below(&root, "0:52", file_system).kind;
    assert_eq!(of(FileSystem::Memory), StorageKind::Memory);
    assert_eq!(of(FileSystem::Network { kind: Network::Nfs, read_size: None }), StorageKind::Network);
}
