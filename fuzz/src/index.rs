//! Indexes: the text is the input, the folder around it is the same every time. What opens is within the folder and as the text says;
//! what is not opened is refused for a reason.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use arbitrary::Unstructured;
use gds_loader::format::Index;
use gds_loader::source::Source;
use serde_json::{Value, json};
use test_support::fixture;

use crate::edit::edit;
use crate::reference::repeats_a_key;
use crate::scratch;

/// The shards of the folder, each with its tensors.
const SHARDS: [(&str, &[&str]); 3] =
    [("a.safetensors", &["x", "y"]), ("b.safetensors", &["y", "z"]), ("part/c.safetensors", &["x", "é"])];

/// The first byte says what the others are: the text of an index, or changes to one that opens.
pub fn run(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        return judge(rest);
    }
    let map =
        SHARDS.into_iter().flat_map(|(file, tensors)| tensors.iter().map(move |tensor| (*tensor, file)));
    // A tensor that two shards have is the first one's.
    let map: BTreeMap<&str, &str> = map.collect::<Vec<_>>().into_iter().rev().collect();
    let index = json!({ "metadata": { "total_size": 12 }, "weight_map": map });
    let mut text = index.to_string().into_bytes();
    if edit(&mut Unstructured::new(rest), &mut text).is_ok() {
        judge(&text);
    }
}

fn judge(data: &[u8]) {
    let expected = weight_map(data);
    match Index::parse(data) {
        Ok(index) => {
            let expected = expected.expect("an index that nothing is wrong with");
            let found: BTreeMap<&str, &str> =
                index.tensors().map(|(tensor, file)| (tensor, &*index.files()[file])).collect();
            let expected: BTreeMap<&str, &str> =
                expected.iter().map(|(tensor, file)| (&**tensor, &**file)).collect();
            assert_eq!(found, expected);
            assert_eq!(index.tensors().len(), expected.len());
            open(data, &expected);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(expected.is_none(), "refused: {error}");
        }
    }
}

/// What an index says, by another reader; none where it must be refused.
fn weight_map(text: &[u8]) -> Option<BTreeMap<String, String>> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let map = value.as_object()?.get("weight_map")?.as_object()?;
    if map.is_empty() || repeats_a_key(text) {
        return None;
    }
    let file = |(tensor, file): (&String, &Value)| {
        let file = file.as_str().filter(|file| stays_below(file))?;
        Some((tensor.clone(), file.to_owned()))
    };
    map.iter().map(file).collect()
}

/// Whether a name leads nowhere but down, however it is read.
fn stays_below(name: &str) -> bool {
    let plain: PathBuf =
        Path::new(name).components().filter(|component| matches!(component, Component::Normal(_))).collect();
    // Nothing was left out, nor was a separator too many.
    plain.as_os_str() == name && !name.is_empty() && !name.contains(['\0', '\\'])
}

/// Opens the index in its folder, which lies beside what must not be opened.
fn open(text: &[u8], expected: &BTreeMap<&str, &str>) {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = scratch::in_memory().join("model");
        fs::create_dir_all(folder.join("part")).unwrap();
        for (name, tensors) in SHARDS {
            let file = tensors.iter().fold(fixture::File::new(), |file, name| file.tensor(name, "U8", &[3]));
            file.write(&folder.join(name));
            file.write(&scratch::in_memory().join(name.replace('/', "-")));
        }
        folder
    });
    let path = FOLDER.join("model.safetensors.index.json");
    fs::write(&path, text).unwrap();
    let files: HashSet<&str> = expected.values().copied().collect();
    let tensors_of = |file: &str| SHARDS.iter().find(|(name, _)| *name == file).map(|(_, tensors)| *tensors);
    let complete = expected
        .iter()
        .all(|(tensor, file)| tensors_of(file).is_some_and(|tensors| tensors.contains(tensor)));
    match Source::open(&path) {
        Ok(source) => {
            assert!(complete, "opened though something is missing");
            assert_eq!(source.shards.len(), files.len());
            for shard in &source.shards {
                assert!(shard.path.canonicalize().unwrap().starts_with(FOLDER.canonicalize().unwrap()));
            }
            assert_eq!(source.tensors.len(), expected.len());
            for (shard, entry) in source.iter() {
                assert_eq!(shard.path, FOLDER.join(expected[&*entry.name]));
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!complete, "not opened: {error}");
        }
    }
}
