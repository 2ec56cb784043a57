//! Files that an option names to be written. What stands there already may be the model itself, by a slip of a glob, so only an
//! earlier output of the same kind is replaced, and all that can be refused is refused before any work is done.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::exit::Usage;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Manifest,
    Plot,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Plot => "plot",
        }
    }

    /// How such a file begins, blanks left out.
    fn beginning(self) -> &'static [u8] {
        match self {
            Self::Manifest => br#"{"format":"gds-manifest""#,
            Self::Plot => b"<svg",
        }
    }
}

/// A file that may be written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// The permissions of the one that will be replaced.
    like: Option<fs::Permissions>,
}

impl OutputFile {
    /// Refuses to have a file of `kind` at `path` where it would replace anything else, be taken for weights, or could not be made.
    /// Links are followed. An empty file holds nothing to lose.
    ///
    /// # Errors
    /// [`Usage`] for what may not be replaced; otherwise that of the file system. Both name the path.
    pub(crate) fn check(path: &Path, kind: Kind) -> anyhow::Result<Self> {
        let writing = || format!("writing {}", path.display());
        let refuse = |why: &str| {
            let (path, name) = (path.display(), kind.name());
            Err(Usage(format!("{path}: {why}; write the {name} to another file")).into())
        };
        let name = path.as_os_str().as_encoded_bytes();
        if name.ends_with(b".safetensors") || name.ends_with(b".safetensors.index.json") {
            return refuse("has a name that readers take for weights");
        }
        let like = match path.metadata() {
            Ok(metadata) if !metadata.is_file() => return refuse("is no regular file"),
            Ok(metadata) => {
                // For writing as well, so that a file which this user may not write is not replaced either.
                let file = File::options().read(true).append(true).open(path).with_context(writing)?;
                if !is_of(file, kind).with_context(writing)? {
                    return refuse(&format!(
                        "holds something else than a {}, which would be lost",
                        kind.name()
                    ));
                }
                Some(metadata.permissions())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(writing),
        };
        let path = if like.is_some() { path.canonicalize().with_context(writing)? } else { path.to_owned() };
        let file = Self { path, like };
        // Made and removed: the folder is there and takes files.
        file.temporary().with_context(writing)?;
        Ok(file)
    }

    /// Replaces what is there by `text`, at once, or leaves it as it is.
    pub(crate) fn write(&self, text: &str) -> anyhow::Result<()> {
        self.replace(text.as_bytes()).with_context(|| format!("writing {}", self.path.display()))
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let mut file = self.temporary()?;
        file.write_all(text)?;
        if let Some(permissions) = &self.like {
            file.as_file().set_permissions(permissions.clone())?;
        }
        // Some disks are full only now.
        file.as_file().sync_all()?;
        file.persist(&self.path).map(drop).map_err(|error| error.error)
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        tempfile::Builder::new()
            .prefix(".gds-output-")
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
    }
}

/// Whether the file is of this kind, or empty.
fn is_of(file: File, kind: Kind) -> io::Result<bool> {
    let mut text = Vec::new();
    file.take(1024).read_to_end(&mut text)?;
    let is_empty = text.is_empty();
    text.retain(|byte| !byte.is_ascii_whitespace());
    Ok(is_empty || text.starts_with(kind.beginning()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use gds_loader::manifest::Manifest;

    use super::*;
    use crate::cli::exit::Usage;

    #[test]
    fn only_an_earlier_output_of_the_same_kind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        Manifest::default().write(path("manifest")).unwrap();
        fs::write(path("pretty"), "{\n  \"format\": \"gds-manifest\",\n  \"version\": 7}").unwrap();
        fs::write(path("plot"), "<svg width=\"1\"></svg>").unwrap();
        fs::write(path("empty"), "").unwrap();
        fs::write(path("index"), "{\"metadata\": {}, \"weight_map\": {\"gds-manifest\": \"a\"}}").unwrap();
        fs::write(path("weights"), b"\x10\0\0\0\0\0\0\0{}              ").unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink(path("weights"), path("to-weights")).unwrap();
        symlink(path("plot"), path("to-plot")).unwrap();
        let fit = |kind| {
            let mut names: Vec<String> = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| OutputFile::check(&path(name), kind).is_ok())
                .collect();
            names.sort();
            names
        };
        assert_eq!(fit(Kind::Manifest), ["empty", "manifest", "pretty"]);
        assert_eq!(fit(Kind::Plot), ["empty", "plot", "to-plot"]);
        for name in ["new.safetensors", "new.safetensors.index.json", "weights", "folder"] {
            let error = OutputFile::check(&path(name), Kind::Plot).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(name), "{error}");
        }
        assert!(OutputFile::check(&path("new"), Kind::Plot).is_ok() && !path("new").exists());
        let missing = OutputFile::check(&path("missing/new"), Kind::Plot).unwrap_err();
        assert!(!missing.is::<Usage>() && missing.to_string().contains("missing/new"), "{missing}");
    }

    #[test]
    fn what_is_replaced_keeps_its_place_and_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (plot, link) = (folder.path().join("plot"), folder.path().join("link"));
        OutputFile::check(&plot, Kind::Plot).unwrap().write("<svg></svg>").unwrap();
        fs::set_permissions(&plot, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&plot, &link).unwrap();
        OutputFile::check(&link, Kind::Plot).unwrap().write("<svg>new</svg>").unwrap();
        assert_eq!(fs::read_to_string(&plot).unwrap(), "<svg>new</svg>");
        assert_eq!(plot.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
