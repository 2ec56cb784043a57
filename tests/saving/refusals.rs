//! What is refused, and that nothing is left of it.

use std::fs;

use gds_loader::format::{Dtype, HeaderLimits};
use gds_loader::{Backend, CancelToken, ErrorKind, PathKind, SaveError, SaveTensor};

use crate::bed::{Bed, Described};

pub(crate) fn what_cannot_be_meant_makes_no_file(bed: &Bed) {
    let path = bed.path("model.safetensors");
    fs::write(&path, "the old one").unwrap();
    let one = || bed.tensors(&[Described::new("w", Dtype::F32, &[10])]);
    let two = || one().into_iter().chain(one());
    let refusals: Vec<SaveError> = vec![
        bed.saver().save(two(), &path).unwrap_err(),
        bed.saver().save(bed.tensors(&[Described::new("__metadata__", Dtype::U8, &[1])]), &path).unwrap_err(),
        bed.saver().header_limits(HeaderLimits { max_bytes: 40 }).save(one(), &path).unwrap_err(),
        bed.saver().shard_size(0).save(one(), &path).unwrap_err(),
        bed.saver().slot_size(1000).save(one(), &path).unwrap_err(),
        bed.saver().threads(0).save(one(), &path).unwrap_err(),
        bed.saver().shard_size(10).save(Vec::new(), bed.path("set")).unwrap_err(),
        bed.saver().backend(Backend::Only(PathKind::Mmap)).save(one(), &path).unwrap_err(),
        bed.saver().backend(Backend::Only(PathKind::GdsCompat)).save(one(), &path).unwrap_err(),
        bed.saver().save(one(), "").unwrap_err(),
        bed.saver().save(one(), bed.path("model.safetensors.index.json")).unwrap_err(),
        bed.saver().save(one(), bed.path("new.json")).unwrap_err(),
        bed.saver().save(one(), bed.path("set/")).unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.kind(), ErrorKind::Usage, "{refusal}");
    }
    let host = vec![0_u8; 8];
    if bed.backend == Backend::Only(PathKind::Gds) {
        let tensor = SaveTensor::new("of.the.host", Dtype::U8, [8], host.as_slice()).unwrap();
        let refusal = bed.saver().save([tensor], &path).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Unavailable, "{refusal}");
        assert!(refusal.to_string().contains("of.the.host"), "{refusal}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"the old one");
    assert_eq!(bed.names(), ["model.safetensors"]);
}

pub(crate) fn a_cancelled_save_leaves_nothing(bed: &Bed) {
    let path = bed.path("model.safetensors");
    fs::write(&path, "the old one").unwrap();
    let token = CancelToken::new();
    let stop = token.clone();
    let saver = bed.saver().threads(1).slots(1).cancel(token).on_progress(move |progress| {
        if progress.bytes_done > 100_000 {
            stop.cancel();
        }
    });
    let error = saver.save(bed.tensors(&[Described::new("w", Dtype::U8, &[1_000_000])]), &path).unwrap_err();
    assert!(
        matches!(error, SaveError::Cancelled { written, planned: 1_000_000 } if written > 100_000 && written < 1_000_000),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"the old one");
    assert_eq!(bed.names(), ["model.safetensors"]);
}
