//! What belongs to a whole process, and is therefore tried in children: umask, user, limits, mounts.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit};
use test_support::{not_run, process, tool};

use super::super::{Durability, Kernel, Publication, PublishError, Synced, Target};
use super::checkpoint::{Checkpoint, Found, INDEX, find, names};
use super::scenario::root;

type Body = fn(&Path);

const BODIES: [(&str, Body); 6] = [
    ("umask", umask),
    ("other-user", other_user),
    ("file-size", file_size),
    ("descriptors", descriptors),
    ("small-tmpfs", small_tmpfs),
    ("read-only", read_only),
];

/// In a child: the body that was asked for. Elsewhere nothing.
#[test]
fn child() {
    let Ok(job) = std::env::var("GDS_SAVE_CIRCUMSTANCE") else { return };
    let (name, path) = job.split_once('|').unwrap();
    let (_, body) = BODIES.iter().find(|(known, _)| *known == name).unwrap();
    body(Path::new(path));
}

fn in_child(name: &str, path: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    aim(&mut child, name, path);
    child
}

fn aim(child: &mut Command, name: &str, path: &Path) {
    child.args(["--exact", "save::durable::tests::circumstances::child", "--nocapture"]);
    child.env("GDS_SAVE_CIRCUMSTANCE", format!("{name}|{}", path.display()));
}

/// Runs a body in namespaces of its own, where it may mount.
fn with_mounts(test: &str, name: &str, path: &Path) {
    let Some(unshare) = tool(test, "unshare") else { return };
    let allowed =
        Command::new(&unshare).args(["-Urm", "true"]).output().is_ok_and(|output| output.status.success());
    if !allowed {
        return not_run(test, "this user may not make namespaces");
    }
    let mut child = Command::new(unshare);
    child.arg("-Urm").arg(std::env::current_exe().unwrap());
    aim(&mut child, name, path);
    process::run(&mut child, process::LIMIT).success();
}

fn mount(arguments: &[&str], on: &Path) {
    let mounted = Command::new("mount").args(arguments).arg(on).output().unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
}

fn save_file(fill: u8, tensor: usize, path: &Path) -> Result<Synced, PublishError> {
    Checkpoint { fill, shards: 1, tensor }.save_file(Arc::new(Kernel), path, Durability::Full)
}

fn save_set(fill: u8, tensor: usize, folder: &Path) -> Result<Synced, PublishError> {
    Checkpoint { fill, shards: 2, tensor }.save_set(Arc::new(Kernel), folder, Durability::Full)
}

fn modes(folder: &Path) -> Vec<u32> {
    names(folder).iter().map(|name| folder.join(name).metadata().unwrap().mode() & 0o7777).collect()
}

#[test]
fn modes_are_what_an_ordinary_write_gives_under_umask_027() {
    let folder = root("save-umask");
    process::run(&mut in_child("umask", folder.path()), process::LIMIT).success();
    let file = folder.path().join("file");
    assert_eq!(modes(&file), [0o640, 0o640], "an ordinary file and a new one");
    assert_eq!(modes(&folder.path().join("set")), [0o640; 3]);
    assert_eq!(folder.path().join("set").metadata().unwrap().mode() & 0o777, 0o750);
    assert_eq!(modes(&folder.path().join("kept")), [0o640], "which umask 077 would not give");
}

fn umask(folder: &Path) {
    rustix::process::umask(0o027.into());
    let [file, set, kept] = ["file", "set", "kept"].map(|name| folder.join(name));
    fs::create_dir(&file).unwrap();
    fs::write(file.join("ordinary"), "").unwrap();
    save_file(1, 600, &file.join("model.safetensors")).unwrap();
    save_set(1, 600, &set).unwrap();
    fs::create_dir(&kept).unwrap();
    let old = kept.join("model.safetensors");
    fs::write(&old, "").unwrap();
    assert_eq!(old.metadata().unwrap().mode() & 0o777, 0o640);
    rustix::process::umask(0o077.into());
    save_file(2, 600, &old).unwrap();
}

#[test]
fn another_user_saves_where_it_may_and_is_refused_where_not() {
    let test = "another_user_saves_where_it_may_and_is_refused_where_not";
    if !rustix::process::geteuid().is_root() {
        return not_run(test, "only root becomes another user");
    }
    let folder = root("save-user");
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    // Another's: theirs to write, not theirs to write, and what dead savers of root left.
    for (name, mode) in [("shared.safetensors", 0o666), ("guarded.safetensors", 0o644)] {
        Checkpoint::new(1, 1).write_file(&open.join(name));
        fs::set_permissions(open.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(open.join(".x.safetensors.gds-tmp-0123456789abcdef"), "root's").unwrap();
    let mut child = in_child("other-user", folder.path());
    child.uid(65534).gid(65534);
    let readable =
        Command::new(std::env::current_exe().unwrap()).arg("--list").uid(65534).gid(65534).output();
    if !readable.is_ok_and(|output| output.status.success()) {
        return not_run(test, "another user cannot run this program");
    }
    process::run(&mut child, process::LIMIT).success();
    let filled = |name: &str| find(&open.join(name));
    assert_eq!(filled("shared.safetensors"), Found::file(Checkpoint::new(2, 1)));
    assert_eq!(filled("guarded.safetensors"), Found::file(Checkpoint::new(1, 1)));
    assert_eq!(open.join("new.safetensors").metadata().unwrap().uid(), 65534);
    assert!(open.join(".x.safetensors.gds-tmp-0123456789abcdef").exists());
    assert_eq!(names(&open).len(), 4, "{:?}", names(&open));
}

fn other_user(folder: &Path) {
    let open = folder.join("open");
    save_file(2, 600, &open.join("new.safetensors")).unwrap();
    save_file(2, 600, &open.join("shared.safetensors")).unwrap();
    let error = save_file(2, 600, &open.join("guarded.safetensors")).unwrap_err();
    assert!(error.to_string().contains("cannot write to it"), "{error}");
    let error = save_file(2, 600, &folder.join("model.safetensors")).unwrap_err();
    assert!(error.to_string().contains("may not do that"), "{error}");
    let error = save_set(2, 600, &folder.join("set")).unwrap_err();
    assert!(error.to_string().contains("make the folder"), "{error}");
}

/// A write beyond the limit would end the process.
#[test]
fn a_limit_on_files_lengths_is_an_error_and_no_signal() {
    let folder = root("save-limit");
    process::run(&mut in_child("file-size", folder.path()), process::LIMIT).success();
    assert_eq!(find(&folder.path().join("model.safetensors")), Found::Whole { fill: 2, tensors: 2 });
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

fn file_size(folder: &Path) {
    let path = folder.join("model.safetensors");
    save_file(1, 600, &path).unwrap();
    rustix::process::setrlimit(Resource::Fsize, Rlimit { current: Some(8192), maximum: None }).unwrap();
    let error = save_file(2, 8192, &path).unwrap_err();
    assert!(matches!(error, PublishError::FileSizeLimit { limit: 8192, .. }), "{error}");
    assert!(error.to_string().contains("ulimit -f"), "{error}");
    assert_eq!(find(&path), Found::Whole { fill: 1, tensors: 2 });
    assert!(save_set(2, 8192, &folder.join("set")).is_err());
    save_file(2, 3000, &path).unwrap();
}

#[test]
fn too_many_open_files_are_an_error() {
    let folder = root("save-descriptors");
    process::run(&mut in_child("descriptors", folder.path()), process::LIMIT).success();
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

fn descriptors(folder: &Path) {
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(40) }).unwrap();
    let checkpoint = Checkpoint { fill: 1, shards: 60, tensor: 8 };
    let saved = checkpoint.save_set(Arc::new(Kernel), &folder.join("set"), Durability::Full);
    let error = saved.unwrap_err().to_string();
    assert!(error.contains("ulimit -n"), "{error}");
}

#[test]
fn a_disk_that_fills_up_keeps_the_old_checkpoint() {
    let folder = root("save-small");
    with_mounts("a_disk_that_fills_up_keeps_the_old_checkpoint", "small-tmpfs", folder.path());
}

fn small_tmpfs(folder: &Path) {
    mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"], folder);
    let path = folder.join("model.safetensors");
    save_file(1, 9000, &path).unwrap();
    for (fill, tensor) in [(2, 30_000), (3, 24_000)] {
        let error = save_file(fill, tensor, &path).unwrap_err();
        assert!(matches!(error, PublishError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains("room for both"), "{error}");
        assert_eq!((names(folder).len(), find(&path)), (1, Found::Whole { fill: 1, tensors: 2 }));
    }
    // No reservation, so that the disk fills up while bytes are written.
    let unreserved = || {
        let is_reservation = |call: &super::tap::Call| matches!(call, super::tap::Call::Reserve { .. });
        let verdict = super::tap::Verdict::Fail(libc::EOPNOTSUPP);
        super::faults::Fault::new(0, verdict, is_reservation)
    };
    let checkpoint = Checkpoint { fill: 4, shards: 1, tensor: 30_000 };
    let error = checkpoint.save_file(unreserved(), &path, Durability::Full).unwrap_err();
    assert!(matches!(error, PublishError::NoSpace { doing: "write to it", .. }), "{error}");
    assert_eq!((names(folder).len(), find(&path)), (1, Found::Whole { fill: 1, tensors: 2 }));
    // The same room is enough for one that fits.
    save_file(5, 10_000, &path).unwrap();
    assert_eq!(find(&path), Found::Whole { fill: 5, tensors: 2 });
    fs::remove_file(&path).unwrap();
    let set = folder.join("set");
    save_set(6, 4000, &set).unwrap();
    let old = names(&set);
    let error = save_set(7, 12_000, &set).unwrap_err();
    assert!(matches!(error, PublishError::NoSpace { .. }), "{error}");
    assert_eq!((names(&set), find(&set)), (old, Found::Whole { fill: 6, tensors: 4 }));
}

#[test]
fn a_read_only_file_system_is_an_error() {
    let folder = root("save-read-only");
    with_mounts("a_read_only_file_system_is_an_error", "read-only", folder.path());
}

/// Read-only from the start, and read-only by the time of the commit.
fn read_only(folder: &Path) {
    mount(&["-t", "tmpfs", "tmpfs"], folder);
    let path = folder.join("model.safetensors");
    save_file(1, 600, &path).unwrap();
    mount(&["-o", "remount,ro"], folder);
    for target in [path.clone(), folder.join("new.safetensors")] {
        let error = save_file(2, 600, &target).unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    let error = save_set(2, 600, &folder.join("set")).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!((names(folder).len(), find(&path)), (1, Found::Whole { fill: 1, tensors: 2 }));
}

/// In a child, too, since it reads what the process has open.
#[test]
fn nothing_is_open_after_a_save() {
    let folder = root("save-open");
    let path: PathBuf = folder.path().join("set");
    save_set(1, 600, &path).unwrap();
    save_set(2, 600, &path).unwrap();
    let target =
        Target::Set { folder: path.clone(), index: INDEX.to_owned(), shards: Checkpoint::new(3, 2).names() };
    let mut publication = Publication::begin(Arc::new(Kernel), target, Durability::Full).unwrap();
    let file = publication.create(0, 10).unwrap();
    drop(publication);
    let open = |folder: &Path| {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        links
            .filter(|link| {
                fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(folder))
            })
            .count()
    };
    // The file, and the folder that it is in.
    assert_eq!(open(&path), 2);
    drop(file);
    assert_eq!(open(&path), 0);
    drop(File::open(&path).unwrap());
}
