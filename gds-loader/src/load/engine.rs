//! Who keeps the direct reads of a load in flight.

use super::options::Settled;
use crate::error::{Error, Result};
use crate::pipeline::{Measure, Queues};
use crate::policy::Route;
use crate::report::EngineReport;
use crate::transport::{Engine, PathKind, probe};

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// io_uring.
    Queue,
    /// Threads, and why.
    Threads(String),
}

impl Chosen {
    /// Chooses for files on these routes.
    ///
    /// # Errors
    /// [`Error::Engine`] where io_uring was asked for, is wanted and cannot be had.
    pub(super) fn of(asked: Engine, routes: &[Route], measure: Measure, windows: bool) -> Result<Self> {
        let threads = |reason: &str| Ok(Self::Threads(reason.into()));
        let direct = routes.iter().find(|route| route.transport().kind() == PathKind::Direct);
        match (asked, direct) {
            (Engine::Threads, _) => threads("threads were asked for"),
            _ if windows => threads("the workers wait for GPUDirect Storage"),
            _ if measure == Measure::Serial => threads("nothing is to be in flight twice"),
            (_, None) => threads("no file is read directly"),
            (_, Some(route)) => match (route.file().as_kept().map_or_else(too_many, probe), asked) {
                (Ok(()), _) => Ok(Self::Queue),
                (Err(reason), Engine::IoUring) => Err(Error::Engine { reason }),
                (Err(reason), _) => {
                    tracing::info!(reason, "no io_uring; threads read");
                    Ok(Self::Threads(reason))
                }
            },
        }
    }

    /// What it came to.
    ///
    /// # Errors
    /// [`Error::Engine`] where io_uring was asked for, could be had, and then no worker got any.
    pub(super) fn report(
        &self,
        asked: Engine,
        settled: &Settled,
        workers: usize,
        queues: &Queues,
    ) -> Result<EngineReport> {
        if let (Self::Queue, Engine::IoUring, Some(reason), 0) = (self, asked, &queues.refused, queues.opened)
        {
            return Err(Error::Engine { reason: reason.clone() });
        }
        let all = |count| queues.opened > 0 && count == queues.opened;
        let reason = match self {
            Self::Threads(reason) => Some(reason.clone()),
            Self::Queue if queues.opened == 0 => queues.refused.clone(),
            Self::Queue => None,
        };
        Ok(EngineReport {
            name: if queues.opened > 0 { Engine::IoUring } else { Engine::Threads },
            depth: queues.depth,
            workers,
            read_size: settled.read_size,
            reason,
            registered: all(queues.with_slots),
            registered_files: all(queues.with_files),
        })
    }
}

/// The files take turns in being open.
fn too_many() -> Result<(), String> {
    Err("there are too few descriptors for all files to stay open: raise RLIMIT_NOFILE".into())
}
