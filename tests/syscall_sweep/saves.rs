//! Saves out of host memory.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cuda_staging::Device;
use gds_loader::{Backend, Engine, Model, PathKind, Saver};
use tempfile::TempDir;
use test_support::fixture::write_model;
use test_support::folder;

use crate::loads::{file, loader};
use crate::operation::{Ended, Operation};

/// A folder's files by name.
type Files = BTreeMap<String, Vec<u8>>;

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of =
        |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap());
    entries.map(of).collect()
}

/// A folder that saves go to, with what is there before.
struct Target {
    folder: TempDir,
    before: Files,
    after: OnceCell<Files>,
    /// What the last save said that it left, by name.
    told: RefCell<Vec<String>>,
}

impl Target {
    fn new(name: &str, prepare: impl FnOnce(&Path)) -> Rc<Self> {
        let folder = folder::on_disk(name);
        prepare(folder.path());
        let before = files(folder.path());
        Rc::new(Self { folder, before, after: OnceCell::new(), told: RefCell::default() })
    }

    fn reset(&self) {
        for name in files(self.folder.path()).keys().filter(|name| !self.before.contains_key(*name)) {
            fs::remove_file(self.folder.path().join(name)).unwrap();
        }
        self.before.iter().for_each(|(name, bytes)| fs::write(self.folder.path().join(name), bytes).unwrap());
    }

    /// What is wrong with what is there. The first save that went well has left what every later one must. What a save says it left
    /// besides, and what stays where either checkpoint may be the one after a power cut, is ours to prove, and goes with the next save.
    fn left(&self, ended: &Ended, save: impl FnOnce() -> Ended) -> Result<(), String> {
        let mut found = files(self.folder.path());
        let mut told = self.told.take();
        if is_in_place(ended) {
            let after = self.after.get().unwrap();
            let of_old = |name: &&String| found.contains_key(*name) && !after.contains_key(*name);
            told = self.before.keys().filter(of_old).cloned().collect();
        }
        if let Some(missing) = told.iter().find(|name| !found.contains_key(*name)) {
            return Err(format!("{missing} is said to be left and is not there, after {ended:?}"));
        }
        let proves = |name: &str| {
            let of = |file: &String| name.starts_with(&format!(".{file}.gds-tmp-"));
            told.iter().any(of) || (is_in_place(ended) && self.after.get().unwrap().keys().any(of))
        };
        let besides: Vec<String> =
            found.keys().filter(|name| told.contains(*name) || proves(name)).cloned().collect();
        found.retain(|name, _| !besides.contains(name));
        let after = match ended {
            Ended::Right(_) => self.after.get_or_init(|| found.clone()),
            Ended::Failed(..) => self.after.get().unwrap(),
        };
        let fits = match ended {
            Ended::Right(_) => found == *after,
            Ended::Failed(..) if is_in_place(ended) => found == *after,
            Ended::Failed(..) => found == self.before,
        };
        if fits && besides.is_empty() {
            return Ok(());
        }
        if fits {
            let next = save();
            let names = files(self.folder.path());
            return match besides.iter().find(|name| names.contains_key(*name)) {
                None if matches!(next, Ended::Right(_)) => Ok(()),
                still => Err(format!("the next save left {still:?} of {besides:?}: {next:?}")),
            };
        }
        let state = |name: &String, bytes: &Vec<u8>| match (self.before.get(name), after.get(name)) {
            (Some(old), _) if old == bytes => "old",
            (_, Some(new)) if new == bytes => "new",
            _ => "neither",
        };
        let said: Vec<String> =
            found.iter().map(|(name, bytes)| format!("{name} ({})", state(name, bytes))).collect();
        Err(format!("left {said:?} after {ended:?}"))
    }
}

/// Whether all that failed is to make it certain that what was saved is there after a power cut.
fn is_in_place(ended: &Ended) -> bool {
    matches!(ended, Ended::Failed(_, text) if text.contains("is in place"))
}

fn save(saver: &Saver, model: &Model, path: &Path, target: &Target) -> Ended {
    target.told.take();
    Ended::of_save(|| {
        let report = saver.save_model(model, path)?;
        assert_eq!(report.paths.total(), report.bytes);
        let synced = report.synced;
        let counts = (synced.files_synced, synced.folder_synced, synced.removed.len(), synced.left.len());
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        target.told.replace(synced.left.into_iter().map(name).collect());
        Ok(format!("{:?}, {:?}, {counts:?}", report.paths, synced.durability))
    })
}

fn operations(threads: usize, names: [&'static str; 4]) -> Vec<Operation> {
    let source = folder::on_disk("syscalls_of_saves");
    let path = source.path().join("source.safetensors");
    let new = file("", 9001);
    new.write(&path);
    let model = loader(&Device::cpu(), Backend::Auto, Engine::Auto, 1).load(&path).unwrap();
    let model = Rc::new(model);
    let saver = |backend| Saver::new().backend(backend).threads(threads).slots(2 * threads).slot_size(8192);
    let operation = |name, target: Rc<Target>, to: PathBuf, saver: Saver| {
        let model = Rc::clone(&model);
        let (reset, left) = (Rc::clone(&target), Rc::clone(&target));
        let save = Rc::new(move || save(&saver, &model, &to, &target));
        let next = Rc::clone(&save);
        let mut operation = Operation::reading(name, move || save());
        operation.reset = Box::new(move || reset.reset());
        operation.left = Box::new(move |ended| left.left(ended, || next()));
        operation
    };
    let old = |folder: &Path| file("old.", 2000).write(&folder.join("model.safetensors"));
    let [buffered, direct, fresh, set] = names;
    let at = |target: &Rc<Target>| target.folder.path().join("model.safetensors");
    let over = |name: &'static str, backend| {
        let target = Target::new("syscalls_of_saves", old);
        let to = at(&target);
        operation(name, target, to, saver(backend))
    };
    let none = Target::new("syscalls_of_saves", |_| ());
    let old_set = Target::new("syscalls_of_saves", |folder| {
        write_model(folder, &[file("old.first.", 100), file("old.second.", 5000), file("old.third.", 1)]);
    });
    let place = old_set.folder.path().to_owned();
    vec![
        over(buffered, Backend::Only(PathKind::Buffered)),
        over(direct, Backend::Only(PathKind::Direct)),
        {
            let to = at(&none);
            operation(fresh, none, to, saver(Backend::Auto))
        },
        operation(set, old_set, place, saver(Backend::Auto).shard_size(10_000)),
    ]
}

pub(crate) fn by_one_worker() -> Vec<Operation> {
    let names = [
        "save over a file, buffered",
        "save over a file, direct",
        "save a new file, auto",
        "save a set over a set, auto",
    ];
    operations(1, names)
}

pub(crate) fn by_many_workers() -> Vec<Operation> {
    let names = [
        "save over a file by 4 workers, buffered",
        "save over a file by 4 workers, direct",
        "save a new file by 4 workers, auto",
        "save a set over a set by 4 workers, auto",
    ];
    operations(4, names)
}
