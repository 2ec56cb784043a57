//! What a folder means is a function of its names and headers: checked against a model that tries every rule by brute force.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::collections::{BTreeMap, BTreeSet};

use format_support::{vectors, write};
use gds_loader::source::{Source, SourceError};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const FILES: [&str; 12] = [
    "model.safetensors",
    "other.safetensors",
    "consolidated.safetensors",
    "consolidated.00.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "part-1-of-1.safetensors",
    ".hidden.safetensors",
    "notes.txt",
];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone)]
struct Folder {
    files: BTreeMap<&'static str, Vec<&'static str>>,
    index: Option<BTreeMap<&'static str, &'static str>>,
}

fn folders() -> impl Strategy<Value = Folder> {
    let sets = prop_oneof![
        subsequence(FILES.to_vec(), 0..4),
        subsequence(vec![FILES[4], FILES[5]], 1..=2),
        subsequence(vec![FILES[6], FILES[7], FILES[8]], 2..=3),
        subsequence(vec![FILES[0], FILES[1]], 1..=2),
    ];
    let tensors = prop_oneof![
        3 => subsequence(NAMES.to_vec(), 1..=1),
        1 => subsequence(NAMES.to_vec(), 0..=2),
    ];
    let files = sets.prop_flat_map(move |files| {
        let count = files.len();
        (Just(files), prop::collection::vec(tensors.clone(), count))
    });
    files.prop_flat_map(|(files, tensors)| {
        let files = files.into_iter().zip(tensors).collect::<BTreeMap<_, _>>();
        // An index that is true, and then perhaps changed in one place.
        let truth = files
            .iter()
            .flat_map(|(&file, names)| names.iter().map(move |&name| (name, file)))
            .collect::<BTreeMap<_, _>>();
        let change = prop::option::of((select(NAMES.to_vec()), select(FILES.to_vec())));
        let index = change.prop_map(move |change| {
            let mut index = truth.clone();
            index.extend(change);
            index
        });
        prop::option::of(index).prop_map(move |index| Folder { files: files.clone(), index })
    })
}

/// The tensors that are meant with their files, or the kind of the error.
type Meaning = Result<BTreeMap<String, String>, &'static str>;

fn model(folder: &Folder) -> Meaning {
    let holds = |file: &str, name: &str| folder.files.get(file).is_some_and(|names| names.contains(&name));
    if let Some(index) = &folder.index {
        if index.is_empty() {
            return Err("index");
        }
        if index.values().any(|file| !folder.files.contains_key(file) || !file.ends_with(".safetensors")) {
            return Err("shards");
        }
        if index.iter().any(|(name, file)| !holds(file, name)) {
            return Err("absent");
        }
        return Ok(index.iter().map(|(name, file)| (name.to_string(), file.to_string())).collect());
    }
    let files = folder.files.keys().filter(|file| file.ends_with(".safetensors") && !file.starts_with('.'));
    let files = files.copied().collect::<BTreeSet<_>>();
    let set_of = |file: &str| match file {
        _ if file.contains("-of-00002") => "two",
        _ if file.contains("-of-00003") => "three",
        _ if file.contains("-of-1") => "one",
        _ if file.starts_with("consolidated") => "consolidated",
        _ => "plain",
    };
    let sets = files.iter().map(|file| set_of(file)).collect::<BTreeSet<_>>();
    match (sets.len(), sets.first()) {
        (0, _) => return Err("none"),
        (1, Some(&"two")) if files.len() != 2 => return Err("incomplete"),
        (1, Some(&"three")) if files.len() != 3 => return Err("incomplete"),
        (1, _) => {}
        _ => return Err("ambiguous"),
    }
    let mut meaning = BTreeMap::new();
    for file in files {
        for name in &folder.files[file] {
            if meaning.insert(name.to_string(), file.to_string()).is_some() {
                return Err("duplicate");
            }
        }
    }
    Ok(meaning)
}

fn resolved(folder: &Folder) -> Meaning {
    let root = tempfile::tempdir().unwrap();
    for (file, names) in &folder.files {
        let bytes = if *file == "notes.txt" { b"some notes".to_vec() } else { vectors(names, 1) };
        write(root.path().join(file), bytes);
    }
    if let Some(index) = &folder.index {
        let text = serde_json::json!({ "weight_map": index }).to_string();
        write(root.path().join("model.safetensors.index.json"), text);
    }
    match Source::open(root.path()) {
        Ok(source) => {
            for &tensor in &source.tensors {
                assert_eq!(source.find(&source.entry(tensor).name), Some(tensor));
            }
            let file = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            Ok(source.iter().map(|(shard, entry)| (entry.name.to_string(), file(&shard.path))).collect())
        }
        Err(error) => Err(match error {
            SourceError::Index { .. } => "index",
            SourceError::Shards { .. } => "shards",
            SourceError::AbsentTensors { .. } => "absent",
            SourceError::NoWeights { .. } => "none",
            SourceError::Incomplete { .. } => "incomplete",
            SourceError::Ambiguous { .. } => "ambiguous",
            SourceError::DuplicateTensors { .. } => "duplicate",
            other => panic!("{other}"),
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn folders_mean_what_the_model_says(folder in folders()) {
        prop_assert_eq!(resolved(&folder), model(&folder));
    }
}
