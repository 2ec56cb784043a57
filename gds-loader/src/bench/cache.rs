//! Cold and warm, as asked for and as measured.

use serde::{Deserialize, Serialize};

use crate::report::CacheReport;

/// What the page cache is to hold of the files when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asked {
    /// Nothing.
    Cold,
    /// All of them.
    Warm,
}

impl Asked {
    /// `cold` or `warm`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// What the page cache held of the files when a load began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheState {
    /// Nothing worth speaking of: the bytes came from storage.
    Cold,
    /// All of them.
    Warm,
    /// This share of them.
    Partly(f64),
    /// The kernel does not say.
    Unknown,
}

/// At most this share of a file in the page cache counts as cold: a page or two (a header, a readahead) is noise.
const COLD: f64 = 0.01;
/// From this share on it counts as warm.
const WARM: f64 = 0.99;

impl CacheState {
    /// When the load began.
    pub fn before(report: &CacheReport) -> Self {
        match report.resident_before {
            None => Self::Unknown,
            Some(share) if share <= COLD => Self::Cold,
            Some(share) if share >= WARM => Self::Warm,
            Some(share) => Self::Partly(share),
        }
    }

    /// Whether it was what had been asked for.
    pub fn is(self, asked: Asked) -> bool {
        match asked {
            Asked::Cold => self == Self::Cold,
            Asked::Warm => self == Self::Warm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_counts() {
        let state =
            |resident_before| CacheState::before(&CacheReport { resident_before, resident_after: None });
        assert!(state(Some(0.0)).is(Asked::Cold) && state(Some(0.009)).is(Asked::Cold));
        assert!(state(Some(1.0)).is(Asked::Warm) && !state(Some(1.0)).is(Asked::Cold));
        for unproven in [Some(0.02), Some(0.5), Some(0.98), None] {
            assert!(!state(unproven).is(Asked::Cold) && !state(unproven).is(Asked::Warm), "{unproven:?}");
        }
    }
}
