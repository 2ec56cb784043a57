//! What a file is when it is not safetensors, told from its first bytes.
//!
//! Asked only about files whose header is implausible, so that nothing here can refuse a good file.

use std::fmt;

/// How many of a file's first bytes are looked at: the most that a Git LFS pointer has.
pub(super) const PREFIX_LEN: u64 = 1024;

/// A kind of file that is met under a safetensors name. Displayed with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A zip archive, the form of `torch.save`.
    Zip,
    /// A bare pickle, the older form of `torch.save`.
    Pickle,
    /// A web page.
    Html,
    /// An XML document.
    Xml,
    /// A Git LFS pointer.
    LfsPointer {
        /// Bytes of the file that the pointer stands for.
        size: Option<u64>,
    },
    /// gzip, zstd, xz or bzip2.
    Compressed {
        /// Which.
        by: &'static str,
    },
    /// A tar archive.
    Tar,
    /// A GGUF model.
    Gguf,
    /// An HDF5 file.
    Hdf5,
    /// A NumPy array.
    Numpy,
    /// JSON.
    Json,
    /// Some other text.
    Text {
        /// Its first line, shortened.
        first_line: String,
    },
}

impl FileKind {
    /// Judges the first bytes of a file; `None` where they say nothing.
    pub fn sniff(prefix: &[u8]) -> Option<FileKind> {
        let signatures: [(&[u8], FileKind); 11] = [
            (b"PK\x03\x04", FileKind::Zip),
            (b"PK\x05\x06", FileKind::Zip),
            (b"\x1f\x8b", FileKind::Compressed { by: "gzip" }),
            (b"\x28\xb5\x2f\xfd", FileKind::Compressed { by: "zstd" }),
            (b"\xfd7zXZ\0", FileKind::Compressed { by: "xz" }),
            (b"BZh", FileKind::Compressed { by: "bzip2" }),
            (b"GGUF", FileKind::Gguf),
            (b"\x89HDF\r\n\x1a\n", FileKind::Hdf5),
            (b"\x93NUMPY", FileKind::Numpy),
            (b"\x80\x02", FileKind::Pickle),
            (b"\x80\x03", FileKind::Pickle),
        ];
        if let Some((_, kind)) = signatures.into_iter().find(|(magic, _)| prefix.starts_with(magic)) {
            return Some(kind);
        }
        match prefix {
            // With a frame, or too short to have one.
            [0x80, 4 | 5, 0x95, ..] | [0x80, 4 | 5, .., b'.'] => Some(FileKind::Pickle),
            _ if prefix.get(257..262) == Some(b"ustar") => Some(FileKind::Tar),
            _ => FileKind::of_text(text_of(prefix)?),
        }
    }

    fn of_text(text: &str) -> Option<FileKind> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let begins =
            |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        let first_line = text.lines().next()?;
        Some(if text.starts_with("version https://git-lfs") {
            let size = text.lines().find_map(|line| line.strip_prefix("size "));
            FileKind::LfsPointer { size: size.and_then(|size| size.trim().parse().ok()) }
        } else if text.starts_with('<') && text.to_ascii_lowercase().contains("<html")
            || begins("<!doctype html")
        {
            FileKind::Html
        } else if begins("<?xml") || begins("<error") {
            FileKind::Xml
        } else if text.starts_with(['{', '[']) {
            FileKind::Json
        } else {
            FileKind::Text { first_line: first_line.chars().take(60).collect() }
        })
    }
}

/// The prefix as text, where all of it is (a character cut by its end aside).
fn text_of(prefix: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(prefix) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&prefix[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    (!text.is_empty() && text.chars().all(is_text)).then_some(text)
}

impl fmt::Display for FileKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileKind::Zip => formatter.write_str(
                "a zip archive, as torch.save writes; load it in PyTorch and save it with safetensors.torch.save_file",
            ),
            FileKind::Pickle => formatter.write_str(
                "a Python pickle, as torch.save wrote; load it in PyTorch and save it with safetensors.torch.save_file",
            ),
            FileKind::Html => {
                formatter.write_str("an HTML page, probably a login or error page saved in place of the file; fetch it again")
            }
            FileKind::Xml => formatter
                .write_str("an XML document, probably an error of an object store saved in place of the file; fetch it again"),
            FileKind::LfsPointer { size: Some(size) } => {
                write!(formatter, "a Git LFS pointer to a file of {size} bytes; run `git lfs pull` to fetch that file")
            }
            FileKind::LfsPointer { size: None } => {
                formatter.write_str("a Git LFS pointer; run `git lfs pull` to fetch the file it stands for")
            }
            FileKind::Compressed { by } => write!(formatter, "compressed by {by}; decompress it first"),
            FileKind::Tar => formatter.write_str("a tar archive; unpack it first"),
            FileKind::Gguf => formatter.write_str("a GGUF model, which this reader does not read"),
            FileKind::Hdf5 => formatter.write_str("an HDF5 file, which this reader does not read"),
            FileKind::Numpy => formatter.write_str("a NumPy array, which this reader does not read"),
            FileKind::Json => formatter.write_str(
                "JSON text without the 8-byte length that a safetensors file begins with; \
                 if it is an index of shards, its name must end in .json",
            ),
            FileKind::Text { first_line } => write!(formatter, "text that begins with {first_line:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_files_are_told_apart() {
        let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0123abcd\nsize 9223372036\n";
        let cases: [(&[u8], FileKind); 20] = [
            (b"PK\x03\x04\x00\x00\x08\x08\0\0\0\0\0\0\0\0", FileKind::Zip),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", FileKind::Pickle),
            (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}q\0", FileKind::Pickle),
            (b"<!DOCTYPE html>\n<html>", FileKind::Html),
            (b"\n  <HTML><head>", FileKind::Html),
            (b"<!-- blocked --><html lang=\"en\">", FileKind::Html),
            (b"<Error><Code>AccessDenied</Code></Error>", FileKind::Xml),
            (b"PK\x05\x06\0\0\0\0", FileKind::Zip),
            (b"\x80\x04}\x94.", FileKind::Pickle),
            (b"<?xml version=\"1.0\"?><Error>", FileKind::Xml),
            (lfs.as_bytes(), FileKind::LfsPointer { size: Some(9_223_372_036) }),
            (b"version https://git-lfs.github.com/spec/v1\n", FileKind::LfsPointer { size: None }),
            (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", FileKind::Compressed { by: "gzip" }),
            (b"\x28\xb5\x2f\xfd....", FileKind::Compressed { by: "zstd" }),
            (b"GGUF\x03\0\0\0", FileKind::Gguf),
            (b"\x93NUMPY\x01\0", FileKind::Numpy),
            (b"{\"weight_map\": {}}", FileKind::Json),
            (b"\xef\xbb\xbf{\"weight_map\": {}}", FileKind::Json),
            (b"Entry not found\nmore", FileKind::Text { first_line: "Entry not found".into() }),
            ("Größe".as_bytes(), FileKind::Text { first_line: "Größe".into() }),
        ];
        for (bytes, kind) in cases {
            assert_eq!(FileKind::sniff(bytes), Some(kind), "{}", bytes.escape_ascii());
        }
        let mut tar = vec![b'a'; 512];
        tar[20..257].fill(0);
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(FileKind::sniff(&tar), Some(FileKind::Tar));
    }

    #[test]
    fn nothing_is_said_of_bytes_that_say_nothing() {
        for bytes in [&b""[..], b"\0\0\0\0\0\0\0\0", b"\xff\xff\xff\xff", b"ab\0cd", b"\x80"] {
            assert_eq!(FileKind::sniff(bytes), None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_character_cut_by_the_end_of_the_prefix_is_still_text() {
        let text = "ä".repeat(20);
        assert!(matches!(FileKind::sniff(&text.as_bytes()[..39]), Some(FileKind::Text { .. })));
    }

    #[test]
    fn the_pointer_names_the_size_it_stands_for() {
        assert!(FileKind::LfsPointer { size: Some(4_987_202_208) }.to_string().contains("4987202208"));
    }
}
