//! Random tensors, by random sizes of everything, some in host memory.

use gds_loader::format::Dtype;
use gds_loader::{Backend, PathKind, SaveTensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bed::{Bed, Described};
use crate::oracle;

#[derive(Clone, Debug)]
struct Case {
    /// Each tensor's dtype, its length in eights of elements, and whether it is in host memory.
    tensors: Vec<(Dtype, u64, bool)>,
    threads: usize,
    slots: usize,
    pages: u64,
    shard_size: Option<u64>,
    metadata: String,
}

fn case() -> impl Strategy<Value = Case> {
    let eights = prop_oneof![4 => 0_u64..8, 4 => 8_u64..600, 1 => 600_u64..12_000];
    let tensor = (prop::sample::select(Dtype::ALL.to_vec()), eights, prop::bool::weighted(0.2));
    let tensors = prop::collection::vec(tensor, 1..16);
    (tensors, 1_usize..5, 1_usize..7, 1_u64..6, prop::option::of(1_u64..200_000), ".{0,40}").prop_map(
        |(tensors, threads, slots, pages, shard_size, metadata)| Case {
            tensors,
            threads,
            slots,
            pages,
            shard_size,
            metadata,
        },
    )
}

/// On this bed, some dozens of cases; the others get others.
pub(crate) fn any_tensors_by_any_sizes(bed: &Bed) {
    let cases = if bed.device.is_cuda() { 10 } else { 30 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case(), |case| {
            check(bed, &case);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn check(bed: &Bed, case: &Case) {
    let folder = tempfile::tempdir_in(bed.path("")).unwrap();
    let described: Vec<Described> = case
        .tensors
        .iter()
        .enumerate()
        .map(|(number, (dtype, eights, _))| {
            // Any 8 elements are whole bytes; of whole-byte types any number is.
            let elements = if dtype.bits() < 8 { eights * 8 } else { eights * 8 + eights % 5 };
            Described::new(&format!("tensor.{number}"), *dtype, &[elements])
        })
        .collect();
    let host: Vec<Vec<u8>> = described.iter().map(Described::bytes).collect();
    // GPUDirect Storage, asked for, takes no bytes of the host.
    let mixed = bed.backend != Backend::Only(PathKind::Gds);
    let tensors = bed.tensors(&described).into_iter().enumerate().map(|(k, tensor)| {
        let Described { name, dtype, shape } = &described[k];
        match case.tensors[k].2 && mixed {
            true => SaveTensor::new(name.as_str(), *dtype, shape.clone(), host[k].as_slice()).unwrap(),
            false => tensor,
        }
    });
    let saver = bed.saver().threads(case.threads).slots(case.slots).slot_size(case.pages * 4096);
    let saver = saver.metadata([("note", case.metadata.as_str())]);
    let (saver, path) = match case.shard_size {
        Some(bytes) => (saver.shard_size(bytes), folder.path().to_owned()),
        None => (saver, folder.path().join("model.safetensors")),
    };
    let report = saver.save(tensors, &path).unwrap();
    let names = crate::bed::names(folder.path());
    let files: Vec<_> = names
        .iter()
        .filter(|name| name.ends_with(".safetensors"))
        .map(|name| folder.path().join(name))
        .collect();
    bed.check(&report, &described, &files);
    assert_eq!(oracle::of_files(&files).len(), described.len());
}
