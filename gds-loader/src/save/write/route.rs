//! A file that is written, and the path it is on.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffered::Buffered;
use super::direct::Direct;
use super::gds::GdsSink;
use super::sink::{HostSink, Sink};
use crate::cufile::Driver;
use crate::facts::FileFacts;
use crate::policy::{Backend, host_order, writing_order};
use crate::report::Fallback;
use crate::save::durable::TempFile;
use crate::save::error::SaveError;
use crate::transport::PathKind;

/// A file and the path it is on, shared by all workers.
#[derive(Debug)]
pub(crate) struct Route {
    path: PathBuf,
    file: TempFile,
    driver: Option<Driver>,
    forced: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    current: Opened,
    /// Writes the host's bytes while the current path writes only a device's.
    spare: Option<Opened>,
    fallbacks: Vec<Fallback>,
}

/// A sink, and the paths that come after it.
#[derive(Clone, Debug)]
struct Opened {
    sink: Sink,
    rest: &'static [PathKind],
}

impl Route {
    /// Opens the first path that will have the file, which is to be called `path`. `driver` is cuFile's, where it may be used and
    /// there are bytes of a GPU to write.
    ///
    /// # Errors
    /// [`SaveError::Unavailable`] where the forced path refuses, or every path does.
    pub(crate) fn open(
        path: &Path,
        file: TempFile,
        backend: Backend,
        driver: Option<Driver>,
    ) -> Result<Self, SaveError> {
        let FileFacts { direct_io, file_system, .. } = FileFacts::of(file.file(), file.len());
        let order = writing_order(backend, direct_io, file_system, file.len(), driver.is_some());
        let mut fallbacks = Vec::new();
        let current = first_that_opens(path, &file, driver.as_ref(), order, 0, &mut fallbacks)?;
        tracing::debug!(path = %path.display(), by = %current.sink.kind(), ?direct_io, ?file_system, "path chosen");
        let state = Mutex::new(State { current, spare: None, fallbacks });
        Ok(Self { path: path.to_owned(), file, driver, forced: backend != Backend::Auto, state })
    }

    /// The path the file will have.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path writes from windows.
    pub(crate) fn wants_windows(&self) -> bool {
        matches!(self.sink(), Sink::Window(_))
    }

    /// Writes that took fewer bytes than they were given.
    pub(crate) fn short_writes(&self) -> u64 {
        self.file.short_writes()
    }

    /// The path it is on now.
    pub(super) fn sink(&self) -> Sink {
        self.lock().current.sink.clone()
    }

    /// The path that writes bytes of the host now.
    pub(super) fn host_sink(&self) -> Result<Arc<dyn HostSink>, SaveError> {
        let mut state = self.lock();
        if let Sink::Host(sink) = &state.current.sink {
            return Ok(Arc::clone(sink));
        }
        if let Some(Opened { sink: Sink::Host(sink), .. }) = &state.spare {
            return Ok(Arc::clone(sink));
        }
        // Not a change of path: these bytes never were the other's.
        let order = host_order(state.current.sink.kind());
        let opened = first_that_opens(&self.path, &self.file, None, order, 0, &mut Vec::new())?;
        state.spare = Some(opened.clone());
        match opened.sink {
            Sink::Host(sink) => Ok(sink),
            Sink::Window(_) => Err(self.unavailable(PathKind::Gds, "it writes no bytes of the host".into())),
        }
    }

    /// Moves the rest of the file from `from`, which failed at `offset`, to the path after it, unless another worker has done so.
    ///
    /// # Errors
    /// [`SaveError::Unavailable`] where there is none, or the path was forced.
    pub(super) fn leave(&self, from: &Sink, offset: u64, reason: String) -> Result<(), SaveError> {
        let mut state = self.lock();
        if let Some(spare) = state.spare.take_if(|spare| spare.sink.is(from)) {
            let opened =
                first_that_opens(&self.path, &self.file, None, spare.rest, offset, &mut state.fallbacks)?;
            self.note(&mut state, offset, from.kind(), opened.sink.kind(), reason);
            state.spare = Some(opened);
            return Ok(());
        }
        if !state.current.sink.is(from) {
            return Ok(());
        }
        if self.forced || state.current.rest.is_empty() {
            return Err(self.unavailable(from.kind(), reason));
        }
        let rest = state.current.rest;
        let driver = self.driver.as_ref();
        let opened = first_that_opens(&self.path, &self.file, driver, rest, offset, &mut state.fallbacks)?;
        self.note(&mut state, offset, from.kind(), opened.sink.kind(), reason);
        state.current = opened;
        Ok(())
    }

    /// Moves the whole file from windows to the path after them.
    ///
    /// # Errors
    /// As for [`Route::leave`].
    pub(crate) fn leave_windows(&self, reason: &str) -> Result<(), SaveError> {
        self.leave(&self.sink(), 0, reason.to_owned())
    }

    /// Every change of path.
    pub(crate) fn into_fallbacks(self) -> Vec<Fallback> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).fallbacks
    }

    fn note(&self, state: &mut State, offset: u64, from: PathKind, to: PathKind, reason: String) {
        tracing::info!(path = %self.path.display(), offset, %from, %to, reason, "another path takes over");
        state.fallbacks.push(Fallback::new(&self.path, offset, from, to, reason));
    }

    fn unavailable(&self, by: PathKind, reason: String) -> SaveError {
        SaveError::Unavailable { path: self.path.clone(), by, reason }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file by the first path of `order` that will have it; notes those that will not.
fn first_that_opens(
    path: &Path,
    file: &TempFile,
    driver: Option<&Driver>,
    order: &'static [PathKind],
    offset: u64,
    fallbacks: &mut Vec<Fallback>,
) -> Result<Opened, SaveError> {
    let mut refused: Option<(PathKind, String)> = None;
    for (index, &kind) in order.iter().enumerate() {
        let opened = open(kind, file, driver);
        if let (Some((from, reason)), Ok(_)) = (&refused, &opened) {
            fallbacks.push(Fallback::new(path, offset, *from, kind, reason.clone()));
        }
        match opened {
            Ok(sink) => return Ok(Opened { sink, rest: &order[index + 1..] }),
            // The first reason is the telling one: the path that would have been best.
            Err(reason) => refused = refused.or(Some((kind, reason))),
        }
    }
    let (by, reason) =
        refused.unwrap_or_else(|| (PathKind::Buffered, "no path is left to write it by".to_owned()));
    Err(SaveError::Unavailable { path: path.to_owned(), by, reason })
}

/// Opens the file on a path, or says why that path refuses it.
fn open(kind: PathKind, file: &TempFile, driver: Option<&Driver>) -> Result<Sink, String> {
    match kind {
        PathKind::Gds => {
            let driver = driver.ok_or("cuFile is not open")?;
            let sink = GdsSink::open(driver, file).map_err(|error| error.to_string())?;
            Ok(Sink::Window(Arc::new(sink)))
        }
        PathKind::Direct => match Direct::open(file) {
            Ok(direct) => Ok(Sink::Host(Arc::new(direct))),
            Err(error) => Err(format!("opening it with O_DIRECT: {error}")),
        },
        PathKind::Buffered => Ok(Sink::Host(Arc::new(Buffered::open(file)))),
        PathKind::Mmap | PathKind::GdsCompat => Err("it does not write".to_owned()),
    }
}
