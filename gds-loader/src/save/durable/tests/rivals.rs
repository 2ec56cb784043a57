//! Savers and readers of one path, at once: processes, since what tells dead savers from living ones is theirs.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::super::{Durability, Kernel, Publication, Target};
use super::checkpoint::{Checkpoint, Found, find, names};
use super::scenario::root;

const SAVES: usize = 100;

/// In a child: saves many times, always the same fill. Elsewhere nothing.
#[test]
fn saver() {
    let Ok(job) = std::env::var("GDS_SAVE_RIVAL") else { return };
    let [kind, path, fill] = job.split('|').collect::<Vec<_>>().try_into().unwrap();
    let checkpoint = Checkpoint { fill: fill.parse().unwrap(), shards: 2, tensor: 5000 };
    for _ in 0..SAVES {
        let saved = match kind {
            "file" => checkpoint.save_file(Arc::new(Kernel), Path::new(path), Durability::Full),
            _ => checkpoint.save_set(Arc::new(Kernel), Path::new(path), Durability::Full),
        };
        saved.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn spawn(kind: &str, path: &Path, fill: usize) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "save::durable::tests::rivals::saver", "--nocapture"]);
    child.env("GDS_SAVE_RIVAL", format!("{kind}|{}|{fill}", path.display()));
    child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a reader found; none before the first save.
fn read(path: &Path) -> Option<Found> {
    match find(path) {
        Found::Nothing => None,
        found => Some(found),
    }
}

fn compete(kind: &str, savers: usize) {
    let folder = root("save-rivals");
    let checkpoint = folder.path().join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    let path = if kind == "file" { checkpoint.join("model.safetensors") } else { checkpoint };
    let shards = if kind == "file" { 1 } else { 2 };
    let mut children: Vec<_> = (1..=savers).map(|fill| spawn(kind, &path, fill)).collect();
    let mut reads = 0;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        match read(&path) {
            Some(Found::Whole { fill, tensors }) => {
                assert!((1..=savers).contains(&usize::from(fill)), "a fill of {fill}");
                assert_eq!(tensors, 2 * shards);
                reads += 1;
            }
            Some(other) => panic!("{kind}: {other:?}"),
            None => assert_eq!(reads, 0, "the {kind} was not there"),
        }
    }
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    eprintln!("{savers} savers of a {kind}: {reads} reads");
    assert!(reads > 0);
    let Found::Whole { .. } = find(&path) else { panic!("{:?}", find(&path)) };
    // Whoever was last found the others alive and left what was theirs; with them gone, nothing is left over.
    let last = Checkpoint { fill: 99, shards: 2, tensor: 5000 };
    let saved = match kind {
        "file" => last.save_file(Arc::new(Kernel), &path, Durability::Full),
        _ => last.save_set(Arc::new(Kernel), &path, Durability::Full),
    };
    saved.unwrap();
    let folder = if kind == "file" { path.parent().unwrap() } else { &path };
    assert_eq!(names(folder).len(), if kind == "file" { 1 } else { 3 }, "{:?}", names(folder));
}

#[test]
fn one_of_two_savers_of_a_file_wins_whole() {
    compete("file", 2);
}

#[test]
fn one_of_eight_savers_of_a_file_wins_whole() {
    compete("file", 8);
}

#[test]
fn one_of_two_savers_of_a_set_wins_whole() {
    compete("set", 2);
}

#[test]
fn one_of_eight_savers_of_a_set_wins_whole() {
    compete("set", 8);
}

#[test]
fn a_living_savers_files_are_left_alone() {
    let folder = root("save-rivals");
    let path = folder.path().join("model.safetensors");
    let mut slow =
        Publication::begin(Arc::new(Kernel), Target::File(path.clone()), Durability::Full).unwrap();
    let parts = Checkpoint::new(1, 1).parts(0).concat();
    let file = slow.create(0, parts.len() as u64).unwrap();
    Checkpoint::new(2, 1).save_file(Arc::new(Kernel), &path, Durability::Full).unwrap();
    assert_eq!(names(folder.path()).len(), 2, "the slow saver's file is still there");
    file.write_all_at(&parts, 0).unwrap();
    slow.commit(&|_| Vec::new()).unwrap();
    assert_eq!(find(&path), Found::file(Checkpoint::new(1, 1)));
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

#[test]
fn a_save_that_is_given_up_leaves_nothing() {
    let folder = root("save-rivals");
    let made = folder.path().join("checkpoint");
    let shards = Checkpoint::new(1, 2).names();
    let target = Target::Set { folder: made.clone(), index: super::checkpoint::INDEX.to_owned(), shards };
    let mut publication = Publication::begin(Arc::new(Kernel), target, Durability::Full).unwrap();
    let file = publication.create(1, 100).unwrap();
    assert_eq!(names(&made).len(), 1);
    drop(publication);
    assert_eq!(names(folder.path()), Vec::<String>::new(), "even the folder was made for it");
    // Whoever still holds the file writes to what has no name.
    file.write_all_at(&[1], 0).unwrap();
    assert_eq!(file.len(), 100);
}
