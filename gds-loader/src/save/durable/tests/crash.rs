//! A power cut at any moment: the trace of a save, replayed into every state that POSIX allows.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::super::Durability;
use super::checkpoint::{Found, find};
use super::disk::{Disk, State, materialize};
use super::scenario::{Scenario, root};
use super::tap::{Call, Tap, Tapped, Verdict};

/// Calls that succeeded, with what they made.
pub(super) type Trace = Vec<(Call, Option<u64>)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Recorder(Arc<Mutex<Trace>>);

impl Recorder {
    pub(super) fn trace(&self) -> Trace {
        self.0.lock().unwrap().clone()
    }
}

impl Tap for Recorder {
    fn before(&self, _: &Call) -> Verdict {
        Verdict::Go
    }

    fn after(&self, call: Call, inode: Option<u64>) {
        self.0.lock().unwrap().push((call, inode));
    }
}

/// Judges states by loading them; the same visible files are loaded once.
struct Judge<'a> {
    scenario: Scenario,
    root: &'a Path,
    known: HashMap<State, Found>,
    number: u32,
}

impl Judge<'_> {
    fn judge(&mut self, state: &State) -> Found {
        let hidden =
            |path: &std::ffi::OsStr| Path::new(path).file_name().unwrap().as_encoded_bytes()[0] == b'.';
        let visible: State = state
            .iter()
            .filter(|(path, _)| !hidden(path))
            .map(|(path, (_, bytes))| (path.clone(), (0, bytes.clone())))
            .collect();
        if let Some(found) = self.known.get(&visible) {
            return found.clone();
        }
        let numbered = |(number, (path, (_, bytes))): (usize, (&_, &(_, Vec<u8>)))| {
            (std::ffi::OsString::clone(path), (number, bytes.clone()))
        };
        let distinct: State = visible.iter().enumerate().map(numbered).collect();
        let found = find(&self.scenario.path(&self.materialize(&distinct)));
        self.known.insert(visible, found.clone());
        found
    }

    fn materialize(&mut self, state: &State) -> std::path::PathBuf {
        self.number += 1;
        let root = self.root.join(self.number.to_string());
        fs::create_dir(&root).unwrap();
        materialize(state, &root);
        root
    }
}

/// Cuts the power after every call of a save.
fn cut_the_power(scenario: Scenario) {
    let folder = root("save-crash");
    let real = folder.path().join("real");
    fs::create_dir(&real).unwrap();
    scenario.prepare(&real);
    let mut disk = Disk::of(&real);
    assert_eq!(find(&scenario.path(&real)), scenario.before());
    let recorder = Recorder::default();
    scenario.save(&real, Arc::new(Tapped(recorder.clone())), Durability::Full).unwrap();
    assert_eq!(find(&scenario.path(&real)), scenario.after());

    let trace = recorder.trace();
    let mut judge = Judge { scenario, root: folder.path(), known: HashMap::new(), number: 0 };
    let mut cleaned = std::collections::BTreeSet::new();
    let mut seen = [0, 0];
    for step in 0..=trace.len() {
        let done = step.checked_sub(1).map(|last| &trace[last]);
        if let Some((call, made)) = done {
            disk.apply(call, *made);
            if matches!(call, Call::Other(_)) && step < trace.len() {
                continue;
            }
        }
        for state in disk.after_a_power_cut() {
            let found = judge.judge(&state);
            let context = || format!("{scenario:?} after step {step} {done:?}: {:?}", state.keys());
            let (is_old, is_new) = (found == scenario.before(), found == scenario.after());
            assert!(is_old || is_new, "{found:?}: {}", context());
            // The save has said that it is done.
            assert!(step < trace.len() || is_new, "{found:?}: {}", context());
            seen[usize::from(is_new)] += 1;
            if cleaned.insert(state.clone()) {
                let root = judge.materialize(&state);
                if scenario != Scenario::SetInNewFolder {
                    fs::create_dir_all(scenario.folder(&root)).unwrap();
                }
                scenario.check_next_save(&root, &(step, done.map(|(call, _)| call.name())));
                fs::remove_dir_all(root).unwrap();
            }
        }
    }
    eprintln!("{scenario:?}: {} steps, {} states, old and new: {seen:?}", trace.len(), cleaned.len());
    assert!(seen.iter().all(|count| *count > 0), "a save passes from old to new: {seen:?}");
}

#[test]
fn a_power_cut_leaves_a_file_or_none() {
    cut_the_power(Scenario::File);
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_new() {
    cut_the_power(Scenario::FileOverFile);
}

#[test]
fn a_power_cut_leaves_a_set_or_none() {
    cut_the_power(Scenario::Set);
}

#[test]
fn a_power_cut_leaves_a_set_in_a_new_folder_or_none() {
    cut_the_power(Scenario::SetInNewFolder);
}

#[test]
fn a_power_cut_leaves_the_old_set_or_the_new() {
    cut_the_power(Scenario::SetOverSet);
    cut_the_power(Scenario::SetOverOtherSet);
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_set_that_replaces_it() {
    cut_the_power(Scenario::SetOverFile);
}
