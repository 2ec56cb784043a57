//! Loading: what is found, what is refused, and what the errors say. Stand-ins are compiled here; NVIDIA's own
//! libraries are loaded where they have been fetched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cufile_sys::{Api, FUNCTIONS, LIBRARY_VARIABLE, LoadError, StatisticsLayout};
use test_support::folder::on_disk;
use test_support::{compile, cufile, not_run};

/// A library at `path` that has the functions `names`. `marker` is a file its initialiser makes.
fn stand_in<'a>(path: &Path, names: impl Iterator<Item = &'a str>, marker: Option<&Path>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut source: String = names.map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    if let Some(marker) = marker {
        source.push_str(&format!(
            "#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) {{ fclose(fopen(\"{}\", \"w\")); }}\n",
            marker.display()
        ));
    }
    let soname = "-Wl,-soname,libcufile.so.0";
    compile(&source, path, &["-shared", "-fPIC", soname].map(str::to_owned));
}

fn all_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

fn required_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().filter(|function| function.required).map(|function| function.name)
}

fn load(path: &Path) -> Result<Api, LoadError> {
    // SAFETY: the tests load C libraries without initialisers that could harm, and call nothing of the stand-ins.
    unsafe { Api::load_from(path) }
}

#[test]
fn a_missing_library_is_not_found() {
    let path = Path::new("/nonexistent/libcufile.so.0");
    let Err(LoadError::NotFound { attempts }) = load(path) else { panic!("loaded {}", path.display()) };
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].name, path.to_str().unwrap());
    assert!(attempts[0].reason.contains("No such file"), "{attempts:?}");
}

#[test]
fn a_file_that_is_no_library_is_not_found() {
    let scratch = on_disk("text");
    let folder = scratch.path();
    let path = folder.join("libcufile.so.0");
    std::fs::write(
        &path,
        "not ELF, though long enough to hold an ELF header if it were one, which it is not",
    )
    .unwrap();
    let Err(error @ LoadError::NotFound { .. }) = load(&path) else { panic!("loaded a text") };
    assert!(error.to_string().contains("invalid ELF header"), "{error}");
}

/// The dynamic linker would map what is not there, and the process would end by a signal.
#[test]
fn a_library_cut_short_anywhere_is_not_opened() {
    let scratch = on_disk("cut");
    let whole = scratch.path().join("libcufile.so.0");
    stand_in(&whole, all_names(), None);
    let bytes = std::fs::read(&whole).unwrap();
    let mut refused = 0;
    for len in (0..bytes.len()).step_by(256) {
        let path = scratch.path().join(format!("{len}.so"));
        std::fs::write(&path, &bytes[..len]).unwrap();
        match load(&path) {
            Err(LoadError::NotFound { attempts }) => {
                refused +=
                    usize::from(attempts[0].reason.contains(&format!("cut short: it has {len} bytes of")));
            }
            // What is not mapped may be missing.
            Ok(_) => assert!(len > bytes.len() / 2, "{len}"),
            Err(other) => panic!("{len}: {other}"),
        }
    }
    assert!(refused > 5, "{refused}");
    assert!(load(&whole).is_ok());
}

#[test]
fn a_foreign_library_lacks_a_symbol() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).unwrap();
    let Err(error) = load(Path::new(libc)) else { panic!("loaded {libc}") };
    assert!(
        matches!(&error, LoadError::MissingSymbol { library, symbol: "cuFileDriverOpen" } if library.ends_with("libc.so.6"))
    );
    assert!(
        error.to_string().contains("libc.so.6") && error.to_string().contains("cuFileDriverOpen"),
        "{error}"
    );
}

#[test]
fn each_required_function_is_missed() {
    let scratch = on_disk("required");
    let folder = scratch.path();
    for lacking in required_names() {
        let path = folder.join(format!("without-{lacking}.so"));
        stand_in(&path, all_names().filter(|name| *name != lacking), None);
        let Err(error) = load(&path) else { panic!("loaded without {lacking}") };
        assert_eq!(error, LoadError::MissingSymbol { library: path, symbol: lacking });
    }
}

#[test]
fn the_first_release_lacks_every_newer_function() {
    let scratch = on_disk("base");
    let folder = scratch.path();
    let path = folder.join("libcufile.so.0");
    stand_in(&path, required_names(), None);
    let api = load(&path).unwrap();
    let absent: Vec<&str> = api.absent().into_iter().map(|(name, _)| name).collect();
    let newer: Vec<&str> =
        FUNCTIONS.iter().filter(|function| !function.required).map(|function| function.name).collect();
    assert_eq!(absent, newer);
    assert_eq!(api.library(), path);
    assert!(api.cuFileReadAsync.is_none());
}

#[test]
fn a_complete_library_lacks_nothing() {
    let scratch = on_disk("complete");
    let folder = scratch.path();
    let path = folder.join("libcufile.so.0");
    stand_in(&path, all_names(), None);
    assert_eq!(load(&path).unwrap().absent(), []);
}

#[test]
fn a_relative_path_is_refused() {
    for path in ["libcufile.so.0", "./libcufile.so.0", ""] {
        let Err(error) = load(Path::new(path)) else { panic!("loaded {path}") };
        assert_eq!(error, LoadError::RelativePath { path: path.into() });
    }
}

/// The functions that the library of `version` must lack: those of later ones.
fn newer_than(version: (u16, u16)) -> BTreeSet<&'static str> {
    FUNCTIONS
        .iter()
        .filter(|function| function.since.cufile > version)
        .map(|function| function.name)
        .collect()
}

fn check_real_library(test: &str, version: &str, number: i32) -> Option<Api> {
    let path = cufile(test, version)?.join("lib/libcufile.so.0");
    let api = load(&path).unwrap();
    assert_eq!(api.library(), path);
    let mut said = 0;
    // SAFETY: the function writes one integer, and needs no open driver.
    let error = unsafe { api.cuFileGetVersion.unwrap()(&raw mut said) };
    assert_eq!(error.result(), Ok(()));
    assert_eq!(said, number);
    Some(api)
}

#[test]
fn nvidias_1_20_is_complete() {
    let Some(api) = check_real_library("nvidias_1_20_is_complete", "1.20", 1200) else {
        return;
    };
    assert_eq!(api.absent(), []);
    assert_eq!(StatisticsLayout::of(1200), Some(StatisticsLayout::From1_19));
}

#[test]
fn nvidias_1_14_lacks_what_came_later() {
    let Some(api) = check_real_library("nvidias_1_14_lacks_what_came_later", "1.14", 1140) else {
        return;
    };
    let absent: BTreeSet<&str> = api.absent().into_iter().map(|(name, _)| name).collect();
    let expected = BTreeSet::from([
        "cuFileDriverGetP2PFlags",
        "cuFileDriverSetP2PFlags",
        "cuFileExportPCIeTopology",
        "cuFileGetBARSizeInKB",
        "cuFileGetParameterGpuBounceBufferSlabArray",
        "cuFileGetParameterMinMaxValue",
        "cuFileGetParameterPosixPoolSlabArray",
        "cuFileGetStatsL1",
        "cuFileGetStatsL2",
        "cuFileGetStatsL3",
        "cuFileGetStatsLevel",
        "cuFileReadv",
        "cuFileSetParameterGpuBounceBufferSlabArray",
        "cuFileSetParameterPosixPoolSlabArray",
        "cuFileSetStatsLevel",
        "cuFileStatsReset",
        "cuFileStatsStart",
        "cuFileStatsStop",
        "cuFileWritev",
    ]);
    assert_eq!(absent, expected);
    assert_eq!(absent, newer_than((1, 14)));
    assert_eq!(StatisticsLayout::of(1140), None);
}

// The search depends on the environment of the process, so the tests of it start this program again with another one,
// to run the next test alone and to look at what it prints.

const FOUND: &str = "the search found: ";
const FAILED: &str = "the search failed: ";
/// Before a 1 where the kernel says that the process has more rights than its caller.
const RIGHTS: &str = "more rights: ";

#[test]
fn the_search_ends_in_a_library_or_a_reason() {
    // SAFETY: takes a number and returns one.
    println!("{RIGHTS}{}", unsafe { libc::getauxval(libc::AT_SECURE) });
    match Api::get() {
        Ok(api) => {
            assert!(api.library().is_absolute());
            println!("{FOUND}{}", api.library().display());
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            println!("{FAILED}{error}");
        }
    }
    match (Api::get(), Api::get()) {
        (Ok(one), Ok(two)) => assert!(std::ptr::eq(one, two)),
        (Err(one), Err(two)) => assert!(std::ptr::eq(one, two)),
        mixed => panic!("{mixed:?}"),
    }
}

/// What the search comes to in `directory` with only the `variables` set.
fn search(directory: &Path, variables: &[(&str, &str)]) -> Result<PathBuf, String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_search_ends_in_a_library_or_a_reason", "--nocapture"])
        .current_dir(directory)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    if let Some((_, rest)) = text.split_once(FOUND) {
        return Ok(rest.lines().next().unwrap().into());
    }
    let (_, reason) = text.split_once(FAILED).unwrap();
    Err(reason.split("\ntest ").next().unwrap().to_owned())
}

#[test]
fn the_variable_names_the_only_library_tried() {
    let scratch = on_disk("variable");
    let folder = scratch.path();
    let (named, other) = (folder.join("named/libcufile.so.0"), folder.join("other/libcufile.so.0"));
    stand_in(&named, all_names(), None);
    stand_in(&other, all_names(), None);
    let other_folder = other.parent().unwrap().to_str().unwrap();

    let path = ("LD_LIBRARY_PATH", other_folder);
    assert_eq!(search(folder, &[path, (LIBRARY_VARIABLE, named.to_str().unwrap())]), Ok(named.clone()));
    assert_eq!(
        search(folder, &[path, (LIBRARY_VARIABLE, "")]),
        Ok(other.clone()),
        "empty is as good as unset"
    );

    let relative = search(folder, &[path, (LIBRARY_VARIABLE, "named/libcufile.so.0")]).unwrap_err();
    assert!(relative.contains("relative path") && relative.contains(LIBRARY_VARIABLE), "{relative}");

    let missing = search(folder, &[path, (LIBRARY_VARIABLE, "/nonexistent/libcufile.so.0")]).unwrap_err();
    assert!(missing.contains("/nonexistent/libcufile.so.0: "), "{missing}");
    assert!(!missing.contains(other_folder), "{missing}");
}

/// Whatever its name in the folder, a library is found; what is no libcufile, or a stub, does not keep a later one from being found.
#[test]
fn the_first_that_is_a_libcufile_counts() {
    let scratch = on_disk("names");
    let folder = scratch.path();
    let good = folder.join("good/libcufile.so.1.1.1");
    stand_in(&good, all_names(), None);
    for name in ["libcufile.so.0", "libcufile.so.1", "libcufile.so"] {
        let only = folder.join(name).join(name);
        stand_in(&only, all_names(), None);
        assert_eq!(
            search(folder, &[("LD_LIBRARY_PATH", only.parent().unwrap().to_str().unwrap())]),
            Ok(only)
        );
    }
    let marker = folder.join("marker");
    stand_in(&folder.join("stubs/libcufile.so.0"), all_names(), Some(&marker));
    stand_in(&folder.join("foreign/libcufile.so.0"), ["cuFileRead"].into_iter(), None);
    std::fs::create_dir(folder.join("text")).unwrap();
    std::fs::write(folder.join("text/libcufile.so.0"), "not a library").unwrap();
    // As a package that forgot to say what it needs.
    let broken = folder.join("broken/libcufile.so.0");
    std::fs::create_dir(folder.join("broken")).unwrap();
    let source = "int shm_of_nobody(void); int cuFileDriverOpen(void) { return shm_of_nobody(); }";
    compile(source, &broken, &["-shared", "-fPIC", "-Wl,-z,now"].map(str::to_owned));
    let alone = search(folder, &[("LD_LIBRARY_PATH", broken.parent().unwrap().to_str().unwrap())]);
    if let Err(reason) = alone {
        assert!(reason.contains("undefined symbol: shm_of_nobody"), "{reason}");
    }
    std::fs::create_dir(folder.join("cut")).unwrap();
    let beginning = &std::fs::read(&good).unwrap()[..3000];
    std::fs::write(folder.join("cut/libcufile.so.0"), beginning).unwrap();
    let cut = search(folder, &[("LD_LIBRARY_PATH", folder.join("cut").to_str().unwrap())]);
    if let Err(reason) = cut {
        assert!(reason.contains("cut/libcufile.so.0: is cut short: it has 3000 bytes"), "{reason}");
    }
    for first in ["stubs", "foreign", "text", "broken", "cut", "nothing"] {
        let path = format!("{}:{}", folder.join(first).display(), folder.join("good").display());
        assert_eq!(search(folder, &[("LD_LIBRARY_PATH", &path)]), Ok(good.clone()), "{first}");
    }
    assert!(!marker.exists(), "the stub was loaded");
}

#[test]
fn the_working_directory_is_never_looked_in() {
    let scratch = on_disk("directory");
    let folder = scratch.path();
    let here = folder.join("here");
    let marker = folder.join("marker");
    stand_in(&here.join("libcufile.so.0"), all_names(), Some(&marker));
    std::fs::copy(here.join("libcufile.so.0"), here.join("libcufile.so")).unwrap();
    let absolute = here.to_str().unwrap();

    let unsafe_paths =
        [":", "/nonexistent:", ":/nonexistent", "/nonexistent::/usr/nonexistent", ".", "../here"];
    for path in unsafe_paths {
        let result = search(&here, &[("LD_LIBRARY_PATH", path)]);
        assert!(!marker.exists(), "{path:?} led to the working directory: {result:?}");
        if let Err(reason) = result {
            assert!(reason.contains("LD_LIBRARY_PATH has an empty or relative entry"), "{reason}");
        }
    }
    for variable in ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV", "HOME"] {
        let result = search(&here, &[(variable, ".")]);
        assert!(!marker.exists(), "{variable} led to the working directory: {result:?}");
    }
    // A library that is loaded already is found by its name even so.
    let elsewhere = folder.join("elsewhere/any-name.so");
    stand_in(&elsewhere, all_names(), None);
    let preloaded = [("LD_LIBRARY_PATH", ":"), ("LD_PRELOAD", elsewhere.to_str().unwrap())];
    assert_eq!(search(&here, &preloaded), Ok(elsewhere.clone()));
    assert!(!marker.exists());
    // The absolute entry beside an empty one still counts; and this library does leave its mark when loaded.
    for path in [absolute.to_owned(), format!("{absolute}:")] {
        assert_eq!(search(&here, &[("LD_LIBRARY_PATH", &path)]), Ok(here.join("libcufile.so.0")), "{path}");
        std::fs::remove_file(&marker).unwrap();
    }
}

/// A program that has more rights than its caller must not run what the caller names.
#[test]
fn no_variable_is_heeded_with_more_rights_than_the_callers() {
    const NOBODY: u32 = 65_534;
    let test = "no_variable_is_heeded_with_more_rights_than_the_callers";
    let scratch = on_disk("rights");
    let folder = scratch.path();
    let (library, marker) = (folder.join("lib/libcufile.so.0"), folder.join("marker"));
    stand_in(&library, all_names(), Some(&marker));
    let lib = library.parent().unwrap().to_str().unwrap();
    let program = folder.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // Another user must be able to run, to load and to leave the mark.
    for path in [folder, library.parent().unwrap(), &library, &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let home = folder.join("home");
    let python = home.join(".local/lib/python3.11/site-packages/nvidia/cu13/lib");
    std::fs::create_dir_all(&python).unwrap();
    std::fs::copy(&library, python.join("libcufile.so.0")).unwrap();
    let beside_an_empty_one = format!(":{lib}");
    let ways = [
        (LIBRARY_VARIABLE, library.to_str().unwrap()),
        ("LD_LIBRARY_PATH", lib),
        ("LD_LIBRARY_PATH", &*beside_an_empty_one),
        ("HOME", home.to_str().unwrap()),
    ];
    let run = |command: &mut Command, way: (&str, &str)| {
        command.args(["--exact", "the_search_ends_in_a_library_or_a_reason", "--nocapture"]);
        let output = command.current_dir(folder).env_clear().envs([way]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    for way in ways {
        assert!(run(&mut Command::new(&program), way).contains(FOUND), "{way:?}");
        std::fs::remove_file(&marker).unwrap();
    }
    if let Err(error) = std::os::unix::fs::chown(&program, Some(NOBODY), Some(NOBODY)) {
        return not_run(test, &format!("the program cannot be given to another user: {error}"));
    }
    // As that user the library is found, so that it is not for want of access where it is not found below.
    if !run(Command::new(&program).uid(NOBODY).gid(NOBODY), ways[0]).contains(FOUND) {
        return not_run(test, "another user cannot reach the build folder");
    }
    std::fs::remove_file(&marker).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    for way in ways {
        let text = run(&mut Command::new(&program), way);
        if text.contains(&format!("{RIGHTS}0")) {
            return not_run(test, "the disk is mounted without set-user-ID");
        }
        assert!(!marker.exists(), "{way:?}: {text}");
    }
}

#[test]
fn pythons_folders_are_looked_in_last() {
    let scratch = on_disk("python");
    let folder = scratch.path();
    let environment = folder.join("venv");
    let library = environment.join("lib/python3.11/site-packages/nvidia/cu13/lib/libcufile.so.0");
    stand_in(&library, all_names(), None);
    let home = folder.join("home");
    let variables = [("VIRTUAL_ENV", environment.to_str().unwrap()), ("HOME", home.to_str().unwrap())];

    let nothing = search(folder, &variables[1..]);
    let Err(reason) = nothing else {
        let reason = format!("a libcufile is installed on this machine: {nothing:?}");
        return not_run("pythons_folders_are_looked_in_last", &reason);
    };
    for name in [
        "\n  libcufile.so.0: ",
        "\n  libcufile.so.1: ",
        "\n  libcufile.so: ",
        "\n  /usr/local/cuda/lib64/libcufile.so.0: no such file",
        "\n  /usr/lib64/libcufile.so.0: no such file",
        &format!("\n  {}/.local/{{lib,lib64}}/python3*/", home.display()),
        LIBRARY_VARIABLE,
    ] {
        assert!(reason.contains(name), "{name} is not in: {reason}");
    }
    assert_eq!(search(folder, &variables), Ok(library));
}
