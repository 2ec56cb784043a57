//! Which files of a folder are its weights: a pure function of their names.
//!
//! An index decides. Without one, the folder's `*.safetensors` are one set, unless their names say that they are several: a
//! numbered set (`model-00001-of-00004.safetensors`) beside anything else, or a `consolidated` file beside others, holds the same
//! weights twice. Guessing would load stale or doubled weights, so that is an error which lists the sets.
//!
//! Names that begin with a dot are not looked at, as with a shell's `*`: temporary files of downloads are so named.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;

use crate::format::list;

const WEIGHTS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";

/// The weights of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    /// This index says what they are.
    Index(OsString),
    /// These files are, in the order of their numbers or names.
    Files(Vec<OsString>),
}

/// Why the names do not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LayoutFault {
    /// There are none.
    None,
    /// Several sets, each described.
    Ambiguous(Vec<String>),
    /// A numbered set lacks members, or has some too many.
    Incomplete { set: String, missing: String },
}

/// Decides by the names of a folder's entries, in any order.
pub(super) fn choose(names: impl IntoIterator<Item = OsString>) -> Result<Layout, LayoutFault> {
    let (mut indexes, mut files) = (Vec::new(), Vec::new());
    for name in names {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b".") {
            continue;
        }
        if bytes.ends_with(INDEX.as_bytes()) {
            indexes.push(name);
        } else if bytes.ends_with(WEIGHTS.as_bytes()) {
            files.push(name);
        }
    }
    indexes.sort_unstable();
    files.sort_unstable();
    if let Some(at) = indexes.iter().position(|name| name == "model.safetensors.index.json") {
        return Ok(Layout::Index(indexes.swap_remove(at)));
    }
    if indexes.len() > 1 {
        return Err(LayoutFault::Ambiguous(indexes.iter().map(shown).collect()));
    }
    match indexes.pop() {
        Some(index) => Ok(Layout::Index(index)),
        None => choose_files(files),
    }
}

fn choose_files(files: Vec<OsString>) -> Result<Layout, LayoutFault> {
    let mut sets: BTreeMap<Set, Vec<(u64, OsString)>> = BTreeMap::new();
    for file in files {
        let (set, number) = Set::of(&file);
        sets.entry(set).or_default().push((number, file));
    }
    let described = sets.iter().map(|(set, members)| set.describe(members)).collect::<Vec<_>>();
    let Some((set, mut members)) = sets.pop_first() else { return Err(LayoutFault::None) };
    if !sets.is_empty() {
        return Err(LayoutFault::Ambiguous(described));
    }
    members.sort_unstable();
    if let Set::Numbered { total, .. } = &set {
        let numbers = members.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        if let Some(missing) = numbering_fault(&numbers, total.parse().unwrap_or(u64::MAX)) {
            return Err(LayoutFault::Incomplete { set: set.pattern(), missing });
        }
    }
    Ok(Layout::Files(members.into_iter().map(|(_, file)| file).collect()))
}

/// Files that belong together by their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    /// `PREFIX-NUMBER-of-TOTAL.safetensors`; the total as written, since another spelling is another set.
    Numbered { prefix: String, total: String },
    /// `consolidated.safetensors`, `consolidated.00.safetensors` and so on: another form of the same model.
    Consolidated,
    /// Everything else.
    Plain,
}

impl Set {
    fn of(file: &OsStr) -> (Set, u64) {
        let Some(stem) = file.to_str().and_then(|name| name.strip_suffix(WEIGHTS)) else {
            return (Set::Plain, 0);
        };
        if let Some((prefix, number, total)) = numbered(stem) {
            return (Set::Numbered { prefix: prefix.to_owned(), total: total.to_owned() }, number);
        }
        let consolidated = stem == "consolidated" || stem.starts_with("consolidated.");
        (if consolidated { Set::Consolidated } else { Set::Plain }, 0)
    }

    fn pattern(&self) -> String {
        match self {
            Set::Numbered { prefix, total } => format!("{prefix}-*-of-{total}{WEIGHTS}"),
            Set::Consolidated => format!("consolidated*{WEIGHTS}"),
            Set::Plain => format!("*{WEIGHTS}"),
        }
    }

    fn describe(&self, members: &[(u64, OsString)]) -> String {
        match (self, members) {
            (_, [(_, file)]) => shown(file),
            (Set::Numbered { .. }, _) => format!("{} ({} files)", self.pattern(), members.len()),
            _ => list(members.iter().map(|(_, file)| shown(file)), ", "),
        }
    }
}

fn numbered(stem: &str) -> Option<(&str, u64, &str)> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    (digits(number) && digits(total)).then_some(())?;
    Some((prefix, number.parse().ok()?, total))
}

/// What is wrong with `numbers` (sorted) as the numbering of `total` files, which counts from 1, or from 0 where a 0 is there.
///
/// Works on ranges: the total is a number that somebody wrote, and may be absurd. They are of positions, counted from 0, each below the
/// total, so that the one after it is a number too.
fn numbering_fault(numbers: &[u64], total: u64) -> Option<String> {
    let first = if numbers.first() == Some(&0) { 0 } else { 1 };
    let mut wanted = 0;
    let mut missing: Vec<RangeInclusive<u64>> = Vec::new();
    for &number in numbers {
        let position = number - first;
        if position < wanted {
            return Some(format!("number {number} is there twice"));
        }
        if position >= total {
            return Some(format!("number {number} is beyond its total"));
        }
        if position > wanted {
            missing.push(wanted..=position - 1);
        }
        wanted = position + 1;
    }
    if wanted < total {
        missing.push(wanted..=total - 1);
    }
    let text = |range: &RangeInclusive<u64>| match (first + range.start(), first + range.end()) {
        (start, end) if start == end => format!("{start}"),
        (start, end) => format!("{start} to {end}"),
    };
    (!missing.is_empty()).then(|| format!("without number {}", list(missing.iter().map(text), ", ")))
}

fn shown(name: &OsString) -> String {
    name.to_string_lossy().into_owned()
}
