//! The doctor on recorded trees: for each machine the ids and levels found, the verdict, and the page.
//!
//! The pages lie in `check_trees/NAME.page`. `GDS_UPDATE_PAGES=1 cargo test -p gds-loader --test check_trees` writes them
//! anew; read what changed before committing it.

#![allow(clippy::unwrap_used, reason = "a failure in a helper is the test's failure")]

mod check_support;

use std::collections::BTreeSet;
use std::time::Duration;

use check_support::{Tree, folder};
use gds_loader::check::{
    Area, BlockKind, Checkup, Cuda, CudaDevice, Distance, Finding, Level, Library, Opening, PathFacts,
    PathProbe, Probes, Root, Trial, examine_tree,
};
use gds_loader::facts::{DirectIo, FileFacts, FileSystem, Network, Residency, StorageDevice, StorageKind};

const LIBRARY: &str = "/usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0";

/// The answers of a machine with these GPUs and a complete libcufile, asked about a large cold file at `path`.
fn probes(gpus: &[(&str, &str)], path: &str, file_system: FileSystem) -> Probes {
    let devices = gpus.iter().enumerate().map(|(index, (name, address))| CudaDevice {
        index: index as u32,
        name: (*name).into(),
        pci_address: Some((*address).into()),
        bar1_bytes: None,
    });
    let facts = FileFacts {
        len: 5 << 30,
        direct_io: match file_system {
            FileSystem::Local => DirectIo::Supported { memory: 4, offset: 512 },
            _ => DirectIo::Unknown,
        },
        file_system,
        residency: Residency::Share(0.0),
        storage: StorageDevice::of_kind(StorageKind::Unknown),
        map: None,
    };
    let mut probes = Probes {
        cuda: Cuda::Devices(devices.collect()),
        library: Library::Found { path: LIBRARY.into(), version: Some(1200), absent: Vec::new() },
        io_uring: Some(Ok(())),
        path: Some(PathProbe {
            given: path.into(),
            answer: Ok(PathFacts { real: path.into(), facts: Some(facts), trial: Trial::NotTried }),
        }),
        ..Probes::default()
    };
    set(&mut probes, "CUFILE_LOGFILE_PATH", "/dev/null");
    probes
}

fn set(probes: &mut Probes, name: &str, value: &str) {
    probes.environment.insert(name.into(), value.into());
}

fn dgx(path: &str) -> Probes {
    // As the driver gives addresses: upper case, and in older versions with eight digits.
    let addresses =
        ["1B", "43", "52", "61", "9D", "C3", "D1", "DF"].map(|bus| format!("00000000:{bus}:00.0"));
    let gpus: Vec<(&str, &str)> =
        addresses.iter().map(|address| ("NVIDIA H100 80GB HBM3", address.as_str())).collect();
    probes(&gpus, path, FileSystem::Local)
}

fn no_gpu(path: &str) -> Probes {
    let reason =
        "no CUDA driver library (libcuda.so.1: cannot open shared object file: No such file or directory)";
    Probes { cuda: Cuda::Unavailable(reason.into()), ..probes(&[], path, FileSystem::Local) }
}

/// Examines, checks what holds for every checkup, and compares the page with the one expected.
#[track_caller]
fn examine(name: &str, tree: &Tree, probes: &Probes) -> Checkup {
    let checkup = examine_tree(&Root::at(tree.path()), probes);
    sound(&checkup);
    let page = checkup.to_string();
    let file = folder().join(format!("{name}.page"));
    if std::env::var_os("GDS_UPDATE_PAGES").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(page == expected, "{} is not what the doctor says:\n{page}", file.display());
    checkup
}

/// What holds for every checkup.
#[track_caller]
fn sound(checkup: &Checkup) {
    let ids: BTreeSet<&str> = checkup.findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids.len(), checkup.findings.len(), "an id twice: {:?}", checkup.findings);
    for Finding { id, area, level, found, why, advice, .. } in &checkup.findings {
        assert_eq!(id.split('.').next(), Some(area.as_str()), "{id}");
        assert!(!found.is_empty() && !found.ends_with('.'), "{id}: {found}");
        if *level >= Level::Warning {
            assert!(advice.is_some(), "{id} says nothing about what to do");
            assert!(why.is_some() || *id == "storage.path", "{id} does not say why it matters");
        }
    }
    let failures: Vec<&str> = checkup
        .findings
        .iter()
        .filter(|finding| finding.level == Level::Failure)
        .map(|finding| finding.id)
        .collect();
    assert_eq!((checkup.verdict.gds, &checkup.verdict.blocking), (failures.is_empty(), &failures));
    let page = checkup.to_string();
    assert!(page.lines().all(|line| line.chars().count() <= 110), "{page}");
    // One JSON object, whose fields are all there whatever was found.
    let json = serde_json::to_value(checkup).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["findings", "gpus", "routes", "verdict", "volume"]);
    for finding in json["findings"].as_array().unwrap() {
        let keys: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["advice", "area", "found", "id", "level", "why"]);
    }
}

/// The ids at this level, in the page's order.
fn at(checkup: &Checkup, level: Level) -> Vec<&'static str> {
    checkup.findings.iter().filter(|finding| finding.level == level).map(|finding| finding.id).collect()
}

#[track_caller]
fn finding<'a>(checkup: &'a Checkup, id: &str) -> &'a Finding {
    checkup.findings.iter().find(|finding| finding.id == id).unwrap()
}

#[test]
fn a_dgx_as_it_should_be() {
    let checkup = examine("dgx-h100", &Tree::lay_out("dgx-h100"), &dgx("/raid/model.safetensors"));
    assert!(checkup.verdict.gds);
    assert_eq!(at(&checkup, Level::Failure), [""; 0]);
    assert_eq!(at(&checkup, Level::Warning), [""; 0]);
    assert_eq!(
        at(&checkup, Level::Ok),
        [
            "machine.modules",
            "gpu.libcuda",
            "gpu.bar1",
            "driver.nvidia",
            "driver.nvidia_fs",
            "driver.nvidia_fs_nodes",
            "driver.nvidia_fs_storage",
            "cufile.library",
            "cufile.functions",
            "config.file",
            "config.allow_compat_mode",
            "storage.file_system",
            "storage.volume",
            "storage.udev",
            "storage.direct_io",
            "topology.iommu",
            "topology.acs",
            "topology.distance",
            "limits.memory",
            "limits.memlock",
            "limits.io_uring",
        ]
    );
    // The facts behind it.
    assert_eq!(checkup.gpus.len(), 8);
    assert!(checkup.gpus.iter().all(|gpu| gpu.bar1_bytes == Some(128 << 30)));
    assert_eq!(checkup.gpus[7].numa_node, Some(1));
    let volume = checkup.volume.as_ref().unwrap();
    assert_eq!(volume.kind, BlockKind::Raid { level: "raid0".into() });
    assert_eq!(volume.members.len(), 8);
    assert_eq!(checkup.routes.len(), 64);
    let of_first = |distance| {
        checkup
            .routes
            .iter()
            .filter(|route| route.gpu == "0000:1b:00.0" && route.distance == distance)
            .count()
    };
    assert_eq!([Distance::Switch, Distance::Node, Distance::System].map(of_first), [1, 3, 4]);
}

#[test]
fn a_dgx_without_a_path_is_examined_as_a_machine() {
    let probes = Probes { path: None, ..dgx("") };
    let checkup = examine("dgx-h100-no-path", &Tree::lay_out("dgx-h100"), &probes);
    assert!(checkup.verdict.gds && checkup.volume.is_none());
    assert_eq!(finding(&checkup, "machine.udev").level, Level::Ok);
    assert!(!checkup.findings.iter().any(|finding| finding.area == Area::Storage));
}

#[test]
fn a_dgx_with_iommu_and_acs_on_and_compat_allowed() {
    let checkup = examine("dgx-iommu", &Tree::lay_out("dgx-iommu"), &dgx("/raid/model.safetensors"));
    assert!(checkup.verdict.gds);
    assert_eq!(
        at(&checkup, Level::Warning),
        ["config.allow_compat_mode", "storage.ext4_journal", "topology.iommu", "topology.acs"]
    );
    assert!(finding(&checkup, "topology.acs").found.contains("16 bridges"));
}

#[test]
fn wsl2() {
    let mut probes = probes(
        &[("NVIDIA GeForce RTX 4090", "00000000:01:00.0")],
        "/home/me/m.safetensors",
        FileSystem::Local,
    );
    probes.library = Library::Found {
        path: "/usr/lib/x86_64-linux-gnu/libcufile.so.0".into(),
        version: Some(1110),
        absent: [
            ("cuFileSetParameterBool", "cuFile 1.14 (CUDA 12.9)"),
            ("cuFileGetStatsL3", "cuFile 1.15 (CUDA 13.0)"),
            ("cuFileReadv", "cuFile 1.19 (CUDA 13.4)"),
        ]
        .map(|(name, since)| (name.into(), since.into()))
        .to_vec(),
    };
    probes.environment.clear();
    let checkup = examine("wsl2", &Tree::lay_out("wsl2"), &probes);
    assert_eq!(at(&checkup, Level::Failure), ["machine.wsl", "gpu.class", "cufile.mode", "storage.volume"]);
    assert_eq!(at(&checkup, Level::Warning), ["cufile.functions", "cufile.log"]);
}

#[test]
fn a_docker_container_without_udev_and_volume() {
    let mut probes = probes(&[("NVIDIA L40S", "0000:65:00.0")], "/model/m.safetensors", FileSystem::Local);
    probes.io_uring = Some(Err("Operation not permitted (os error 1)".into()));
    let checkup = examine("docker", &Tree::lay_out("docker"), &probes);
    assert_eq!(at(&checkup, Level::Failure), ["driver.nvidia_fs_nodes", "storage.file_system"]);
    assert_eq!(at(&checkup, Level::Warning), ["driver.nvidia_fs_storage", "limits.memory"]);
    assert!(finding(&checkup, "driver.nvidia_fs_nodes").advice.as_ref().unwrap().contains("docker"));

    // Asked about the machine alone, udev is in the way.
    let machine = examine_tree(&Root::at(Tree::lay_out("docker").path()), &Probes { path: None, ..probes });
    assert!(at(&machine, Level::Failure).contains(&"machine.udev"));
    assert!(finding(&machine, "machine.udev").advice.as_ref().unwrap().contains("/run/udev"));
}

#[test]
fn a_micro_vm() {
    let mut probes = no_gpu("/root/m.safetensors");
    probes.library =
        Library::Missing("libcufile could not be loaded; tried\n  libcufile.so.0: no such file".into());
    let checkup = examine("micro-vm", &Tree::lay_out("micro-vm"), &probes);
    assert_eq!(
        at(&checkup, Level::Failure),
        [
            "machine.modules",
            "gpu.libcuda",
            "driver.nvidia",
            "driver.nvidia_fs",
            "cufile.library",
            "storage.volume",
            "storage.udev",
        ]
    );
}

#[test]
fn ext4_on_lvm_with_a_strange_configuration() {
    let mut probes =
        probes(&[("NVIDIA A100 80GB PCIe", "0000:CA:00.0")], "/srv/m.safetensors", FileSystem::Local);
    probes.io_uring = Some(Err("Operation not permitted (os error 1)".into()));
    let checkup = examine("lvm", &Tree::lay_out("lvm"), &probes);
    assert_eq!(
        at(&checkup, Level::Failure),
        ["storage.denylist", "storage.volume", "storage.nvme_driver", "storage.udev"]
    );
    assert_eq!(
        at(&checkup, Level::Warning),
        [
            "gpu.mig",
            "driver.nvidia_fs_storage",
            "driver.nvidia_fs_statistics",
            "config.allow_compat_mode",
            "config.use_poll_mode",
            "config.max_direct_io_size_kb",
            "config.max_device_cache_size_kb",
            "config.max_device_pinned_mem_size_kb",
            "config.posix_pool_slab_count",
            "config.rdma_dynamic_routing",
            "config.logging_level",
            "config.denylist",
            "storage.ext4_journal",
            "topology.iommu",
            "topology.distance",
        ]
    );
    let volume = checkup.volume.as_ref().unwrap();
    assert_eq!(volume.members[0].kind, BlockKind::Partition);
    assert_eq!(volume.members[0].members[0].name, "nvme0n1");
}

#[test]
fn nfs_over_tcp_and_over_rdma() {
    let gpus = [("NVIDIA H100 PCIe", "0000:16:00.0"), ("NVIDIA H100 PCIe", "0000:98:00.0")];
    let mut probes = probes(
        &gpus,
        "/models/llama/m.safetensors",
        FileSystem::Network { kind: Network::Nfs, read_size: Some(1 << 20) },
    );
    probes.io_uring = Some(Err("Operation not permitted (os error 1)".into()));
    let tree = Tree::lay_out("nfs");
    let checkup = examine("nfs", &tree, &probes);
    assert_eq!(at(&checkup, Level::Failure), ["storage.file_system"]);

    let mounts =
        "88 29 0:52 / /models rw shared:60 - nfs filer:/export/models rw,vers=3,proto=rdma,nconnect=8\n";
    tree.write("proc/self/mountinfo", mounts);
    let checkup = examine_tree(&Root::at(tree.path()), &probes);
    sound(&checkup);
    assert!(checkup.verdict.gds, "{checkup}");
    tree.write("proc/driver/nvidia-fs/modules", "nvme: 1.0\n");
    let checkup = examine_tree(&Root::at(tree.path()), &probes);
    assert_eq!(finding(&checkup, "storage.file_system").level, Level::Warning);
}

#[test]
fn peer_to_peer_dma_without_nvidia_fs() {
    let mut probes = probes(&[("NVIDIA RTX A6000", "0000:01:00.0")], "/srv/m.safetensors", FileSystem::Local);
    set(&mut probes, "CUFILE_ENV_PATH_JSON", "/srv/cufile.json");
    let tree = Tree::lay_out("p2pdma");
    let checkup = examine("p2pdma", &tree, &probes);
    assert!(checkup.verdict.gds);
    assert_eq!(at(&checkup, Level::Warning), ["gpu.bar1", "storage.nvme_multipath"]);
    assert!(checkup.suggested_config.contains("\"use_pci_p2pdma\": true"));
    assert_eq!(checkup.routes[0].distance, Distance::HostBridge);

    // Without the setting there is no way, and the advice says which setting.
    set(&mut probes, "CUFILE_ENV_PATH_JSON", "");
    let checkup = examine_tree(&Root::at(tree.path()), &probes);
    assert_eq!(at(&checkup, Level::Failure), ["driver.nvidia_fs", "cufile.mode"]);
    assert!(finding(&checkup, "driver.nvidia_fs").advice.as_ref().unwrap().contains("use_pci_p2pdma"));
    assert!(checkup.suggested_config.contains("\"use_pci_p2pdma\": true"));
}

#[test]
fn what_cufile_says_outweighs_what_is_inferred() {
    let tree = Tree::lay_out("micro-vm");
    let root = Root::at(tree.path());
    let mut probes = probes(&[("simulated GPU", "0000:00:04.0")], "/root/m.safetensors", FileSystem::Local);
    let inferred = examine_tree(&root, &probes);
    assert!(!inferred.verdict.gds);

    probes.opening = Opening::Opened;
    let opened = examine_tree(&root, &probes);
    sound(&opened);
    assert!(opened.verdict.blocking.iter().all(|id| id.starts_with("storage.")), "{opened}");

    let path = probes.path.as_mut().unwrap().answer.as_mut().unwrap();
    path.trial = Trial::Refused("5027: handle not registered".into());
    let refused = examine_tree(&root, &probes);
    assert!(refused.verdict.blocking.contains(&"storage.trial"));

    probes.path.as_mut().unwrap().answer.as_mut().unwrap().trial = Trial::Direct;
    let registered = examine_tree(&root, &probes);
    sound(&registered);
    assert!(registered.verdict.gds, "{registered}");
    assert!(registered.verdict.summary.contains("cuFile itself says so"));

    // A read that bounced, or whose way is not known, proves nothing; nor does one where cuFile was not opened without its compatibility mode.
    for (trial, level) in [(Trial::Bounced, Level::Failure), (Trial::Unverified("old".into()), Level::Info)] {
        probes.path.as_mut().unwrap().answer.as_mut().unwrap().trial = trial;
        let unproven = examine_tree(&root, &probes);
        sound(&unproven);
        assert_eq!(finding(&unproven, "storage.trial").level, level);
        assert!(unproven.verdict.blocking.contains(&"storage.volume"));
    }
    probes.path.as_mut().unwrap().answer.as_mut().unwrap().trial = Trial::Direct;
    probes.opening = Opening::Refused("5001: the driver is not there".into());
    let bounced = examine_tree(&root, &probes);
    assert!(bounced.verdict.blocking.contains(&"storage.volume"));
    assert!(bounced.verdict.blocking.contains(&"cufile.mode"));
}

#[test]
fn what_does_not_answer_is_said_to() {
    let limit = Duration::from_millis(1500);
    let tree = Tree::lay_out("dgx-h100");
    let root = Root::at(tree.path());
    let mut probes = dgx("/raid/m.safetensors");
    probes.cuda = Cuda::Silent(limit);
    probes.library = Library::Silent(limit);
    probes.path.as_mut().unwrap().answer = Err("the file system did not answer within 1.5 s".into());
    let checkup = examine_tree(&root, &probes);
    sound(&checkup);
    assert_eq!(checkup.verdict.blocking, ["gpu.libcuda", "cufile.library", "storage.path"]);
    assert!(checkup.hangs, "the process may not end by itself");
    // A path may hold anything, and must not steer the terminal.
    probes.path.as_mut().unwrap().given = "/raid/\u{1b}[2J\nx\u{202e}".into();
    let page = examine_tree(&root, &probes).to_string();
    assert!(
        !page.contains(['\u{1b}', '\u{202e}']) && page.contains("/raid/\\u{1b}[2J\\nx\\u{202e}"),
        "{page}"
    );
    // The GPUs are still known from the bus.
    assert_eq!(checkup.gpus.len(), 8);

    let probes = Probes { opening: Opening::Silent(limit), ..dgx("/raid/m.safetensors") };
    let checkup = examine_tree(&root, &probes);
    assert_eq!((checkup.verdict.blocking.as_slice(), checkup.hangs), (&["cufile.mode"][..], true));
    assert!(!examine_tree(&root, &dgx("/raid/m.safetensors")).hangs);
}

#[test]
fn forced_compatibility_mode_and_a_broken_configuration() {
    let tree = Tree::lay_out("dgx-h100");
    let root = Root::at(tree.path());
    let mut probes = dgx("/raid/m.safetensors");
    set(&mut probes, "CUFILE_FORCE_COMPAT_MODE", "true");
    assert_eq!(examine_tree(&root, &probes).verdict.blocking, ["config.force_compat_mode"]);

    tree.write("etc/cufile.json", "{ \"properties\": { \"force_compat_mode\": true, ");
    let mut probes = dgx("/raid/m.safetensors");
    let checkup = examine_tree(&root, &probes);
    sound(&checkup);
    assert_eq!(finding(&checkup, "config.file").level, Level::Warning);
    tree.write(
        "etc/cufile.json",
        "{ \"properties\": { \"force_compat_mode\": true, \"max_direct_io_size_kb\": 32768 } }",
    );
    let blocking = examine_tree(&root, &probes).verdict.blocking;
    assert_eq!(blocking, ["config.force_compat_mode", "config.max_direct_io_size_kb"]);
    set(&mut probes, "CUFILE_ENV_PATH_JSON", "/nowhere.json");
    let checkup = examine_tree(&root, &probes);
    assert!(finding(&checkup, "config.file").found.contains("/nowhere.json"));
}

#[test]
fn an_empty_tree_and_one_full_of_nonsense_are_examined_too() {
    let empty = tempfile::tempdir().unwrap();
    let checkup = examine_tree(&Root::at(empty.path()), &Probes::default());
    sound(&checkup);
    assert!(!checkup.verdict.gds);
    sound(&examine_tree(&Root::at(&empty.path().join("not there")), &dgx("/raid/m.safetensors")));

    let tree = Tree::lay_out("dgx-h100");
    for file in [
        "proc/modules",
        "proc/self/mountinfo",
        "proc/self/limits",
        "proc/driver/nvidia/version",
        "proc/driver/nvidia-fs/version",
        "proc/driver/nvidia-fs/stats",
        "etc/cufile.json",
        "run/udev/data/b9:0",
        "sys/devices/virtual/block/md0/md/level",
        "sys/bus/pci/devices/0000:1b:00.0/resource",
        "sys/bus/pci/devices/0000:43:00.0/class",
        "sys/bus/pci/devices/0000:52:00.0/numa_node",
    ] {
        let root = Root::at(tree.path());
        for nonsense in [
            "",
            "\0\0\0",
            "::::\n-\n - \n= = =",
            "99999999999999999999999 0xzz Ünsinn\n",
            "{\"properties\": [1]}",
        ] {
            tree.write(file, nonsense);
            sound(&examine_tree(&root, &dgx("/raid/m.safetensors")));
        }
        tree.remove(file);
        sound(&examine_tree(&root, &dgx("/raid/m.safetensors")));
    }
}

#[test]
fn a_stack_of_devices_that_goes_in_circles_ends() {
    let tree = Tree::lay_out("dgx-h100");
    tree.write("sys/devices/virtual/block/dm-9/dev", "253:9\n");
    tree.write("sys/devices/virtual/block/dm-9/dm/name", "circle\n");
    tree.link("sys/devices/virtual/block/dm-9/slaves/dm-9", "../../dm-9");
    tree.link("sys/dev/block/253:9", "../../devices/virtual/block/dm-9");
    tree.write("proc/self/mountinfo", "95 29 253:9 / /raid rw shared:51 - xfs /dev/dm-9 rw\n");
    let checkup = examine_tree(&Root::at(tree.path()), &dgx("/raid/m.safetensors"));
    sound(&checkup);
    assert_eq!(finding(&checkup, "storage.volume").level, Level::Failure);
}
