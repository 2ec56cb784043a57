//! Memory touched ahead of the reads: the same bytes, and an end whatever happens to the load.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_staging::Device;
use gds_loader::{Backend, CancelToken, Error, Loader, Measure, PathKind};
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{folder, not_run};

/// More than is touched ahead of the first piece.
const TENSORS: u64 = 5;
const EACH: u64 = 32 << 20;

/// A checkpoint, and a loader that reads it directly; None after saying that `test` cannot run.
fn prepare(test: &str) -> Option<(TempDir, PathBuf, Loader)> {
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    let file =
        (0..TENSORS).fold(File::new(), |file, index| file.tensor(&format!("t.{index}"), "U8", &[EACH]));
    file.write(&path);
    let loader = Loader::new().device(Device::cpu()).backend(Backend::Only(PathKind::Direct));
    if Device::cpu().allocate(1, 1).unwrap().toucher().is_none() {
        not_run(test, "the kernel cannot touch memory ahead (since Linux 5.14)");
        return None;
    }
    match loader.measure(&path, Measure::CopyAlone) {
        Err(Error::Unavailable { reason, .. }) => {
            not_run(test, &reason);
            None
        }
        outcome => {
            outcome.unwrap();
            Some((folder, path, loader))
        }
    }
}

#[test]
fn what_is_touched_ahead_holds_the_files_bytes() {
    let Some((_folder, path, loader)) = prepare("what_is_touched_ahead_holds_the_files_bytes") else {
        return;
    };
    for threads in [1, 4] {
        let model = loader.clone().threads(threads).load(&path).unwrap();
        assert!(model.report().stages.touch_s > 0.0, "{:?}", model.report());
        for index in 0..TENSORS {
            let name = format!("t.{index}");
            let tensor = model.get(&name).unwrap();
            assert!(tensor.host_bytes().unwrap() == payload(&name, EACH as usize), "{name}");
        }
    }
    let serial = loader.measure(&path, Measure::Serial).unwrap();
    assert_eq!(serial.stages.touch_s, 0.0, "nothing else is in flight");
}

#[test]
fn a_load_that_is_cancelled_or_fails_ends() {
    let Some((_folder, path, loader)) = prepare("a_load_that_is_cancelled_or_fails_ends") else { return };
    let (token, calls) = (CancelToken::new(), AtomicUsize::new(0));
    let cancel = token.clone();
    let cancelled = loader.clone().cancel(token).on_progress(move |_| {
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            cancel.cancel();
        }
    });
    let error = cancelled.load(&path).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");

    let cut = path.clone();
    let failing = loader.on_progress(move |progress| {
        if progress.bytes_done < 2 * EACH {
            std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(EACH).unwrap();
        }
    });
    let error = failing.load(&path).unwrap_err();
    assert!(matches!(error, Error::Read { .. } | Error::Changed { .. }), "{error:?}");
}
