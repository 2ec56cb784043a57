//! Which device is meant: the text of `--device`.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::error::Error;

/// A choice of device. Its text form is `auto`, `cpu`, `cuda` (the same as `cuda:0`), `cuda:N` or `GPU-<uuid>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceSelector {
    /// The first CUDA device, or the CPU where CUDA is not available.
    #[default]
    Auto,
    /// Host memory.
    Cpu,
    /// The CUDA device of this index, as `CUDA_VISIBLE_DEVICES` numbers them.
    Cuda(u32),
    /// The CUDA device of this UUID, whatever its index.
    Uuid(Uuid),
}

impl FromStr for DeviceSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || {
            Error::invalid(format!("unknown device {text:?}: expected auto, cpu, cuda, cuda:N or GPU-<uuid>"))
        };
        match text {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "cuda" => return Ok(Self::Cuda(0)),
            _ => {}
        }
        if let Some(index) = text.strip_prefix("cuda:") {
            // `u32::from_str` takes a leading plus sign; an index has none.
            let digits = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
            return digits.then(|| index.parse().ok()).flatten().map(Self::Cuda).ok_or_else(unknown);
        }
        // nvidia-smi prints GPU- before a device's UUID and MIG- before a slice's.
        let uuid = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        Uuid::try_parse(uuid).map(Self::Uuid).map_err(|_| unknown())
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Uuid(uuid) => write!(f, "GPU-{uuid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_words_of_the_command_line() {
        let uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let cases = [
            ("auto", DeviceSelector::Auto),
            ("cpu", DeviceSelector::Cpu),
            ("cuda", DeviceSelector::Cuda(0)),
            ("cuda:7", DeviceSelector::Cuda(7)),
            ("GPU-01234567-89ab-cdef-0011-223344556677", DeviceSelector::Uuid(uuid)),
            ("MIG-01234567-89ab-cdef-0011-223344556677", DeviceSelector::Uuid(uuid)),
            ("01234567-89AB-CDEF-0011-223344556677", DeviceSelector::Uuid(uuid)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<DeviceSelector>().unwrap(), expected, "{text}");
        }
        for text in
            ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:99999999999", "GPU-", "GPU-12"]
        {
            let error = text.parse::<DeviceSelector>().unwrap_err();
            assert!(
                matches!(&error, Error::InvalidArgument(what) if what.contains(&format!("{text:?}"))),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn display_parses_back(index: u32, uuid: u128) {
            let selectors = [
                DeviceSelector::Auto,
                DeviceSelector::Cpu,
                DeviceSelector::Cuda(index),
                DeviceSelector::Uuid(Uuid::from_u128(uuid)),
            ];
            for selector in selectors {
                prop_assert_eq!(selector.to_string().parse::<DeviceSelector>().unwrap(), selector);
            }
        }

        #[test]
        fn any_text_is_a_value(text in ".*") {
            let _ = text.parse::<DeviceSelector>();
        }
    }
}
