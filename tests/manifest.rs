//! Manifests against what accidents do to checkpoints: each must be found, and named.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cuda_staging::{Device, RegionMut};
use gds_loader::manifest::{Difference, Manifest, ManifestMode, Proven, What};
use gds_loader::{Backend, Destination, Error, ErrorKind, Loader, PathKind, Verifier};
use proptest::prelude::*;
use tempfile::TempDir;
use test_support::fixture::{self, File, payload};
use test_support::{control, cufile_sim, folder, not_run, on_simulator};

/// A set of two shards with odd lengths, and its index.
fn set(folder: &Path) -> PathBuf {
    let shards = [
        File::new().metadata("format", "pt").tensor("a", "F32", &[5]).tensor("b", "U8", &[7]).tensor(
            "none",
            "F32",
            &[0],
        ),
        File::new().tensor("c", "BF16", &[3, 3]).tensor("d", "F64", &[2]),
    ];
    fixture::write_model(folder, &shards);
    folder.to_path_buf()
}

/// A tensor, or none for the header, and where its bytes are.
type Part = (Option<String>, std::ops::Range<usize>);

/// The parts of each file of the small set.
fn parts(folder: &Path) -> BTreeMap<String, Vec<Part>> {
    let mut parts: BTreeMap<String, Vec<Part>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (name, bytes) =
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap());
        let of_file = parts.entry(name.clone()).or_default();
        if !name.ends_with(".safetensors") {
            of_file.push((None, 0..bytes.len()));
            continue;
        }
        let (head, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        of_file.push((None, 0..8 + head));
        for (tensor, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            of_file.push((Some(tensor), 8 + head + start..8 + head + end));
        }
    }
    parts
}

struct Small {
    _folder: TempDir,
    path: PathBuf,
    manifest: Manifest,
}

/// The small set, made once.
fn small() -> &'static Small {
    static SMALL: OnceLock<Small> = OnceLock::new();
    SMALL.get_or_init(|| {
        let folder = folder::on_disk("manifest");
        let path = set(folder.path());
        let (manifest, report) = Verifier::new().read(&path).unwrap();
        assert_eq!((report.files, report.tensors, report.proven), (3, 5, Proven::Slots));
        let bytes: u64 =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert_eq!((report.bytes, report.paths.total()), (bytes, bytes));
        Small { _folder: folder, path, manifest }
    })
}

/// A copy of the small set, to be damaged.
fn copy() -> TempDir {
    let folder = folder::on_disk("manifest_copy");
    for entry in fs::read_dir(&small().path).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn differences(path: &Path, manifest: &Manifest) -> Vec<Difference> {
    Verifier::new().check(path, manifest).unwrap().differences
}

fn cpu(manifest: &Manifest) -> Loader {
    Loader::new().device(Device::cpu()).manifest(manifest.clone(), ManifestMode::Host)
}

#[track_caller]
fn refused(outcome: Result<impl Sized, Error>) -> Vec<Difference> {
    match outcome.err() {
        Some(error @ Error::Manifest { .. }) => {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("not what its manifest says"), "{error}");
            let Error::Manifest { differences, .. } = error else { panic!() };
            differences
        }
        other => panic!("{other:?}"),
    }
}

fn has(differences: &[Difference], file: &str, tensor: Option<&str>, is: impl Fn(&What) -> bool) -> bool {
    differences
        .iter()
        .any(|found| found.file.ends_with(file) && found.tensor.as_deref() == tensor && is(&found.what))
}

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn checksum(what: &What) -> bool {
    matches!(what, What::Checksum { .. })
}

#[test]
fn what_is_as_it_was_passes() {
    let small = small();
    assert_eq!(differences(&small.path, &small.manifest), []);
    assert_eq!(differences(&small.path.join(INDEX), &small.manifest), []);
    assert_eq!(differences(&small.path.join(SECOND), &small.manifest), [], "one file of it");
    let model = cpu(&small.manifest).load(&small.path).unwrap();
    let verified = model.report().verified.clone().unwrap();
    assert_eq!((verified.tensors, verified.bytes, verified.proven), (5, 20 + 7 + 18 + 16, Proven::Slots));
    let chosen = cpu(&small.manifest).tensors(["b", "d"]).unwrap().load(&small.path).unwrap();
    assert_eq!(chosen.report().verified.as_ref().unwrap().tensors, 2);
    assert!(Loader::new().device(Device::cpu()).load(&small.path).unwrap().report().verified.is_none());
    // Its text says the same as it.
    let beside = Manifest::beside(copy().path());
    assert_eq!(beside.file_name().unwrap(), "model.gds-manifest.json");
    assert_eq!(Manifest::parse(small.manifest.to_json().as_bytes()).unwrap(), small.manifest);
}

#[test]
fn a_tensor_without_bytes_may_stand_anywhere_in_its_file_for_a_check_as_for_a_load() {
    let mut text: serde_json::Value = serde_json::from_str(&small().manifest.to_json()).unwrap();
    let files = text["files"].as_array_mut().unwrap();
    let first = files.iter_mut().find(|file| file["name"] == FIRST).unwrap();
    let tensors = first["tensors"].as_array_mut().unwrap();
    let none = tensors.pop().unwrap();
    assert_eq!(none["name"], "none");
    tensors.insert(0, none);
    let turned = Manifest::parse(text.to_string().as_bytes()).unwrap();
    assert_ne!(turned, small().manifest);
    assert_eq!(differences(&small().path, &turned), []);
    let model = cpu(&turned).load(&small().path).unwrap();
    assert_eq!(model.report().verified.as_ref().map(|verified| verified.tensors), Some(5));
}

#[test]
fn a_manifest_beside_the_model_is_not_taken_for_part_of_it() {
    let folder = copy();
    let file = Manifest::beside(folder.path());
    small().manifest.write(&file).unwrap();
    let manifest = Manifest::read(&file).unwrap();
    assert_eq!(differences(folder.path(), &manifest), []);
    fs::remove_file(folder.path().join(INDEX)).unwrap();
    cpu(&manifest).load(folder.path()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn every_flipped_byte_is_found_and_named(file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), mask in 1_u8..) {
        let (folder, parts) = (copy(), parts(&small().path));
        let (name, parts) = parts.iter().nth(file.index(parts.len())).unwrap();
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        fs::write(&path, &bytes).unwrap();
        let found = differences(folder.path(), &small().manifest);
        let (tensor, _) = parts.iter().find(|(_, range)| range.contains(&at)).unwrap();
        match tensor {
            Some(tensor) => {
                prop_assert_eq!(found.len(), 1, "{:?}", found);
                prop_assert!(has(&found, name, Some(tensor), checksum), "{:?}", found);
                let place = found[0].place.unwrap();
                prop_assert!((place.offset..place.offset + place.length).contains(&(at as u64)));
            }
            None => prop_assert!(has(&found, name, None, |_| true), "{:?}", found),
        }
        if name.ends_with(".safetensors") {
            let outcome = cpu(&small().manifest).load(folder.path());
            match outcome.err() {
                // A header can be damaged so that it is none any more.
                Some(Error::Source(_)) if tensor.is_none() => {}
                Some(Error::Manifest { differences, .. }) => {
                    prop_assert!(has(&differences, name, tensor.as_deref(), |_| true), "{:?}", differences);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn a_truncated_file_is_found_and_every_tensor_it_lost(file in 0_usize..2, at in any::<prop::sample::Index>()) {
        let (folder, name) = (copy(), [FIRST, SECOND][file]);
        let path = folder.path().join(name);
        let len = fs::metadata(&path).unwrap().len();
        let cut = at.index(len as usize) as u64;
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let found = differences(folder.path(), &small().manifest);
        let length = |what: &What| *what == What::Length { expected: len, found: cut };
        prop_assert!(has(&found, name, None, length), "{:?}", found);
        for (tensor, range) in parts(&small().path)[name].iter().filter(|(tensor, _)| tensor.is_some()) {
            let lost = has(&found, name, tensor.as_deref(), |what| matches!(what, What::Unreadable { .. }));
            prop_assert_eq!(lost, range.end as u64 > cut && !range.is_empty(), "{:?} {:?}", tensor, found);
        }
        let other = [SECOND, FIRST][file];
        prop_assert!(!has(&found, other, None, |_| true), "{:?}", found);
        prop_assert!(cpu(&small().manifest).load(folder.path()).is_err());
    }
}

#[test]
fn mix_ups_are_found_and_named() {
    let manifest = &small().manifest;
    let change = |change: &dyn Fn(&Path)| {
        let folder = copy();
        change(folder.path());
        let found = differences(folder.path(), manifest);
        let by_load = cpu(manifest).load(folder.path());
        assert!(by_load.is_err());
        if let Err(Error::Manifest { differences, .. }) = by_load {
            let of_load = |found: &&Difference| found.file != INDEX;
            let names: Vec<_> =
                found.iter().filter(of_load).map(|found| (&found.file, &found.tensor)).collect();
            for difference in &differences {
                assert!(
                    names.contains(&(&difference.file, &difference.tensor)),
                    "{difference} is not in {found:?}"
                );
            }
        }
        found
    };
    let rewrite =
        |folder: &Path, name: &str, with: &dyn Fn(File) -> File| with(File::new()).write(&folder.join(name));

    // The same bytes under each other's names.
    let swapped = change(&|folder| {
        rewrite(folder, SECOND, &|file| file.tensor("c", "BF16", &[3, 3]).tensor("d", "F64", &[2]));
        let path = folder.join(SECOND);
        let mut bytes = fs::read(&path).unwrap();
        let len = bytes.len();
        let c = bytes[len - 34..len - 16].to_vec();
        bytes[len - 34..len - 16].rotate_left(2);
        assert_ne!(bytes[len - 34..len - 16], c);
        fs::write(path, bytes).unwrap();
    });
    assert!(has(&swapped, SECOND, Some("c"), checksum), "{swapped:?}");

    let renamed = change(&|folder| {
        rewrite(folder, SECOND, &|file| file.tensor("c", "BF16", &[3, 3]).tensor("e", "F64", &[2]));
        let index = fs::read_to_string(folder.join(INDEX)).unwrap().replace("\"d\"", "\"e\"");
        fs::write(folder.join(INDEX), index).unwrap();
    });
    assert!(has(&renamed, SECOND, Some("d"), |what| *what == What::Missing), "{renamed:?}");
    assert!(has(&renamed, SECOND, Some("e"), |what| *what == What::Extra), "{renamed:?}");
    assert!(has(&renamed, SECOND, None, |what| *what == What::Header), "{renamed:?}");
    assert!(has(&renamed, INDEX, None, checksum), "{renamed:?}");

    let another_type = change(&|folder| {
        rewrite(folder, SECOND, &|file| file.tensor("c", "F16", &[3, 3]).tensor("d", "F64", &[2]));
    });
    let is_f16 = |what: &What| matches!(what, What::Type { expected, found } if expected == "BF16 [3, 3]" && found == "F16 [3, 3]");
    assert!(has(&another_type, SECOND, Some("c"), is_f16), "{another_type:?}");

    let metadata = change(&|folder| {
        let path = folder.join(FIRST);
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(4).position(|window| window == b"\"pt\"").unwrap();
        fs::write(path, [&bytes[..at], b"\"np\"", &bytes[at + 4..]].concat()).unwrap();
    });
    assert_eq!(metadata.len(), 1, "{metadata:?}");
    assert!(has(&metadata, FIRST, None, |what| *what == What::Header), "{metadata:?}");

    let gone = change(&|folder| fs::remove_file(folder.join(SECOND)).unwrap());
    assert!(has(&gone, SECOND, None, |what| *what == What::Missing), "{gone:?}");

    let shards = change(&|folder| {
        fs::rename(folder.join(FIRST), folder.join("x")).unwrap();
        fs::rename(folder.join(SECOND), folder.join(FIRST)).unwrap();
        fs::rename(folder.join("x"), folder.join(SECOND)).unwrap();
    });
    for (file, tensor) in [(FIRST, "a"), (FIRST, "b"), (SECOND, "c"), (SECOND, "d")] {
        assert!(has(&shards, file, Some(tensor), |what| *what == What::Missing), "{shards:?}");
    }

    // One bad header hides nothing of another file, nor of the tensors behind it.
    let both = change(&|folder| {
        for (name, at) in
            [(FIRST, 9), (SECOND, fs::metadata(folder.join(SECOND)).unwrap().len() as usize - 1)]
        {
            let mut bytes = fs::read(folder.join(name)).unwrap();
            bytes[at] ^= 0x80;
            fs::write(folder.join(name), bytes).unwrap();
        }
    });
    assert!(has(&both, FIRST, None, |what| matches!(what, What::Unreadable { .. })), "{both:?}");
    assert!(has(&both, FIRST, None, |what| *what == What::Header), "{both:?}");
    assert!(has(&both, SECOND, Some("d"), checksum), "{both:?}");
    assert!(both.iter().all(|found| found.file != FIRST || found.tensor.is_none()), "{both:?}");
}

/// A text of a few megabytes must not buy hours.
#[test]
fn a_manifest_of_many_files_is_compared_in_little_time() {
    const FILES: usize = 30_000;
    let entries: Vec<String> = (0..FILES)
        .map(|k| format!(r#"{{"name":"{k}","length":0,"checksum":"0000000000000000","tensors":[]}}"#))
        .collect();
    let text = format!(
        r#"{{"format":"gds-manifest","version":1,"algorithm":"crc64-nvme","files":[{}]}}"#,
        entries.join(",")
    );
    let manifest = Manifest::parse(text.as_bytes()).unwrap();
    let start = Instant::now();
    let found = differences(&small().path, &manifest);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // The model's own are extra, and come first.
    assert_eq!(found.len(), FILES + 3);
    assert!(found[..3].iter().all(|difference| difference.what == What::Extra));
    assert!(found[3..].iter().zip(0..).all(|(difference, k): (_, u32)| difference.file == k.to_string()));
}

#[test]
fn a_file_that_the_manifest_does_not_know_is_extra() {
    let folder = folder::on_disk("manifest_extra");
    File::new().tensor("a", "F32", &[5]).write(&folder.path().join("a.safetensors"));
    let (manifest, _) = Verifier::new().read(folder.path()).unwrap();
    File::new().tensor("b", "F32", &[5]).write(&folder.path().join("b.safetensors"));
    let extra = |found: &[Difference]| has(found, "b.safetensors", None, |what| *what == What::Extra);
    assert!(extra(&differences(folder.path(), &manifest)));
    assert!(extra(&refused(cpu(&manifest).load(folder.path()))));
    assert_eq!(differences(&folder.path().join("a.safetensors"), &manifest), []);
    assert!(extra(&differences(&folder.path().join("b.safetensors"), &manifest)));
}

/// Which of two files a manifest means must be told by their names.
#[test]
fn files_whose_names_are_no_text_get_no_manifest() {
    let folder = folder::on_disk("manifest-no-text");
    let file = |name: &[u8], tensor: &str| {
        let path = folder.path().join(std::ffi::OsStr::from_bytes(name));
        File::new().tensor(tensor, "U8", &[3]).write(&path);
        path
    };
    let first = file(b"m\xff.safetensors", "a");
    let (one, _) = Verifier::new().read(folder.path()).unwrap();
    file(b"m\xfe.safetensors", "b");
    let (both, _) = Verifier::new().read(folder.path()).unwrap();
    let written = folder.path().join("model.gds-manifest.json");
    for manifest in [&one, &both] {
        let error = manifest.write(&written).unwrap_err().to_string();
        assert!(error.contains("rename that file") && !written.exists(), "{error}");
    }
    let extra = |name: &str| has(&differences(folder.path(), &one), name, None, |what| *what == What::Extra);
    assert!(!extra("m\\xff.safetensors") && extra("m\\xfe.safetensors"));
    fs::rename(first, folder.path().join("m.safetensors")).unwrap();
    assert!(extra("m.safetensors"));
}

/// A file of awkward tensors, large enough for direct reads, and its manifest.
fn awkward(test: &str) -> (TempDir, PathBuf, Manifest) {
    let folder = folder::on_disk(test);
    let path = folder.path().join("model.safetensors");
    fixture::awkward().tensor("large", "BF16", &[1500, 1001]).write(&path);
    let (manifest, _) = Verifier::new().read(&path).unwrap();
    (folder, path, manifest)
}

/// Flips a bit of the named tensor in the file.
fn damage(path: &Path, manifest: &Manifest, tensor: &str) {
    let mut end = manifest.files()[0].length;
    for of_file in manifest.files()[0].tensors.iter().rev() {
        if *of_file.name == *tensor {
            let mut bytes = fs::read(path).unwrap();
            bytes[end as usize - 1] ^= 1;
            return fs::write(path, bytes).unwrap();
        }
        end -= of_file.length;
    }
    panic!("no {tensor}");
}

#[test]
fn every_host_path_checks_the_bytes_as_they_pass() {
    let (_folder, path, manifest) = awkward("every_host_path");
    let backends = [PathKind::Buffered, PathKind::Mmap, PathKind::Direct].map(Backend::Only);
    let load = |backend| cpu(&manifest).backend(backend).threads(3).read_size(64 << 10);
    for backend in backends {
        match load(backend).load(&path) {
            Ok(model) => {
                let verified = model.report().verified.as_ref().unwrap();
                assert_eq!((verified.tensors, verified.bytes), (model.len(), model.report().bytes));
                assert_eq!(verified.proven, Proven::Slots);
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                not_run("every_host_path_checks_the_bytes_as_they_pass", &error.to_string());
            }
            Err(error) => panic!("{backend}: {error}"),
        }
        assert_eq!(
            Verifier::new()
                .backend(Backend::Only(PathKind::Buffered))
                .check(&path, &manifest)
                .unwrap()
                .differences,
            []
        );
    }
    for tensor in ["embed", "scalar", "odd.u8", "byte", "page", "long", "last", "large"] {
        damage(&path, &manifest, tensor);
        for backend in backends {
            let outcome = load(backend).load(&path);
            if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
                continue;
            }
            let found = refused(outcome);
            assert_eq!(found.len(), 1, "{backend} {found:?}");
            assert!(has(&found, "model.safetensors", Some(tensor), checksum), "{backend} {found:?}");
        }
        // Where it is not wanted, it does no harm.
        cpu(&manifest).tensors(["double"]).unwrap().load(&path).unwrap();
        damage(&path, &manifest, tensor);
    }
}

#[test]
fn memory_of_the_callers_is_checked_too() {
    let (_folder, path, manifest) = awkward("memory_of_the_callers");
    let load = |mode| {
        let mut bytes = [vec![0; 7], vec![0; 4097]];
        let [odd, page] = &mut bytes;
        let destinations =
            vec![Destination::host("over.a.page", page).unwrap(), Destination::host("odd.u8", odd).unwrap()];
        let loader = Loader::new().device(Device::cpu()).manifest(manifest.clone(), mode);
        let report = loader.load_into(&path, destinations)?;
        assert!(bytes == [payload("odd.u8", 7), payload("over.a.page", 4097)]);
        Ok(report.verified.unwrap())
    };
    for (mode, proven) in [(ManifestMode::Host, Proven::Slots), (ManifestMode::Device, Proven::Device)] {
        let verified = load(mode).unwrap();
        assert_eq!((verified.tensors, verified.bytes, verified.proven), (2, 4104, proven));
    }
    damage(&path, &manifest, "over.a.page");
    for mode in [ManifestMode::Host, ManifestMode::Device] {
        assert!(has(&refused(load(mode)), "model.safetensors", Some("over.a.page"), checksum));
    }
}

/// What the words in a report mean.
#[test]
fn a_bit_that_a_copy_flips_is_found_by_device_and_not_by_host() {
    let test = "a_bit_that_a_copy_flips_is_found_by_device_and_not_by_host";
    on_simulator(test, &[], || {
        let (_folder, path, manifest) = awkward(test);
        let load = |mode, fault: &str| {
            control::set_fault(fault);
            Loader::new().read_size(64 << 10).manifest(manifest.clone(), mode).load(&path)
        };
        let proven = |outcome: Result<gds_loader::Model, Error>| {
            outcome.unwrap().report().verified.clone().unwrap().proven
        };
        for copy in ["corrupt@1", "corrupt@3"] {
            // Nothing that passed the host was wrong, and no more is claimed.
            assert_eq!(proven(load(ManifestMode::Host, copy)), Proven::Slots);
            let found = refused(load(ManifestMode::Device, copy));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(checksum(&found[0].what));
        }
        assert_eq!(proven(load(ManifestMode::Device, "")), Proven::Device);

        let device = Device::cuda(0).unwrap();
        let into = |fault: &str| {
            control::set_fault(fault);
            let regions: Vec<RegionMut> = [4097, 1032].map(|len| device.allocate(len, 256).unwrap()).into();
            let destinations = regions.into_iter().zip(["over.a.page", "double"]);
            let destinations = destinations.map(|(region, name)| Destination::region(name, region)).collect();
            Loader::new().manifest(manifest.clone(), ManifestMode::Device).load_into(&path, destinations)
        };
        assert_eq!(into("").unwrap().verified.unwrap().proven, Proven::Device);
        assert_eq!(refused(into("corrupt@1")).len(), 1);
        control::set_fault("");
    });
}

#[test]
fn what_never_passes_the_host_is_read_back_from_the_device() {
    let test = "what_never_passes_the_host_is_read_back_from_the_device";
    cufile_sim::on_simulator(test, &[("CUFILE_SIM_MODE", "real")], || {
        let (_folder, path, manifest) = awkward(test);
        for batches in [false, true] {
            let load = |fault: &str| {
                control::set_fault(fault);
                let loader = Loader::new()
                    .backend(Backend::Only(PathKind::Gds))
                    .cufile_batches(batches)
                    // So that the second read is that of the second extent, which begins within a tensor.
                    .threads(1)
                    .read_size(1 << 20);
                loader.manifest(manifest.clone(), ManifestMode::Host).load(&path)
            };
            let model = load("").unwrap();
            assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
            assert_eq!(model.report().verified.as_ref().unwrap().proven, Proven::Device);
            assert_eq!(refused(load("corrupt@1")).len(), 1);
            if !batches {
                // By the library itself, which counts the read as a good one.
                cufile_sim::set_script("read@2=corrupt");
                assert_eq!(refused(load("")).len(), 1);
                cufile_sim::set_script("");
            }
            control::set_fault("");
        }
        damage(&path, &manifest, "embed");
        let loader = Loader::new().manifest(manifest, ManifestMode::Host);
        assert!(has(&refused(loader.load(&path)), "model.safetensors", Some("embed"), checksum));
    });
}

#[test]
fn verification_can_be_cancelled_and_forced() {
    let (_folder, path, manifest) = awkward("verification_can_be_cancelled");
    let token = gds_loader::CancelToken::new();
    token.cancel();
    let error = Verifier::new().cancel(token).check(&path, &manifest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let error = Verifier::new().backend(Backend::Only(PathKind::Gds)).check(&path, &manifest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = Verifier::new().check(path.with_extension("nothing"), &manifest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
}
