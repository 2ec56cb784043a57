//! What the doctor says: one thing found, how bad it is, why it matters, what to do.

use serde::Serialize;

/// How a finding bears on GPUDirect Storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Ok,
    /// A fact, neither good nor bad.
    Info,
    /// It works, but more slowly or not as one would expect.
    Warning,
    /// GPUDirect Storage cannot work like this.
    Failure,
}

/// What a finding is about. Its name is the first part of the finding's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Area {
    /// Kernel, virtual machine, container.
    Machine,
    /// GPUs and the CUDA driver.
    Gpu,
    /// Kernel modules: nvidia, nvidia-fs, PCI peer-to-peer.
    Driver,
    /// NVIDIA's libcufile.
    Cufile,
    /// cufile.json and the environment variables that overrule it.
    Config,
    /// What the given path lies on.
    Storage,
    /// How GPUs and drives are connected.
    Topology,
    /// What this process may use.
    Limits,
}

impl Area {
    /// Every area, in the order of the page.
    pub const ALL: [Self; 8] = [
        Self::Machine,
        Self::Gpu,
        Self::Driver,
        Self::Cufile,
        Self::Config,
        Self::Storage,
        Self::Topology,
        Self::Limits,
    ];

    /// Its name in ids and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Gpu => "gpu",
            Self::Driver => "driver",
            Self::Cufile => "cufile",
            Self::Config => "config",
            Self::Storage => "storage",
            Self::Topology => "topology",
            Self::Limits => "limits",
        }
    }

    /// The area of an id such as `gpu.bar1`.
    fn of(id: &str) -> Self {
        let name = id.split('.').next().unwrap_or_default();
        Self::ALL.into_iter().find(|area| area.as_str() == name).unwrap_or(Self::Machine)
    }
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Which check found it, such as `gpu.bar1`. Stable; an id occurs at most once.
    pub id: &'static str,
    /// What it is about.
    pub area: Area,
    /// How it bears on GPUDirect Storage.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: Option<String>,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    fn new(level: Level, id: &'static str, found: impl Into<String>) -> Self {
        Self { id, area: Area::of(id), level, found: found.into(), why: None, advice: None }
    }

    pub(super) fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Ok, id, found)
    }

    pub(super) fn info(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Info, id, found)
    }

    pub(super) fn warning(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Warning, id, found)
    }

    pub(super) fn failure(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Failure, id, found)
    }

    pub(super) fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}

/// `1 GPU`, `8 GPUs`.
pub(super) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Bytes in the largest binary unit that keeps the number whole or short: `128 GiB`, `8 MiB`, `1.5 GiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ids_first_part_is_its_area() {
        for area in Area::ALL {
            assert_eq!(Area::of(&format!("{}.thing", area.as_str())), area);
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(64 << 10), "64 KiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(128 << 30), "128 GiB");
        assert_eq!(size(u64::MAX), "16777216 TiB");
    }
}
