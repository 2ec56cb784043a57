//! Saving while the caller goes on.

use std::fs;
use std::time::{Duration, Instant};

use gds_loader::SaveTensor;
use gds_loader::format::Dtype;

use crate::bed::{Bed, Described};
use crate::oracle;

const LEN: u64 = 300_000;

fn described(name: &str) -> Described {
    Described::new(name, Dtype::U8, &[LEN])
}

fn lent(bed: &Bed, name: &str) -> SaveTensor<'static> {
    let memory = bed.memory(&described(name).bytes());
    SaveTensor::new(name, Dtype::U8, [LEN], memory).unwrap()
}

pub(crate) fn memory_comes_back_when_it_is_staged(bed: &Bed) {
    let path = bed.path("model.safetensors");
    let shared = bed.tensors(&[described("shared")]).remove(0);
    let mut saving = bed.saver().start([lent(bed, "a"), shared, lent(bed, "b")], &path);
    let mut back = saving.wait_staged();
    assert!(saving.is_staged());
    assert_eq!(back.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["a", "b"]);
    // It may change from now on.
    for (_, region) in &mut back {
        bed.fill(region, &vec![0; LEN as usize]);
    }
    assert!(saving.wait_staged().is_empty());
    let report = saving.finish().unwrap();
    bed.check(&report, &["a", "shared", "b"].map(described), &[path]);
}

pub(crate) fn memory_comes_back_from_a_save_that_fails(bed: &Bed) {
    let path = bed.path("model.safetensors");
    for (tensors, path) in [
        // Two of a name; no such folder.
        (vec![lent(bed, "a"), lent(bed, "a")], path.clone()),
        (vec![lent(bed, "a")], bed.path("nowhere/model.safetensors")),
    ] {
        let count = tensors.len();
        let mut saving = bed.saver().start(tensors, &path);
        let back = saving.wait_staged();
        assert_eq!(back.len(), count);
        let error = saving.finish().unwrap_err();
        assert!(!error.to_string().is_empty());
        drop(back);
    }
    assert!(bed.names().is_empty());
}

pub(crate) fn a_snapshot_is_not_changed_by_what_follows(bed: &Bed) {
    let path = bed.path("model.safetensors");
    let host = SaveTensor::new("host", Dtype::U8, [3], vec![1, 2, 3]).unwrap();
    let on_host = bed.backend != gds_loader::Backend::Only(gds_loader::PathKind::Gds);
    let tensors = [lent(bed, "a"), lent(bed, "b")].into_iter().chain(on_host.then_some(host));
    let mut saving = bed.saver().snapshot(true).start(tensors, &path);
    assert!(saving.is_staged(), "the copies are all that is needed");
    for (_, mut region) in saving.wait_staged() {
        bed.fill(&mut region, &vec![0; LEN as usize]);
    }
    saving.finish().unwrap();
    let found = oracle::of_file(&path);
    for name in ["a", "b"] {
        assert!(found[name].bytes == described(name).bytes(), "{name}");
    }
    assert_eq!(found.get("host").map(|tensor| tensor.bytes.clone()), on_host.then(|| vec![1, 2, 3]));
}

pub(crate) fn dropped_it_still_saves(bed: &Bed) {
    let path = bed.path("model.safetensors");
    let start = Instant::now();
    drop(bed.saver().start([lent(bed, "a")], &path));
    assert!(start.elapsed() < Duration::from_secs(50));
    assert!(oracle::of_file(&path)["a"].bytes == described("a").bytes());
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}
