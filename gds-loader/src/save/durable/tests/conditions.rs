//! Places and circumstances that a save may meet.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use super::super::{Durability, Kernel, Publication, PublishError, Synced, Target};
use super::checkpoint::{Checkpoint, Found, INDEX, find, names};
use super::faults::Fault;
use super::scenario::{Scenario, root};
use super::tap::{Call, Verdict};

fn save_file(fill: u8, path: &Path) -> Result<Synced, PublishError> {
    Checkpoint::new(fill, 1).save_file(Arc::new(Kernel), path, Durability::Full)
}

fn save_set(fill: u8, folder: &Path) -> Result<Synced, PublishError> {
    Checkpoint::new(fill, 2).save_set(Arc::new(Kernel), folder, Durability::Full)
}

fn filled(fill: u8) -> Found {
    Found::file(Checkpoint::new(fill, 1))
}

#[test]
fn a_report_says_what_was_synced() {
    let folder = root("save-report");
    let path = folder.path().join("a.safetensors");
    let synced = save_file(1, &path).unwrap();
    assert_eq!((synced.files, synced.files_synced, synced.folder_synced), (vec![path.clone()], 1, 1));
    let cached = Checkpoint::new(2, 1).save_file(Arc::new(Kernel), &path, Durability::None).unwrap();
    assert_eq!((cached.durability, cached.files_synced, cached.folder_synced), (Durability::None, 0, 0));
    let set = folder.path().join("set");
    let synced = save_set(1, &set).unwrap();
    assert_eq!((synced.files_synced, synced.folder_synced, synced.removed.len()), (3, 3, 0));
    let synced = save_set(2, &set).unwrap();
    assert_eq!((synced.files_synced, synced.folder_synced, synced.removed.len()), (3, 4, 2));
    assert_eq!(synced.files.last(), Some(&set.join(INDEX)));
    let cached = Checkpoint::new(3, 2).save_set(Arc::new(Kernel), &set, Durability::None).unwrap();
    assert_eq!((cached.files_synced, cached.folder_synced, cached.removed.len()), (0, 0, 2));
    assert_eq!(find(&set), Found::set(Checkpoint::new(3, 2)));
}

/// Nothing is synced where nothing was asked for, and everything is made and renamed all the same.
#[test]
fn without_durability_no_sync_is_called() {
    for scenario in Scenario::ALL {
        let folder = root("save-none");
        scenario.prepare(folder.path());
        let syncs = Fault::new(usize::MAX, Verdict::Go, |call| matches!(call, Call::Sync { .. }));
        scenario.save(folder.path(), syncs.clone(), Durability::None).unwrap();
        assert_eq!((syncs.0.count(), find(&scenario.path(folder.path()))), (0, scenario.after()));
    }
}

#[test]
fn what_is_mapped_or_open_keeps_its_bytes() {
    let folder = root("save-mapped");
    let path = folder.path().join("model.safetensors");
    Checkpoint::new(1, 1).write_file(&path);
    let old = fs::read(&path).unwrap();
    let open = File::open(&path).unwrap();
    // SAFETY: nobody changes the file's bytes, which is what is tested.
    let mapped = unsafe { memmap2::Mmap::map(&open) }.unwrap();
    let alias = folder.path().join("alias.safetensors");
    let other = folder.path().join("other-name");
    symlink("model.safetensors", &alias).unwrap();
    fs::hard_link(&path, &other).unwrap();
    for (fill, by) in [(2, &path), (3, &alias), (4, &folder.path().join("./model.safetensors"))] {
        save_file(fill, by).unwrap();
        assert_eq!(find(&path), filled(fill));
        assert_eq!(find(&alias), filled(fill));
        assert_eq!(&*mapped, &*old);
    }
    let mut bytes = vec![0; old.len()];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes, fs::read(&other).unwrap()), (old.clone(), old));
    assert!(alias.symlink_metadata().unwrap().is_symlink());
    assert_eq!(names(folder.path()), ["alias.safetensors", "model.safetensors", "other-name"]);
}

#[test]
fn a_link_is_written_through_in_the_files_own_folder() {
    let folder = root("save-link");
    let [links, store] = ["links", "store"].map(|name| folder.path().join(name));
    fs::create_dir(&links).unwrap();
    fs::create_dir(&store).unwrap();
    let link = links.join("model.safetensors");
    // Through two links, to a file that is not there yet.
    symlink("../links/second", &link).unwrap();
    symlink("../store/blob", links.join("second")).unwrap();
    let synced = save_file(1, &link).unwrap();
    assert_eq!(find(&link), filled(1));
    assert_eq!(names(&links), ["model.safetensors", "second"]);
    assert_eq!(names(&store), ["blob"]);
    assert_eq!(synced.files[0].file_name().unwrap(), "blob");
    save_file(2, &link).unwrap();
    assert_eq!(find(&store.join("blob")), filled(2));
    let cycle = links.join("cycle");
    symlink("cycle", &cycle).unwrap();
    let error = save_file(3, &cycle).unwrap_err();
    assert!(error.to_string().contains("follow the link"), "{error}");
}

/// On the file system of the link's target, wherever that is; and never in TMPDIR.
#[test]
fn a_link_to_another_file_system_is_written_through() {
    let Some(memory) = test_support::folder::in_memory("save-elsewhere") else { return };
    let disk = test_support::folder::on_disk("save-elsewhere");
    let link = disk.path().join("model.safetensors");
    symlink(memory.path().join("model.safetensors"), &link).unwrap();
    save_file(1, &link).unwrap();
    assert_eq!(find(&link), filled(1));
    assert_eq!((names(disk.path()).len(), names(memory.path()).len()), (1, 1));
}

#[test]
fn an_existing_files_mode_and_owner_are_kept() {
    let folder = root("save-mode");
    let path = folder.path().join("model.safetensors");
    Checkpoint::new(1, 1).write_file(&path);
    for mode in [0o640, 0o600, 0o666, 0o664] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        save_file(2, &path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode);
    }
    let set = folder.path().join("set");
    fs::create_dir(&set).unwrap();
    Checkpoint::new(1, 2).write_set(&set);
    for name in names(&set) {
        fs::set_permissions(set.join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    save_set(2, &set).unwrap();
    let modes: Vec<_> =
        names(&set).iter().map(|name| set.join(name).metadata().unwrap().mode() & 0o777).collect();
    assert_eq!(modes, [0o640; 3]);
    if !rustix::process::geteuid().is_root() {
        test_support::not_run("an_existing_files_mode_and_owner_are_kept", "only root gives files away");
        return;
    }
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    save_file(3, &path).unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (1234, 5678, 0o664));
}

/// What the old group might read, the group of a file that could not be given to it may not.
#[test]
fn a_mode_is_narrowed_where_the_group_cannot_be_kept() {
    if !rustix::process::geteuid().is_root() {
        test_support::not_run(
            "a_mode_is_narrowed_where_the_group_cannot_be_kept",
            "only root gives files away",
        );
        return;
    }
    let folder = root("save-group");
    let path = folder.path().join("model.safetensors");
    Checkpoint::new(1, 1).write_file(&path);
    std::os::unix::fs::chown(&path, None, Some(5678)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    #[derive(Debug)]
    struct NoOwners;
    impl super::tap::Tap for NoOwners {
        fn before(&self, call: &Call) -> Verdict {
            if call.name() == "set_owner" { Verdict::Fail(libc::EPERM) } else { Verdict::Go }
        }
        fn after(&self, _: Call, _: Option<u64>) {}
    }
    let system = Arc::new(super::tap::Tapped(NoOwners));
    Checkpoint::new(2, 1).save_file(system, &path, Durability::Full).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o644);
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = root("save-kinds");
    let path = folder.path().join("model.safetensors");
    fs::create_dir(&path).unwrap();
    let error = save_file(1, &path).unwrap_err();
    assert!(matches!(error, PublishError::NotAFile { found: "a folder", .. }), "{error}");
    let error = save_file(1, Path::new("/dev/null")).unwrap_err();
    assert!(matches!(error, PublishError::NotAFile { .. }), "{error}");
    assert!(save_file(1, Path::new("/")).is_err());
    let error = save_file(1, &folder.path().join("missing/model.safetensors")).unwrap_err();
    assert!(error.to_string().contains("open the folder"), "{error}");
    let error = save_set(1, &folder.path().join("missing/below")).unwrap_err();
    assert!(error.to_string().contains("open the folder"), "{error}");
    fs::write(folder.path().join("file"), "x").unwrap();
    assert!(save_set(1, &folder.path().join("file")).is_err());
    fs::create_dir_all(folder.path().join("set").join(INDEX)).unwrap();
    assert!(save_set(1, &folder.path().join("set")).is_err());
    assert_eq!(names(folder.path()), ["file", "model.safetensors", "set"]);
}

#[test]
fn names_of_shards_are_plain() {
    let folder = root("save-names");
    let long = format!("{}.safetensors", "x".repeat(240));
    for shard in
        ["../a.safetensors", "a/b.safetensors", ".a.safetensors", "a.bin", "", "a\0.safetensors", &long]
    {
        let shards = vec![shard.to_owned()];
        let target = Target::Set { folder: folder.path().to_owned(), index: INDEX.to_owned(), shards };
        let error = Publication::begin(Arc::new(Kernel), target, Durability::Full).unwrap_err();
        assert!(matches!(error, PublishError::Name { .. }), "{shard:?}: {error}");
    }
    let shards = vec!["a.safetensors".to_owned(); 2];
    let target = Target::Set { folder: folder.path().to_owned(), index: INDEX.to_owned(), shards };
    assert!(Publication::begin(Arc::new(Kernel), target, Durability::Full).is_err());
}

#[test]
fn a_name_of_any_length_that_the_disk_takes_can_be_saved() {
    let folder = root("save-long");
    for len in [243, 230, 229, 200] {
        let path = folder.path().join(format!("{}.safetensors", "é".repeat(len / 2)));
        save_file(1, &path).unwrap();
        assert_eq!(find(&path), filled(1));
    }
    let error = save_file(1, &folder.path().join("x".repeat(256))).unwrap_err();
    assert!(error.to_string().contains("shorter name"), "{error}");
    assert_eq!(names(folder.path()).len(), 4);
}

#[test]
fn a_file_is_not_saved_beside_an_index_of_its_name() {
    let folder = root("save-indexed");
    Checkpoint::new(1, 2).write_set(folder.path());
    let before = names(folder.path());
    let error = save_file(2, &folder.path().join("model.safetensors")).unwrap_err();
    assert!(matches!(error, PublishError::Indexed { .. }), "{error}");
    assert_eq!((names(folder.path()), find(folder.path())), (before, Found::set(Checkpoint::new(1, 2))));
    // Another name is another checkpoint.
    save_file(2, &folder.path().join("adapter.safetensors")).unwrap();
    assert_eq!(find(folder.path()), Found::set(Checkpoint::new(1, 2)));
}

#[test]
fn a_set_is_not_saved_beside_weights_that_no_index_names() {
    let folder = root("save-others");
    Checkpoint::new(1, 1).write_file(&folder.path().join("mine.safetensors"));
    let error = save_set(2, folder.path()).unwrap_err();
    assert!(
        matches!(&error, PublishError::OtherWeights { files, .. } if files == &["mine.safetensors"]),
        "{error}"
    );
    assert_eq!((names(folder.path()), find(folder.path())), (vec!["mine.safetensors".to_owned()], filled(1)));
}

#[test]
fn only_what_the_replaced_index_alone_names_is_removed() {
    let folder = root("save-shared");
    let path = |name: &str| folder.path().join(name);
    Checkpoint::new(1, 2).write_set(folder.path());
    // Shares a shard, has one below, and one that is a link.
    let other = br#"{"weight_map":{"t0":"model-00001-of-00002.safetensors"}}"#;
    fs::write(path("other.safetensors.index.json"), other).unwrap();
    fs::write(path("notes.txt"), "mine").unwrap();
    Checkpoint::new(1, 1).write_file(&path("unnamed.safetensors"));
    let synced = save_set(2, folder.path()).unwrap();
    assert_eq!(synced.removed, [path("model-00002-of-00002.safetensors")]);
    assert_eq!(find(folder.path()), Found::set(Checkpoint::new(2, 2)));
    for kept in [
        "model-00001-of-00002.safetensors",
        "notes.txt",
        "unnamed.safetensors",
        "other.safetensors.index.json",
    ] {
        assert!(path(kept).exists(), "{kept}");
    }
    // With an index that nobody can read, nothing is known, and nothing removed.
    fs::write(path("other.safetensors.index.json"), "{").unwrap();
    let synced = save_set(3, folder.path()).unwrap();
    assert_eq!(synced.removed, Vec::<std::path::PathBuf>::new());
    assert_eq!(find(folder.path()), Found::set(Checkpoint::new(3, 2)));
}

#[test]
fn a_set_of_links_is_replaced_and_what_they_lead_to_is_kept() {
    let folder = root("save-snapshot");
    let [snapshot, blobs] = ["snapshot", "blobs"].map(|name| folder.path().join(name));
    fs::create_dir(&snapshot).unwrap();
    fs::create_dir(&blobs).unwrap();
    Checkpoint::new(1, 2).write_set(&blobs);
    for name in names(&blobs) {
        symlink(Path::new("../blobs").join(&name), snapshot.join(&name)).unwrap();
    }
    save_set(2, &snapshot).unwrap();
    assert_eq!(find(&snapshot), Found::set(Checkpoint::new(2, 2)));
    assert_eq!(find(&blobs), Found::set(Checkpoint::new(1, 2)));
    assert_eq!(names(&snapshot).len(), 3);
    assert!(names(&snapshot).iter().all(|name| !snapshot.join(name).is_symlink()));
}

/// Names, kinds and owners that only look like a dead save's.
#[test]
fn what_is_not_provably_ours_is_never_removed() {
    let folder = root("save-hostile");
    let path = |name: &str| folder.path().join(name);
    let not_ours = [
        ".model.safetensors.gds-tmp-0123456789abcde",
        ".model.safetensors.gds-tmp-0123456789abcdef0",
        ".model.safetensors.gds-tmp-0123456789ABCDEF",
        ".model.safetensors.gds-tmp-+123456789abcdef",
        "model.safetensors.gds-tmp-0123456789abcdef",
        ".gds-tmp-0123456789abcdef",
        ".model.safetensors.tmp",
        ".model.safetensors.swp",
        "model.safetensors.gds-tmp-",
    ];
    for name in not_ours {
        fs::write(path(name), "mine").unwrap();
    }
    fs::write(path("precious"), "mine").unwrap();
    symlink("precious", path(".a.safetensors.gds-tmp-0000000000000001")).unwrap();
    fs::create_dir(path(".b.safetensors.gds-tmp-0000000000000002")).unwrap();
    let fifo = path(".c.safetensors.gds-tmp-0000000000000003");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let before = names(folder.path());
    save_file(1, &path("model.safetensors")).unwrap();
    let mut expected = before.clone();
    expected.push("model.safetensors".to_owned());
    expected.sort_unstable();
    assert_eq!(names(folder.path()), expected);
    // A second name of a file elsewhere: the name goes, the file stays.
    fs::hard_link(path("precious"), path(".d.safetensors.gds-tmp-0000000000000004")).unwrap();
    save_file(2, &path("model.safetensors")).unwrap();
    assert_eq!(names(folder.path()), expected);
    assert_eq!(fs::read(path("precious")).unwrap(), b"mine");
    // A shard that an index names has a dead temporary name: it is a checkpoint's and stays.
    let set = path("set");
    fs::create_dir(&set).unwrap();
    Checkpoint::new(1, 2).write_set(&set);
    let shard = "model-00001-of-00002.safetensors";
    fs::hard_link(set.join(shard), set.join(format!(".{shard}.gds-tmp-0000000000000005"))).unwrap();
    // So does one whose name it does not tell.
    fs::write(set.join("mine.safetensors"), "mine").unwrap();
    fs::hard_link(set.join("mine.safetensors"), set.join(".x.safetensors.gds-tmp-0000000000000006")).unwrap();
    // And one that only has the name that a dead temporary file tells.
    fs::write(set.join(".mine.safetensors.gds-tmp-0000000000000007"), "another").unwrap();
    save_file(1, &set.join("other.safetensors")).unwrap();
    assert_eq!(find(&set), Found::set(Checkpoint::new(1, 2)));
    assert_eq!(names(&set).len(), 5, "{:?}", names(&set));
    save_set(2, &set).unwrap();
    assert_eq!(find(&set), Found::set(Checkpoint::new(2, 2)));
    assert_eq!(fs::read(set.join("mine.safetensors")).unwrap(), b"mine");
}

/// A folder that is moved, replaced or emptied while its checkpoint is being written.
#[test]
fn a_folder_that_vanishes_is_an_error() {
    for (number, vanish) in
        [rename_away as fn(&Path), replace, remove_all, take_the_temps].into_iter().enumerate()
    {
        for set in [false, true] {
            let root = root("save-vanish");
            let folder = root.path().join(format!("folder-{number}"));
            fs::create_dir(&folder).unwrap();
            let checkpoint = Checkpoint::new(1, if set { 2 } else { 1 });
            let target = if set {
                Target::Set { folder: folder.clone(), index: INDEX.to_owned(), shards: checkpoint.names() }
            } else {
                Target::File(folder.join("model.safetensors"))
            };
            let mut publication = Publication::begin(Arc::new(Kernel), target, Durability::Full).unwrap();
            for shard in 0..checkpoint.shards {
                let bytes = checkpoint.parts(shard).concat();
                publication.create(shard, bytes.len() as u64).unwrap().write_all_at(&bytes, 0).unwrap();
            }
            vanish(&folder);
            let error = publication.commit(&|names| checkpoint.index(names)).unwrap_err();
            let expected = matches!(error, PublishError::FolderMoved { .. } | PublishError::Taken { .. });
            assert!(expected, "{number} {set}: {error}");
            for left in fs::read_dir(root.path()).unwrap() {
                let left = left.unwrap().path();
                assert_eq!(names(&left), Vec::<String>::new(), "{number} {set}");
            }
        }
    }
}

fn rename_away(folder: &Path) {
    fs::rename(folder, folder.with_extension("moved")).unwrap();
}

fn replace(folder: &Path) {
    rename_away(folder);
    fs::create_dir(folder).unwrap();
}

fn remove_all(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
}

fn take_the_temps(folder: &Path) {
    for name in names(folder) {
        fs::remove_file(folder.join(name)).unwrap();
    }
}

#[test]
fn a_file_of_the_wrong_length_is_not_published() {
    let folder = root("save-length");
    let path = folder.path().join("model.safetensors");
    // No reservation: the file is as long as what was written.
    let unreserved =
        Fault::new(0, Verdict::Fail(libc::EOPNOTSUPP), |call| matches!(call, Call::Reserve { .. }));
    let mut publication =
        Publication::begin(unreserved, Target::File(path.clone()), Durability::Full).unwrap();
    publication.create(0, 5000).unwrap().write_all_at(&[1; 4096], 0).unwrap();
    let error = publication.commit(&|_| Vec::new()).unwrap_err();
    assert!(matches!(error, PublishError::Length { expected: 5000, found: 4096, .. }), "{error}");
    // What direct writes padded is cut off.
    let mut publication =
        Publication::begin(Arc::new(Kernel), Target::File(path.clone()), Durability::Full).unwrap();
    publication.create(0, 5000).unwrap().write_all_at(&[1; 8192], 0).unwrap();
    publication.commit(&|_| Vec::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [1; 5000]);
    let publication =
        Publication::begin(Arc::new(Kernel), Target::File(path.clone()), Durability::Full).unwrap();
    assert!(publication.commit(&|_| Vec::new()).is_err(), "no file was created");
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

#[test]
fn what_does_not_fit_is_said_before_a_byte_is_written() {
    let folder = root("save-full");
    let path = folder.path().join("model.safetensors");
    save_file(1, &path).unwrap();
    for (code, words) in
        [(libc::ENOSPC, "room for both"), (libc::EDQUOT, "quota"), (libc::EFBIG, "smaller shards")]
    {
        let full = Fault::new(0, Verdict::Fail(code), |call| matches!(call, Call::Reserve { .. }));
        let error = Checkpoint::new(2, 1).save_file(full, &path, Durability::Full).unwrap_err();
        assert!(matches!(error, PublishError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let error = std::error::Error::source(&error).unwrap();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().raw_os_error(), Some(code));
    }
    assert_eq!((names(folder.path()), find(&path)), (vec!["model.safetensors".to_owned()], filled(1)));
}
