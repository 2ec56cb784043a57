//! Random legal models, by random sizes of everything.

use gds_loader::format::Dtype;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use test_support::fixture::File;

use crate::bed::Bed;
use crate::oracle;

/// A model's shards and how it is loaded.
#[derive(Clone, Debug)]
struct Case {
    /// Each tensor's dtype, its length in eights of elements, and whether it is a scalar.
    shards: Vec<Vec<(Dtype, u64)>>,
    padding: usize,
    data_alignment: usize,
    threads: usize,
    slots: usize,
    read_pages: u64,
    slot_extra: u64,
    alignment: u64,
    /// Loads only tensors whose number ends with this digit.
    selected: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let eights = prop_oneof![4 => 0_u64..8, 4 => 8_u64..600, 1 => 600_u64..12_000];
    let tensor = (prop::sample::select(Dtype::ALL.to_vec()), eights);
    let shard = prop::collection::vec(tensor, 0..14);
    let model = (prop::collection::vec(shard, 1..4), 0_usize..9, prop::sample::select(vec![1, 8, 512, 4096]));
    let sizes = (1_usize..5, 1_usize..7, 1_u64..6, 0_u64..20_000);
    let choice = (prop::sample::select(vec![1, 16, 256, 4096]), prop::option::weighted(0.3, 0_usize..4));
    (model, sizes, choice).prop_map(|(model, sizes, choice)| {
        let (shards, padding, data_alignment) = model;
        let (threads, slots, read_pages, slot_extra) = sizes;
        let (alignment, selected) = choice;
        Case { shards, padding, data_alignment, threads, slots, read_pages, slot_extra, alignment, selected }
    })
}

/// On this bed, some dozens of cases; the others get others.
pub(crate) fn legal_models_by_any_sizes(bed: &Bed) {
    let cases = if bed.device.is_cuda() { 8 } else { 24 };
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
    let mut paths = Vec::new();
    let mut number = 0;
    for (index, shard) in case.shards.iter().enumerate() {
        let mut file = File::new().data_alignment(case.data_alignment).padding(case.padding);
        for (dtype, eights) in shard {
            // Any 8 elements are whole bytes; of whole-byte types any number is.
            let elements = if dtype.bits() < 8 { eights * 8 } else { eights * 8 + eights % 5 };
            file = file.tensor(&format!("tensor.{number}"), dtype.as_str(), &[elements]);
            number += 1;
        }
        let path =
            folder.path().join(format!("model-{:05}-of-{:05}.safetensors", index + 1, case.shards.len()));
        file.write(&path);
        paths.push(path);
    }
    let mut expected = oracle::of_files(&paths);
    let read_size = case.read_pages * 4096;
    let mut loader = bed
        .loader()
        .threads(case.threads)
        .slots(case.slots)
        .read_size(read_size)
        .slot_size(read_size + case.slot_extra)
        .alignment(case.alignment);
    if let Some(digit) = case.selected {
        expected.retain(|name, _| name.ends_with(&digit.to_string()));
        if expected.is_empty() {
            return;
        }
        loader = loader.tensors([format!("*{digit}")]).unwrap();
    }
    bed.load(&loader, folder.path(), &expected);
}
