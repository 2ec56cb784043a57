//! The settings, read from the environment once per process.
//!
//! An invalid setting is an error with the variable's name in it, never a default: a test that believes it runs with a fault
//! or a limit and does not would prove nothing.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use crate::faults::Faults;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// What `CUDA_SIM_*` say.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The devices of the machine (`CUDA_SIM_DEVICES`, 1) that the program sees, in its order (`CUDA_VISIBLE_DEVICES`, all).
    pub(crate) devices: Vec<usize>,
    /// Bytes of memory per device (`CUDA_SIM_MEMORY`, 16 GiB); of a list the last value serves all further devices.
    pub(crate) memory: Vec<u64>,
    /// Bytes of each device's memory that have their pages from the start (`CUDA_SIM_RESIDENT`, none).
    pub(crate) resident: u64,
    /// Bytes of each device's memory that may be registered for DMA at once (`CUDA_SIM_BAR1`, 256 MiB).
    pub(crate) bar1: u64,
    /// Speed of each device's copies in bytes per second (`CUDA_SIM_COPY_GB_PER_S`, as fast as memory).
    pub(crate) copy_bytes_per_second: Option<f64>,
    /// Time before each copy starts (`CUDA_SIM_COPY_LATENCY_US`, none).
    pub(crate) copy_latency: Duration,
    /// Random time of at most this much on top of it (`CUDA_SIM_JITTER_US`, none).
    pub(crate) jitter: Duration,
    /// How long `cuInit` takes (`CUDA_SIM_INIT_US`, none).
    pub(crate) init: Duration,
    /// Faults to inject (`CUDA_SIM_FAULT`).
    pub(crate) faults: Faults,
    /// Where the report goes at exit (`CUDA_SIM_REPORT`).
    pub(crate) report: Option<PathBuf>,
}

impl Settings {
    /// Reads the process's environment.
    pub(crate) fn from_environment() -> Result<Self, String> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the settings through `variable`; an empty value counts as unset.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let parse = |name: &str, what: &str, parser: &dyn Fn(&str) -> Option<f64>| match value(name) {
            None => Ok(None),
            Some(text) => match parser(&text) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{name}={text}: expected {what}")),
            },
        };
        let number = |name: &str, what: &str| parse(name, what, &non_negative);
        let micros = |name| {
            let micros = number(name, "a number of microseconds")?;
            Ok::<_, String>(Duration::from_secs_f64(micros.unwrap_or(0.0).min(1e12) / 1e6))
        };

        let devices = match value("CUDA_SIM_DEVICES") {
            None => 1,
            Some(text) => match text.parse() {
                Ok(count @ 0..=64) => count,
                _ => {
                    return Err(format!(
                        "CUDA_SIM_DEVICES={text}: expected a number of devices from 0 to 64"
                    ));
                }
            },
        };
        let sizes =
            |name: &str, default: u64| match value(name) {
                None => Ok(vec![default]),
                Some(text) => text.split(',').map(size).collect::<Option<Vec<u64>>>().ok_or_else(|| {
                    format!("{name}={text}: expected bytes, as in 1073741824, 16GiB or 500MB")
                }),
            };
        let memory = sizes("CUDA_SIM_MEMORY", 16 * GIB)?;
        let one_size = |name: &str, default: u64| match sizes(name, default)?.as_slice() {
            &[size] => Ok(size),
            _ => Err(format!("{name}: expected one size, for every device")),
        };
        let speed = number("CUDA_SIM_COPY_GB_PER_S", "a number of gigabytes (10^9) per second")?;
        if speed == Some(0.0) {
            return Err("CUDA_SIM_COPY_GB_PER_S=0: copies would never end".to_owned());
        }
        let faults = value("CUDA_SIM_FAULT").unwrap_or_default();
        let faults = Faults::parse(&faults).map_err(|reason| format!("CUDA_SIM_FAULT={faults}: {reason}"))?;
        Ok(Self {
            devices: match variable("CUDA_VISIBLE_DEVICES") {
                None => (0..devices).collect(),
                Some(text) => visible(&text, devices),
            },
            memory,
            resident: one_size("CUDA_SIM_RESIDENT", 0)?,
            bar1: one_size("CUDA_SIM_BAR1", 256 * MIB)?,
            copy_bytes_per_second: speed.map(|gigabytes| gigabytes * 1e9),
            copy_latency: micros("CUDA_SIM_COPY_LATENCY_US")?,
            jitter: micros("CUDA_SIM_JITTER_US")?,
            init: micros("CUDA_SIM_INIT_US")?,
            faults,
            report: value("CUDA_SIM_REPORT").map(PathBuf::from),
        })
    }

    /// Bytes of memory of device `index`.
    pub(crate) fn memory_of(&self, index: usize) -> u64 {
        self.memory.get(index).or(self.memory.last()).copied().unwrap_or(16 * GIB)
    }
}

/// Of so many devices those that `text` names, up to the first name that is none: as NVIDIA's driver reads the variable. A device
/// named twice is as good as none at all.
fn visible(text: &str, devices: usize) -> Vec<usize> {
    let named = |name: &str| {
        let index =
            name.trim().parse().ok().or_else(|| (0..devices).find(|&index| is_uuid(name.trim(), index)));
        index.filter(|index| *index < devices)
    };
    let visible: Vec<usize> = text.split(',').map_while(named).collect();
    let twice = (1..visible.len()).any(|place| visible[..place].contains(&visible[place]));
    if twice { Vec::new() } else { visible }
}

/// Whether `name` is the beginning of the device's UUID, as `GPU-` and hexadecimal digits in groups.
fn is_uuid(name: &str, index: usize) -> bool {
    let digits = |text: &str| text.replace('-', "").to_ascii_lowercase();
    let uuid: String = uuid_of(index).iter().map(|byte| format!("{byte:02x}")).collect();
    name.strip_prefix("GPU-").is_some_and(|rest| !rest.is_empty() && uuid.starts_with(&digits(rest)))
}

/// Recognisable, and different for each device of the machine.
pub(crate) fn uuid_of(index: usize) -> [u8; 16] {
    let mut uuid = *b"cuda-sim\x40\x00\x80\x00\x00\x00\x00\x00";
    uuid[15] = index as u8;
    uuid
}

fn non_negative(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// Bytes: a whole number, with a decimal (kB, MB, GB, TB) or binary (KiB, MiB, GiB, TiB; K, M, G, T) unit.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => MIB,
        "G" | "GiB" => GIB,
        "T" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|&bytes| bytes <= i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("123"), Some(123));
        assert_eq!(size("2GiB"), Some(2 << 30));
        assert_eq!(size("2 GB"), Some(2_000_000_000));
        for wrong in ["", "GiB", "-1", "1.5G", "2 elephants", "99999999999TiB"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn defaults_serve_one_device() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.devices.as_slice(), settings.memory_of(0)), ([0].as_slice(), 16 << 30));
        assert_eq!((settings.resident, settings.copy_bytes_per_second), (0, None));
    }

    #[test]
    fn the_program_sees_the_devices_that_are_named() {
        let second = "GPU-63756461-2d73-696d-4000-800000000001";
        for (text, expected) in [
            ("0,1,2", [0, 1, 2].as_slice()),
            ("2,0", &[2, 0]),
            (" 1 ", &[1]),
            (second, &[1]),
            ("", &[]),
            ("-1", &[]),
            ("1,7,0", &[1]),
            ("1,1", &[]),
            ("GPU-", &[]),
        ] {
            let settings = read(&[("CUDA_SIM_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", text)]).unwrap();
            assert_eq!(settings.devices, expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_memory_size_serves_all_further_devices() {
        let settings = read(&[("CUDA_SIM_DEVICES", "3"), ("CUDA_SIM_MEMORY", "1GiB,2GiB")]).unwrap();
        assert_eq!([0, 1, 2].map(|index| settings.memory_of(index)), [1 << 30, 2 << 30, 2 << 30]);
    }

    #[test]
    fn an_invalid_setting_is_an_error_that_names_it() {
        for (name, value) in [
            ("CUDA_SIM_DEVICES", "two"),
            ("CUDA_SIM_MEMORY", "plenty"),
            ("CUDA_SIM_BAR1", "1,2"),
            ("CUDA_SIM_RESIDENT", "all"),
            ("CUDA_SIM_COPY_GB_PER_S", "0"),
            ("CUDA_SIM_COPY_GB_PER_S", "inf"),
            ("CUDA_SIM_COPY_LATENCY_US", "-1"),
            ("CUDA_SIM_JITTER_US", "x"),
            ("CUDA_SIM_INIT_US", "x"),
            ("CUDA_SIM_FAULT", "cuMemAlloc"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
