//! Who keeps direct reads in flight.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Who keeps direct reads in flight: the kernel's io_uring, for many reads at once, or threads that wait for one `pread(2)` each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// io_uring where the kernel lets us, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Threads.
    Threads,
}

impl Engine {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Auto, Self::IoUring, Self::Threads];

    /// The name used in reports and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IoUring => "io-uring",
            Self::Threads => "threads",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|engine| engine.as_str() == name).ok_or_else(|| Error::Option {
            option: "engine",
            reason: format!("{name:?} is none of auto, io-uring, threads"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_others_are_refused() {
        for engine in Engine::ALL {
            assert_eq!(engine.as_str().parse::<Engine>().unwrap(), engine);
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.as_str());
        }
        assert!("uring".parse::<Engine>().unwrap_err().to_string().contains("io-uring"));
    }
}
