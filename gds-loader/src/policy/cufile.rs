//! When cuFile's paths may be taken, within which bounds, and what proves that bytes went straight.
//!
//! Opening, registering and reading all succeed on machines where every byte is bounced through the host. So two things are
//! asked for: that the driver opens with compatibility mode not allowed, and that afterwards its own statistics show no read
//! that was served by the host.

use std::sync::OnceLock;

use cuda_staging::Device;

use super::Backend;
use crate::cufile::{
    CuFileError, CuFileResult, Driver, DriverSettings, Level3, Mode, RegisteredBuffer, RegisteredWindow,
    RegistrationBudget, SizeParameter,
};
use crate::error::{Error, Result};
use crate::transport::PathKind;

/// Registered device memory of one load at most, in bytes: 8 to 16 reads of 4 to 16 MiB in flight.
const WINDOW_MEMORY: u64 = 128 << 20;

/// Below this a window is not worth its registration, in bytes.
const LEAST_WINDOW: u64 = 16 << 20;

/// A window takes at most this share of the GPU's BAR1, which the whole machine shares.
const SHARE_OF_BAR: u64 = 4;

/// What a load may use of cuFile.
#[derive(Debug, Default)]
pub(crate) struct CuFilePaths {
    driver: Option<Driver>,
    /// Why `auto` does without.
    refusal: Option<String>,
}

/// Why direct mode is not to be had in this process: opening takes up to seconds, and does not change its mind.
static NO_DIRECT_MODE: OnceLock<String> = OnceLock::new();

impl CuFilePaths {
    /// Opens cuFile in the mode that `backend` needs for loads to `device`; not at all where it needs none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where a cuFile path was asked for and cannot serve. For `auto` that is no error.
    pub(crate) fn open(backend: Backend, device: &Device, path: &std::path::Path) -> Result<Self> {
        let (mode, forced) = match backend {
            Backend::Auto if device.is_cuda() => (Mode::Direct, None),
            Backend::Only(kind @ PathKind::Gds) => (Mode::Direct, Some(kind)),
            Backend::Only(kind @ PathKind::GdsCompat) => (Mode::Compat, Some(kind)),
            Backend::Auto | Backend::Only(_) | Backend::Prefetch => return Ok(Self::default()),
        };
        let unavailable = |by, reason| Error::Unavailable { path: path.to_path_buf(), by, reason };
        if let (Some(by), false) = (forced, device.is_cuda()) {
            return Err(unavailable(
                by,
                "it reads into the memory of a CUDA device, and this load goes to the CPU".into(),
            ));
        }
        let opened = match (NO_DIRECT_MODE.get(), mode) {
            (Some(reason), Mode::Direct) => Err(reason.clone()),
            _ => open_counting(device, mode).map_err(|error| {
                let reason = error.to_string();
                if mode == Mode::Direct && is_final(&error) {
                    NO_DIRECT_MODE.get_or_init(|| reason.clone());
                }
                reason
            }),
        };
        match (opened, forced) {
            (Ok(driver), _) => Ok(Self { driver: Some(driver), refusal: None }),
            (Err(reason), Some(by)) => Err(unavailable(by, reason)),
            (Err(reason), None) => {
                tracing::debug!(reason, "no GPUDirect Storage");
                Ok(Self { driver: None, refusal: Some(reason) })
            }
        }
    }

    /// The driver, where it may be used.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.driver.as_ref()
    }

    /// Why `auto` does without cuFile.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }
}

/// Whether opening in direct mode fails so for good. A single call that failed beside it does not, nor does a system without a thread
/// or a descriptor to spare: they would otherwise take the path from every later load.
fn is_final(error: &CuFileError) -> bool {
    !matches!(
        error,
        CuFileError::WrongMode { .. }
            | CuFileError::Device(_)
            | CuFileError::Call { .. }
            | CuFileError::Shortage { .. }
    )
}

/// Level of statistics that counts how each GPU's reads were served. It acts only before opening.
const EACH_GPU: usize = 3;

/// Opens the driver so that it counts how reads are served; without counting where the library is too old for that.
fn open_counting(device: &Device, mode: Mode) -> CuFileResult<Driver> {
    let settings = DriverSettings::new().device(device);
    let counting = settings.clone().size(SizeParameter::ProfileStats, EACH_GPU);
    match counting.open(mode) {
        Err(
            CuFileError::Missing { .. } | CuFileError::NotTaken { .. } | CuFileError::OnlyBeforeOpen { .. },
        ) => settings.open(mode),
        opened => opened,
    }
}

/// Registers a window of slots of `slot_len` bytes each: as many as the budget and the GPU's BAR1 allow, fewer where the
/// library refuses so much.
///
/// # Errors
/// The last refusal, for a window too small to be worth it.
pub(crate) fn windows(
    driver: &Driver,
    device: &Device,
    slot_len: u64,
) -> CuFileResult<Vec<RegisteredBuffer>> {
    let bar = device.info().index.and_then(|gpu| driver.bar_size_kib(gpu).ok().flatten());
    let share = bar.map_or(u64::MAX, |kib| kib as u64 * 1024 / SHARE_OF_BAR);
    let budget = RegistrationBudget::new(WINDOW_MEMORY.min(share.max(LEAST_WINDOW)));
    let stride = slot_len.next_multiple_of(RegisteredWindow::ALIGNMENT);
    let least = (LEAST_WINDOW / stride).max(1);
    let mut slots = (budget.limit() / stride).max(1);
    loop {
        match RegisteredWindow::new(driver, device, slots as usize, slot_len, &budget) {
            Ok(window) => return Ok(window.into_slots()),
            Err(error) if error.is_registration_limit() && slots > least => {
                tracing::info!(%error, bytes = slots * stride, "a smaller window is tried");
                slots = (slots / 2).max(least);
            }
            Err(error) => return Err(error),
        }
    }
}

/// cuFile's statistics at the beginning of a load.
#[derive(Debug)]
pub(crate) struct Proof {
    driver: Driver,
    before: Result<Level3, String>,
}

/// What cuFile's statistics say about a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Reads went straight, and none by the host.
    Verified,
    /// This many reads were served by the host.
    Bounced(u64),
    /// They say nothing, for this reason.
    Unverified(String),
}

impl Proof {
    /// Reads the counters.
    pub(crate) fn begin(driver: &Driver) -> Self {
        Self { driver: driver.clone(), before: counters(driver) }
    }

    /// What was counted since. Other loads of the process count too: a doubt is never resolved in favour of `gds`.
    pub(crate) fn verdict(self) -> Verdict {
        let before = match self.before {
            Ok(before) => before,
            Err(reason) => return Verdict::Unverified(reason),
        };
        match self.driver.statistics_level3() {
            Ok(after) => judge(&before, &after),
            Err(error) => Verdict::Unverified(error.to_string()),
        }
    }
}

/// The counters, or why they say nothing.
pub(super) fn counters(driver: &Driver) -> Result<Level3, String> {
    match driver.statistics_level() {
        Ok(level) if level as usize >= EACH_GPU => {
            driver.statistics_level3().map_err(|error| error.to_string())
        }
        Ok(level) => Err(format!(
            "cuFile was opened with statistics of level {level}, below {EACH_GPU}{}",
            driver.obstacle_to_statistics().map_or_else(String::new, |obstacle| format!(": {obstacle}"))
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn judge(before: &Level3, after: &Level3) -> Verdict {
    let rise = |count: fn(&Level3) -> u64| count(after).saturating_sub(count(before));
    let bounced = rise(bounced);
    if bounced > 0 {
        return Verdict::Bounced(bounced);
    }
    if rise(straight) > 0 {
        return Verdict::Verified;
    }
    Verdict::Unverified("cuFile counted no read at all".into())
}

/// Reads served by the host. What batches do is counted apart, and for no GPU.
fn bounced(level3: &Level3) -> u64 {
    level3.posix_reads() + level3.level2.level1.batch.posix_enqueued.ok
}

/// Reads that went straight.
fn straight(level3: &Level3) -> u64 {
    let batch = &level3.level2.level1.batch;
    level3.direct_reads() + batch.nvfs_submit.ok + batch.p2p_submit.ok
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cufile::{GpuStatistics, Routes};

    fn counted(posix: u64, nvfs: u64) -> Level3 {
        let read = Routes { posix, nvfs, ..Routes::default() };
        Level3 { gpus: vec![GpuStatistics { read, ..GpuStatistics::default() }], ..Level3::default() }
    }

    #[test]
    fn what_passes_takes_nothing_away_for_good() {
        let source = std::io::Error::from_raw_os_error(libc::EMFILE);
        assert!(!is_final(&CuFileError::Shortage { doing: "opening /proc/modules".into(), source }));
        assert!(is_final(&CuFileError::Unavailable { reason: "no libcufile".into(), failure: None }));
        let limit = std::time::Duration::from_secs(10);
        assert!(is_final(&CuFileError::TimedOut { doing: "opening cuFile's driver".into(), limit }));
    }

    #[test]
    fn one_read_by_the_host_refutes_the_claim() {
        assert_eq!(judge(&counted(3, 10), &counted(3, 20)), Verdict::Verified);
        assert_eq!(judge(&counted(3, 10), &counted(4, 20)), Verdict::Bounced(1));
        assert!(matches!(judge(&counted(3, 10), &counted(3, 10)), Verdict::Unverified(_)));
    }

    #[test]
    fn batches_are_counted_too() {
        let batched = |posix: u64, nvfs: u64| {
            let mut level3 = counted(0, 0);
            let batch = &mut level3.level2.level1.batch;
            (batch.posix_enqueued.ok, batch.nvfs_submit.ok) = (posix, nvfs);
            level3
        };
        assert_eq!(judge(&batched(0, 1), &batched(0, 2)), Verdict::Verified);
        assert_eq!(judge(&batched(0, 1), &batched(1, 2)), Verdict::Bounced(1));
    }
}
