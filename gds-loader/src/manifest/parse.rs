//! The text of a manifest, read and written.
//!
//! Whoever gives us a model gives us its manifest, so the text is not trusted: its length is bounded before it is read, names are judged as text, numbers
//! against each other, and nothing that is not understood is passed over.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Checksum, Manifest, ManifestFile};
use crate::format::{Brief, HeaderLimits, index, words};
use crate::save::{Durability, PublishError};

/// What the text calls itself.
const FORMAT: &str = "gds-manifest";

/// The version that is written, and the only one that is read.
const VERSION: u64 = 1;

/// What is wrong with the text of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestFault {
    /// Longer than is read.
    #[error("it has more than the {max_bytes} bytes that are read")]
    TooLarge {
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// It is something else.
    #[error("it is no manifest: {message}; `gds verify PATH --write-manifest FILE` makes one")]
    NotAManifest {
        /// Why not.
        message: String,
    },
    /// Of another version.
    #[error(
        "it is of version {version}, and this program reads version {VERSION}: use the program that wrote it, \
         or make another by `gds verify PATH --write-manifest FILE`"
    )]
    Version {
        /// Its version.
        version: u64,
    },
    /// With checksums of another kind.
    #[error(
        "its checksums are {algorithm:?}, and this program knows {}: make another by `gds verify PATH --write-manifest FILE`",
        Checksum::ALGORITHM
    )]
    Algorithm {
        /// Their name.
        algorithm: String,
    },
    /// The JSON is not that of a manifest.
    #[error("it is damaged: {message}")]
    Json {
        /// The parser's words, with line and column.
        message: String,
    },
    /// A file's name could lead out of the folder.
    #[error("it names the file {file:?}, whose name {problem}")]
    FileName {
        /// The name.
        file: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A name that must be there once is there twice.
    #[error("it names {name:?} twice{}", within.as_ref().map_or(String::new(), |file| format!(" in {file:?}")))]
    Repeated {
        /// The name of a file, or of a tensor.
        name: String,
        /// The file, where it is a tensor.
        within: Option<String>,
    },
    /// Numbers that contradict each other.
    #[error("{file:?}{}: {problem}", tensor.as_ref().map_or(String::new(), |tensor| format!(", tensor {tensor:?}")))]
    Numbers {
        /// The file.
        file: String,
        /// The tensor.
        tensor: Option<String>,
        /// What contradicts what.
        problem: String,
    },
}

/// A manifest could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Its text is wrong.
    #[error("{}: {fault}", path.display())]
    Fault {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: ManifestFault,
    },
    /// It cannot be read.
    #[error("{}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The answer of the operating system.
        source: std::io::Error,
    },
    /// It is not written, since it could not be read again.
    #[error("{}: is not written, since no reader would take it: {fault}{}", path.display(), advice(fault))]
    Unreadable {
        /// The file that it would be.
        path: PathBuf,
        /// What a reader would find wrong.
        fault: ManifestFault,
    },
    /// It cannot be written. What was there is still there.
    #[error(transparent)]
    Write(#[from] PublishError),
}

fn advice(fault: &ManifestFault) -> &'static str {
    match fault {
        ManifestFault::FileName { .. } => "; rename that file (a byte that is no text is shown as \\xNN)",
        _ => "",
    }
}

/// What every version has.
#[derive(Deserialize)]
struct Outline {
    format: String,
    version: u64,
    #[serde(default)]
    algorithm: String,
}

/// Version 1.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text<'a> {
    #[serde(borrow)]
    format: std::borrow::Cow<'a, str>,
    version: u64,
    #[serde(borrow)]
    algorithm: std::borrow::Cow<'a, str>,
    files: std::borrow::Cow<'a, [ManifestFile]>,
}

impl Manifest {
    /// Reads the manifest at `path`, of at most so many bytes as a header.
    ///
    /// # Errors
    /// [`ManifestError`], which names the file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ManifestError> {
        let path = path.as_ref();
        let failed = |source| ManifestError::Read { path: path.to_path_buf(), source };
        let fault = |fault| ManifestError::Fault { path: path.to_path_buf(), fault };
        // What is no regular file must not make this wait.
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("it is no regular file")));
        }
        let max_bytes = HeaderLimits::default().effective();
        let mut text = Vec::new();
        file.take(max_bytes + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > max_bytes {
            return Err(fault(ManifestFault::TooLarge { max_bytes }));
        }
        Self::parse(&text).map_err(fault)
    }

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// Any [`ManifestFault`] but that of its length.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestFault> {
        let outline: Outline = serde_json::from_slice(text)
            .map_err(|error| ManifestFault::NotAManifest { message: words(&error) })?;
        if outline.format != FORMAT {
            let message = format!("its format is {:?} instead of {FORMAT:?}", shortened(&outline.format));
            return Err(ManifestFault::NotAManifest { message });
        }
        if outline.version != VERSION {
            return Err(ManifestFault::Version { version: outline.version });
        }
        if outline.algorithm != Checksum::ALGORITHM {
            return Err(ManifestFault::Algorithm { algorithm: shortened(&outline.algorithm) });
        }
        let text: Text<'_> =
            serde_json::from_slice(text).map_err(|error| ManifestFault::Json { message: words(&error) })?;
        let manifest = Self { files: text.files.into_owned() };
        manifest.check()?;
        Ok(manifest)
    }

    /// What readers hold names and numbers to.
    fn check(&self) -> Result<(), ManifestFault> {
        check_names(&self.files)?;
        self.files.iter().try_for_each(check_numbers)
    }

    /// Its text.
    pub fn to_json(&self) -> String {
        // Strings and numbers alone: nothing of it can fail.
        let mut json = serde_json::to_string_pretty(&self.text()).unwrap_or_default();
        json.push('\n');
        json
    }

    fn text(&self) -> Text<'_> {
        Text {
            format: FORMAT.into(),
            version: VERSION,
            algorithm: Checksum::ALGORITHM.into(),
            files: self.files.as_slice().into(),
        }
    }

    /// Its text as readers take it that read so many bytes: for people while it is short enough, without spaces where it must be.
    fn readable(&self, max_bytes: u64) -> Result<String, ManifestFault> {
        self.check()?;
        let fits = |json: &String| json.len() as u64 <= max_bytes;
        let compact = || serde_json::to_string(&self.text()).ok();
        let json = Some(self.to_json()).filter(fits).or_else(|| compact().filter(fits));
        json.ok_or(ManifestFault::TooLarge { max_bytes })
    }

    /// Writes it to `path`, durably: what was there is replaced in one step, or still there.
    ///
    /// # Errors
    /// [`ManifestError::Unreadable`] for what [`Manifest::read`] would refuse, and [`ManifestError::Write`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ManifestError> {
        let path = path.as_ref();
        let json = self.readable(HeaderLimits::default().effective());
        let json = json.map_err(|fault| ManifestError::Unreadable { path: path.to_path_buf(), fault })?;
        Durability::Full.publish(path, json.as_bytes())?;
        Ok(())
    }
}

fn check_names(files: &[ManifestFile]) -> Result<(), ManifestFault> {
    let mut names = HashSet::with_capacity(files.len());
    for file in files {
        if let Some(problem) = index::shard_name_problem(&file.name) {
            return Err(ManifestFault::FileName { file: shortened(&file.name), problem });
        }
        if !names.insert(&*file.name) {
            return Err(ManifestFault::Repeated { name: shortened(&file.name), within: None });
        }
        let mut tensors = HashSet::with_capacity(file.tensors.len());
        if let Some(tensor) = file.tensors.iter().find(|tensor| !tensors.insert(&*tensor.name)) {
            let within = Some(shortened(&file.name));
            return Err(ManifestFault::Repeated { name: shortened(&tensor.name), within });
        }
    }
    Ok(())
}

/// Checks that shape and dtype give each tensor's length, and that the file has room for all of them and a header.
fn check_numbers(file: &ManifestFile) -> Result<(), ManifestFault> {
    let wrong = |tensor: Option<&str>, problem| ManifestFault::Numbers {
        file: shortened(&file.name),
        tensor: tensor.map(shortened),
        problem,
    };
    let mut data = 0_u64;
    for tensor in &file.tensors {
        let wrong = |problem| wrong(Some(&tensor.name), problem);
        let len = tensor.shape.byte_len(tensor.dtype).map_err(|fault| wrong(fault.to_string()))?;
        if len != tensor.length {
            let (dtype, shape) = (tensor.dtype, Brief(&tensor.shape));
            let problem = format!("{dtype} {shape} has {len} bytes, not {}", tensor.length);
            return Err(wrong(problem));
        }
        data = data.checked_add(len).ok_or_else(|| wrong("the tensors overflow 64 bits".into()))?;
    }
    if data > file.length {
        return Err(wrong(None, format!("its tensors have {data} bytes, and it has {}", file.length)));
    }
    Ok(())
}

/// The beginning of a name: a message need not be a megabyte.
fn shortened(name: &str) -> String {
    const MOST: usize = 200;
    let mut text: String = name.chars().take(MOST).collect();
    if text.len() < name.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"format": "gds-manifest", "version": 1, "algorithm": "crc64-nvme", "files": [
        {"name": "part/model.safetensors", "length": 4112, "checksum": "9a1f04be27c3d508", "tensors": [
            {"name": "w", "dtype": "F32", "shape": [2, 2], "length": 16, "checksum": "03e0c0a5b7716f21"},
            {"name": "empty", "dtype": "BF16", "shape": [0], "length": 0, "checksum": "0000000000000000"}]},
        {"name": "model.safetensors.index.json", "length": 0, "checksum": "0000000000000000", "tensors": []}]}"#;

    fn fault(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Manifest::parse(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_good_one_is_read_and_written_alike() {
        let manifest = Manifest::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(manifest.tensors(), 2);
        assert_eq!(manifest.file("part/model.safetensors").unwrap().tensors[0].length, 16);
        assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn every_fault_is_named_with_what_to_do() {
        assert!(
            fault("\"version\": 1", "\"version\": 2")
                .contains("version 2, and this program reads version 1: use the")
        );
        assert!(
            fault("crc64-nvme", "crc32c")
                .contains("\"crc32c\", and this program knows crc64-nvme: make another")
        );
        assert!(fault("gds-manifest", "tar").contains("no manifest"));
        assert!(Manifest::parse(b"").unwrap_err().to_string().contains("--write-manifest"));
        assert!(Manifest::parse(b"{\"weight_map\": {}}").unwrap_err().to_string().contains("no manifest"));
        // A later version may look like anything.
        let later =
            Manifest::parse(b"{\"version\": 9, \"format\": \"gds-manifest\", \"shards\": {}}").unwrap_err();
        assert_eq!(later, ManifestFault::Version { version: 9 });
        assert!(fault("\"dtype\": \"F32\", ", "").contains("missing field `dtype`"));
        assert!(fault("F32", "F33").contains("F33"));
        assert!(fault("9a1f", "9A1f").contains("no checksum"));
        assert!(fault("\"length\": 16", "\"length\": 17").contains("has 16 bytes, not 17"));
        assert!(fault("\"length\": 16", "\"length\": -16").contains("damaged"));
        assert!(fault("[2, 2]", "[4294967296, 4294967296]").contains("overflows"));
        assert!(fault("\"length\": 4112", "\"length\": 15").contains("its tensors have 16 bytes"));
        for name in ["../model", "/model", "a//b", "", "a/"] {
            assert!(fault("part/model.safetensors", name).contains("names the file"), "{name}");
        }
        for (from, to) in [("\"empty\"", "\"w\""), ("model.safetensors.index.json", "part/model.safetensors")]
        {
            assert!(fault(from, to).contains("twice"), "{to}");
        }
    }

    #[test]
    fn no_message_has_a_megabyte() {
        let long = "A".repeat(2_000_000);
        let dimensions = vec!["1"; 100_000].join(",");
        for (from, to) in [
            ("\"files\":", format!("\"{long}\": 1, \"files\":")),
            ("\"gds-manifest\"", format!("\"{long}\"")),
            ("crc64-nvme", long.clone()),
            ("F32", long.clone()),
            ("9a1f04be27c3d508", long.clone()),
            ("\"name\": \"w\"", format!("\"{long}\": \"w\"")),
            ("\"empty\"", format!("\"{long}\", \"shape\": {{}}")),
            ("[2, 2]", format!("[{dimensions}]")),
            ("part/model", format!("../{long}")),
        ] {
            let message = fault(from, &to);
            assert!(message.len() < 5000, "{from}: {} bytes", message.len());
        }
    }

    #[test]
    fn nothing_is_passed_over() {
        for (from, to) in [
            ("\"files\":", "\"signature\": 1, \"files\":"),
            ("\"length\": 16", "\"length\": 16, \"offset\": 4096"),
            ("\"length\": 4112", "\"length\": 4112, \"sha256\": null"),
            ("\"version\": 1", "\"version\": 1, \"version\": 1"),
            ("\"length\": 16", "\"length\": 16, \"length\": 16"),
            ("\"length\": 4112", "\"length\": 4112, \"length\": 4112"),
            ("\"files\":", "\"files\": [], \"files\":"),
        ] {
            fault(from, to);
        }
        assert!(Manifest::parse(format!("{GOOD} {{}}").as_bytes()).is_err());
    }

    #[test]
    fn only_what_can_be_read_again_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gds-manifest.json");
        let good = Manifest::parse(GOOD.as_bytes()).unwrap();
        let refused = |edit: &dyn Fn(&mut Manifest)| {
            let mut manifest = good.clone();
            edit(&mut manifest);
            assert!(Manifest::parse(manifest.to_json().as_bytes()).is_err());
            manifest.write(&path).unwrap_err().to_string()
        };
        let error = refused(&|manifest| manifest.files[0].name = "a\\b".into());
        assert!(
            error.contains("contains a backslash; rename that file") && error.contains("m.gds-"),
            "{error}"
        );
        assert!(refused(&|manifest| manifest.files[0].name = "a/../b".into()).contains("component"));
        assert!(
            refused(&|manifest| manifest.files[1].name = manifest.files[0].name.clone()).contains("twice")
        );
        assert!(refused(&|manifest| manifest.files[0].length = 1).contains("has 1"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_text_too_long_for_readers_goes_without_spaces_or_not_at_all() {
        let manifest = Manifest::parse(GOOD.as_bytes()).unwrap();
        let pretty = manifest.readable(u64::MAX).unwrap();
        assert_eq!(pretty, manifest.to_json());
        let compact = manifest.readable(pretty.len() as u64 - 1).unwrap();
        assert_eq!(Manifest::parse(compact.as_bytes()).unwrap(), manifest);
        let most = compact.len() as u64;
        assert_eq!(manifest.readable(most).unwrap(), compact);
        let error = manifest.readable(most - 1).unwrap_err();
        assert_eq!(error, ManifestFault::TooLarge { max_bytes: most - 1 });
    }

    #[test]
    fn what_is_no_file_or_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gds-manifest.json");
        assert!(matches!(Manifest::read(&path), Err(ManifestError::Read { .. })));
        assert!(matches!(Manifest::read(folder.path()), Err(ManifestError::Read { .. })));
        std::fs::File::create(&path).unwrap().set_len(100_000_001).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("100000000") && error.contains("m.gds-manifest.json"), "{error}");
        let manifest = Manifest::parse(GOOD.as_bytes()).unwrap();
        manifest.write(&path).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), manifest);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_text_never_panics_and_reads_as_it_writes(
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4, any::<u8>()), 1..6),
        ) {
            let mut text = GOOD.as_bytes().to_vec();
            for (at, edit, byte) in edits {
                let at = at.index(text.len());
                match edit {
                    0 => text[at] = byte,
                    1 => text[at] = b"\"0123456789{}[],:-.eE\\"[usize::from(byte) % 22],
                    2 => text.truncate(at.max(1)),
                    _ => {
                        let piece = text[at..(at + usize::from(byte)).min(text.len())].to_vec();
                        text.splice(at..at, piece);
                    }
                }
            }
            if let Ok(manifest) = Manifest::parse(&text) {
                prop_assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
            }
        }
    }
}
