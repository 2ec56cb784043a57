//! Manifests: read, written and read again they are the same; and a folder passes by the one that says what it holds, and by no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use cuda_staging::Device;
use gds_loader::manifest::{Checksum, Manifest, ManifestFile, ManifestMode, ManifestTensor};
use gds_loader::{Loader, Verifier};
use test_support::fixture;

use crate::edit::edit;
use crate::scratch;

/// The first byte says what the others are: the text of a manifest, or changes to the right one.
pub fn run(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        return judge(rest);
    }
    let mut text = KNOWN.1.to_json().into_bytes();
    if edit(&mut Unstructured::new(rest), &mut text).is_ok() {
        judge(&text);
    }
}

fn judge(text: &[u8]) {
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(fault) => return assert!(!fault.to_string().is_empty()),
    };
    let text = manifest.to_json();
    let again = Manifest::parse(text.as_bytes()).expect("what was written is read");
    assert_eq!(again, manifest);
    assert_eq!(again.to_json(), text);
    check(&manifest);
}

/// Holds a folder, whose contents are known, against the manifest.
fn check(manifest: &Manifest) {
    let (folder, truth) = &*KNOWN;
    let report = Verifier::new().check(folder, manifest).expect("a comparison");
    for difference in &report.differences {
        assert!(!difference.to_string().is_empty());
    }
    let same = entries(manifest.files()) == entries(truth.files());
    assert_eq!(report.differences.is_empty(), same, "{:?}", report.differences);
    for mode in [ManifestMode::Host, ManifestMode::Device] {
        let loaded = Loader::new().device(Device::cpu()).manifest(manifest.clone(), mode).load(folder);
        // Files without tensors are no business of a load.
        let same = {
            let [ours, true_ones] = [manifest, truth]
                .map(|manifest| entries(manifest.files().iter().filter(|file| !file.tensors.is_empty())));
            ours == true_ones
        };
        assert_eq!(loaded.is_ok(), same, "{mode:?}: {:?}", loaded.err());
    }
}

/// What a file's entry says. Tensors without bytes have a place among the others, and nothing hangs on it.
type Entry<'a> = (u64, Checksum, Vec<&'a ManifestTensor>, BTreeMap<&'a str, &'a ManifestTensor>);

fn entries<'a>(files: impl IntoIterator<Item = &'a ManifestFile>) -> BTreeMap<&'a str, Entry<'a>> {
    let entry = |file: &'a ManifestFile| {
        let (some, none): (Vec<_>, Vec<_>) = file.tensors.iter().partition(|tensor| tensor.length > 0);
        let none = none.into_iter().map(|tensor| (&*tensor.name, tensor)).collect();
        (&*file.name, (file.length, file.checksum, some, none))
    };
    files.into_iter().map(entry).collect()
}

/// A folder of two files, and what it holds.
static KNOWN: LazyLock<(PathBuf, Manifest)> = LazyLock::new(|| {
    let folder = scratch::in_memory().join("known");
    fs::create_dir_all(&folder).unwrap();
    known_files().iter().for_each(|(name, file)| file.write(&folder.join(name)));
    let (truth, _) = Verifier::new().read(&folder).unwrap();
    (folder, truth)
});

fn known_files() -> [(&'static str, fixture::File); 2] {
    let first = fixture::File::new().tensor("w", "F32", &[2, 2]).tensor("odd", "U8", &[3]);
    let second =
        fixture::File::new().tensor("b", "BF16", &[4]).tensor("none", "I64", &[0]).tensor("s", "F64", &[]);
    [("a.safetensors", first), ("b.safetensors", second)]
}
