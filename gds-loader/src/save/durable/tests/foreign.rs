//! What others put into a folder before a save, or while it writes: indexes, files, locks.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::super::{Durability, Kernel, Publication, PublishError, Synced, Target};
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

/// Hours may lie between the first look at a folder and the last.
#[test]
fn a_file_is_not_published_beside_an_index_that_came_meanwhile() {
    let folder = root("save-index-meanwhile");
    let path = folder.path().join("model.safetensors");
    let mut slow = Publication::begin(Arc::new(Kernel), Target::File(path), Durability::Full).unwrap();
    let bytes = Checkpoint::new(1, 1).parts(0).concat();
    slow.create(0, bytes.len() as u64).unwrap().write_all_at(&bytes, 0).unwrap();
    save_set(2, folder.path()).unwrap();
    let error = slow.commit(&|_| Vec::new()).unwrap_err();
    assert!(matches!(&error, PublishError::Indexed { index, .. } if index == INDEX), "{error}");
    assert_eq!((names(folder.path()).len(), find(folder.path())), (3, Found::set(Checkpoint::new(2, 2))));
}

/// Takes the folder's lock, as flock(1) does.
fn hold(folder: &Path) -> File {
    let file = File::open(folder).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

/// Whoever may read a folder may take its lock.
#[test]
fn a_lock_that_no_saver_holds_neither_stalls_nor_fails_a_save() {
    let folder = root("save-lock-foreign");
    let start = Instant::now();
    let _held = hold(folder.path());
    let file = Checkpoint::new(1, 1);
    file.save_file(Arc::new(Kernel), &folder.path().join("model.safetensors"), Durability::Full).unwrap();
    assert_eq!(find(folder.path()), Found::file(file));
    save_set(2, folder.path()).unwrap();
    assert_eq!((names(folder.path()).len(), find(folder.path())), (3, Found::set(Checkpoint::new(2, 2))));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_lock_is_waited_for_where_another_save_is_under_way() {
    let folder = root("save-lock-rival");
    let rival = Target::File(folder.path().join("other.safetensors"));
    let mut rival = Publication::begin(Arc::new(Kernel), rival, Durability::Full).unwrap();
    let _living = rival.create(0, 100).unwrap();
    let held = hold(folder.path());
    let is_free = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(3));
            is_free.store(true, Ordering::SeqCst);
            drop(held);
        });
        save_set(1, folder.path()).unwrap();
        assert!(is_free.load(Ordering::SeqCst), "it went on while another might be publishing");
    });
}

/// Shards beside such a file would change what the folder means before the new index does.
#[test]
fn a_meaning_that_no_index_can_say_is_not_replaced() {
    for name in [&b"a\\b.safetensors"[..], b"m\xff.safetensors"] {
        let folder = root("save-unsayable");
        let snapshot = folder.path().join("snapshots/main");
        fs::create_dir_all(&snapshot).unwrap();
        Checkpoint::new(1, 1).write_file(&snapshot.join(OsStr::from_bytes(name)));
        let error = save_set(2, folder.path()).unwrap_err();
        assert!(matches!(&error, PublishError::Unsayable { .. }), "{error}");
        assert!(error.to_string().contains("save to a folder of its own"), "{error}");
        assert_eq!(find(folder.path()), Found::file(Checkpoint::new(1, 1)));
        assert_eq!(names(folder.path()), ["snapshots"]);
    }
}
