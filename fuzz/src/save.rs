//! Saves: any tensors, written by any path in any sizes, are what the `safetensors` crate reads.

use std::collections::BTreeMap;
use std::fs;

use arbitrary::{Result, Unstructured};
use gds_loader::format::Index;
use gds_loader::{Backend, Durability, PathKind, SaveError, SaveTensor, Saver};
use safetensors::SafeTensors;

use crate::model::{Model, Tensor};
use crate::scratch;

/// An input that is too short for a case is none.
pub fn run(data: &[u8]) {
    let _short = saved(&mut Unstructured::new(data));
}

fn saved(u: &mut Unstructured<'_>) -> Result<()> {
    let direct = u.arbitrary()?;
    let kind = if direct { PathKind::Direct } else { PathKind::Buffered };
    let mut saver = Saver::new().backend(Backend::Only(kind)).durability(Durability::None);
    saver = saver.threads(u.int_in_range(1..=4)?).slots(u.int_in_range(1..=6)?);
    saver = saver.slot_size(4096 * u.int_in_range(1..=40)?);
    let shards = u.arbitrary()?;
    if shards {
        saver = saver.shard_size(u.int_in_range(1..=300_000)?);
    }
    let model = Model::arbitrary(u)?;
    let folder = tempfile::tempdir_in(scratch::on_disk()).unwrap();
    let path = folder.path().join(if shards { "set" } else { "model.safetensors" });
    let bytes: Vec<Vec<u8>> = model.tensors.iter().map(Tensor::bytes).collect();
    let tensors = model.tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        SaveTensor::new(tensor.name.clone(), tensor.dtype, tensor.shape.clone(), bytes.as_slice()).unwrap()
    });
    match saver.metadata(model.metadata.clone()).save(tensors.collect::<Vec<_>>(), &path) {
        Ok(_) => assert!(!shards || !model.tensors.is_empty(), "an index that names no tensor"),
        // Refused: readers want an index to name something.
        Err(SaveError::Option { option: "shard-size", .. }) if shards && model.tensors.is_empty() => {
            return Ok(());
        }
        Err(error) if matches!(error.kind(), gds_loader::ErrorKind::Unavailable) && direct => {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| eprintln!("could not run: saves by direct I/O: {error}"));
            return Ok(());
        }
        Err(error) => panic!("{error}: {}", chain(&error)),
    }
    let mut expected: BTreeMap<&str, (&Tensor, &[u8])> = model
        .tensors
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| (&*tensor.name, (tensor, bytes.as_slice())))
        .collect();
    if shards {
        let index = fs::read(path.join("model.safetensors.index.json")).unwrap();
        let index = Index::parse(&index).unwrap();
        let mut named: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in index.tensors() {
            named.entry(&index.files()[file]).or_default().push(tensor);
        }
        for (file, tensors) in named {
            let bytes = fs::read(path.join(file)).unwrap();
            assert_eq!(compare(&bytes, &model.metadata, &mut expected), tensors.len());
        }
    } else {
        compare(&fs::read(&path).unwrap(), &model.metadata, &mut expected);
    }
    assert!(expected.is_empty(), "not saved: {:?}", expected.keys());
    Ok(())
}

/// Takes from `expected` what the file has, which must be the same; how many tensors that are.
fn compare(
    bytes: &[u8],
    metadata: &BTreeMap<String, String>,
    expected: &mut BTreeMap<&str, (&Tensor, &[u8])>,
) -> usize {
    let (_, read) = SafeTensors::read_metadata(bytes).expect("what was saved is read");
    assert_eq!(
        read.metadata().clone().unwrap_or_default().into_iter().collect::<BTreeMap<_, _>>(),
        *metadata
    );
    let found = SafeTensors::deserialize(bytes).expect("what was saved is read");
    for (name, view) in found.iter() {
        let (tensor, bytes) = expected.remove(name).expect("a tensor that was to be saved, once");
        let shape: Vec<u64> = view.shape().iter().map(|&dimension| dimension as u64).collect();
        assert_eq!((view.dtype().to_string(), &shape), (tensor.dtype.to_string(), &tensor.shape));
        assert_eq!(view.data(), bytes, "{name:?}");
    }
    found.len()
}

fn chain(error: &SaveError) -> String {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
        .map(|cause| format!("{cause}; "))
        .collect()
}
