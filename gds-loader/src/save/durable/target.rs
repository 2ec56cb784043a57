//! What is saved to, and what a path means for it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::error::PublishError;
use super::temp::LONGEST_TOLD;

pub(super) const WEIGHTS: &str = ".safetensors";
pub(super) const INDEX: &str = ".safetensors.index.json";

/// Where a checkpoint is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One file. Links are followed, to a file that need not be there yet.
    File(PathBuf),
    /// Shards and their index in a folder, which is created where it is missing.
    Set {
        folder: PathBuf,
        /// The index's name, as `model.safetensors.index.json`.
        index: String,
        /// The shards' names. A save gives them others where these are taken.
        shards: Vec<String>,
    },
}

/// The folder and the name that writing to `path` would write to.
pub(super) fn resolve(path: &Path) -> Result<(PathBuf, OsString), PublishError> {
    /// As the kernel.
    const MOST_LINKS: u32 = 40;
    let failed = |doing, error| PublishError::io(path, doing, None, error);
    let mut at = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::symlink_metadata(&at) {
            Ok(metadata) if metadata.is_symlink() => {
                let to = fs::read_link(&at).map_err(|error| failed("follow the link", error))?;
                at = at.parent().unwrap_or(Path::new("")).join(to);
            }
            Ok(_) => return split(&at),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return split(&at),
            Err(error) => return Err(failed("look at it", error)),
        }
    }
    Err(failed("follow the link", Errno::LOOP.into()))
}

fn split(path: &Path) -> Result<(PathBuf, OsString), PublishError> {
    match (path.parent(), path.file_name()) {
        // The folder of a bare name has one of its own too, for who is told about it.
        (Some(folder), Some(name)) if folder.as_os_str().is_empty() => Ok((".".into(), name.to_owned())),
        (Some(folder), Some(name)) => Ok((folder.to_owned(), name.to_owned())),
        _ => Err(PublishError::NotAFile { path: path.to_owned(), found: "a folder" }),
    }
}

/// Why a single file at `path` could not be loaded from there, and what to save to instead. Readers judge a path as it is given, and a
/// save writes to where its links lead: neither may be taken for an index.
pub(in crate::save) fn misread(path: &Path) -> Option<String> {
    let name = path.as_os_str().as_bytes();
    if name.ends_with(b"/") || name.ends_with(b"/.") {
        return Some(format!(
            "{} means a folder, and there is none: make it, or save shards (--shard-size), which make it",
            path.display()
        ));
    }
    let written = resolve(path).map(|(folder, name)| folder.join(name)).unwrap_or_default();
    let is_index = |path: &&Path| path.extension().is_some_and(|extension| extension == "json");
    let index = [path, &*written].into_iter().find(is_index)?;
    Some(format!(
        "{} is read as an index, as every .json is, so that a single file there could not be loaded: to replace a set, save to its \
         folder; else choose another name, such as model.safetensors",
        index.display()
    ))
}

/// Refuses names that would lead out of the folder, hide from readers, or be two files' at once.
pub(super) fn check_set(index: &str, shards: &[String]) -> Result<(), PublishError> {
    let refuse = |name: &str, problem| Err(PublishError::Name { name: name.to_owned(), problem });
    if let Some(problem) = problem(index, INDEX) {
        return refuse(index, problem);
    }
    let mut seen = std::collections::HashSet::new();
    for shard in shards {
        if let Some(problem) = problem(shard, WEIGHTS) {
            return refuse(shard, problem);
        }
        if !seen.insert(shard) {
            return refuse(shard, "is given to two shards");
        }
    }
    Ok(())
}

fn problem(name: &str, suffix: &str) -> Option<&'static str> {
    if name.contains(['/', '\\', '\0']) {
        Some("is no plain name")
    } else if name.starts_with('.') {
        Some("begins with a dot, so that readers overlook it")
    } else if !name.ends_with(suffix) {
        Some("does not end as such a file's does (.safetensors, .safetensors.index.json)")
    } else if name.len() + UNIQUE > LONGEST_TOLD {
        Some("is too long")
    } else {
        None
    }
}

/// What a unique name is longer by, in bytes.
const UNIQUE: usize = 9;

/// `name`, made this save's own: `model-0123abcd-00001-of-00004.safetensors`. What numbers a shard stays at the end.
pub(crate) fn unique(name: &str, token: u64) -> String {
    let stem = name.strip_suffix(WEIGHTS).unwrap_or(name);
    let (before, number) = stem.split_at(numbering(stem).unwrap_or(stem.len()));
    format!("{before}-{:08x}{number}{WEIGHTS}", token >> 32)
}

/// Where `-00001-of-00004` begins.
fn numbering(stem: &str) -> Option<usize> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (before, number) = rest.rsplit_once('-')?;
    (digits(number) && digits(total)).then_some(before.len())
}

/// Whether readers of a folder take what is called `name` for a file with this ending: one that begins with a dot is overlooked.
pub(super) fn is_visible(name: &OsStr, suffix: &str) -> bool {
    let name = name.as_encoded_bytes();
    !name.starts_with(b".") && name.ends_with(suffix.as_bytes())
}

/// The index that gives the folder of a file called `name` another meaning.
pub(super) fn index_beside(name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    name.ends_with(WEIGHTS).then(|| format!("{name}.index.json"))
}

/// The single file whose place a set with this index takes.
pub(super) fn single_file(index: &str) -> &str {
    index.strip_suffix(".index.json").unwrap_or(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_name_keeps_its_number_at_the_end() {
        let token = 0x0123_4567_89ab_cdef;
        let cases = [
            ("model-00001-of-00004.safetensors", "model-01234567-00001-of-00004.safetensors"),
            ("model.safetensors", "model-01234567.safetensors"),
            ("x-of-y.safetensors", "x-of-y-01234567.safetensors"),
        ];
        for (name, expected) in cases {
            assert_eq!(unique(name, token), expected);
        }
        assert_eq!(unique("x.safetensors", 1).len(), "x.safetensors".len() + UNIQUE);
    }

    #[test]
    fn what_readers_take_for_an_index_is_told_whatever_leads_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (link, to) in [("to-index", "a.json"), ("to-link", "to-index"), ("link.json", "a.safetensors")] {
            std::os::unix::fs::symlink(path(to), path(link)).unwrap();
        }
        for name in
            ["a.json", "model.safetensors.index.json", "to-index", "to-link", "link.json", "new/", "new/."]
        {
            assert!(misread(&path(name)).is_some(), "{name}");
        }
        for name in ["a.safetensors", "a.JSON", "json", ".json", "a.json.safetensors", "a"] {
            assert_eq!(misread(&path(name)), None, "{name}");
        }
    }

    #[test]
    fn an_index_and_its_single_file_tell_each_other() {
        assert_eq!(
            index_beside("model.safetensors".as_ref()).as_deref(),
            Some("model.safetensors.index.json")
        );
        assert_eq!(index_beside("model.bin".as_ref()), None);
        assert_eq!(single_file("model.safetensors.index.json"), "model.safetensors");
    }
}
