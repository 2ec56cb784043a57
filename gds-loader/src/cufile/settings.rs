//! What is set before the driver opens, and only then.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Debug;
use std::time::Duration;

use cuda_staging::Device;

use super::driver::{Driver, Mode};
use super::error::{CuFileError, CuFileResult};
use super::library::{Library, check, need};
use super::params::{BoolParameter, SizeParameter, Slab, SlabPool, StringParameter};

/// The environment variable that bounds how long opening the driver may take, in seconds.
pub const OPEN_LIMIT_VARIABLE: &str = "GDS_CUFILE_OPEN_SECONDS";

/// How long opening may take where nothing else is said. NVIDIA's takes 0.1 to 2 s.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// Settings for opening the driver. Each is read back, before and after opening: one that did not take is an error.
///
/// Where the driver is open already, nothing is set any more, and a setting with another value than the one in force is
/// [`CuFileError::OnlyBeforeOpen`].
#[derive(Clone, Debug, Default)]
pub struct DriverSettings {
    sizes: BTreeMap<&'static str, (SizeParameter, usize)>,
    switches: BTreeMap<&'static str, (BoolParameter, bool)>,
    texts: BTreeMap<&'static str, (StringParameter, String)>,
    slabs: Vec<(SlabPool, Vec<Slab>)>,
    max_pinned_kib: Option<usize>,
    pub(super) limit: Option<Duration>,
    pub(super) device: Option<Device>,
}

impl DriverSettings {
    /// No settings: the library's configuration decides.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a number.
    pub fn size(mut self, parameter: SizeParameter, value: usize) -> Self {
        self.sizes.insert(parameter.name(), (parameter, value));
        self
    }

    /// Sets a switch. The two of compatibility mode are the [`Mode`]'s, and refused here.
    pub fn switch(mut self, parameter: BoolParameter, value: bool) -> Self {
        self.switches.insert(parameter.name(), (parameter, value));
        self
    }

    /// Sets a text.
    pub fn text(mut self, parameter: StringParameter, value: impl Into<String>) -> Self {
        self.texts.insert(parameter.name(), (parameter, value.into()));
        self
    }

    /// Sets the buffers of a pool.
    pub fn slabs(mut self, pool: SlabPool, slabs: impl Into<Vec<Slab>>) -> Self {
        self.slabs.retain(|(other, _)| *other != pool);
        self.slabs.push((pool, slabs.into()));
        self
    }

    /// How much device memory may be registered at once, in KiB, by `cuFileDriverSetMaxPinnedMemSize`. Some releases
    /// ignore it, which is then an error; the parameter [`SizeParameter::MaxDevicePinnedMemSizeKib`] is newer.
    pub fn max_pinned_kib(mut self, size: usize) -> Self {
        self.max_pinned_kib = Some(size);
        self
    }

    /// How long opening may take: else the environment's `GDS_CUFILE_OPEN_SECONDS`, else 20 s.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The device whose driver is used to see whether CUDA works: else the first one.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Opens the driver with these settings; see [`Driver::open`].
    ///
    /// # Errors
    /// Those of [`Driver::open`]; [`CuFileError::NotTaken`] where the library accepted a setting and did not take it;
    /// [`CuFileError::OnlyBeforeOpen`] where the driver is open with other values.
    pub fn open(self, mode: Mode) -> CuFileResult<Driver> {
        Driver::open_with(mode, &self)
    }

    /// The limit in force for opening.
    pub(super) fn open_limit(&self) -> Duration {
        let from_environment = || {
            let seconds: f64 = std::env::var(OPEN_LIMIT_VARIABLE).ok()?.parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok()
        };
        self.limit.or_else(from_environment).unwrap_or(OPEN_LIMIT)
    }

    /// Whether statistics are asked for from the start.
    pub(super) fn gathers_statistics(&self) -> bool {
        self.sizes.get(SizeParameter::ProfileStats.name()).is_some_and(|(_, level)| *level > 0)
    }

    /// Refuses what cannot be meant.
    pub(super) fn validate(&self) -> CuFileResult<()> {
        for (parameter, _) in self.switches.values() {
            if matches!(parameter, BoolParameter::AllowCompatMode | BoolParameter::ForceCompatMode) {
                return Err(CuFileError::usage(format!("{} is set by the mode", parameter.name())));
            }
        }
        Ok(())
    }

    /// Sets everything. Must come before opening.
    pub(super) fn apply(&self, library: Library) -> CuFileResult<()> {
        let entered = library.enter()?;
        for &(parameter, value) in self.sizes.values() {
            let function = need!(entered, cuFileSetParameterSizeT)?;
            if parameter == SizeParameter::ProfileStats && value > 0 {
                // Of no use without the functions that read them, and NVIDIA's 1.14 then crashes when the process ends.
                need!(entered, cuFileGetStatsLevel)?;
            }
            // SAFETY: takes two numbers.
            let answer = unsafe { function(parameter.raw(), value) };
            check("cuFileSetParameterSizeT", answer, || setting(parameter.name(), &value))?;
        }
        for &(parameter, value) in self.switches.values() {
            set_switch(library, parameter, value)?;
        }
        for (parameter, value) in self.texts.values() {
            let function = need!(entered, cuFileSetParameterString)?;
            let text = CString::new(value.as_str())
                .map_err(|_| CuFileError::usage(format!("{} with a zero byte", parameter.name())))?;
            // SAFETY: the text is a C string that lives for the call.
            let answer = unsafe { function(parameter.raw(), text.as_ptr()) };
            check("cuFileSetParameterString", answer, || setting(parameter.name(), value))?;
        }
        for (pool, slabs) in &self.slabs {
            set_slabs(library, *pool, slabs)?;
        }
        if let Some(size) = self.max_pinned_kib {
            // SAFETY: takes a number.
            let answer = unsafe { (entered.cuFileDriverSetMaxPinnedMemSize)(size) };
            check("cuFileDriverSetMaxPinnedMemSize", answer, || setting("the pinned memory limit", &size))?;
        }
        Ok(())
    }

    /// Compares every setting with what the library says is in force; `differs` makes the error. The limit on pinned
    /// memory can only be read while the driver is open.
    pub(super) fn verify(
        &self,
        library: Library,
        is_open: bool,
        differs: impl Fn(String, String, String) -> CuFileError,
    ) -> CuFileResult<()> {
        for &(parameter, asked) in self.sizes.values() {
            same(parameter.name(), &asked, &library.size(parameter)?, &differs)?;
        }
        for &(parameter, asked) in self.switches.values() {
            same(parameter.name(), &asked, &library.switch(parameter)?, &differs)?;
        }
        for (parameter, asked) in self.texts.values() {
            same(parameter.name(), asked, &library.text(*parameter)?, &differs)?;
        }
        for (pool, asked) in &self.slabs {
            // The library answers only where the count is right.
            let found = match library.slabs(*pool, asked.len()) {
                Err(CuFileError::Call { .. }) => Vec::new(),
                found => found?,
            };
            same(pool.name(), asked, &found, &differs)?;
        }
        if let Some(asked) = self.max_pinned_kib.filter(|_| is_open) {
            let found = super::properties::read(library)?.max_device_pinned_kib as usize;
            same("the pinned memory limit", &asked, &found, &differs)?;
        }
        Ok(())
    }
}

/// Sets a switch, without asking whether it took.
pub(super) fn set_switch(library: Library, parameter: BoolParameter, value: bool) -> CuFileResult<()> {
    let library = library.enter()?;
    let function = need!(library, cuFileSetParameterBool)?;
    // SAFETY: takes a number and a C bool.
    let answer = unsafe { function(parameter.raw(), value) };
    check("cuFileSetParameterBool", answer, || setting(parameter.name(), &value))
}

fn set_slabs(library: Library, pool: SlabPool, slabs: &[Slab]) -> CuFileResult<()> {
    let library = library.enter()?;
    let (call, function) = match pool {
        SlabPool::Posix => {
            ("cuFileSetParameterPosixPoolSlabArray", need!(library, cuFileSetParameterPosixPoolSlabArray)?)
        }
        SlabPool::GpuBounceBuffer => (
            "cuFileSetParameterGpuBounceBufferSlabArray",
            need!(library, cuFileSetParameterGpuBounceBufferSlabArray)?,
        ),
    };
    let len = i32::try_from(slabs.len()).map_err(|_| CuFileError::usage("too many slabs"))?;
    let (sizes, counts): (Vec<usize>, Vec<usize>) =
        slabs.iter().map(|slab| (slab.size_kib, slab.count)).unzip();
    // SAFETY: both arrays have `len` elements and live for the call.
    let answer = unsafe { function(sizes.as_ptr(), counts.as_ptr(), len) };
    check(call, answer, || setting(pool.name(), &slabs))
}

fn setting(name: &str, value: &impl Debug) -> String {
    format!("setting {name} to {value:?}")
}

fn same<T: PartialEq + Debug>(
    name: &str,
    asked: &T,
    found: &T,
    differs: impl Fn(String, String, String) -> CuFileError,
) -> CuFileResult<()> {
    if asked == found {
        return Ok(());
    }
    Err(differs(name.to_owned(), format!("{asked:?}"), format!("{found:?}")))
}
