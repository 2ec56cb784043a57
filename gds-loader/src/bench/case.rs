//! What is compared.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Asked;
use crate::pipeline::Measure;
use crate::transport::{Engine, PathKind};

/// A path and who keeps its reads in flight: what needs a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lane {
    /// The path.
    pub path: PathKind,
    /// Who keeps the reads of `direct` in flight; `None` for the other paths.
    pub engine: Option<Engine>,
}

impl Lane {
    /// All there are, whether this machine has them or not.
    pub fn all() -> Vec<Self> {
        PathKind::ALL
            .into_iter()
            .flat_map(|path| match path {
                PathKind::Direct => [Some(Engine::IoUring), Some(Engine::Threads)]
                    .map(|engine| Self { path, engine })
                    .to_vec(),
                _ => vec![Self { path, engine: None }],
            })
            .collect()
    }

    /// This path, with the engine left to the loader.
    pub fn of(path: PathKind) -> Self {
        Self { path, engine: None }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.engine {
            Some(engine) => f.pad(&format!("{} ({engine})", self.path)),
            None => f.pad(self.path.as_str()),
        }
    }
}

/// One thing to measure in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Case {
    /// By which path.
    #[serde(flatten)]
    pub lane: Lane,
    /// What the page cache is to hold; `None` where nothing is read.
    pub asked: Option<Asked>,
    /// How much of a load.
    pub measure: Measure,
}

impl Case {
    /// A load, or a part of one.
    pub fn new(lane: Lane, asked: Option<Asked>, measure: Measure) -> Self {
        Self { lane, asked, measure }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lane)?;
        if self.measure != Measure::Pipelined {
            write!(f, ", {}", self.measure.as_str())?;
        }
        self.asked.map_or(Ok(()), |asked| write!(f, ", {}", asked.as_str()))
    }
}
