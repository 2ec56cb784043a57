//! What the kernel is asked to do by `gds save`, in which order: bytes, their fsync, the renaming, the fsync of the folder.
//!
//! What the order is good for is shown in `gds-loader`, where a trace is replayed into every state that a power cut may leave; here
//! it is that the program's calls, whichever path writes, are in that order.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::path::Path;
use std::process::Command;

use program::{GDS, run};
use test_support::{folder, not_run, process, tool};

const CALLS: &str = "trace=openat,pwrite64,pwritev,pwritev2,write,writev,fallocate,ftruncate,fsync,linkat,rename,renameat,renameat2,unlinkat,io_uring_enter";

/// The calls that concern `folder`, each as its name and its arguments with results.
fn calls(strace: &str, folder: &Path) -> Vec<(String, String)> {
    let folder = folder.display().to_string();
    let mut unfinished = std::collections::HashMap::new();
    let mut calls = Vec::new();
    for line in strace.lines() {
        let (thread, call) = line.trim().split_once(' ').unwrap_or_default();
        let mut call = call.trim().to_owned();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            unfinished.insert(thread.to_owned(), begun.to_owned());
            continue;
        }
        if let Some((_, rest)) = call.split_once("resumed>").filter(|_| call.starts_with("<...")) {
            call = format!("{}{rest}", unfinished.remove(thread).unwrap_or_default());
        }
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if arguments.contains(&folder) && !arguments.contains("= -1") {
            calls.push((name.to_owned(), arguments.to_owned()));
        }
    }
    calls
}

fn traced(test: &str, options: &str, target: &str) -> Option<Vec<(String, String)>> {
    let strace = tool(test, "strace")?;
    let folder = folder::on_disk("save-traced");
    let model = folder.path().join("model");
    run("synth --size 4MB --shards 2", [&model]).success();
    let above = folder.path().join("saved");
    std::fs::create_dir(&above).unwrap();
    let output = folder.path().join("strace");
    let mut child = Command::new(strace);
    child.args(["-f", "-y", "-s", "200", "-e", CALLS, "-o"]).arg(&output).arg(GDS);
    child
        .args(["save", "--device", "cpu"])
        .args(options.split_whitespace())
        .arg(&model)
        .arg(above.join(target));
    let finished = process::run(&mut child, process::LIMIT);
    if finished.stderr.contains("Operation not permitted") {
        not_run(test, "this user may not trace");
        return None;
    }
    finished.success();
    Some(calls(&std::fs::read_to_string(output).unwrap(), &above))
}

/// Checks the order of the calls; returns how many writes there were.
fn check(calls: &[(String, String)], shards: usize, is_set: bool) -> usize {
    let temp = |arguments: &str| arguments.contains(".gds-tmp-");
    let at = |wanted: &dyn Fn(&str, &str) -> bool| {
        let positions = calls.iter().enumerate().filter(|(_, (name, arguments))| wanted(name, arguments));
        positions.map(|(position, _)| position).collect::<Vec<_>>()
    };
    // A synced file is told by its path in the first argument; the folder's has no temporary name in it.
    let writes = at(&|name, arguments| name.starts_with("pwrite") && temp(arguments));
    let lengths = at(&|name, arguments| name == "ftruncate" && temp(arguments));
    let files = at(&|name, arguments| name == "fsync" && temp(arguments));
    let folder = at(&|name, arguments| name == "fsync" && !temp(arguments));
    let renames = at(&|name, _| name.starts_with("rename"));
    let links = at(&|name, _| name == "linkat");
    let show = || format!("{calls:#?}");
    let expected = if is_set { shards + 1 } else { shards };
    assert_eq!(files.len(), expected, "{}", show());
    assert_eq!(renames.len(), 1, "the commit: {}", show());
    let commit = renames[0];
    let data = if is_set { links[0] } else { commit };
    assert!(files.iter().all(|sync| *sync < data), "every file is synced before it has a name: {}", show());
    for sync in &files {
        let path = |position: usize| {
            let (_, arguments) = &calls[position];
            arguments.split_once('<').and_then(|(_, path)| path.split_once('>')).unwrap().0.to_owned()
        };
        let after =
            writes.iter().chain(&lengths).filter(|write| **write > *sync && path(**write) == path(*sync));
        assert_eq!(after.count(), 0, "nothing is written to a synced file: {}", show());
    }
    assert!(folder.iter().any(|sync| *sync > commit), "the commit is synced: {}", show());
    if is_set {
        assert_eq!(links.len(), shards);
        let last = links[links.len() - 1];
        assert!(
            folder.iter().any(|sync| *sync > last && *sync < commit),
            "the shards' names are: {}",
            show()
        );
        assert!(folder.iter().any(|sync| *sync < links[0]), "what proves them ours is: {}", show());
    }
    writes.len()
}

#[test]
fn a_file_by_the_page_cache_is_synced_then_renamed() {
    let test = "a_file_by_the_page_cache_is_synced_then_renamed";
    let Some(calls) = traced(test, "--backend buffered", "model.safetensors") else { return };
    assert!(check(&calls, 1, false) > 0);
}

#[test]
fn a_file_by_direct_writes_is_synced_then_renamed() {
    let test = "a_file_by_direct_writes_is_synced_then_renamed";
    let Some(calls) = traced(test, "--backend direct", "model.safetensors") else { return };
    assert!(check(&calls, 1, false) > 0);
}

#[test]
fn shards_are_synced_then_named_then_the_index_is() {
    let test = "shards_are_synced_then_named_then_the_index_is";
    let Some(calls) = traced(test, "--shard-size 2MB", "set") else { return };
    assert!(check(&calls, 3, true) > 0);
}
