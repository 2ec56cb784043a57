//! Asking cuFile itself: does it open with its compatibility mode not allowed, and does a read of the file go direct?
//!
//! Its answer outweighs everything that is inferred from files. That it opens, registers and reads proves little, since it
//! does all that while copying through host memory; its statistics of a read do.

use std::path::{Path, PathBuf};
use std::time::Instant;

use cuda_staging::Device;

use super::machine::{THREAD, answer};
use super::probes::{Cuda, Library, Opening, PathProbe, Probes, Trial};
use crate::bounded::ask;
use crate::cufile::{
    CuFile, CuFileError, CuFileResult, Driver, DriverSettings, Mode, RegisteredBuffer, SizeParameter,
};
use crate::policy::{Proof, Verdict};

/// Bytes of the read that is tried.
const READ: u64 = 1 << 20;
/// Reads that are no multiple of this go through host memory in part.
const ALIGNMENT: u64 = 4096;

/// What cuFile answered.
#[derive(Default)]
struct Answer {
    opening: Opening,
    trial: Trial,
    /// Bytes of BAR1 of the GPUs of these indices.
    windows: Vec<(u32, u64)>,
}

/// Opens cuFile, if that can be done, and reads the beginning of the path's file, if there is one.
pub(super) fn ask_cufile(probes: &mut Probes, start: Instant, deadline: Instant) {
    if let Some(reason) = not_possible(probes) {
        probes.opening = Opening::NotPossible(reason.to_owned());
        return;
    }
    let file = probes.path.as_ref().and_then(file);
    let gpus: Vec<u32> = probes.cuda.devices().iter().map(|device| device.index).collect();
    let counts_reads = has_statistics(&probes.library);
    let asked = ask(THREAD, move || open(file.as_deref(), &gpus, counts_reads));
    let answer = answer(asked, deadline).unwrap_or_else(|| Answer {
        opening: Opening::Silent(deadline.duration_since(start)),
        ..Answer::default()
    });
    probes.opening = answer.opening;
    for device in probes.cuda.devices_mut() {
        let window = answer.windows.iter().find(|(index, _)| *index == device.index);
        device.bar1_bytes = window.map(|(_, bytes)| *bytes);
    }
    if let Some(PathProbe { answer: Ok(facts), .. }) = &mut probes.path {
        facts.trial = answer.trial;
    }
}

fn file(path: &PathProbe) -> Option<PathBuf> {
    let facts = path.answer.as_ref().ok()?;
    facts.facts.as_ref().map(|_| facts.real.clone())
}

fn has_statistics(library: &Library) -> bool {
    let Library::Found { absent, .. } = library else { return false };
    !absent.iter().any(|(name, _)| name == "cuFileGetStatsL3")
}

/// Why cuFile cannot or must not be opened here. The other findings say why in full.
fn not_possible(probes: &Probes) -> Option<&'static str> {
    let Library::Found { .. } = probes.library else { return Some("there is no libcufile") };
    match &probes.cuda {
        Cuda::Devices(devices) if !devices.is_empty() => {}
        _ => return Some("there is no GPU"),
    }
    // Opening it is the test, and not its being there, since the simulator serves it to those who open it.
    std::fs::File::open("/proc/modules").err().map(|_| "without /proc/modules libcufile never returns")
}

fn open(file: Option<&Path>, gpus: &[u32], counts_reads: bool) -> Answer {
    // Reads are counted by their way only where that was asked for before opening.
    let settings = match counts_reads {
        true => DriverSettings::new().size(SizeParameter::ProfileStats, 3),
        false => DriverSettings::new(),
    };
    let opening = match settings.open(Mode::Direct) {
        Ok(driver) => {
            let window = |&gpu| Some((gpu, driver.bar_size_kib(gpu).ok()?? as u64 * 1024));
            return Answer {
                opening: Opening::Opened,
                windows: gpus.iter().filter_map(window).collect(),
                trial: file.map_or(Trial::NotTried, |file| trial(&driver, file)),
            };
        }
        Err(CuFileError::TimedOut { limit, .. }) => Opening::Silent(limit),
        Err(CuFileError::Unavailable { reason, .. }) => Opening::Refused(reason),
        Err(error) => Opening::Refused(error.to_string()),
    };
    Answer { opening, ..Answer::default() }
}

fn trial(driver: &Driver, path: &Path) -> Trial {
    read(driver, path).unwrap_or_else(|error| Trial::Refused(error.to_string()))
}

fn read(driver: &Driver, path: &Path) -> CuFileResult<Trial> {
    let file = CuFile::open(driver, path)?;
    let len = std::fs::metadata(path).map_or(0, |metadata| metadata.len()).min(READ) / ALIGNMENT * ALIGNMENT;
    if len == 0 {
        return Ok(Trial::Unverified("it is too small for a read to prove anything".into()));
    }
    let proof = Proof::begin(driver);
    let memory = Device::cuda(0)?.allocate(READ, ALIGNMENT)?;
    let mut buffer = RegisteredBuffer::register(driver, memory).map_err(|(_, error)| error)?;
    file.read_exact_at(&mut buffer, 0..len, 0)?;
    Ok(match proof.verdict() {
        Verdict::Verified => Trial::Direct,
        Verdict::Bounced(_) => Trial::Bounced,
        Verdict::Unverified(reason) => Trial::Unverified(reason),
    })
}
