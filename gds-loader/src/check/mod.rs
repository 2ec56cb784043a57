//! The doctor: what GPUDirect Storage needs on this machine, what is missing, and what to do about it.
//!
//! [`examine`] gathers facts and judges them. Facts are files of the kernel and the system, read below a [`Root`], and
//! [`Probes`], which only drivers and system calls can give; both can be replaced, so that [`examine_tree`] is a function
//! of recorded data. A finding is inferred from how GPUDirect Storage is known to work. Where cuFile itself was asked and
//! said yes, that outweighs what was inferred: such failures are then mere facts.
//!
//! ```no_run
//! use gds_loader::check::{Options, examine};
//!
//! let checkup = examine(&Options::default());
//! println!("{checkup}");
//! if !checkup.verdict.gds {
//!     println!("in the way: {:?}", checkup.verdict.blocking);
//! }
//! ```

mod config;
mod driver;
mod finding;
mod gpu;
mod library;
mod limits;
mod machine;
mod opening;
mod page;
mod pci;
mod probes;
mod storage;
mod surroundings;
mod topology;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use crate::facts::{BlockDevice, BlockKind, Root};
pub use finding::{Area, Finding, Level};
pub use gpu::Gpu;
pub use pci::Distance;
pub use probes::{Cuda, CudaDevice, Library, Opening, PathFacts, PathProbe, Probes, Trial};
pub use topology::Route;

use config::Config;
use driver::Driver;
use storage::Storage;
use surroundings::Surroundings;

/// What is examined, and how far it may go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// A file or a folder to load from; None for the machine alone.
    pub path: Option<PathBuf>,
    /// Whether cuFile may be opened and read the path's first megabyte, where that is safe. It stays open, and its mode is the process's from then on: not
    /// for a process that goes on to use cuFile in compatibility mode. Off by default.
    pub open_cufile: bool,
    /// How long drivers and file systems may take to answer, all together; drivers have a second more for each GPU.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { path: None, open_cufile: false, limit: Duration::from_millis(1400) }
    }
}

/// What the doctor found.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Checkup {
    /// What it comes to.
    pub verdict: Verdict,
    /// Everything found, by area.
    pub findings: Vec<Finding>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The block device the path lies on, down to its drives.
    pub volume: Option<BlockDevice>,
    /// How far each GPU is from each NVMe controller: those the path lies on, or all.
    pub routes: Vec<Route>,
    /// A cufile.json for this machine.
    #[serde(skip)]
    pub suggested_config: String,
    /// Whether a thread of this process still waits for a driver or a library that did not answer in time. `exit`, and with it a
    /// return from `main`, may then wait for it too, for ever: what hangs while it is loaded has the dynamic linker's lock, under
    /// which `exit` runs the libraries' destructors. `_exit` runs none.
    #[serde(skip)]
    pub hangs: bool,
}

/// What the findings come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether GPUDirect Storage would work: no finding is a failure.
    pub gds: bool,
    /// In one sentence.
    pub summary: String,
    /// The ids of the findings that stand in the way.
    pub blocking: Vec<&'static str>,
}

/// Examines this machine. Bounded in time, needs no privileges, and changes nothing but, where asked for, cuFile's mode. What does not
/// answer is left behind on a thread of its own; see [`Checkup::hangs`].
pub fn examine(options: &Options) -> Checkup {
    examine_tree(&Root::system(), &Probes::of_this_machine(options))
}

/// Examines the machine whose files lie below `root` and whose drivers answered `probes`.
pub fn examine_tree(root: &Root, probes: &Probes) -> Checkup {
    let surroundings = Surroundings::of(root);
    let config = Config::of(root, probes);
    let driver = Driver::of(root, probes, &config);
    let (on_bus, drives) = pci::gpus_and_drives(root);
    let gpus = gpu::gather(root, &probes.cuda, &on_bus);
    let storage = probes.path.as_ref().map(|path| Storage::of(root, path));

    // With a path, only the drives it lies on matter.
    let drives = match &storage {
        Some(storage) => {
            let controllers = storage.controllers();
            drives.into_iter().filter(|drive| controllers.contains(&drive.address)).collect()
        }
        None => drives,
    };
    let routes = topology::routes(&gpus, &on_bus, &drives);

    let mut findings = surroundings.findings(root, storage.is_none());
    findings.extend(gpu::findings(&gpus, probes, surroundings));
    findings.extend(driver.findings(root, surroundings));
    findings.extend(library::findings(probes, &driver));
    findings.extend(config.findings(probes));
    findings
        .extend(storage.iter().flat_map(|storage| storage.findings(root, &config, &driver, &probes.opening)));
    findings.extend(topology::findings(root, &on_bus, &drives, &routes));
    findings.extend(limits::findings(root, probes));
    outweigh(&mut findings, probes);

    let verdict = Verdict::of(&findings, probes);
    let p2pdma = driver.p2pdma() || (!driver.nvidia_fs && driver.p2p_possible());
    Checkup {
        suggested_config: config::suggest(
            verdict.gds || driver.nvidia_fs || p2pdma,
            p2pdma && !driver.nvidia_fs,
        ),
        volume: storage.and_then(|storage| storage.device),
        hangs: probes.hang(),
        verdict,
        findings,
        gpus,
        routes,
    }
}

/// Lets what cuFile itself says outweigh what was inferred: that it opened, of the machine; that a read went direct, of
/// the storage.
fn outweigh(findings: &mut [Finding], probes: &Probes) {
    let opened = matches!(probes.opening, Opening::Opened);
    let trial = probes.path.as_ref().and_then(|path| Some(&path.answer.as_ref().ok()?.trial));
    let went_direct = opened && trial == Some(&Trial::Direct);
    for finding in findings.iter_mut().filter(|finding| finding.level == Level::Failure) {
        let outweighed = match finding.area {
            Area::Storage => went_direct,
            Area::Topology | Area::Limits => false,
            Area::Machine | Area::Gpu | Area::Driver | Area::Cufile | Area::Config => opened,
        };
        if outweighed {
            finding.level = Level::Info;
            finding.found.push_str("; cuFile works all the same");
            (finding.why, finding.advice) = (None, None);
        }
    }
}

impl Verdict {
    fn of(findings: &[Finding], probes: &Probes) -> Self {
        let failures: Vec<&Finding> =
            findings.iter().filter(|finding| finding.level == Level::Failure).collect();
        let place = match &probes.path {
            Some(path) => format!("for {}", path.given.display()),
            None => "on this machine".to_owned(),
        };
        let summary = match failures.as_slice() {
            [] if outcome_is_proven(probes) => {
                format!("GPUDirect Storage works {place}: cuFile itself says so.")
            }
            [] => format!("GPUDirect Storage would work {place}, as far as can be seen from outside."),
            [first, ..] => format!("GPUDirect Storage is not available {place}: {}.", first.found),
        };
        Self {
            gds: failures.is_empty(),
            summary,
            blocking: failures.iter().map(|finding| finding.id).collect(),
        }
    }
}

/// Whether cuFile itself was asked, about all that the user asks about.
fn outcome_is_proven(probes: &Probes) -> bool {
    let proven = |path: &PathProbe| path.answer.as_ref().is_ok_and(|facts| facts.trial == Trial::Direct);
    matches!(probes.opening, Opening::Opened) && probes.path.as_ref().is_none_or(proven)
}
