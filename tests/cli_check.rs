//! `gds check`: on this machine as it is, and on the simulated GPU with a libcufile that does, bounces, lies, refuses or hangs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure in a helper is the test's failure")]

mod cli_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cli_support::{Run, gds, keys, run, run_simulated, run_with, synth};
use serde_json::Value;
use test_support::{compile, cufile_sim, process, simulator};

/// What is said to take no longer, and more than twice that for a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs the doctor on the simulated GPU with the simulated libcufile. It must be done in time.
#[track_caller]
fn check_simulated(settings: &[(&str, &str)], line: &str, paths: &[&Path]) -> Run {
    let library = cufile_sim::library().to_str().unwrap();
    let ours = [("GDS_CUFILE_LIBRARY", library), ("CUFILE_LOGFILE_PATH", "/dev/null")];
    let settings: Vec<(&str, &str)> = settings.iter().copied().chain(ours).collect();
    // What has to be built for it is built now.
    simulator::environment();
    let start = Instant::now();
    let run = run_simulated(&settings, line, paths);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    run
}

/// Runs the doctor with no libcufile to be found, so that what it says means the same on every machine.
#[track_caller]
fn without_library(line: &str, paths: &[&Path]) -> Run {
    run_with(&[("GDS_CUFILE_LIBRARY", "/nowhere/libcufile.so.0")], line, paths)
}

/// The JSON object of a run that ended with this code.
#[track_caller]
fn json(run: Run, code: i32) -> Value {
    assert_eq!(run.code(), Some(code), "{}{}", run.stdout(), run.stderr());
    assert!(run.stderr().is_empty(), "{}", run.stderr());
    serde_json::from_str(run.stdout()).unwrap()
}

#[track_caller]
fn finding<'a>(checkup: &'a Value, id: &str) -> &'a Value {
    let findings = checkup["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("no {id} in {checkup}"))
}

fn blocking(checkup: &Value) -> Vec<&str> {
    checkup["verdict"]["blocking"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect()
}

/// Whoever can write to a folder must not run code in those who stand in it.
#[test]
fn no_library_is_loaded_from_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    synth(&folder.path().join("model"), "--size 1MB");
    let here = folder.path().join("here");
    std::fs::create_dir(&here).unwrap();
    let marker = folder.path().join("marker");
    let planted = here.join("planted.so");
    let source = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) {{ fclose(fopen(\"{}\", \"w\")); }}\n",
        marker.display()
    );
    compile(&source, &planted, &["-shared", "-fPIC"].map(str::to_owned));
    for name in ["libcuda.so", "libcuda.so.1", "libcufile.so", "libcufile.so.0", "libcufile_rdma.so.1"] {
        std::fs::copy(&planted, here.join(name)).unwrap();
    }
    let run = |line: &str, path: Option<&Path>| {
        let mut command = gds();
        command.args(line.split_whitespace()).current_dir(&here).env_remove("LD_LIBRARY_PATH");
        command.envs(path.map(|path| ("LD_LIBRARY_PATH", path)));
        process::run(&mut command, process::LIMIT)
    };
    for line in [
        "check ../model",
        "load ../model",
        "load ../model --backend gds",
        "bench --raw ../model --device cpu",
    ] {
        let said = run(line, None);
        assert!(!marker.exists(), "{line}: {said}");
    }
    // The planted ones do leave their mark where somebody asks for them.
    let said = run("check ../model", Some(&here));
    assert!(marker.exists(), "{said}");
}

#[test]
fn without_a_gpu_it_says_in_plain_words_why_not() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 5MB");
    let start = Instant::now();
    let page = without_library("check", &[folder.path()]);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert_eq!(page.code(), Some(3));
    assert!(page.stderr().is_empty(), "{}", page.stderr());
    let first = page.stdout().lines().next().unwrap();
    assert!(first.starts_with("GPUDirect Storage is not available for "), "{first}");
    for words in
        ["FAIL   libcufile could not be loaded", "Weights still load", "--backend auto` takes", "Storage\n"]
    {
        assert!(page.stdout().contains(words), "{words:?} is not in:\n{}", page.stdout());
    }
    assert!(!page.stdout().contains('\u{1b}'), "no colours where nobody sees them");
}

#[test]
fn the_object_has_the_fields_it_is_said_to_have() {
    let checkup = json(without_library("check --json", &[]), 3);
    assert_eq!(keys(&checkup), ["findings", "gpus", "routes", "verdict", "volume"]);
    assert_eq!(keys(&checkup["verdict"]), ["blocking", "gds", "summary"]);
    assert_eq!(checkup["verdict"]["gds"], false);
    for finding in checkup["findings"].as_array().unwrap() {
        assert_eq!(keys(finding), ["advice", "area", "found", "id", "level", "why"]);
        let level = finding["level"].as_str().unwrap();
        assert!(["ok", "info", "warning", "failure"].contains(&level), "{level}");
        assert_eq!(level == "failure", blocking(&checkup).contains(&finding["id"].as_str().unwrap()));
    }
    assert_eq!(finding(&checkup, "cufile.library")["level"], "failure");
}

#[test]
fn real_gds_is_proven_by_a_read() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 5MB");
    let checkup = json(check_simulated(&[("CUFILE_SIM_MODE", "real")], "check --json", &[folder.path()]), 0);
    assert_eq!(checkup["verdict"]["gds"], true);
    assert!(checkup["verdict"]["summary"].as_str().unwrap().contains("cuFile itself says so"));
    assert_eq!(finding(&checkup, "cufile.mode")["level"], "ok");
    assert_eq!(finding(&checkup, "storage.trial")["level"], "ok");
    // Whatever this machine lacks by its files is said, but does not count against what was seen to work.
    assert!(finding(&checkup, "driver.nvidia_fs")["level"] != "failure");

    let machine = json(check_simulated(&[("CUFILE_SIM_MODE", "real")], "check --json", &[]), 0);
    assert_eq!(machine["volume"], Value::Null);
}

#[test]
fn a_library_that_bounces_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 5MB");
    // It opens, registers and reads; only its statistics tell.
    let checkup = json(check_simulated(&[("CUFILE_SIM_MODE", "lying")], "check --json", &[folder.path()]), 3);
    assert!(blocking(&checkup).contains(&"storage.trial"), "{checkup}");
    assert!(finding(&checkup, "storage.trial")["found"].as_str().unwrap().contains("host memory"));
    // It says by itself that it has no way but bouncing.
    let checkup =
        json(check_simulated(&[("CUFILE_SIM_MODE", "compat")], "check --json", &[folder.path()]), 3);
    assert!(blocking(&checkup).contains(&"cufile.mode"), "{checkup}");
}

#[test]
fn refusals_hangs_and_old_versions() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 5MB");
    let check = |script: &str, version: &str, code: i32| {
        let settings =
            [("CUFILE_SIM_MODE", "real"), ("CUFILE_SIM_SCRIPT", script), ("CUFILE_SIM_VERSION", version)];
        json(check_simulated(&settings, "check --json", &[folder.path()]), code)
    };
    let refused = check("handle_register=5030", "1.20", 3);
    assert!(finding(&refused, "storage.trial")["found"].as_str().unwrap().contains("5030"));
    let unknown = check("open=5999", "1.20", 3);
    assert!(finding(&unknown, "cufile.mode")["found"].as_str().unwrap().contains("5999"));
    let hangs = check("open=hang", "1.20", 3);
    assert!(blocking(&hangs).contains(&"cufile.mode"));
    let old = check("", "1.13", 3);
    assert_eq!(finding(&old, "cufile.functions")["level"], "warning");
    assert!(finding(&old, "cufile.functions")["found"].as_str().unwrap().contains("statistics"));
}

/// A library whose constructor does not return, which holds the dynamic linker's lock meanwhile.
fn never_loaded(folder: &Path) -> PathBuf {
    let file = folder.join("never.so");
    let source =
        "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n";
    compile(source, &file, &["-shared", "-fPIC"].map(str::to_owned));
    file
}

#[test]
fn a_library_that_never_loads_does_not_keep_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let library = never_loaded(folder.path());
    let settings = [("GDS_CUFILE_LIBRARY", library.to_str().unwrap())];
    let start = Instant::now();
    let checkup = json(run_with(&settings, "check --json", &[folder.path()]), 3);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert!(!blocking(&checkup).contains(&"storage.path"), "the file system did answer: {checkup}");
    assert!(finding(&checkup, "cufile.library")["found"].as_str().unwrap().contains("took longer than"));
    // An output that cannot be written is an error all the same, and the process ends.
    let mut full = Command::new("sh");
    full.args(["-c", "exec \"$0\" check > /dev/full", env!("CARGO_BIN_EXE_gds")]).envs(settings);
    let run = process::run(&mut full, process::LIMIT);
    assert_eq!(run.code(), Some(1), "{run}");
    assert!(run.stderr.contains("standard output"), "{run}");
}

/// libcufile loads others when it is opened.
#[test]
fn a_library_that_never_loads_what_it_needs_does_not_keep_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let needed = never_loaded(folder.path());
    let library = folder.path().join("hanging.so");
    let source = format!(
        "#include <dlfcn.h>\nlong cuFileDriverOpen(void) {{ return (long) dlopen(\"{}\", RTLD_NOW); }}\n",
        needed.display()
    );
    // All else is the simulator's.
    let rest = cufile_sim::library();
    let found = format!("-Wl,--no-as-needed,-rpath,{}", rest.parent().unwrap().display());
    compile(&source, &library, &["-shared", "-fPIC", &found, rest.to_str().unwrap()].map(str::to_owned));
    simulator::environment();
    let settings = [
        ("GDS_CUFILE_LIBRARY", library.to_str().unwrap()),
        ("CUFILE_LOGFILE_PATH", "/dev/null"),
        ("CUFILE_SIM_MODE", "real"),
    ];
    let start = Instant::now();
    let checkup = json(run_simulated(&settings, "check --json", &[]), 3);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert!(finding(&checkup, "cufile.mode")["found"].as_str().unwrap().contains("did not open within"));
}

#[test]
fn the_suggested_configuration_goes_with_the_machine() {
    let config = run("check --suggest-config", &[]).ok().stdout().to_owned();
    assert!(config.starts_with("{\n") && config.ends_with("}\n"), "{config}");
    assert!(config.contains("\"allow_compat_mode\": "));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cufile.json");
    std::fs::write(&file, config).unwrap();
    let checkup = run_with(&[("CUFILE_ENV_PATH_JSON", file.to_str().unwrap())], "check --json", &[]);
    let checkup: Value = serde_json::from_str(checkup.stdout()).unwrap();
    assert_eq!(finding(&checkup, "config.file")["level"], "ok");
    let direct = check_simulated(&[("CUFILE_SIM_MODE", "real")], "check --suggest-config", &[]).ok();
    assert!(direct.stdout().contains("\"allow_compat_mode\": false"));
}

#[test]
fn what_cannot_be_examined_is_said() {
    let missing = run("check", &["/no/such/model".as_ref()]);
    assert_eq!(missing.code(), Some(3));
    assert!(
        missing.stdout().contains("/no/such/model cannot be examined: No such file"),
        "{}",
        missing.stdout()
    );
    run("check --json --suggest-config", &[]).fails(2, &["cannot be used with"]);
}
