//! The calls that tests see are the calls that the kernel sees: a save under strace.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use test_support::{not_run, process, tool};

use super::super::Durability;
use super::crash::Recorder;
use super::scenario::{Scenario, root};
use super::tap::{Call, Tapped};

/// In a child: saves, and writes down what the seam saw. Elsewhere nothing.
#[test]
fn child() {
    let Ok(job) = std::env::var("GDS_SAVE_TRACED") else { return };
    let (scenario, path) = job.split_once('|').unwrap();
    let (scenario, path) = (Scenario::named(scenario), Path::new(path));
    let recorder = Recorder::default();
    let system = Arc::new(Tapped(recorder.clone()));
    scenario.save(path, system, Durability::Full).unwrap();
    let folder = fs::metadata(scenario.folder(path)).unwrap().ino();
    fs::write(path.join("trace"), describe(&recorder.trace(), folder).join("\n")).unwrap();
}

/// One line for each call that changes or syncs something, as `strace` lines are described too.
fn describe(trace: &[(Call, Option<u64>)], folder: u64) -> Vec<String> {
    let mut names: HashMap<u64, String> = [(folder, "the folder".to_owned())].into();
    let mut lines = Vec::new();
    for (call, made) in trace {
        let of = |inode: &u64| names.get(inode).cloned().unwrap_or_default();
        let line = match call {
            Call::Other(_) | Call::MakeFolder { .. } | Call::RemoveFolder { .. } => continue,
            Call::Create { name, .. } => {
                let name = name.to_string_lossy().into_owned();
                names.insert(made.unwrap(), name.clone());
                format!("create {name}")
            }
            Call::Reserve { file, len } => format!("reserve {} {len}", of(file)),
            Call::Write { file, offset, bytes } => format!("write {} {offset} {}", of(file), bytes.len()),
            Call::SetLen { file, len } => format!("set_len {} {len}", of(file)),
            // The folder above is not this folder's business.
            Call::Sync { file } if !names.contains_key(file) => continue,
            Call::Sync { file } => format!("sync {}", of(file)),
            Call::Link { from, to, .. } => format!("link {} {}", from.display(), to.display()),
            Call::Rename { from, to, .. } => format!("rename {} {}", from.display(), to.display()),
            Call::Unlink { name, .. } => format!("unlink {}", name.display()),
        };
        lines.push(line);
    }
    lines
}

/// Lines of `strace -y`, described; those about other folders are left out.
fn described(strace: &str, folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let mut lines = Vec::new();
    // Calls of several threads are cut in two: "<unfinished ...>", then "<... NAME resumed>".
    let mut unfinished: HashMap<&str, &str> = HashMap::new();
    for line in strace.lines() {
        let (thread, call) = line.trim().split_once(' ').unwrap_or_default();
        let mut call = call.trim().to_owned();
        if let Some(start) = line.trim().strip_suffix("<unfinished ...>") {
            unfinished.insert(thread, start.split_once(' ').unwrap().1.trim());
            continue;
        }
        if call.starts_with("<...") {
            let end = call.split_once("resumed>").unwrap().1.to_owned();
            call = format!("{}{end}", unfinished.remove(thread).unwrap_or_default());
        }
        let Some((name, rest)) = call.split_once('(') else { continue };
        let Some((arguments, result)) = rest.rsplit_once(") ") else { continue };
        if result.contains("= -1") || !call.contains(&folder) {
            continue;
        }
        let quoted: Vec<_> = arguments.split('"').skip(1).step_by(2).collect();
        let number = |at: usize| arguments.rsplit(", ").nth(at).unwrap_or_default().to_owned();
        let opened = |text: &str| {
            let path = text.split_once('<').and_then(|(_, path)| path.split_once('>')).unwrap_or_default().0;
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            path.strip_prefix(&folder).map(|name| name.trim_start_matches('/').to_owned())
        };
        let file = opened(arguments).map(|name| if name.is_empty() { "the folder".to_owned() } else { name });
        let Some(file) = file else { continue };
        lines.push(match name {
            "openat" if arguments.contains("O_CREAT") => format!("create {}", quoted[0]),
            "fallocate" => format!("reserve {file} {}", number(0)),
            "pwrite64" => format!("write {file} {} {}", number(0), number(1)),
            "ftruncate" => format!("set_len {file} {}", number(0)),
            "fsync" => format!("sync {file}"),
            "linkat" => format!("link {} {}", quoted[0], quoted[1]),
            "renameat" | "renameat2" => format!("rename {} {}", quoted[0], quoted[1]),
            "unlinkat" => format!("unlink {}", quoted[0]),
            _ => continue,
        });
    }
    lines
}

/// Files of a group are synced in no order.
fn in_order(mut lines: Vec<String>) -> Vec<String> {
    let is_file = |line: &String| line.starts_with("sync .");
    let mut at = 0;
    while at < lines.len() {
        let end = lines[at..].iter().position(|line| !is_file(line)).map_or(lines.len(), |count| at + count);
        lines[at..end].sort_unstable();
        at = end + 1;
    }
    lines
}

#[test]
fn the_kernel_sees_the_calls_that_the_seam_saw() {
    let test = "the_kernel_sees_the_calls_that_the_seam_saw";
    let Some(strace) = tool(test, "strace") else { return };
    for scenario in [Scenario::FileOverFile, Scenario::SetOverSet, Scenario::SetOverFile] {
        let folder = root("save-trace");
        scenario.prepare(folder.path());
        let output = folder.path().join("strace");
        let mut child = Command::new(&strace);
        child.args(["-f", "-y", "-s", "200", "-o"]).arg(&output);
        child.args(["-e", "trace=openat,fallocate,pwrite64,write,ftruncate,fsync,fdatasync,sync,syncfs,linkat,rename,renameat,renameat2,unlink,unlinkat"]);
        child.arg(std::env::current_exe().unwrap());
        child.args(["--exact", "save::durable::tests::trace::child", "--nocapture"]);
        child.env("GDS_SAVE_TRACED", format!("{scenario:?}|{}", folder.path().display()));
        let finished = process::run(&mut child, process::LIMIT);
        if finished.stderr.contains("Operation not permitted") {
            return not_run(test, "this user may not trace");
        }
        finished.success();
        let seam = fs::read_to_string(folder.path().join("trace")).unwrap();
        let seam = in_order(seam.lines().map(str::to_owned).collect());
        let kernel = described(&fs::read_to_string(&output).unwrap(), &scenario.folder(folder.path()));
        assert!(seam.len() > 5, "{seam:?}");
        assert_eq!(seam, in_order(kernel), "{scenario:?}");
    }
}
