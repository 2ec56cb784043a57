//! Progress and cancelling.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gds_loader::{CancelToken, Destination, Error, ErrorKind, Progress};
use test_support::fixture::{File, awkward};

use crate::bed::Bed;
use crate::oracle;

pub(crate) fn progress_adds_up(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let expected = oracle::of_file(&path);
    let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let note = Arc::clone(&seen);
    let loader = bed.loader().threads(4).on_progress(move |progress| note.lock().unwrap().push(progress));
    let model = bed.load(&loader, &path, &expected);
    let total = model.report().bytes;
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.iter().all(|progress| progress.bytes_total == total && progress.bytes_done <= total));
    // Threads report in any order; what they report are the partial sums of the pieces, none twice.
    seen.sort_by_key(|progress| progress.bytes_done);
    assert!(seen.windows(2).all(|pair| pair[0].bytes_done < pair[1].bytes_done), "{seen:?}");
    assert_eq!(seen.last().unwrap().bytes_done, total);
    assert!(seen.len() > 20, "{} calls for pieces of 16 KiB", seen.len());
}

pub(crate) fn a_cancelled_load_leaves_nothing(bed: &Bed) {
    let path = bed.path("model.safetensors");
    File::new().tensor("long", "F32", &[100_000]).tensor("rest", "U8", &[5]).write(&path);
    let expected = oracle::of_file(&path);
    let in_use = bed.memory_in_use();
    for at in [1, 40_000, 200_000] {
        let (token, placed) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
        let (cancel, count) = (token.clone(), Arc::clone(&placed));
        let loader = bed.loader().threads(2).cancel(token).on_progress(move |progress| {
            count.fetch_max(progress.bytes_done, Ordering::Relaxed);
            if progress.bytes_done >= at {
                cancel.cancel();
            }
        });
        let error = loader.load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let Error::Cancelled { placed: told, planned } = error else { panic!("{error:?}") };
        assert_eq!((told, planned), (placed.load(Ordering::Relaxed), 400_005));
        assert!(told < planned);
        assert_eq!(bed.memory_in_use(), in_use);
        bed.check_descriptors();

        let destination = Destination::region("long", bed.device.allocate(400_000, 256).unwrap());
        let again = loader.load_into(&path, vec![destination]).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Cancelled, "a cancelled token stays cancelled");

        bed.load(&loader.clone().cancel(CancelToken::new()).on_progress(|_| ()), &path, &expected);
    }
    let cancelled = CancelToken::new();
    cancelled.cancel();
    assert_eq!(bed.loader().cancel(cancelled).load(&path).unwrap_err().kind(), ErrorKind::Cancelled);
}

/// A panic of the caller's stays in its thread; the load is an error and leaves nothing.
pub(crate) fn a_callback_that_panics_fails_the_load(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let in_use = bed.memory_in_use();
    let loader = bed.loader().threads(2).on_progress(|progress| {
        assert!(progress.bytes_done < 300_000, "the callback's own fault");
    });
    let error = loader.load(&path).unwrap_err();
    assert!(matches!(error, Error::Worker { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert_eq!(bed.memory_in_use(), in_use);
    bed.check_descriptors();
    bed.load(&loader.on_progress(|_| ()), &path, &oracle::of_file(&path));
}
