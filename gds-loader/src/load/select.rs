//! Which tensors of a source are loaded.

use cuda_staging::{Device, RegionMut};
use globset::{Glob, GlobSet, GlobSetBuilder};

use super::Destination;
use crate::error::{Error, Result};
use crate::source::{Expected, Source, TensorRef};

/// The globs of a selection, kept for the message of one that matches nothing.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    patterns: Vec<String>,
    set: GlobSet,
}

impl Selection {
    /// Compiles the globs; no globs are no selection.
    pub(crate) fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Option<Self>> {
        let patterns: Vec<String> = patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        let refuse = |error: globset::Error| Error::Option { option: "tensors", reason: error.to_string() };
        let mut builder = GlobSetBuilder::new();
        for pattern in &patterns {
            builder.add(Glob::new(pattern).map_err(refuse)?);
        }
        let set = builder.build().map_err(refuse)?;
        Ok((!patterns.is_empty()).then_some(Self { patterns, set }))
    }
}

/// The tensors of `source` to load, in (shard, offset) order, after checking what the caller expects of it.
pub(crate) fn choose(
    source: &Source,
    expected: &[Expected],
    selection: Option<&Selection>,
) -> Result<Vec<TensorRef>> {
    check(source, expected)?;
    let Some(selection) = selection else { return Ok(source.tensors.clone()) };
    let mut matched = vec![false; selection.patterns.len()];
    let mut chosen = Vec::new();
    for &tensor in &source.tensors {
        let matches = selection.set.matches(&*source.entry(tensor).name);
        if !matches.is_empty() {
            chosen.push(tensor);
            matches.into_iter().for_each(|pattern| matched[pattern] = true);
        }
    }
    if let Some(index) = matched.iter().position(|matched| !matched) {
        let (pattern, count) = (&selection.patterns[index], source.tensors.len());
        let reason =
            format!("{pattern:?} matches none of the model's {count} tensors; `gds inspect` lists them");
        return Err(Error::Option { option: "tensors", reason });
    }
    Ok(chosen)
}

/// The tensors that have a destination, in (shard, offset) order, and their regions in the same order.
pub(crate) fn match_destinations(
    source: &Source,
    expected: &[Expected],
    destinations: Vec<Destination<'_>>,
) -> Result<(Vec<TensorRef>, Vec<RegionMut>)> {
    check(source, expected)?;
    let mut matched = Vec::with_capacity(destinations.len());
    let mut device: Option<Device> = None;
    for Destination { name, region, .. } in destinations {
        let refuse = |reason: String| Error::Destination { name: name.clone(), reason };
        let tensor = source
            .find(&name)
            .ok_or_else(|| refuse("the model has no tensor of this name; `gds inspect` lists them".into()))?;
        let expected = source.entry(tensor).len;
        if region.len() != expected {
            return Err(refuse(format!("it has {} bytes, the tensor {expected}", region.len())));
        }
        let first = device.get_or_insert_with(|| region.device().clone());
        if first.info() != region.device().info() {
            return Err(refuse(format!(
                "it is memory of {:?}, an earlier one of {first:?}",
                region.device()
            )));
        }
        matched.push((tensor, name, region));
    }
    // A header's tensors are in the order of their offsets.
    matched.sort_by_key(|(tensor, _, _)| *tensor);
    if let Some(pair) = matched.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::Destination { name: pair[0].1.clone(), reason: "it has two destinations".into() });
    }
    Ok(matched.into_iter().map(|(tensor, _, region)| (tensor, region)).unzip())
}

fn check(source: &Source, expected: &[Expected]) -> Result<()> {
    if !expected.is_empty() {
        source.check_expected(expected)?;
    }
    Ok(())
}
