//! Dtypes, shapes, lengths, metadata.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_loader::format::Dtype;
use gds_loader::{Backend, Loader, PathKind, SaveTensor};
use test_support::fixture::File;

use crate::bed::{Bed, Described, metadata};
use crate::oracle;

pub(crate) fn every_dtype_and_shape(bed: &Bed) {
    let mut tensors = Vec::new();
    for dtype in Dtype::ALL {
        let shapes: &[&[u64]] = if dtype.bits() < 8 {
            &[&[8], &[3, 16], &[0], &[1, 2, 4, 8]]
        } else {
            &[&[], &[1], &[0], &[3, 0, 2], &[7], &[3, 5], &[33, 31, 2], &[4096]]
        };
        for shape in shapes {
            tensors.push(Described::new(&format!("{dtype}.{shape:?}"), dtype, shape));
        }
    }
    bed.round_trip(&tensors);
}

pub(crate) fn no_tensors_and_empty_ones(bed: &Bed) {
    // GPUDirect Storage, asked for, has nothing to do for no tensors at all.
    if bed.backend != Backend::Only(PathKind::Gds) {
        assert_eq!(bed.round_trip(&[]).bytes, 0);
    }
    bed.round_trip(&[Described::new("nothing", Dtype::F32, &[0]), Described::new("", Dtype::BF16, &[5, 0])]);
}

pub(crate) fn metadata_is_kept(bed: &Bed) {
    let entries = [("format", "pt"), ("note", "\"quotes\" and \u{1F600}"), ("", "")];
    let path = bed.path("model.safetensors");
    let tensors = bed.tensors(&[Described::new("w", Dtype::F32, &[1000])]);
    bed.saver().metadata(entries).save(tensors, &path).unwrap();
    let expected: BTreeMap<String, String> =
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    assert_eq!(metadata(&path), expected);
    let bytes = std::fs::read(&path).unwrap();
    let (_, theirs) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(theirs.metadata().clone().unwrap().into_iter().collect::<BTreeMap<_, _>>(), expected);
}

/// Payloads around sectors, pages, extents, and sectors' remainders.
pub(crate) fn lengths_around_every_unit(bed: &Bed) {
    for unit in [512, 4096, 4096 * 4, 4096 * 12] {
        for len in [unit - 1, unit, unit + 1, unit + 255, unit + 256, unit + 511, unit + 512] {
            bed.round_trip(&[Described::new(&format!("t{len}"), Dtype::U8, &[len])]);
        }
    }
    // One of each in one file.
    let lens = [1, 511, 512, 4095, 4096, 4097, 16_384, 65_537, 100_000];
    let tensors: Vec<Described> =
        lens.iter().map(|&len| Described::new(&format!("t{len}"), Dtype::I8, &[len])).collect();
    bed.round_trip(&tensors);
}

pub(crate) fn many_tiny_tensors(bed: &Bed) {
    let tensors: Vec<Described> =
        (0..500).map(|k| Described::new(&format!("layer.{k}.scale"), Dtype::BF16, &[k % 7])).collect();
    bed.round_trip(&tensors);
}

pub(crate) fn a_model_that_was_loaded(bed: &Bed) {
    let source = bed.path("source.safetensors");
    let file = File::new()
        .tensor("odd", "I8", &[4097])
        .tensor("wide", "F32", &[64, 300])
        .tensor("scalar", "F64", &[])
        .metadata("format", "pt");
    file.write(&source);
    let model = Loader::new().device(bed.device.clone()).load(&source).unwrap();
    let path = bed.path("model.safetensors");
    let report = bed.saver().metadata([("step", "7")]).save_model(&model, &path).unwrap();
    assert_eq!(report.bytes, model.report().bytes);
    assert!(oracle::of_file(&path) == oracle::of_file(&source));
    assert_eq!(metadata(&path), [("format", "pt"), ("step", "7")].map(|(k, v)| (k.into(), v.into())).into());
}

/// Where every byte of the old file may still be needed.
pub(crate) fn over_the_file_it_was_loaded_from(bed: &Bed) {
    let path = bed.path("model.safetensors");
    let other = bed.path("hard-link.safetensors");
    File::new().tensor("a", "F32", &[64, 300]).tensor("b", "U8", &[5000]).write(&path);
    std::fs::hard_link(&path, &other).unwrap();
    let old = oracle::of_file(&path);
    let model = Loader::new().device(bed.device.clone()).load(&path).unwrap();
    let mapped = std::fs::File::open(&path).unwrap();
    bed.saver().save(model.tensors().map(SaveTensor::from).take(1), &path).unwrap();
    let new = oracle::of_file(&path);
    assert_eq!(new.len(), 1);
    assert!(new["a"] == old["a"]);
    // Who had the old file open, or another name of it, has it still.
    assert!(oracle::of_file(&other) == old);
    assert_eq!(mapped.metadata().unwrap().len(), other.metadata().unwrap().len());
}

pub(crate) fn progress_adds_up(bed: &Bed) {
    let tensors = [Described::new("a", Dtype::F32, &[30_000]), Described::new("b", Dtype::U8, &[1])];
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let saver = bed.saver().on_progress(move |progress| {
        assert_eq!(progress.bytes_total, 120_001);
        seen.fetch_max(progress.bytes_done, Ordering::Relaxed);
    });
    saver.save(bed.tensors(&tensors), bed.path("model.safetensors")).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), 120_001);
}
