//! What was chosen, and why.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::transport::PathKind;

/// A path that was chosen for files or for parts of them, and why: one for all files that it was chosen for alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Choice {
    /// The path.
    pub path: PathKind,
    /// Why.
    pub why: String,
    /// For how many files.
    pub files: usize,
    /// The first of them. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "super::lossily")]
    pub file: PathBuf,
}

impl Choice {
    /// The same choices with one for all files that were chosen for alike, in the order of their first.
    pub(crate) fn grouped(choices: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for choice in choices {
            match groups.iter_mut().find(|group| (group.path, &group.why) == (choice.path, &choice.why)) {
                Some(group) => group.files += choice.files,
                None => groups.push(choice),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_are_few_choices() {
        let choice =
            |path, why: &str, file: &str| Choice { path, why: why.into(), files: 1, file: file.into() };
        let choices = (0..200).map(|k| match k % 2 {
            0 => choice(PathKind::Direct, "it is cold", &k.to_string()),
            _ => choice(PathKind::Buffered, "it is warm", &k.to_string()),
        });
        let expected = [
            Choice { files: 100, ..choice(PathKind::Direct, "it is cold", "0") },
            Choice { files: 100, ..choice(PathKind::Buffered, "it is warm", "1") },
        ];
        assert_eq!(Choice::grouped(choices), expected);
    }
}
