//! What the folder of a set means before the save.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;

use super::error::PublishError;
use super::folder::Folder;
use super::system::{Kind, Stat};
use super::target::{INDEX, WEIGHTS, is_visible, single_file, unique};
use super::temp::{token, told_by};
use crate::format::{HeaderLimits, Index};

/// The indexes of a folder and what they name.
#[derive(Debug)]
pub(super) struct Standing {
    /// Every file that an index of the folder names.
    pub(super) named: HashSet<String>,
    /// Weights in the folder itself that the index to be replaced names and no other does; none where an index cannot be read.
    /// Whatever else it names is not a save's to remove: its text is not trusted.
    pub(super) replaced: Vec<String>,
    /// Whether there is an index at all.
    pub(super) indexed: bool,
}

impl Standing {
    /// Reads every index in the folder; `index` is the one that will be replaced.
    pub(super) fn read(folder: &Folder, index: &str) -> Result<Self, PublishError> {
        let most = HeaderLimits::default().effective();
        let (mut named, mut replaced) = (HashSet::new(), Vec::new());
        let mut elsewhere = HashSet::new();
        let (mut indexed, mut certain) = (false, true);
        for name in folder.list()? {
            if !is_visible(&name, INDEX) {
                continue;
            }
            let text = match folder.read(&name, most) {
                Ok(text) => Some(text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // Not knowing what it names, this save could not remove that later.
                Err(error) if name == index => return Err(folder.error(&name, "read it", error)),
                Err(_) => None,
            };
            indexed = true;
            let Some(parsed) = text.and_then(|text| Index::parse(&text).ok()) else {
                certain = false;
                continue;
            };
            let files = parsed.files().iter().map(|file| file.to_string());
            if name == index {
                let is_weights = |file: &String| !file.contains('/') && is_visible(file.as_ref(), WEIGHTS);
                replaced = files.clone().filter(is_weights).collect();
            } else {
                elsewhere.extend(files.clone());
            }
            named.extend(files);
        }
        replaced.retain(|file| certain && !elsewhere.contains(file));
        Ok(Self { named, replaced, indexed })
    }

    /// The first file that will be replaced, whose mode and owner the new ones get.
    pub(super) fn like(&self, folder: &Folder, index: &str) -> Result<Option<Stat>, PublishError> {
        let single = (!self.indexed).then(|| single_file(index).to_owned());
        for name in self.replaced.iter().chain(&single) {
            match folder.stat(name.as_ref())? {
                Some(stat) if stat.kind == Kind::Regular => return Ok(Some(stat)),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Refuses a folder in which files that are no part of what is replaced have a meaning of their own, because no index says
    /// otherwise. What a dead save left is none of these.
    pub(super) fn refuse_others(&self, folder: &Folder, index: &str) -> Result<(), PublishError> {
        if self.indexed {
            return Ok(());
        }
        let names = folder.list()?;
        let mut temps: HashMap<String, Vec<&OsString>> = HashMap::new();
        for temp in &names {
            for name in told_by(temp).map(|told| told.names()).unwrap_or_default() {
                temps.entry(name).or_default().push(temp);
            }
        }
        let mut files = Vec::new();
        for name in &names {
            if !is_visible(name, WEIGHTS) || name == single_file(index) {
                continue;
            }
            let Some(stat) = folder.stat(name)? else { continue };
            let temps = name.to_str().and_then(|name| temps.get(name));
            let left = temps.is_some_and(|temps| temps.iter().any(|temp| folder.is(temp, stat.identity)));
            if !left {
                files.push(name.to_string_lossy().into_owned());
            }
        }
        files.sort_unstable();
        let folder = folder.path.clone();
        if files.is_empty() { Ok(()) } else { Err(PublishError::OtherWeights { folder, files }) }
    }

    /// `wanted`, or names unique to the save of this number where one of them is taken.
    pub(super) fn free_names(
        &self,
        folder: &Folder,
        wanted: &[String],
        mut number: u64,
    ) -> Result<Vec<String>, PublishError> {
        let mut names = wanted.to_vec();
        while !self.are_free(folder, &names)? {
            names = wanted.iter().map(|name| unique(name, number)).collect();
            // Where even these are taken, by another's will.
            number = token();
        }
        Ok(names)
    }

    fn are_free(&self, folder: &Folder, names: &[String]) -> Result<bool, PublishError> {
        for name in names {
            if self.named.contains(name) || folder.stat(name.as_ref())?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
