//! Sets: shards and their index.

use std::fs;
use std::path::PathBuf;

use gds_loader::Loader;
use gds_loader::format::Dtype;
use serde_json::Value;

use crate::bed::{Bed, Described, names};

fn tensors(count: u64) -> Vec<Described> {
    (0..count).map(|k| Described::new(&format!("layer.{k}.weight"), Dtype::F32, &[100 + k, 10])).collect()
}

fn index(folder: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("model.safetensors.index.json")).unwrap()).unwrap()
}

/// The files that the index names.
fn shards(folder: &std::path::Path) -> Vec<PathBuf> {
    let index = index(folder);
    let names = index["weight_map"].as_object().unwrap().values();
    let mut names: Vec<&str> = names.map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| folder.join(name)).collect()
}

pub(crate) fn a_set_with_its_index(bed: &Bed) {
    let folder = bed.path("set");
    let mut described = tensors(5);
    described.push(Described::new("larger.than.a.shard", Dtype::U8, &[20_000]));
    described.push(Described::new("last", Dtype::U8, &[3]));
    let saver = bed.saver().metadata([("format", "pt")]).shard_size(9000);
    let report = saver.save(bed.tensors(&described), &folder).unwrap();
    let files = shards(&folder);
    assert_eq!(files.len(), 5);
    assert!(files.iter().all(|file| crate::bed::metadata(file)["format"] == "pt"));
    bed.check(&report, &described, &files);
    assert_eq!(names(&folder)[..2], ["model-00001-of-00005.safetensors", "model-00002-of-00005.safetensors"]);
    assert_eq!(index(&folder)["metadata"]["total_size"], report.bytes);
    assert_eq!(index(&folder)["weight_map"]["larger.than.a.shard"], "model-00004-of-00005.safetensors");

    let model = Loader::new().device(bed.device.clone()).load(&folder).unwrap();
    assert_eq!((model.len(), model.report().files), (7, 5));
}

/// A folder means a set, of one shard where no size was given.
pub(crate) fn a_set_over_a_set(bed: &Bed) {
    let folder = bed.path("set");
    bed.saver().shard_size(5000).save(bed.tensors(&tensors(5)), &folder).unwrap();
    let old = shards(&folder);
    let described = [Described::new("other", Dtype::BF16, &[77])];
    let report = bed.saver().save(bed.tensors(&described), &folder).unwrap();
    let new = shards(&folder);
    bed.check(&report, &described, &new);
    assert_eq!(new.len(), 1);
    assert!(old.iter().all(|old| !old.exists() || new.contains(old)), "old shards are left");
    assert_eq!(names(&folder).len(), 2, "{:?}", names(&folder));
}
