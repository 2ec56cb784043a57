//! Symbolic links, the Hugging Face cache, and things that are no regular files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use format_support::{vectors, write};
use gds_loader::source::{Source, SourceError};
use tempfile::TempDir;

const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository of the cache with two shards and an index, all of them links into `blobs`.
fn cache() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let repository = root.path().join("models--org--name");
    let snapshot = repository.join("snapshots").join(REVISION);
    for folder in [&repository.join("blobs"), &repository.join("refs"), &snapshot] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let index =
        r#"{"weight_map":{"x":"model-00001-of-00002.safetensors","y":"model-00002-of-00002.safetensors"}}"#;
    for (blob, name, bytes) in [
        ("aa", "model-00001-of-00002.safetensors", vectors(&["x"], 1)),
        ("bb", "model-00002-of-00002.safetensors", vectors(&["y"], 2)),
        ("cc", "model.safetensors.index.json", index.into()),
    ] {
        write(repository.join("blobs").join(blob), bytes);
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    write(repository.join("refs/main"), REVISION);
    (root, repository)
}

#[test]
fn a_snapshot_loads_by_every_name_it_has() {
    let (_root, repository) = cache();
    let snapshot = repository.join("snapshots").join(REVISION);
    let index = snapshot.join("model.safetensors.index.json");
    for path in [&repository, &snapshot, &index] {
        let source = Source::open(path).unwrap();
        assert_eq!(source.tensors.len(), 2, "{}", path.display());
        assert!(
            source.shards.iter().all(|shard| shard.path.starts_with(&snapshot)),
            "names stay those of the snapshot"
        );
    }
    let single = Source::open(snapshot.join("model-00001-of-00002.safetensors")).unwrap();
    assert_eq!(single.tensors.len(), 1);
    std::fs::remove_file(&index).unwrap();
    assert_eq!(Source::open(&snapshot).unwrap().tensors.len(), 2, "without an index, the links' names count");
}

#[test]
fn the_reference_of_a_repository_decides() {
    let (_root, repository) = cache();
    std::fs::create_dir(repository.join("snapshots/other")).unwrap();
    assert_eq!(Source::open(&repository).unwrap().tensors.len(), 2);
    for (reference, problem) in
        [("other2", "no snapshot"), ("", "no revision"), ("../../etc", "no revision"), ("a/b", "no revision")]
    {
        write(repository.join("refs/main"), reference);
        let message = Source::open(&repository).unwrap_err().to_string();
        assert!(message.contains(problem), "{message}");
    }
    std::fs::remove_file(repository.join("refs/main")).unwrap();
    let message = Source::open(&repository).unwrap_err().to_string();
    assert!(message.contains("other") && message.contains(REVISION), "{message}");
    std::fs::remove_dir(repository.join("snapshots/other")).unwrap();
    assert_eq!(Source::open(&repository).unwrap().tensors.len(), 2, "the only snapshot needs no reference");
}

#[test]
fn dangling_links_name_link_and_target() {
    let (_root, repository) = cache();
    let snapshot = repository.join("snapshots").join(REVISION);
    std::fs::remove_file(repository.join("blobs/bb")).unwrap();
    let link = snapshot.join("model-00002-of-00002.safetensors");
    for path in [&snapshot, &link] {
        let error = Source::open(path).unwrap_err();
        assert!(error.is_invalid_data());
        let message = error.to_string();
        assert!(message.contains(link.to_str().unwrap()) && message.contains("../../blobs/bb"), "{message}");
    }
    match Source::open(&link).unwrap_err() {
        SourceError::DanglingLink { link: named, target } => {
            assert_eq!((named, target), (link, PathBuf::from("../../blobs/bb")));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn links_that_lead_back_to_themselves_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    symlink("b.safetensors", &a).unwrap();
    symlink("a.safetensors", &b).unwrap();
    match Source::open(&a).unwrap_err() {
        SourceError::LinkLoop { link, target } => {
            assert_eq!((link, target), (a, PathBuf::from("b.safetensors")))
        }
        other => panic!("{other}"),
    }
    let message = Source::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("2 of 2 files"), "{message}");
}

/// Opens `path` on a thread of its own, so that an open that blocks fails the test instead of hanging it.
fn open_in_time(path: &Path) -> SourceError {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || sender.send(Source::open(path).map(|source| source.tensors.len())));
    receiver.recv_timeout(Duration::from_secs(10)).unwrap().unwrap_err()
}

#[test]
fn what_is_no_regular_file_is_refused_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    symlink("pipe", at("link.safetensors")).unwrap();
    for (path, kind) in [
        (at("pipe"), "a named pipe"),
        (at("link.safetensors"), "a named pipe"),
        (at("socket"), "a socket"),
        ("/dev/null".into(), "a device"),
        ("/dev/zero".into(), "a device"),
    ] {
        match open_in_time(&path) {
            SourceError::NotAFile { path: named, found } => assert_eq!((named, found), (path, kind)),
            other => panic!("{other}"),
        }
    }
    // Inside a folder, too.
    assert!(open_in_time(folder.path()).to_string().contains("a named pipe"));
}

#[test]
fn a_folder_with_the_name_of_a_shard_is_no_shard() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("x.safetensors")).unwrap();
    let message = Source::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("expected a regular file, found a folder"), "{message}");
}

/// Set in the child that opens a path with the rights of nobody.
const CHILD: &str = "GDS_TEST_OPEN_AS_NOBODY";
const NOBODY: u32 = 65534;

#[test]
fn files_and_folders_without_permission_are_io_errors() {
    if let Ok(path) = std::env::var(CHILD) {
        let error = Source::open(path).unwrap_err();
        println!("refused, invalid data {}: {error}", error.is_invalid_data());
        return;
    }
    // Root may read everything, so a child gives its rights up; others are refused already.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let file = write(folder.path().join("x.safetensors"), vectors(&["x"], 1));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o000)).unwrap();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();

    for path in [file, closed.join("x.safetensors"), closed] {
        let mut child = Command::new(&program);
        child.args(["--exact", "files_and_folders_without_permission_are_io_errors", "--nocapture"]);
        child.env(CHILD, &path).current_dir("/");
        if rustix::process::geteuid().is_root() {
            child.uid(NOBODY).gid(NOBODY);
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("refused, invalid data false"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.contains(path.to_str().unwrap()) && text.contains("Permission denied"), "{text}");
    }
}
