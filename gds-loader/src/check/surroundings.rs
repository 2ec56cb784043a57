//! The machine itself: kernel, virtual machine, WSL, container, and whether kernel and udev tell cuFile what it asks.

use super::finding::Finding;
use crate::facts::Root;

/// What kind of place this is, as far as advice depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    pub(super) wsl: bool,
    pub(super) container: bool,
    pub(super) virtual_machine: bool,
    /// Whether the kernel can load modules, as far as /proc says.
    pub(super) modules: bool,
}

impl Surroundings {
    pub(super) fn of(root: &Root) -> Self {
        let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default().to_ascii_lowercase();
        Self {
            wsl: release.contains("microsoft") || root.exists("proc/sys/fs/binfmt_misc/WSLInterop"),
            container: container(root).is_some(),
            virtual_machine: hypervisor(root),
            modules: root.bytes("proc/modules").is_some(),
        }
    }

    /// `with_udev` where no path is asked about: with one, the record of its own device is looked at.
    pub(super) fn findings(self, root: &Root, with_udev: bool) -> Vec<Finding> {
        let mut findings = vec![self.kernel(root)];
        if self.wsl {
            findings.push(
                Finding::failure("machine.wsl", "this is the Windows Subsystem for Linux")
                    .why("its GPU is reached through Windows; cuFile has compatibility mode there and nothing else")
                    .advice("boot Linux itself for GPUDirect Storage; here, leave the choice to `--backend auto`"),
            );
        }
        if let Some(kind) = container(root) {
            findings.push(Finding::info("machine.container", format!("inside a container ({kind})")));
        }
        findings.push(self.module_list());
        if with_udev {
            findings.push(udev(root, self));
        }
        findings
    }

    fn kernel(self, root: &Root) -> Finding {
        let release = root.read("proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".into());
        let place = match (self.wsl, self.virtual_machine) {
            (true, _) | (_, false) => "",
            (false, true) => ", in a virtual machine",
        };
        Finding::info("machine.kernel", format!("Linux {release}{place}"))
    }

    fn module_list(self) -> Finding {
        const ID: &str = "machine.modules";
        if self.modules {
            return Finding::ok(ID, "/proc/modules can be read");
        }
        let kind = if self.virtual_machine { "as micro-VMs have" } else { "or /proc is masked" };
        Finding::failure(ID, format!("/proc/modules does not exist: a kernel without loadable modules, {kind}"))
            .why("neither nvidia nor nvidia-fs can be loaded, and libcufile 1.20 never returns from opening its driver")
            .advice("use a machine or a VM whose kernel loads modules; gds does not open cuFile here")
    }
}

/// What says that this is a container.
fn container(root: &Root) -> Option<&'static str> {
    if root.exists("run/.containerenv") {
        return Some("Podman");
    }
    if root.exists("var/run/secrets/kubernetes.io") {
        return Some("Kubernetes");
    }
    if root.exists(".dockerenv") {
        return Some("Docker");
    }
    let groups = root.read("proc/1/cgroup").unwrap_or_default();
    let known =
        [("kubepods", "Kubernetes"), ("docker", "Docker"), ("containerd", "containerd"), ("lxc", "LXC")];
    known.into_iter().find(|(word, _)| groups.contains(word)).map(|(_, name)| name)
}

/// Whether the processor says that a hypervisor is below.
fn hypervisor(root: &Root) -> bool {
    let processors = root.read("proc/cpuinfo").unwrap_or_default();
    let flags = processors.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn udev(root: &Root, surroundings: Surroundings) -> Finding {
    const ID: &str = "machine.udev";
    let records = root.list("run/udev/data").iter().filter(|name| name.starts_with('b')).count();
    if records > 0 {
        return Finding::ok(ID, "udev's records of the block devices are there (/run/udev/data)");
    }
    let advice = if surroundings.container {
        "start the container with /run/udev from the host, read only (docker run -v /run/udev:/run/udev:ro)"
    } else {
        "run systemd-udevd (or eudev), so that it records the block devices in /run/udev/data"
    };
    Finding::failure(ID, "udev has no record of any block device in /run/udev/data")
        .why("cuFile asks udev what a file lies on, and refuses files on block devices without a record (5027, 5030)")
        .advice(advice)
}
