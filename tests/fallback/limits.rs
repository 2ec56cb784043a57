//! What a process may have too little of, and names that lead nowhere else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use test_support::fixture::{File, payload, write_model};
use test_support::{Finished, folder, not_run, process, tool};

use crate::page_cache::evict;
use crate::program::{GDS, digests, gds, json, paths, run, shards};

/// A user who may have few processes: threads that cannot be started are done without.
#[test]
fn few_processes() {
    let test = "limits::few_processes";
    let (Some(setpriv), Some(prlimit)) = (tool(test, "setpriv"), tool(test, "prlimit")) else { return };
    // Where another user can run the program and read the model, whoever owns the build folder.
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("gds");
    fs::copy(GDS, &program).unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    write_model(&model, &[0, 1, 2].map(|k| File::new().tensor(&format!("{k}"), "U8", &[100_000 + k])));
    for path in [folder.path(), &program, &model] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let expected = digests(&json(&run("load --device cpu --digest --json", [&model])));
    // A user of the test's own, who has no other processes.
    let user = format!("{}", 1_900_000_000 + std::process::id());
    let as_user = |processes: u32, line: &str| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&prlimit);
        command.arg(format!("--nproc={processes}")).arg(&program).args(line.split_whitespace()).arg(&model);
        process::run(&mut command, process::LIMIT)
    };
    let enough = as_user(1000, "inspect --json");
    if enough.code() != Some(0) {
        return not_run(
            test,
            &format!("the program cannot be run as another user: {}", enough.stderr.trim()),
        );
    }
    for processes in 1..6 {
        for line in ["inspect --json", "load --device cpu --digest --json", "verify --json"] {
            let report = json(&as_user(processes, line));
            if line.starts_with("load") {
                assert_eq!(digests(&report), expected, "{processes}");
            }
        }
    }
}

/// A tensor of a file that is longer than the process's address space may be.
#[test]
fn little_address_space() {
    let folder = folder::on_disk("limits::little_address_space");
    let path = folder.path().join("model.safetensors");
    let file = File::new().tensor("small", "F32", &[1024]).tensor("large", "U8", &[1 << 30]);
    let header = file.header();
    fs::write(&path, [header.as_slice(), &payload("small", 4096)].concat()).unwrap();
    let whole = fs::OpenOptions::new().write(true).open(&path).unwrap();
    whole.set_len(header.len() as u64 + 4096 + (1 << 30)).unwrap();
    let load = |backend: &str| {
        let line = "ulimit -v 262144 && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args([
            "-c",
            line,
            "sh",
            GDS,
            "load",
            "--device",
            "cpu",
            "--digest",
            "--json",
            "--tensors",
            "small",
        ]);
        process::run(command.args(["--backend", backend]).arg(&path), process::LIMIT)
    };
    let expected = digests(&json(&load("buffered")));
    assert_eq!(expected.len(), 1);
    assert_eq!(digests(&json(&load("auto"))), expected);
    let direct = load("direct");
    assert!(direct.code() == Some(3) || digests(&json(&direct)) == expected, "{direct}");
    let mapped = load("mmap");
    assert_eq!((mapped.code(), mapped.stdout.as_str()), (Some(3), ""), "{mapped}");
    assert!(mapped.stderr.contains("mapping it: Cannot allocate memory"), "{mapped}");
    // More than there is room for is an error, and no abort.
    let all = r#"ulimit -v 262144 && exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", all, "sh", GDS, "load", "--device", "cpu", "--json"]).arg(&path);
    let failed = process::run(&mut command, process::LIMIT);
    assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
    assert!(failed.stderr.starts_with("error: ") && failed.stderr.contains("memory"), "{failed}");
    assert!(failed.stderr.contains("268435456 bytes of address space (ulimit -v)"), "{failed}");
}

/// A folder is found by every name that leads to it.
#[test]
fn any_name_of_a_folder_leads_to_it() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = folder::on_disk("limits::any_name_of_a_folder_leads_to_it");
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b" a b/\xff\xfe\n'\"$x"));
    fs::create_dir_all(&odd).unwrap();
    let shard = |name: &str| File::new().tensor(name, "F32", &[300, 1000]);
    write_model(&odd, &[shard("a"), shard("b")]);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&odd, &link).unwrap();
    std::os::unix::fs::symlink("link", folder.path().join("link to link")).unwrap();
    let expected = digests(&json(&run("load --device cpu --digest --json", [&odd])));
    let here = odd.parent().unwrap();
    let relative = odd.strip_prefix(here).unwrap();
    let names: Vec<PathBuf> = [
        odd.join(""),
        odd.join("."),
        link.clone(),
        link.join(""),
        link.join("model.safetensors.index.json"),
        folder.path().join("link to link"),
        relative.to_owned(),
        Path::new("./").join(relative),
        Path::new("../link").to_owned(),
        Path::new("../link/../").join(relative),
    ]
    .into();
    for name in names {
        for backend in ["auto", "mmap"] {
            let mut command = gds(&format!("load --device cpu --digest --json --backend {backend}"), [&name]);
            let report = json(&process::run(command.current_dir(here), process::LIMIT));
            assert_eq!(digests(&report), expected, "{name:?} by {backend}");
        }
    }
    // From within, where the name is nothing but a dot.
    let mut command = gds("load --device cpu --digest --json", ["."]);
    assert_eq!(digests(&json(&process::run(command.current_dir(&link), process::LIMIT))), expected);
}

/// A set of `count` shards, one of them long enough to be read directly, and digests of its tensors.
pub(crate) fn many_shards(folder: &Path, count: usize) -> std::collections::BTreeMap<String, String> {
    let file = |k: usize| {
        let len = if k == 0 { 2 << 20 } else { 20_001 };
        File::new().tensor(&format!("{k}.a"), "F32", &[3, 5]).tensor(&format!("{k}.b"), "U8", &[len])
    };
    write_model(folder, &(0..count).map(file).collect::<Vec<_>>());
    digests(&json(&run("load --device cpu --digest --json", [folder])))
}

/// Runs `gds` with the words of `line` and `path`, under a limit of so many open files.
fn with_descriptors(limit: &str, line: &str, path: &Path) -> Finished {
    let script = format!(r#"ulimit {limit} && exec "$@""#);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", GDS]).args(line.split_whitespace()).arg(path);
    process::run(&mut command, process::LIMIT)
}

/// More shards than files that may be open: they take turns, on every path and for every command. Where there is no room even for
/// that, the error says what the limit is and how to raise it.
#[test]
fn few_descriptors() {
    let test = "limits::few_descriptors";
    let folder = folder::on_disk(test);
    let (model, expected) = (folder.path(), many_shards(folder.path(), 64));
    for backend in ["auto", "buffered", "mmap", "prefetch", "direct"] {
        shards(model).iter().for_each(|shard| evict(shard));
        let line = format!("load --device cpu --digest --json --backend {backend}");
        let loaded = with_descriptors("-n 24", &line, model);
        if backend == "direct" && loaded.code() == Some(3) && loaded.stderr.contains("Invalid argument") {
            not_run(test, "the disk of the build folder has no O_DIRECT");
            continue;
        }
        let report = json(&loaded);
        assert_eq!(digests(&report), expected, "{backend}");
        if !matches!(backend, "auto" | "prefetch") {
            assert_eq!(paths(&report), [(backend.to_owned(), report["bytes"].as_u64().unwrap())].into());
        }
    }
    with_descriptors("-n 24", "inspect", model).success();
    let manifest = folder.path().join("manifest.json");
    let line = format!("verify --write-manifest {}", manifest.display());
    with_descriptors("-n 24", &line, model).success();
    with_descriptors("-n 24", &format!("verify --manifest {}", manifest.display()), model).success();
    // What stays open is asked of the kernel in its own way.
    let engine = with_descriptors("-n 24", "load --device cpu --backend direct --engine io-uring", model);
    assert!(matches!(engine.code(), Some(3)), "{engine}");

    for line in ["load --device cpu --backend buffered", "inspect"] {
        let failed = with_descriptors("-n 8", line, model);
        assert_eq!((failed.code(), failed.stdout.as_str()), (Some(1), ""), "{failed}");
        for words in ["64 files", "RLIMIT_NOFILE allows 8", "ulimit -n", model.to_str().unwrap()] {
            assert!(failed.stderr.contains(words), "{words} is missing in: {}", failed.stderr);
        }
    }
    // A soft limit is raised, as far as it may be.
    let report = json(&with_descriptors("-Sn 8", "load --device cpu --digest --json", model));
    assert_eq!(digests(&report), expected);
}
