//! Every call failing, one after the other, with every error that it may answer.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::super::Durability;
use super::checkpoint::{find, names};
use super::scenario::{Scenario, root};
use super::tap::{Call, Tap, Tapped, Verdict};

/// Gives the k-th call of those that `concerns` picks a verdict.
#[derive(Debug)]
pub(super) struct Fault {
    at: usize,
    verdict: Verdict,
    concerns: fn(&Call) -> bool,
    count: AtomicUsize,
    struck: OnceLock<&'static str>,
}

impl Fault {
    pub(super) fn new(at: usize, verdict: Verdict, concerns: fn(&Call) -> bool) -> Arc<Tapped<Self>> {
        Arc::new(Tapped(Self { at, verdict, concerns, count: AtomicUsize::new(0), struck: OnceLock::new() }))
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The call that failed.
    fn struck(&self) -> Option<&'static str> {
        self.struck.get().copied()
    }
}

impl Tap for Fault {
    fn before(&self, call: &Call) -> Verdict {
        let strikes = (self.concerns)(call) && self.count.fetch_add(1, Ordering::SeqCst) == self.at;
        if !strikes {
            return Verdict::Go;
        }
        self.struck.get_or_init(|| call.name());
        self.verdict
    }

    fn after(&self, _: Call, _: Option<u64>) {}
}

/// Descriptors of this process that lead into a folder, by what they lead to. Other tests have theirs elsewhere.
fn descriptors(below: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.starts_with(below)).map(|link| link.display().to_string()).collect()
}

fn is_temp(name: &str) -> bool {
    name.contains(".gds-tmp-")
}

/// One save with one fault. Returns whether there were that many calls.
fn save_with(scenario: Scenario, root: &Path, at: usize, verdict: Verdict, durability: Durability) -> bool {
    fs::create_dir(root).unwrap();
    scenario.prepare(root);
    let before = if scenario.folder(root).exists() { names(&scenario.folder(root)) } else { Vec::new() };
    // That something is not there is an answer; a wrong one is no error of a disk.
    let concerns: fn(&Call) -> bool = match verdict {
        Verdict::Fail(libc::ENOENT) => |call| !matches!(call.name(), "stat" | "open"),
        _ => |_| true,
    };
    let system = Fault::new(at, verdict, concerns);
    let result = scenario.save(root, system.clone(), durability);
    let found = find(&scenario.path(root));
    let context = format!("{scenario:?}, {verdict:?} at call {at}, {durability:?}: {result:?}");
    let after = if scenario.folder(root).exists() { names(&scenario.folder(root)) } else { Vec::new() };
    let left: Vec<_> = after.iter().filter(|name| !before.contains(name)).collect();
    let temps = after.iter().filter(|name| is_temp(name)).count();
    let struck = system.0.struck();
    match &result {
        Ok(synced) => {
            assert_eq!(found, scenario.after(), "{context}");
            // What could not be removed was reported.
            assert!(temps == 0 || !synced.left.is_empty(), "{context}: {after:?}");
        }
        Err(_) if found == scenario.after() => {
            // After the commit: nothing of either checkpoint may be lost.
            let lost = before.iter().find(|name| !after.contains(name));
            assert_eq!(lost, None, "{context}: {after:?}");
        }
        Err(error) => {
            assert_eq!(found, scenario.before(), "{context}: {error}");
            let lost = before.iter().find(|name| !after.contains(name));
            assert_eq!(lost, None, "{context}: {after:?}");
            match (struck, verdict) {
                // Made behind our back, or the removal itself failed.
                (Some("create"), Verdict::Pretend(_)) | (Some("stat" | "unlink"), _) => {
                    assert!(left.len() == temps && temps <= 1, "{context}: {left:?}");
                }
                _ => assert!(left.is_empty(), "{context}: {left:?}"),
            }
        }
    }
    drop(result);
    assert_eq!(descriptors(root), Vec::<String>::new(), "{context}");
    drop(system);
    scenario.check_next_save(root, &context);
    fs::remove_dir_all(root).unwrap();
    struck.is_some()
}

fn fail_every_call(scenario: Scenario) {
    let folder = root("save-faults");
    let codes = [
        libc::EIO,
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EROFS,
        libc::EINTR,
        libc::EINVAL,
        libc::EACCES,
        libc::EPERM,
        libc::ENOENT,
        libc::EOPNOTSUPP,
        libc::ENOMEM,
        libc::EFBIG,
        libc::EMFILE,
    ];
    let failing = codes.map(Verdict::Fail);
    let pretending = [libc::EIO, libc::EINTR].map(Verdict::Pretend);
    let mut number = 0;
    for verdict in failing.into_iter().chain(pretending).chain([Verdict::Short]) {
        for durability in [Durability::Full, Durability::None] {
            for at in 0.. {
                number += 1;
                let root = folder.path().join(number.to_string());
                if !save_with(scenario, &root, at, verdict, durability) {
                    break;
                }
            }
        }
    }
    eprintln!("{scenario:?}: {number} saves");
}

#[test]
fn a_failing_call_leaves_a_file_or_none() {
    fail_every_call(Scenario::File);
}

#[test]
fn a_failing_call_leaves_the_old_file_or_the_new() {
    fail_every_call(Scenario::FileOverFile);
}

#[test]
fn a_failing_call_leaves_a_set_or_none() {
    fail_every_call(Scenario::Set);
    fail_every_call(Scenario::SetInNewFolder);
}

#[test]
fn a_failing_call_leaves_the_old_set_or_the_new() {
    fail_every_call(Scenario::SetOverSet);
}

#[test]
fn a_failing_call_leaves_the_old_file_or_the_set_that_replaces_it() {
    fail_every_call(Scenario::SetOverFile);
}

/// The kernel reports a lost page once, and forgets it: a second fsync would succeed.
#[test]
fn a_failed_sync_is_final() {
    let folder = root("save-faults");
    for scenario in Scenario::ALL {
        for at in 0.. {
            let root = folder.path().join(format!("{scenario:?}-{at}"));
            fs::create_dir(&root).unwrap();
            scenario.prepare(&root);
            let is_sync = |call: &Call| matches!(call, Call::Sync { .. });
            let system = Fault::new(at, Verdict::Fail(libc::EIO), is_sync);
            let saved = scenario.save(&root, system.clone(), Durability::Full);
            if system.0.struck().is_none() {
                break;
            }
            match saved {
                Err(error) => {
                    let words = error.to_string();
                    assert!(words.contains("disk"), "{scenario:?}, sync {at}: {words}");
                }
                // The new checkpoint is on the disk; that the old one's files are gone is not.
                Ok(synced) => assert!(!synced.left.is_empty(), "{scenario:?}, sync {at}: {synced:?}"),
            }
        }
    }
}

/// A file system may take part of a write, and be interrupted before the rest.
#[test]
fn a_short_write_is_continued() {
    let folder = root("save-faults");
    for verdict in [Verdict::Short, Verdict::Fail(libc::EINTR)] {
        for at in 0..5 {
            let root = folder.path().join(format!("{verdict:?}-{at}"));
            fs::create_dir(&root).unwrap();
            Scenario::SetOverSet.prepare(&root);
            let is_write = |call: &Call| matches!(call, Call::Write { .. });
            let system = Fault::new(at, verdict, is_write);
            Scenario::SetOverSet.save(&root, system.clone(), Durability::Full).unwrap();
            assert_eq!(find(&Scenario::SetOverSet.path(&root)), Scenario::SetOverSet.after());
            // Five writes and the one that was struck.
            assert_eq!(system.0.count(), 6);
        }
    }
}
