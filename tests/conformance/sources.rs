//! What a path may mean, and what of it is wanted.

use std::fs;
use std::os::unix::fs::symlink;

use gds_loader::format::{Dtype, Shape};
use gds_loader::source::Expected;
use gds_loader::{Error, ErrorKind};
use test_support::fixture::{self, File};

use crate::bed::Bed;
use crate::oracle;

fn shards() -> [File; 3] {
    [
        File::new().tensor("embed", "BF16", &[100, 300]).tensor("layers.0.norm", "F32", &[7]),
        File::new().tensor("layers.0.mlp", "U8", &[12_345]).tensor("layers.1.norm", "F32", &[9]),
        File::new()
            .tensor("layers.1.mlp", "F16", &[50, 50])
            .tensor("head", "F64", &[3])
            .metadata("format", "pt"),
    ]
}

pub(crate) fn selection_by_globs(bed: &Bed) {
    let folder = bed.path("model");
    fs::create_dir(&folder).unwrap();
    fixture::write_model(&folder, &shards());
    let all = oracle::of_files((1..=3).map(|n| folder.join(format!("model-{n:05}-of-00003.safetensors"))));
    for (globs, names) in [
        (["layers.*.norm", "head"].as_slice(), ["head", "layers.0.norm", "layers.1.norm"].as_slice()),
        (&["layers.1.*"], &["layers.1.mlp", "layers.1.norm"]),
        (&["*mlp", "layers.0.*"], &["layers.0.mlp", "layers.0.norm", "layers.1.mlp"]),
        (&["embed"], &["embed"]),
        (&["layers.[01].{mlp,norm}"], &["layers.0.mlp", "layers.0.norm", "layers.1.mlp", "layers.1.norm"]),
        (&[], &["embed", "head", "layers.0.mlp", "layers.0.norm", "layers.1.mlp", "layers.1.norm"]),
    ] {
        let expected = all.clone().into_iter().filter(|(name, _)| names.contains(&name.as_str())).collect();
        bed.load(&bed.loader().tensors(globs).unwrap(), &folder, &expected);
    }
    let error = bed.loader().tensors(["head", "tail*"]).unwrap().load(&folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("tail*"), "{error}");
    assert!(bed.loader().tensors(["[unclosed"]).is_err());
}

pub(crate) fn shards_without_an_index(bed: &Bed) {
    let folder = bed.path("model");
    fs::create_dir(&folder).unwrap();
    let index = fixture::write_model(&folder, &shards());
    let expected =
        oracle::of_files((1..=3).map(|n| folder.join(format!("model-{n:05}-of-00003.safetensors"))));
    for path in [&index, &folder] {
        assert_eq!(bed.load(&bed.loader(), path, &expected).report().files, 3);
    }
    fs::remove_file(&index).unwrap();
    let model = bed.load(&bed.loader(), &folder, &expected);
    assert_eq!(model.metadata()["format"], "pt");

    fs::remove_file(folder.join("model-00002-of-00003.safetensors")).unwrap();
    let error = bed.loader().load(&folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    bed.check_descriptors();
}

/// Two shards hold `x`; the index gives it to the second, and `y` to the first. A third tensor is in no index.
pub(crate) fn an_index_decides(bed: &Bed) {
    let folder = bed.path("model");
    fs::create_dir(&folder).unwrap();
    let first = File::new().tensor("x", "U8", &[100]).tensor("y", "F32", &[30]);
    let second = File::new().tensor("extra", "U8", &[5]).tensor("x", "I16", &[600]);
    first.write(&folder.join("a.safetensors"));
    second.write(&folder.join("b.safetensors"));
    let (a, b) =
        (oracle::of_file(&folder.join("a.safetensors")), oracle::of_file(&folder.join("b.safetensors")));
    for (x, y) in [(("b", &b), ("a", &a)), (("a", &a), ("a", &a))] {
        let map = format!(r#"{{"weight_map": {{"x": "{}.safetensors", "y": "{}.safetensors"}}}}"#, x.0, y.0);
        fs::write(folder.join("model.safetensors.index.json"), map).unwrap();
        let expected = [("x", x.1), ("y", y.1)].map(|(name, of)| (name.to_owned(), of[name].clone())).into();
        let model = bed.load(&bed.loader(), &folder, &expected);
        assert_eq!(
            model.report().tensors_not_indexed,
            if x.0 == "b" { 2 } else { 0 },
            "{:?}",
            model.report()
        );
    }
}

pub(crate) fn a_hugging_face_snapshot(bed: &Bed) {
    let (blobs, snapshot) = (bed.path("models--x--y/blobs"), bed.path("models--x--y/snapshots/0123abcd"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fixture::write_model(&blobs, &shards());
    let mut files = Vec::new();
    for (number, entry) in fs::read_dir(&blobs).unwrap().map(Result::unwrap).enumerate() {
        let (name, blob) = (entry.file_name(), format!("{number:064x}"));
        fs::rename(entry.path(), blobs.join(&blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(&name)).unwrap();
        if name.to_string_lossy().ends_with(".safetensors") {
            files.push(blobs.join(&blob));
        }
    }
    let expected = oracle::of_files(&files);
    bed.load(&bed.loader(), &snapshot, &expected);

    fs::remove_file(&files[0]).unwrap();
    let error = bed.loader().load(&snapshot).unwrap_err().to_string();
    assert!(error.contains("blobs/"), "the target of the dangling link is missing in: {error}");
}

pub(crate) fn what_is_expected_is_checked_first(bed: &Bed) {
    let path = bed.path("model.safetensors");
    File::new().tensor("weight", "F32", &[2, 3]).tensor("bias", "F32", &[3]).write(&path);
    let wanted = |name: &str, dtype, shape: &[u64]| Expected {
        name: name.to_owned(),
        dtype: Some(dtype),
        shape: Some(Shape::from(shape)),
    };
    let right = [wanted("weight", Dtype::F32, &[2, 3]), wanted("bias", Dtype::F32, &[3])];
    bed.load(&bed.loader().expect(right.to_vec()), &path, &oracle::of_file(&path));

    let in_use = bed.memory_in_use();
    let wrong = vec![
        wanted("weight", Dtype::F32, &[3, 2]),
        wanted("bias", Dtype::F16, &[3]),
        wanted("not.there", Dtype::F32, &[1]),
    ];
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = calls.clone();
    let loader = bed.loader().expect(wrong).on_progress(move |_| {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    let error = loader.load(&path).unwrap_err();
    assert!(matches!(error, Error::Source(_)), "{error:?}");
    for name in ["weight", "bias", "not.there"] {
        assert!(error.to_string().contains(name), "{name} is missing in: {error}");
    }
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 0, "data moved");
    assert_eq!(bed.memory_in_use(), in_use);
    bed.check_descriptors();
}
