//! kill -9 at every call of a save: before it, and after it.
//!
//! A child process saves and kills itself; what it left is judged here, and cleaned by the next save.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use test_support::process;

use super::super::Durability;
use super::checkpoint::find;
use super::scenario::{Scenario, root};
use super::tap::{Call, Tap, Tapped, Verdict};

/// Ends its process at the k-th call.
#[derive(Debug)]
struct Killer {
    at: usize,
    after: bool,
    count: AtomicUsize,
}

impl Killer {
    fn strike(&self) {
        // SAFETY: a system call without pointers, on this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park();
        }
    }
}

impl Tap for Killer {
    fn before(&self, _: &Call) -> Verdict {
        if self.count.fetch_add(1, Ordering::SeqCst) == self.at && !self.after {
            self.strike();
        }
        Verdict::Go
    }

    fn after(&self, _: Call, _: Option<u64>) {
        if self.count.load(Ordering::SeqCst) == self.at + 1 && self.after {
            self.strike();
        }
    }
}

/// In a child: saves until it is killed. Elsewhere nothing.
#[test]
fn child() {
    let Ok(job) = std::env::var("GDS_SAVE_KILLED") else { return };
    let [scenario, root, at, after] = job.split('|').collect::<Vec<_>>().try_into().unwrap();
    let killer = Killer { at: at.parse().unwrap(), after: after == "after", count: AtomicUsize::new(0) };
    let scenario = Scenario::named(scenario);
    scenario.save(Path::new(root), Arc::new(Tapped(killer)), Durability::Full).unwrap();
}

fn kill_at_every_call(scenario: Scenario) {
    let folder = root("save-kill");
    let mut seen = [0, 0];
    for after in ["before", "after"] {
        for at in 0.. {
            let root = folder.path().join(format!("{at}-{after}"));
            fs::create_dir(&root).unwrap();
            scenario.prepare(&root);
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "save::durable::tests::kill::child", "--nocapture"]);
            child.env("GDS_SAVE_KILLED", format!("{scenario:?}|{}|{at}|{after}", root.display()));
            let finished = process::run(&mut child, process::LIMIT);
            let lived = finished.status.success();
            assert!(lived || finished.code().is_none(), "{finished}");
            let found = find(&scenario.path(&root));
            let context = format!("killed {after} call {at}");
            let (is_old, is_new) = (found == scenario.before(), found == scenario.after());
            assert!(is_old || is_new, "{scenario:?} {context}: {found:?}");
            assert!(!lived || is_new, "{scenario:?}: {found:?}");
            seen[usize::from(is_new)] += 1;
            scenario.check_next_save(&root, &context);
            fs::remove_dir_all(&root).unwrap();
            if lived {
                break;
            }
        }
    }
    eprintln!("{scenario:?}: old and new: {seen:?}");
    assert!(seen.iter().all(|count| *count > 0), "a save passes from old to new: {seen:?}");
}

#[test]
fn a_kill_leaves_the_old_file_or_the_new() {
    kill_at_every_call(Scenario::FileOverFile);
}

#[test]
fn a_kill_leaves_a_set_or_none() {
    kill_at_every_call(Scenario::Set);
}

#[test]
fn a_kill_leaves_the_old_set_or_the_new() {
    kill_at_every_call(Scenario::SetOverSet);
}

#[test]
fn a_kill_leaves_the_old_file_or_the_set_that_replaces_it() {
    kill_at_every_call(Scenario::SetOverFile);
}

#[test]
fn a_kill_leaves_the_old_snapshot_or_the_set_that_replaces_it() {
    kill_at_every_call(Scenario::SetOverSnapshot);
}
