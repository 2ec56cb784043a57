//! A save that goes on by itself.

use std::convert::Infallible;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use cuda_staging::{Carved, RegionMut};

use super::error::SaveError;
use super::report::SaveReport;
use super::write::Staged;

/// How long dropping a [`Saving`] waits for it.
pub const SAVING_DROP_LIMIT: Duration = Duration::from_secs(60);

/// A save under way, started by [`Saver::start`](super::Saver::start).
///
/// Nothing is saved before [`Saving::finish`] says so. Dropping it instead waits for the save, for at most
/// [`SAVING_DROP_LIMIT`], and then leaves it to its thread; whether it ended well is in the log and nowhere else. The process's end
/// ends it too: then the old checkpoint is there, whole.
#[must_use = "whether the save ended well is what `finish` returns"]
pub struct Saving {
    /// The thread, or why there is none; `None` once it was waited for.
    pub(super) thread: Option<Result<JoinHandle<Result<SaveReport, SaveError>>, SaveError>>,
    /// Ends with the thread.
    pub(super) running: Receiver<Infallible>,
    /// Ends when the tensors' memory is needed no longer.
    pub(super) staged: Staged,
    pub(super) lent: Vec<Lent>,
}

/// Memory that was moved into a save, and is handed back.
pub(super) struct Lent {
    pub(super) name: Box<str>,
    pub(super) whole: Carved,
}

impl Saving {
    /// Waits until the tensors' memory is needed no longer, because all bytes are on their way to the file, or because the save has failed.
    /// Hands back, by the tensors' names, each [`RegionMut`] that was given; a second call has none left.
    ///
    /// A region that the device may still read is not handed back: after a failure that broke the device.
    pub fn wait_staged(&mut self) -> Vec<(Box<str>, RegionMut)> {
        // Nothing is ever sent: it returns when the last sender is gone.
        let _ = self.staged.recv();
        let lent = std::mem::take(&mut self.lent);
        let back = lent.into_iter().filter_map(|Lent { name, whole }| match whole.reunite() {
            Ok(region) => Some((name, region)),
            Err(_) => {
                tracing::warn!(tensor = %name, "its memory may still be read by the device, and is kept");
                None
            }
        });
        back.collect()
    }

    /// Whether the tensors' memory is needed no longer.
    pub fn is_staged(&self) -> bool {
        self.staged.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
    }

    /// Whether the save has ended, well or not.
    pub fn is_finished(&self) -> bool {
        match &self.thread {
            Some(Ok(thread)) => thread.is_finished(),
            _ => true,
        }
    }

    /// Waits for the save. After `Ok` the checkpoint is published, and as durable as the report says.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn finish(mut self) -> Result<SaveReport, SaveError> {
        let panicked = || SaveError::Worker { reason: "the saving thread panicked".into() };
        let thread = self.thread.take().ok_or_else(panicked)??;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return tracing::error!(%error, "a save that nobody waited for failed"),
        };
        match self.running.recv_timeout(SAVING_DROP_LIMIT) {
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::error!(%error, "a save that nobody waited for failed"),
                Err(_) => tracing::error!("a save that nobody waited for panicked"),
            },
            _ => tracing::error!(
                seconds = SAVING_DROP_LIMIT.as_secs(),
                "a save that nobody waits for goes on by itself"
            ),
        }
    }
}

impl fmt::Debug for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saving")
            .field("finished", &self.is_finished())
            .field("lent", &self.lent.len())
            .finish_non_exhaustive()
    }
}
