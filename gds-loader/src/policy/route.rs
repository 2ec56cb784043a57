//! A file and the path it is on.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::page_cache::{Habits, Memory, PageCache};
use super::presence::{Presence, Whose};
use super::{Backend, CuFilePaths, Reach, explain, explain_with_gds, open, read_ahead, verdict};
use crate::cufile::Driver;
use crate::error::{Error, Result};
use crate::facts::{FileFacts, FileSystem, Network, Residency, residency};
use crate::report::{Choice, Fallback};
use crate::source::ShardFile;
use crate::transport::{Buffered, Landing, PathKind, ReadCause, ReadFailure, Target, Transport};

/// Said of a read that brought less than there is.
const ENDED_EARLY: &str = "it ended early, although the file has not become shorter";

/// A file and the path it is on, shared by all workers.
#[derive(Debug)]
pub(crate) struct Route {
    path: PathBuf,
    file: ShardFile,
    len: u64,
    /// When it was last written to, where that can be told.
    modified: Option<SystemTime>,
    direct_alignment: u64,
    in_memory: bool,
    read_ahead: Option<u64>,
    forced: bool,
    driver: Option<Driver>,
    state: Mutex<State>,
    /// Why the first path was taken.
    why: &'static str,
    first: PathKind,
    /// What `auto` makes of the page cache; a path that was asked for is left as it is.
    cache: Option<PageCache>,
    buffered: Transport,
    /// A path that was asked for and fills the page cache lets others know.
    presence: Option<Presence>,
}

/// On which terms the files of a load are opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) backend: Backend,
    pub(crate) cufile: &'a CuFilePaths,
    pub(crate) memory: Memory,
    /// Whether files that other processes load too are shared with them through the page cache.
    pub(crate) share: bool,
    /// Whether what was brought into the page cache stays there.
    pub(crate) keep_pages: bool,
}

#[derive(Debug)]
struct State {
    current: Opened,
    /// Serves single pieces that the current path could not.
    spare: Option<Opened>,
    fallbacks: Vec<Fallback>,
}

/// A transport, and the paths that come after it.
#[derive(Clone, Debug)]
struct Opened {
    transport: Transport,
    rest: &'static [PathKind],
}

impl Route {
    /// Opens the first path that will have the file, last written to at `modified` as of before anything of it was read.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the forced path refuses, or every path does.
    pub(crate) fn open(
        path: &Path,
        file: &ShardFile,
        modified: Option<SystemTime>,
        facts: &FileFacts,
        terms: &Terms<'_>,
    ) -> Result<Self> {
        let in_memory = facts.file_system == FileSystem::Memory;
        let target = Target {
            path,
            file,
            len: facts.len,
            direct_alignment: facts.direct_io.alignment(),
            in_memory,
            read_ahead: read_ahead(facts),
        };
        let driver = terms.cufile.driver().cloned();
        let forced = terms.backend.forced();
        let (order, why) = match forced {
            Some(kind) => (only(kind), "it was asked for"),
            None if driver.is_some() => explain_with_gds(facts),
            None => explain(facts),
        };
        let mut fallbacks = Vec::new();
        let current = first_that_opens(&target, order, driver.as_ref(), 0, &mut fallbacks)
            .map_err(|(by, reason)| Error::Unavailable { path: path.to_path_buf(), by, reason })?;
        let first = current.transport.kind();
        tracing::debug!(path = %path.display(), by = %first, why, ?facts, "path chosen");
        let on_host = matches!(current.transport, Transport::Host(_));
        let fills = matches!(first, PathKind::Buffered | PathKind::Mmap);
        let local = facts.file_system == FileSystem::Local;
        let presence = file
            .as_kept()
            .filter(|_| forced.is_some() && fills && terms.share && local)
            .and_then(|file| Presence::announce(file, Whose::Sharing).ok());
        let habits = Habits {
            memory: terms.memory,
            share: terms.share && on_host,
            keep: terms.keep_pages,
            read_ahead: target.read_ahead,
        };
        let watched = file.as_kept().filter(|_| forced.is_none());
        let cache = watched.map(|file| PageCache::new(file, facts, habits));
        Ok(Self {
            path: path.to_path_buf(),
            file: file.clone(),
            len: facts.len,
            // What a program calls the time of a file may be anything.
            modified: modified.filter(|_| !is_fuse(facts)),
            direct_alignment: target.direct_alignment,
            in_memory,
            read_ahead: target.read_ahead,
            forced: forced.is_some(),
            driver,
            state: Mutex::new(State { current, spare: None, fallbacks }),
            why,
            first,
            cache,
            // What it reads is there already, or has been asked for.
            buffered: Transport::Host(Arc::new(Buffered::open(&Target { read_ahead: None, ..target }))),
            presence,
        })
    }

    /// The file, for ordinary reads.
    pub(crate) fn file(&self) -> &ShardFile {
        &self.file
    }

    /// Bytes for which the kernel is asked at a time to read ahead; None where the page cache holds the file.
    pub(crate) fn read_ahead(&self) -> Option<u64> {
        self.read_ahead
    }

    /// The path it is on now.
    pub(crate) fn transport(&self) -> Transport {
        self.lock().current.transport.clone()
    }

    /// The path that this extent of it takes now. Its alignment is never stricter than that of [`Self::transport`].
    pub(crate) fn transport_for(&self, extent: &Range<u64>) -> Transport {
        let current = self.transport();
        let Some(cache) = &self.cache else { return current };
        match current.kind() {
            PathKind::Direct if cache.serves(extent) => {
                cache.note(extent);
                self.buffered.clone()
            }
            PathKind::Buffered | PathKind::Mmap => {
                cache.note(extent);
                current
            }
            _ => current,
        }
    }

    /// Whether other processes load the file too, and it is shared with them.
    pub(crate) fn is_shared(&self) -> bool {
        self.cache.as_ref().is_some_and(PageCache::is_shared)
    }

    /// Ends the load of the file: what it brought into the page cache is dropped, and others know that it is over.
    pub(crate) fn leave_page_cache(&mut self) {
        self.presence = None;
        if let Some(cache) = &self.cache {
            cache.leave();
        }
    }

    /// Which paths were chosen for the file and its parts, and why.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let choice = |path, why| Choice { path, why, files: 1, file: self.path.clone() };
        let mut choices = vec![choice(self.first, self.why.to_owned())];
        for (cached, why) in self.cache.iter().flat_map(PageCache::reasons) {
            choices.push(choice(if cached { PathKind::Buffered } else { self.first }, why));
        }
        choices
    }

    /// Whether its path reads into registered windows.
    pub(crate) fn wants_windows(&self) -> bool {
        matches!(self.transport(), Transport::Device(gds) if gds.landing() == Landing::Window)
    }

    /// Whether its path reads straight into device memory, in the order of no stream.
    pub(crate) fn reads_in_place(&self) -> bool {
        matches!(self.transport(), Transport::Device(gds) if gds.landing() == Landing::Straight)
    }

    /// Alignment its direct reads need, whichever path it is on now.
    pub(crate) fn direct_alignment(&self) -> u64 {
        self.direct_alignment
    }

    /// Its length when opened, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Lets `step` read the extent on its path or, where that fails and another may serve, on the next; says by which it was
    /// done. The step's outer error ends it at once.
    pub(crate) fn attempt<T>(
        &self,
        extent: &Range<u64>,
        mut step: impl FnMut(&Transport) -> Result<Result<T, ReadFailure>>,
    ) -> Result<(PathKind, T)> {
        let transport = self.transport_for(extent);
        match step(&transport)? {
            Ok(done) => Ok((transport.kind(), done)),
            Err(failure) => self.attempt_after(&transport, failure, extent, step),
        }
    }

    /// The same, for an extent that `failed` could not read.
    pub(crate) fn attempt_after<T>(
        &self,
        failed: &Transport,
        failure: ReadFailure,
        extent: &Range<u64>,
        mut step: impl FnMut(&Transport) -> Result<Result<T, ReadFailure>>,
    ) -> Result<(PathKind, T)> {
        let mut transport = self.next(failed, extent.start, failure)?;
        loop {
            match step(&transport)? {
                Ok(done) => {
                    if let (Some(cache), Transport::Host(_)) = (&self.cache, &transport) {
                        cache.note(extent);
                    }
                    return Ok((transport.kind(), done));
                }
                Err(failure) => transport = self.next(&transport, extent.start, failure)?,
            }
        }
    }

    /// Takes the file off its path before anything was read, because of something the path needs and cannot have.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the path was forced, or no other will have the file.
    pub(crate) fn leave(&self, reason: &str) -> Result<()> {
        let failed = self.transport();
        self.switch(&failed, Reach::File, 0, reason.to_owned()).map(|_| ())
    }

    /// How much of it the page cache holds now.
    pub(crate) fn residency(&self) -> Residency {
        self.file.open().map_or(Residency::Unknown, |file| residency(&file, self.len))
    }

    /// Fails where the file's length is no longer what it was, or it has been written to.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let Ok(metadata) = self.file.open_at(&self.path)?.metadata() else { return Ok(()) };
        let found = metadata.len();
        if found != self.len {
            return Err(Error::Changed { path: self.path.clone(), expected: self.len, found });
        }
        match (self.modified, metadata.modified()) {
            (Some(before), Ok(now)) if now != before => Err(Error::Rewritten { path: self.path.clone() }),
            _ => Ok(()),
        }
    }

    /// Each change of path so far.
    pub(crate) fn into_fallbacks(self) -> Vec<Fallback> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).fallbacks
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport to try after `failed`; a data error comes back as it is.
    fn next(&self, failed: &Transport, offset: u64, failure: ReadFailure) -> Result<Transport> {
        let by = failed.kind();
        let reach = match &failure.source {
            // The file goes on, so it is the path that ends: less than a sector, say, can be asked for for ever.
            None if by == PathKind::Direct && self.is_as_long() => {
                // Unless it was shorter for a moment.
                self.check_unchanged()?;
                Some(Reach::File)
            }
            cause => verdict(by, cause.as_ref()),
        };
        if let Some(reach) = reach.filter(|&reach| !(self.forced && reach == Reach::Piece)) {
            let reason = match &failure.source {
                Some(ReadCause::System(error)) => format!("a read at offset {}: {error}", failure.offset),
                Some(ReadCause::CuFile(error)) => error.to_string(),
                None => format!("a read at offset {}: {ENDED_EARLY}", failure.offset),
            };
            return self.switch(failed, reach, offset, reason);
        }
        let ReadFailure { offset, got, expected, source } = failure;
        let early = || io::Error::new(io::ErrorKind::UnexpectedEof, ENDED_EARLY);
        let source = source.or_else(|| self.is_as_long().then(|| early().into()));
        Err(Error::Read { path: self.path.clone(), by, offset, got, expected, source })
    }

    /// Whether the file still has the length it had when opened.
    fn is_as_long(&self) -> bool {
        self.file.open().and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.len() >= self.len)
    }

    /// Moves the file, or one piece of it, to the path after `failed`: once, whichever worker notices first.
    fn switch(&self, failed: &Transport, reach: Reach, offset: u64, reason: String) -> Result<Transport> {
        let by = failed.kind();
        let unavailable = |by, reason| Error::Unavailable { path: self.path.clone(), by, reason };
        if self.forced {
            return Err(unavailable(by, reason));
        }
        let mut state = self.lock();
        let is_current = state.current.transport.is(failed);
        let (ready, rest) = match &state.spare {
            Some(spare) if is_current => (Some(spare.clone()), spare.rest),
            Some(spare) if spare.transport.is(failed) => (None, spare.rest),
            None if is_current => (None, state.current.rest),
            // Another worker has moved the file on meanwhile.
            _ => return Ok(state.current.transport.clone()),
        };
        let mut refused = Vec::new();
        let next = match ready {
            Some(spare) => spare,
            None => {
                let target = Target {
                    path: &self.path,
                    file: &self.file,
                    len: self.len,
                    direct_alignment: self.direct_alignment,
                    in_memory: self.in_memory,
                    read_ahead: self.read_ahead,
                };
                first_that_opens(&target, rest, self.driver.as_ref(), offset, &mut refused)
                    .map_err(|(next, why)| unavailable(next, format!("{reason}; then {why}")))?
            }
        };
        let to = refused.first().map_or(next.transport.kind(), |fallback| fallback.from);
        tracing::info!(path = %self.path.display(), from = %by, %to, reason, ?reach, "another path takes over");
        state.fallbacks.push(Fallback::new(&self.path, offset, by, to, reason));
        state.fallbacks.append(&mut refused);
        let transport = next.transport.clone();
        if is_current && reach == Reach::File {
            state.current = next;
            state.spare = None;
        } else {
            state.spare = Some(next);
        }
        Ok(transport)
    }
}

fn is_fuse(facts: &FileFacts) -> bool {
    matches!(facts.file_system, FileSystem::Network { kind: Network::Fuse, .. })
}

/// The list with `kind` alone.
fn only(kind: PathKind) -> &'static [PathKind] {
    let index = kind as usize;
    &PathKind::ALL[index..=index]
}

/// Opens the first of `order` that will have the file, noting each refusal; where all refuse, the last one's reason.
fn first_that_opens(
    target: &Target<'_>,
    order: &'static [PathKind],
    driver: Option<&Driver>,
    offset: u64,
    fallbacks: &mut Vec<Fallback>,
) -> Result<Opened, (PathKind, String)> {
    let mut refusal = (PathKind::Buffered, "no path is left".to_owned());
    for (index, &kind) in order.iter().enumerate() {
        match open(kind, target, driver) {
            Ok(transport) => return Ok(Opened { transport, rest: &order[index + 1..] }),
            Err(reason) => {
                if let Some(&to) = order.get(index + 1) {
                    fallbacks.push(Fallback::new(target.path, offset, kind, to, reason.clone()));
                }
                refusal = (kind, reason);
            }
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{HostReads, read_extent};
    use std::collections::VecDeque;
    use std::io;

    /// Fails as scripted, or ends where the script says 0, then serves zeros.
    #[derive(Debug)]
    struct Failing(PathKind, Mutex<VecDeque<i32>>);

    impl HostReads for Failing {
        fn kind(&self) -> PathKind {
            self.0
        }

        fn alignment(&self) -> u64 {
            1
        }

        fn read_at(&self, into: &mut [u8], _: u64) -> io::Result<usize> {
            into.fill(0);
            match self.1.lock().unwrap().pop_front() {
                Some(0) => Ok(0),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Ok(into.len()),
            }
        }
    }

    /// A route over a real file of 8,192 times 7, on a direct path that fails with `codes`.
    fn route(codes: &[i32], forced: bool) -> Route {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0).unwrap();
        let failing = Failing(PathKind::Direct, Mutex::new(codes.iter().copied().collect()));
        let current = Opened {
            transport: Transport::Host(Arc::new(failing)),
            rest: &[PathKind::Buffered, PathKind::Mmap],
        };
        let file = ShardFile::kept(file);
        let target = Target {
            path: Path::new("x"),
            file: &file,
            len: 8192,
            direct_alignment: 512,
            in_memory: false,
            read_ahead: None,
        };
        let buffered = Transport::Host(Arc::new(Buffered::open(&target)));
        Route {
            path: "x".into(),
            file: file.clone(),
            len: 8192,
            modified: None,
            direct_alignment: 512,
            in_memory: false,
            read_ahead: None,
            forced,
            driver: None,
            state: Mutex::new(State { current, spare: None, fallbacks: Vec::new() }),
            why: "",
            first: PathKind::Direct,
            cache: None,
            buffered,
            presence: None,
        }
    }

    fn read(route: &Route, offset: u64, into: &mut [u8]) -> Result<(PathKind, u64)> {
        let len = into.len() as u64;
        route.attempt(&(offset..offset + len), |transport| match transport {
            Transport::Host(reads) => Ok(read_extent(reads.as_ref(), into, offset..offset + len, 8192)),
            Transport::Device(_) => unreachable!("no driver"),
        })
    }

    #[test]
    fn a_refused_direct_read_moves_the_file_once_and_the_bytes_are_right() {
        let route = route(&[libc::EINVAL; 5], false);
        let mut into = [0; 4096];
        for offset in [0, 4096] {
            assert_eq!(read(&route, offset, &mut into).unwrap(), (PathKind::Buffered, 4096));
            assert_eq!(into, [7; 4096]);
        }
        let fallbacks = route.into_fallbacks();
        assert_eq!(fallbacks.len(), 1);
        assert_eq!((fallbacks[0].from, fallbacks[0].to), (PathKind::Direct, PathKind::Buffered));
    }

    #[test]
    fn a_piece_refused_leaves_the_file_on_its_path() {
        let route = route(&[], false);
        let current = route.transport();
        for offset in [0, 4096] {
            let spare = route.switch(&current, Reach::Piece, offset, "one event failed".into()).unwrap();
            assert_eq!(spare.kind(), PathKind::Buffered);
        }
        assert!(route.transport().is(&current));
        // The spare's own failure moves on to the path after it.
        let spare = route.switch(&current, Reach::Piece, 0, "again".into()).unwrap();
        assert_eq!(route.switch(&spare, Reach::File, 0, "it too".into()).unwrap().kind(), PathKind::Mmap);
        assert!(route.transport().is(&current));
        assert_eq!(route.into_fallbacks().len(), 4);
    }

    #[test]
    fn a_data_error_is_never_hidden_by_another_path() {
        let route = route(&[libc::EIO], false);
        let error = read(&route, 0, &mut [0; 4096]).unwrap_err();
        assert!(matches!(&error, Error::Read { by: PathKind::Direct, offset: 0, .. }), "{error}");
        assert!(route.into_fallbacks().is_empty());
    }

    #[test]
    fn a_direct_read_that_ends_before_the_file_does_is_the_path_s_fault() {
        let route = route(&[0], false);
        let mut into = [0; 4096];
        assert_eq!(read(&route, 4096, &mut into).unwrap(), (PathKind::Buffered, 4096));
        assert_eq!(into, [7; 4096]);
        assert!(route.into_fallbacks()[0].reason.contains("not become shorter"));

        let shrunk = self::route(&[0], false);
        shrunk.file.open().unwrap().set_len(5000).unwrap();
        let error = read(&shrunk, 4096, &mut into).unwrap_err();
        assert!(matches!(error, Error::Read { source: None, .. }), "{error}");
        assert!(shrunk.into_fallbacks().is_empty());
    }

    #[test]
    fn a_forced_path_never_falls_back() {
        let error = read(&route(&[libc::EINVAL], true), 0, &mut [0; 4096]).unwrap_err();
        assert!(matches!(&error, Error::Unavailable { by: PathKind::Direct, .. }), "{error}");
    }
}
