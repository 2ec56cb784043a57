//! Where libcufile is looked for, in order. Nothing here opens a library.
//!
//! The working directory is never looked in: whoever can write to a folder that a user happens to stand in must not
//! decide what code runs. So relative paths are refused, and where `LD_LIBRARY_PATH` has an empty or relative entry,
//! which the dynamic linker takes for the working directory, the library is not looked up by name but in the absolute
//! entries and the well-known folders alone. So it is where an entry is a folder of stubs, which are there to be linked
//! against: they have every function, and none does anything. And so it is where a folder has a file of these names that is cut
//! short: the linker would take the first it finds, and with it the process would end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::elf::cut_short;

/// The environment variable that names the library to load, by an absolute path; no other is then tried.
pub const LIBRARY_VARIABLE: &str = "GDS_CUFILE_LIBRARY";

/// The name NVIDIA's library goes by since its first release, one that it may get, and the one that development packages
/// add.
const NAMES: [&str; 3] = ["libcufile.so.0", "libcufile.so.1", "libcufile.so"];

/// How the file begins that these names lead to, where packages installed no name: `libcufile.so.1.1.1`.
const VERSIONED: &str = "libcufile.so.";

/// One step of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// A name for the dynamic linker to find.
    Name(&'static str),
    /// A name that counts only if a library that is loaded already goes by it.
    Loaded(&'static str),
    /// A file.
    File(PathBuf),
    /// A place where there is nothing to try, and why.
    Nothing(String, &'static str),
}

/// What the search depends on: the environment, and the root of the file system (another one in tests).
pub(crate) struct Surroundings<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// `LD_LIBRARY_PATH` as the dynamic linker read it when the process started.
    pub(crate) linker_path: OsString,
    pub(crate) root: &'a Path,
}

impl Surroundings<'_> {
    /// Every candidate, the preferred first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = self.by_name();
        let folders = self.cuda_folders().into_iter().chain(self.system_folders());
        candidates.extend(folders.map(|folder| in_folder(&folder)));
        candidates.extend(self.python_candidates());
        candidates
    }

    fn by_name(&self) -> Vec<Candidate> {
        let path = self.linker_path.as_bytes();
        let entries: Vec<&[u8]> = path.split(|byte| b":;".contains(byte)).collect();
        // `$ORIGIN` is the absolute path of the program's folder; `$LIB`, say, would be relative.
        let beginnings: [&[u8]; 3] = [b"/", b"$ORIGIN", b"${ORIGIN}"];
        let safe = |entry: &&[u8]| {
            beginnings.iter().any(|beginning| entry.starts_with(beginning)) && !is_of_stubs(entry)
        };
        let absolute = entries.iter().filter(|entry| entry.starts_with(b"/") && safe(entry));
        let absolute = absolute.map(|entry| Path::new(OsStr::from_bytes(entry)));
        let well_known = self.cuda_folders().into_iter().chain(self.system_folders());
        let mut folders = absolute.clone().map(Path::to_owned).chain(well_known);
        let are_whole =
            folders.all(|folder| NAMES.iter().all(|name| cut_short(&folder.join(name)).is_none()));
        if (path.is_empty() || entries.iter().all(safe)) && are_whole {
            // The linker looks no further than the first file of a name, whatever it is.
            let files = absolute.map(in_folder).filter(|found| matches!(found, Candidate::File(_)));
            return NAMES.map(Candidate::Name).into_iter().chain(files).collect();
        }
        NAMES.map(Candidate::Loaded).into_iter().chain(absolute.map(in_folder)).collect()
    }

    /// The toolkit's folders: the one the environment names, the default one, then the newest version first.
    fn cuda_folders(&self) -> Vec<PathBuf> {
        let mut homes: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(|name| self.folder(name))
            .collect();
        homes.push(self.root.join("usr/local/cuda"));
        let mut versions = children(&self.root.join("usr/local"), "cuda-");
        versions.sort_by_key(|path| std::cmp::Reverse(version_of(path)));
        homes.extend(versions);
        let targets = match std::env::consts::ARCH {
            "aarch64" => ["targets/sbsa-linux/lib", "targets/aarch64-linux/lib"].as_slice(),
            _ => ["targets/x86_64-linux/lib"].as_slice(),
        };
        homes
            .iter()
            .flat_map(|home| ["lib64"].iter().chain(targets).map(|folder| home.join(folder)))
            .collect()
    }

    fn system_folders(&self) -> Vec<PathBuf> {
        let multiarch = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let conda = self.folder("CONDA_PREFIX").map(|prefix| prefix.join("lib"));
        let system = [multiarch.as_str(), "usr/lib64", "usr/lib"].map(|folder| self.root.join(folder));
        conda.into_iter().chain(system).collect()
    }

    /// NVIDIA's packages in the active environment, the user's site-packages and the system's.
    fn python_candidates(&self) -> Vec<Candidate> {
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| self.folder(name));
        let user = self.folder("HOME").map(|home| home.join(".local"));
        let system = ["usr/local", "usr", "opt/conda"].map(|prefix| self.root.join(prefix));
        let mut candidates = Vec::new();
        for prefix in active.chain(user).chain(system) {
            let files = python_files(&prefix);
            if files.is_empty() {
                let pattern = format!(
                    "{}/{{lib,lib64}}/python3*/{{site,dist}}-packages/nvidia/{{cu13,cufile}}/lib",
                    prefix.display()
                );
                candidates.push(Candidate::Nothing(pattern, "no such folder"));
            }
            candidates.extend(files.into_iter().map(Candidate::File));
        }
        candidates
    }

    /// The folder an environment variable names, if it is an absolute path.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

/// The libraries in the site-packages below `prefix`, CUDA 13's before CUDA 12's.
fn python_files(prefix: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for package in ["nvidia/cu13/lib", "nvidia/cufile/lib"] {
        for python in ["lib", "lib64"].iter().flat_map(|lib| children(&prefix.join(lib), "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let file = python.join(packages).join(package).join(NAMES[0]);
                if file.exists() {
                    files.push(file);
                }
            }
        }
    }
    files
}

fn in_folder(folder: &Path) -> Candidate {
    let named = NAMES.map(|name| folder.join(name)).into_iter().find(|file| file.exists());
    match named.or_else(|| versioned(folder)) {
        Some(file) => Candidate::File(file),
        None => Candidate::Nothing(folder.join(NAMES[0]).display().to_string(), "no such file"),
    }
}

/// The newest library in a folder that has no name for it but its version.
fn versioned(folder: &Path) -> Option<PathBuf> {
    let mut files = children(folder, VERSIONED);
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().as_bytes();
        name[VERSIONED.len()..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
            && !NAMES.iter().any(|known| known.as_bytes() == name)
    });
    files.into_iter().max_by_key(|file| version_of(file))
}

/// Whether a folder's path says that its libraries are there to be linked against, and not to be used.
fn is_of_stubs(folder: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(folder)).components().any(|part| part.as_os_str() == "stubs")
}

/// What lies in `folder` and begins with `prefix`, in the order of the names; nothing where it cannot be read.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()));
    let mut paths: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The numbers of `cuda-12.9`.
fn version_of(path: &Path) -> Vec<u32> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.split(['-', '.']).filter_map(|part| part.parse().ok()).collect()
}

/// Whether the process has more rights than whoever started it, as the kernel tells the dynamic linker.
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: takes a number and returns one.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// `LD_LIBRARY_PATH` as it was when the process started: the dynamic linker heeds no later change.
pub(crate) fn linker_path() -> OsString {
    const NAME: &str = "LD_LIBRARY_PATH";
    let Ok(environment) = std::fs::read("/proc/self/environ") else {
        return std::env::var_os(NAME).unwrap_or_default();
    };
    let prefix = format!("{NAME}=");
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(prefix.as_bytes()));
    OsString::from_vec(value.unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of the test's own, with empty files in it; removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn with(name: &str, files: &[&str]) -> Root {
            let root = std::env::temp_dir().join(format!("cufile-sys-{name}-{}", std::process::id()));
            for file in files {
                let file = root.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            Root(root)
        }

        fn candidates(&self, linker_path: &str, variables: &[(&str, &str)]) -> Vec<Candidate> {
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value.replace("ROOT", self.0.to_str().unwrap())))
            };
            let linker_path = linker_path.replace("ROOT", self.0.to_str().unwrap()).into();
            Surroundings { variable: &variable, linker_path, root: &self.0 }.candidates()
        }

        /// The files among the candidates, relative to the root.
        fn files(&self, linker_path: &str, variables: &[(&str, &str)]) -> Vec<String> {
            let candidates = self.candidates(linker_path, variables);
            let files = candidates.iter().filter_map(|candidate| match candidate {
                Candidate::File(file) => Some(file.strip_prefix(&self.0).unwrap().display().to_string()),
                _ => None,
            });
            files.collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn names_first_then_cuda_newest_first_then_system_then_python() {
        let root = Root::with(
            "order",
            &[
                "usr/local/cuda-9.2/lib64/libcufile.so.0",
                "usr/local/cuda-12.9/lib64/libcufile.so.0",
                "usr/local/cuda-13.0/lib64/libcufile.so.0",
                "usr/lib64/libcufile.so.0",
                "usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib/libcufile.so.0",
                "venv/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libcufile.so.0",
            ],
        );
        let variables = [("VIRTUAL_ENV", "ROOT/venv")];
        let candidates = root.candidates("", &variables);
        assert_eq!(candidates[..3], NAMES.map(Candidate::Name));
        let expected = [
            "usr/local/cuda-13.0/lib64/libcufile.so.0",
            "usr/local/cuda-12.9/lib64/libcufile.so.0",
            "usr/local/cuda-9.2/lib64/libcufile.so.0",
            "usr/lib64/libcufile.so.0",
            "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libcufile.so.0",
            "venv/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0",
            "usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib/libcufile.so.0",
        ];
        assert_eq!(root.files("", &variables), expected);
    }

    #[test]
    fn empty_and_relative_linker_path_entries_are_not_followed() {
        let root = Root::with("linker", &["lib/libcufile.so.0"]);
        for safe in ["", "/lib", "/lib:/usr/lib", "$ORIGIN/../lib:/lib", "${ORIGIN}"] {
            assert_eq!(root.candidates(safe, &[])[..3], NAMES.map(Candidate::Name), "{safe:?}");
        }
        for unsafe_path in [":/lib", "/lib:", "/lib::/usr/lib", ".", "lib", "/lib;lib", ":", "$LIB"] {
            let candidates = root.candidates(unsafe_path, &[]);
            assert_eq!(candidates[..3], NAMES.map(Candidate::Loaded), "{unsafe_path:?}");
            assert!(!candidates.iter().any(|candidate| matches!(candidate, Candidate::Name(_))));
        }
        assert_eq!(root.files("ROOT/lib:", &[]), ["lib/libcufile.so.0"]);
    }

    #[test]
    fn a_folder_of_stubs_is_passed_over() {
        let root =
            Root::with("stubs", &["lib/stubs/libcufile.so.0", "lib/libcufile.so.0", "mystubs/libcufile.so"]);
        for stubs in ["ROOT/lib/stubs", "ROOT/lib/stubs/", "ROOT/lib/./stubs"] {
            let path = format!("{stubs}:ROOT/lib");
            assert_eq!(root.candidates(&path, &[])[..3], NAMES.map(Candidate::Loaded), "{path}");
            assert_eq!(root.files(&path, &[]), ["lib/libcufile.so.0"], "{path}");
        }
        assert_eq!(root.candidates("ROOT/mystubs", &[])[..3], NAMES.map(Candidate::Name));
    }

    #[test]
    fn a_library_may_have_any_of_its_names() {
        let names = ["libcufile.so.0", "libcufile.so.1", "libcufile.so", "libcufile.so.1.1.1"];
        for name in names {
            let file = format!("usr/local/cuda/lib64/{name}");
            let root = Root::with("names", &[&file, "usr/local/cuda/lib64/libcufile.so.1.1.1.bak"]);
            assert_eq!(root.files("", &[]), [file.as_str()]);
            assert_eq!(root.files(":ROOT/usr/local/cuda/lib64", &[])[..1], [file.as_str()]);
        }
        // The dynamic linker finds the names in its path, and not the version.
        let root = Root::with("names", &["lib/libcufile.so.1.1.1", "lib/libcufile.so.1.14.0"]);
        assert_eq!(root.files("ROOT/lib", &[]), ["lib/libcufile.so.1.14.0"]);
    }

    #[test]
    fn relative_folders_in_variables_are_ignored() {
        let root = Root::with("variables", &[]);
        let all = ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV", "HOME"];
        let relative = all.map(|name| (name, "here"));
        assert_eq!(root.candidates("", &relative), root.candidates("", &[]));
        let absolute = all.map(|name| (name, "ROOT/there"));
        assert!(root.candidates("", &absolute).len() > root.candidates("", &[]).len());
    }
}
