//! A save whose system calls go wrong: short writes, refusals of a path, failures at every write.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::SafeTensors;
use tempfile::TempDir;

use super::durable::tests::tap::{Call, Tap, Tapped, Verdict};
use super::session::{Session, take};
use super::write::Held;
use super::{SaveError, SaveReport, SaveTensor, Saver};
use crate::error::ErrorKind;
use crate::format::{Dtype, HeaderLimits, WriteFault};
use crate::policy::Backend;
use crate::source::Source;
use crate::transport::PathKind;

/// Judges each write by its number, from 1; all else goes.
struct By<F> {
    writes: AtomicUsize,
    rule: F,
}

impl<F> fmt::Debug for By<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").field("writes", &self.writes).finish_non_exhaustive()
    }
}

impl<F: Fn(usize) -> Verdict + Send + Sync> Tap for By<F> {
    fn before(&self, call: &Call) -> Verdict {
        match call {
            Call::Write { .. } => (self.rule)(self.writes.fetch_add(1, Ordering::Relaxed) + 1),
            _ => Verdict::Go,
        }
    }

    fn after(&self, _: Call, _: Option<u64>) {}
}

const LENS: [usize; 3] = [100_000, 65_536, 777];

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + len) as u8).collect()
}

/// Saves tensors of [`LENS`] where every write is judged by `rule`.
fn save(
    saver: &Saver,
    path: &Path,
    rule: impl Fn(usize) -> Verdict + Send + Sync + 'static,
) -> Result<SaveReport, SaveError> {
    let tensor =
        |&len: &usize| SaveTensor::new(len.to_string(), Dtype::U8, [len as u64], bytes(len)).unwrap();
    save_tensors(saver, LENS.iter().map(tensor).collect(), path, rule)
}

fn save_tensors(
    saver: &Saver,
    tensors: Vec<SaveTensor<'_>>,
    path: &Path,
    rule: impl Fn(usize) -> Verdict + Send + Sync + 'static,
) -> Result<SaveReport, SaveError> {
    let session = Session::lay_out(&saver.options, Held::new(take(tensors)?.0).0, path)?;
    session.carry_out_by(Arc::new(Tapped(By { writes: AtomicUsize::new(0), rule })))
}

fn saver(backend: PathKind) -> Saver {
    Saver::new().backend(Backend::Only(backend)).slot_size(16 << 10)
}

/// A folder on a disk, where direct writes have an alignment to keep.
fn folder() -> TempDir {
    test_support::folder::on_disk("save")
}

#[track_caller]
fn check(path: &Path) {
    let file = fs::read(path).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(read.len(), LENS.len());
    for len in LENS {
        assert!(read.tensor(&len.to_string()).unwrap().data() == bytes(len), "{len}");
    }
}

#[test]
fn short_writes_are_continued_and_told() {
    for backend in [PathKind::Direct, PathKind::Buffered] {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        // Half of every second call: of one that was short already too.
        let report =
            save(&saver(backend), &path, |k| if k % 2 == 0 { Verdict::Short } else { Verdict::Go }).unwrap();
        check(&path);
        assert!(report.short_writes > 4, "{report:?}");
        assert_eq!(report.paths.get(backend), report.bytes);
    }
}

#[test]
fn a_refused_direct_write_moves_the_file_and_what_was_written_stays() {
    // Auto takes direct from 1 MiB on.
    const LEN: usize = 3 << 20;
    for refused in [1, 2, 20] {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let rule = move |k| if k == refused { Verdict::Fail(libc::EINVAL) } else { Verdict::Go };
        let saver = Saver::new().slot_size(64 << 10).threads(1);
        let tensors = || [SaveTensor::new("large", Dtype::U8, [LEN as u64], bytes(LEN)).unwrap()].into();
        let report = save_tensors(&saver, tensors(), &path, rule).unwrap();
        let file = fs::read(&path).unwrap();
        assert!(SafeTensors::deserialize(&file).unwrap().tensor("large").unwrap().data() == bytes(LEN));
        let [fallback] = report.fallbacks.as_slice() else { panic!("{report:?}") };
        assert_eq!((fallback.from, fallback.to), (PathKind::Direct, PathKind::Buffered));
        assert!(fallback.reason.contains("Invalid argument"), "{fallback:?}");
        assert!(report.paths.get(PathKind::Buffered) > 0, "{report:?}");
        match (refused, report.paths.get(PathKind::Direct)) {
            (1, direct) => assert_eq!(direct, 0, "{report:?}"),
            // The first may have been the header's or, from memory that happens to be aligned, a tensor's.
            (2, _) => {}
            (_, direct) => assert!(direct > 0, "{report:?}"),
        }

        fs::remove_file(&path).unwrap();
        let forced = saver.backend(Backend::Only(PathKind::Direct));
        let error = save_tensors(&forced, tensors(), &path, rule).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_write_that_fails_fails_the_save_whichever_it_is() {
    for backend in [PathKind::Direct, PathKind::Buffered] {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, "the old one").unwrap();
        let saver = saver(backend).threads(2);
        let mut failed = 0;
        for code in [libc::ENOSPC, libc::EIO] {
            for k in 1.. {
                let rule = move |at| if at == k { Verdict::Fail(code) } else { Verdict::Go };
                match save(&saver, &path, rule) {
                    Ok(_) => break,
                    Err(error) => {
                        failed += 1;
                        assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
                        assert_eq!(fs::read(&path).unwrap(), b"the old one");
                        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
                    }
                }
            }
            check(&path);
            fs::write(&path, "the old one").unwrap();
        }
        assert!(failed > 20, "{failed}");
    }
}

/// An index that no reader takes would make the old set's end the end of both.
#[test]
fn an_index_beyond_the_readers_limit_is_refused_before_any_file_exists() {
    let folder = test_support::folder::on_disk("save");
    let path = folder.path().join("set");
    let tensors =
        || (0..20).map(|k| SaveTensor::new(format!("{k}{}", "\n".repeat(90)), Dtype::U8, [1], vec![k]));
    let save = |max_bytes| {
        let saver = Saver::new().shard_size(1).header_limits(HeaderLimits { max_bytes });
        saver.save(tensors().collect::<Result<Vec<_>, _>>().unwrap(), &path)
    };
    let error = save(1000).unwrap_err();
    let SaveError::Format { fault: WriteFault::IndexTooLarge { index_len, max_bytes: 1000 }, .. } = error
    else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("model.safetensors.index.json: the index would have"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Usage);
    save(index_len - 1).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // The second set's shards have longer names, which are counted already.
    for _ in 0..2 {
        save(index_len).unwrap();
        Source::open_with(&path, &HeaderLimits { max_bytes: index_len }).unwrap();
    }
    assert_eq!(path.join("model.safetensors.index.json").metadata().unwrap().len(), index_len);
}
