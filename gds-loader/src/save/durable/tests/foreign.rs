//! What others put into a folder before a save, or while it writes: indexes, files, locks.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use super::super::{Durability, Kernel, PublishError, Synced};
use super::checkpoint::{Checkpoint, Found, INDEX, find, names};
use super::scenario::root;

fn save_set(fill: u8, folder: &Path) -> Result<Synced, PublishError> {
    Checkpoint::new(fill, 2).save_set(Arc::new(Kernel), folder, Durability::Full)
}

/// Whoever wrote the index may have written anything into it.
#[test]
fn an_index_has_nothing_removed_but_visible_safetensors() {
    let folder = root("save-index-hostile");
    let path = |name: &str| folder.path().join(name);
    let kept = [".bashrc", ".a.safetensors", "config.json", "other.safetensors.index.json", "safetensors"];
    let mut map = serde_json::Map::new();
    for (number, name) in kept.into_iter().chain(["old.safetensors"]).enumerate() {
        fs::write(path(name), "{\"weight_map\":{\"t\":\"x.safetensors\"}}").unwrap();
        map.insert(format!("t{number}"), name.into());
    }
    fs::write(path(INDEX), serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let synced = save_set(2, folder.path()).unwrap();
    assert_eq!(synced.removed, [path("old.safetensors")]);
    assert_eq!(find(folder.path()), Found::set(Checkpoint::new(2, 2)));
    let mut expected: Vec<_> = kept.map(str::to_owned).into();
    expected.extend(Checkpoint::new(2, 2).names());
    expected.push(INDEX.to_owned());
    expected.sort_unstable();
    assert_eq!(names(folder.path()), expected);
}

/// Readers see files and indexes whose names are no text.
#[test]
fn names_that_are_no_text_count() {
    let folder = root("save-odd-names");
    let odd = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    Checkpoint::new(1, 1).write_file(&odd(b"m\xff.safetensors"));
    let error = save_set(2, folder.path()).unwrap_err();
    assert!(matches!(&error, PublishError::OtherWeights { files, .. } if files.len() == 1), "{error}");
    assert_eq!(find(folder.path()), Found::file(Checkpoint::new(1, 1)));
    fs::remove_file(odd(b"m\xff.safetensors")).unwrap();
    // What another index names stays, whatever that is called.
    Checkpoint::new(1, 1).write_file(&odd(b"model.safetensors"));
    fs::write(odd(b"i\xff.safetensors.index.json"), r#"{"weight_map":{"t0":"model.safetensors"}}"#).unwrap();
    assert_eq!(save_set(2, folder.path()).unwrap().removed, [] as [&Path; 0]);
    assert_eq!(find(folder.path()), Found::set(Checkpoint::new(2, 2)));
    assert_eq!(find(&odd(b"model.safetensors")), Found::file(Checkpoint::new(1, 1)));
}
