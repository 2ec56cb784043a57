//! Which files and which tensors a path means: shards, indexes, sets side by side, expectations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use format_support::{file_bytes, one, vectors, write};
use gds_loader::format::{Dtype, HeaderFault, HeaderLimits};
use gds_loader::source::{Expected, Origin, Source, SourceError};
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";

fn shard(number: usize, total: usize) -> String {
    format!("model-{number:05}-of-{total:05}.safetensors")
}

fn index(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(tensor, file)| format!("{tensor:?}:{file:?}")).collect::<Vec<_>>();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, pairs.join(","))
}

fn folder(files: &[(&str, &[&str], u8)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, names, fill) in files {
        write(folder.path().join(file), vectors(names, *fill));
    }
    folder
}

/// The first byte of a tensor's data, which tells the file it came from.
fn fill(source: &Source, name: &str) -> u8 {
    let (shard, entry) = source.get(name).unwrap();
    let mut byte = [0];
    shard.file.open().unwrap().read_exact_at(&mut byte, entry.offset).unwrap();
    byte[0]
}

fn names(source: &Source) -> Vec<&str> {
    source.iter().map(|(_, entry)| &*entry.name).collect()
}

#[test]
fn a_file_a_folder_and_an_index_open() {
    let folder = folder(&[(&shard(1, 2), &["a", "b"], 1), (&shard(2, 2), &["c"], 2)]);
    let file = Source::open(folder.path().join(shard(1, 2))).unwrap();
    assert_eq!((names(&file), file.origin.clone()), (vec!["a", "b"], Origin::File));

    let plain = Source::open(folder.path()).unwrap();
    assert_eq!(names(&plain), ["a", "b", "c"]);
    assert_eq!(plain.origin, Origin::Folder(folder.path().to_owned()));
    assert_eq!(plain.bytes(), 24);
    assert_eq!(fill(&plain, "c"), 2);
    assert!(plain.find("d").is_none());

    let path = write(folder.path().join(INDEX), index(&[("a", &shard(1, 2)), ("c", &shard(2, 2))]));
    for path in [folder.path(), &path] {
        let indexed = Source::open(path).unwrap();
        assert_eq!(names(&indexed), ["a", "c"]);
        assert_eq!(indexed.unindexed.len(), 1);
        assert_eq!(&*indexed.entry(indexed.unindexed[0]).name, "b");
        assert!(indexed.find("b").is_none(), "what the index does not name is not there");
        assert_eq!(indexed.bytes(), 16);
        assert_eq!(indexed.origin, Origin::Index(folder.path().join(INDEX)));
    }
}

#[test]
fn a_file_is_judged_by_its_content_not_by_its_name() {
    let folder = folder(&[("weights", &["a"], 1), ("weights.bin", &["a"], 1), ("0123abcd", &["a"], 1)]);
    for name in ["weights", "weights.bin", "0123abcd"] {
        assert_eq!(names(&Source::open(folder.path().join(name)).unwrap()), ["a"]);
    }
}

#[test]
fn the_metadata_of_all_shards_is_one() {
    let folder = tempfile::tempdir().unwrap();
    for (number, metadata) in
        [(1, r#"{"format":"pt","who":"first"}"#), (2, r#"{"format":"pt","who":"second","x":"y"}"#)]
    {
        write(
            folder.path().join(shard(number, 2)),
            file_bytes(format!(r#"{{"__metadata__":{metadata}}}"#), 0),
        );
    }
    let source = Source::open(folder.path()).unwrap();
    let metadata = source.metadata.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>();
    assert_eq!(metadata, [("format", "pt"), ("who", "first"), ("x", "y")]);
    assert_eq!((source.tensors.len(), source.bytes()), (0, 0));
}

#[test]
fn every_missing_shard_is_listed() {
    let files = [shard(1, 3), shard(2, 3), shard(3, 3)];
    for deleted in [&[1usize][..], &[0, 2], &[0, 1, 2]] {
        let folder = folder(&[(&files[0], &["a"], 1), (&files[1], &["b"], 2), (&files[2], &["c"], 3)]);
        write(folder.path().join(INDEX), index(&[("a", &files[0]), ("b", &files[1]), ("c", &files[2])]));
        for &at in deleted {
            std::fs::remove_file(folder.path().join(&files[at])).unwrap();
        }
        let error = Source::open(folder.path()).unwrap_err();
        assert!(error.is_invalid_data() && !error.is_not_found());
        let message = error.to_string();
        for (at, file) in files.iter().enumerate() {
            assert_eq!(message.contains(file.as_str()), deleted.contains(&at), "{message}");
        }
        assert!(message.contains(INDEX), "why these files were chosen: {message}");
        match error {
            SourceError::Shards { faults, total: 3, .. } => assert_eq!(faults.len(), deleted.len()),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_numbered_set_must_be_whole() {
    for (present, missing) in [
        (&[1usize, 3][..], "without number 2"),
        (&[2, 3], "without number 1"),
        (&[2, 3, 4], "number 4 is beyond"),
        (&[1, 2], "without number 3"),
        (&[2], "without number 1, 3"),
        (&[0, 1, 2, 3], "number 3 is beyond"),
        (&[1, 2, 3, 7], "number 7 is beyond"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for number in present {
            let name = format!("t{number}");
            write(folder.path().join(shard(*number, 3)), vectors(&[&name], 1));
        }
        match Source::open(folder.path()).map(|source| source.shards.len()) {
            Err(SourceError::Incomplete { missing: found, set, .. }) => {
                assert!(found.contains(missing), "{found}");
                assert_eq!(set, "model-*-of-00003.safetensors");
            }
            other => panic!("{present:?}: {other:?}"),
        }
    }
    let zero_based = folder(&[(&shard(0, 2), &["a"], 1), (&shard(1, 2), &["b"], 2)]);
    assert_eq!(names(&Source::open(zero_based.path()).unwrap()), ["a", "b"]);
    let absurd = folder(&[("model-1-of-18446744073709551615.safetensors", &["a"], 1)]);
    let message = Source::open(absurd.path()).unwrap_err().to_string();
    assert!(message.contains("2 to 18446744073709551615"), "{message}");
    for (files, expected) in [
        (&["18446744073709551615"][..], "without number 1 to 18446744073709551614"),
        (&["0", "18446744073709551615"], "18446744073709551615 is beyond"),
        (&["0", "18446744073709551614"], "without number 1 to 18446744073709551613"),
        (&["18446744073709551615", "018446744073709551615"], "18446744073709551615 is there twice"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for number in files {
            let name = format!("m-{number}-of-18446744073709551615.safetensors");
            write(folder.path().join(name), vectors(&[&format!("t{number}")], 1));
        }
        let message = Source::open(folder.path()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let beyond = folder(&[("model-1-of-99999999999999999999999.safetensors", &["a"], 1)]);
    assert!(matches!(Source::open(beyond.path()), Err(SourceError::Incomplete { .. })));
}

#[test]
fn the_index_says_which_of_two_tensors_counts() {
    for (old, new) in [("a.safetensors", "b.safetensors"), ("b.safetensors", "a.safetensors")] {
        let folder = folder(&[(old, &["x", "y"], 1), (new, &["x"], 2)]);
        write(folder.path().join(INDEX), index(&[("x", new), ("y", old)]));
        let source = Source::open(folder.path()).unwrap();
        assert_eq!((fill(&source, "x"), fill(&source, "y")), (2, 1));
        assert_eq!((source.tensors.len(), source.unindexed.len()), (2, 1));
        write(folder.path().join(INDEX), index(&[("x", old), ("y", old)]));
        let source = Source::open(folder.path()).unwrap();
        assert_eq!((fill(&source, "x"), source.shards.len()), (1, 1));
    }
}

#[test]
fn without_an_index_no_tensor_may_be_in_two_files() {
    for fill in [1, 2] {
        let folder = folder(&[("a.safetensors", &["x", "y"], 1), ("b.safetensors", &["x", "z"], fill)]);
        match Source::open(folder.path()).unwrap_err() {
            SourceError::DuplicateTensors { duplicates, .. } => {
                assert_eq!(duplicates.len(), 1);
                assert_eq!(duplicates[0].tensor, "x");
                assert_eq!(duplicates[0].first, folder.path().join("a.safetensors"));
                assert_eq!(duplicates[0].second, folder.path().join("b.safetensors"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn every_tensor_absent_from_its_shard_is_listed() {
    let folder = folder(&[("a.safetensors", &["x"], 1), ("b.safetensors", &["y"], 2)]);
    let pairs = [("x", "b.safetensors"), ("y", "b.safetensors"), ("z", "a.safetensors")];
    write(folder.path().join(INDEX), index(&pairs));
    let error = Source::open(folder.path()).unwrap_err();
    let message = error.to_string();
    match error {
        SourceError::AbsentTensors { absent, .. } => {
            let absent =
                absent.iter().map(|absent| (&*absent.tensor, absent.shard.clone())).collect::<Vec<_>>();
            let at = |file: &str| folder.path().join(file);
            assert_eq!(absent, [("x", at("b.safetensors")), ("z", at("a.safetensors"))]);
        }
        other => panic!("{other}"),
    }
    assert!(message.contains("`x`") && message.contains("`z`") && !message.contains("`y`"), "{message}");
}

#[test]
fn sets_side_by_side_are_not_guessed_between() {
    let numbered = |total| (1..=total).map(|number| shard(number, total)).collect::<Vec<_>>();
    let with = |extra: &str, total| [numbered(total), vec![extra.to_owned()]].concat();
    for (files, groups) in [
        (
            with("consolidated.safetensors", 2),
            vec!["model-*-of-00002.safetensors (2 files)", "consolidated.safetensors"],
        ),
        (with("model.safetensors", 2), vec!["model-*-of-00002.safetensors (2 files)", "model.safetensors"]),
        (
            [numbered(2), numbered(4)].concat(),
            vec!["model-*-of-00002.safetensors (2 files)", "model-*-of-00004.safetensors (4 files)"],
        ),
        (
            vec![
                "consolidated.00.safetensors".into(),
                "consolidated.01.safetensors".into(),
                "model.safetensors".into(),
            ],
            vec!["consolidated.00.safetensors, consolidated.01.safetensors", "model.safetensors"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (at, file) in files.iter().enumerate() {
            write(folder.path().join(file), vectors(&[&format!("t{at}")], at as u8));
        }
        match Source::open(folder.path()).map(|source| source.shards.len()) {
            Err(SourceError::Ambiguous { groups: found, .. }) => assert_eq!(found, groups),
            other => panic!("{files:?}: {other:?}"),
        }
        // With an index there is nothing to guess.
        write(folder.path().join(INDEX), index(&[("t0", &files[0])]));
        let source = Source::open(folder.path()).unwrap();
        assert_eq!(source.shards.len(), 1);
        assert_eq!(source.shards[0].path, folder.path().join(&files[0]));
    }
    let both = folder(&[("a.safetensors", &["x"], 1)]);
    for name in ["a.safetensors.index.json", "b.safetensors.index.json"] {
        write(both.path().join(name), index(&[("x", "a.safetensors")]));
    }
    assert!(matches!(Source::open(both.path()), Err(SourceError::Ambiguous { .. })));
    write(both.path().join(INDEX), index(&[("x", "a.safetensors")]));
    assert_eq!(Source::open(both.path()).unwrap().origin, Origin::Index(both.path().join(INDEX)));
}

#[test]
fn a_folder_without_weights_says_what_it_holds_instead() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| Source::open(path).unwrap_err().to_string();
    assert!(message(folder.path()).contains("no *.safetensors"));
    write(folder.path().join(".hidden.safetensors"), "");
    write(folder.path().join("pytorch_model.bin"), "");
    assert!(message(folder.path()).contains("pickled"), "{}", message(folder.path()));
    let nothing = folder.path().join("nothing");
    let error = Source::open(&nothing).unwrap_err();
    assert!(error.is_not_found() && !error.is_invalid_data());
    assert!(error.to_string().contains(nothing.to_str().unwrap()));
    assert!(Source::open("").unwrap_err().is_not_found());
}

#[test]
fn all_bad_shards_are_in_one_error_with_their_sizes() {
    let files = [shard(1, 3), shard(2, 3), shard(3, 3)];
    for cut in [&[1usize][..], &[0, 1, 2]] {
        let folder = folder(&[(&files[0], &["a"], 1), (&files[1], &["b"], 2), (&files[2], &["c"], 3)]);
        let len = std::fs::metadata(folder.path().join(&files[0])).unwrap().len();
        for &at in cut {
            let file = std::fs::File::options().write(true).open(folder.path().join(&files[at])).unwrap();
            file.set_len(len - 1 - at as u64).unwrap();
        }
        let error = Source::open(folder.path()).unwrap_err();
        assert!(error.is_invalid_data());
        let message = error.to_string();
        for (at, file) in files.iter().enumerate() {
            assert_eq!(message.contains(file.as_str()), cut.contains(&at), "{message}");
            if cut.contains(&at) {
                assert!(
                    message.contains(&format!("need {len} bytes, the file has {}", len - 1 - at as u64)),
                    "{message}"
                );
            }
        }
    }
}

#[test]
fn an_empty_file_in_a_folder_says_why_it_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path().join("model.safetensors"), "");
    let message = Source::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains(path.to_str().unwrap()) && message.contains("empty"), "{message}");
    assert!(message.contains("the *.safetensors of"), "{message}");
}

#[test]
fn the_limit_holds_for_headers_and_indexes() {
    let folder = folder(&[("a.safetensors", &["x"], 1)]);
    let path = write(folder.path().join(INDEX), index(&[("x", "a.safetensors")]));
    let open = |path: &PathBuf, max_bytes| Source::open_with(path, &HeaderLimits { max_bytes });
    let len = std::fs::metadata(&path).unwrap().len();
    assert!(open(&path, len).is_ok());
    let message = open(&path, len - 1).unwrap_err().to_string();
    assert!(message.contains(&len.to_string()) && message.contains(&(len - 1).to_string()), "{message}");
}

#[test]
fn expectations_are_checked_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path().join("m.safetensors"), vectors(&["good", "shape", "dtype", "extra"], 1));
    let source = Source::open(&path).unwrap();
    let expected =
        |name: &str, dtype, shape: &[u64]| Expected { name: name.into(), dtype, shape: Some(shape.into()) };
    let good = [expected("good", Some(Dtype::F32), &[2]), expected("dtype", None, &[2])];
    let extras = source.check_expected(&good).unwrap();
    let extras = extras.iter().map(|&extra| &*source.entry(extra).name).collect::<Vec<_>>();
    assert_eq!(extras, ["shape", "extra"]);

    let bad = [
        good[0].clone(),
        expected("absent", Some(Dtype::F32), &[2]),
        expected("shape", Some(Dtype::F32), &[1, 2]),
        expected("dtype", Some(Dtype::BF16), &[2]),
        Expected { name: "gone".into(), dtype: None, shape: None },
    ];
    let error = source.check_expected(&bad).unwrap_err();
    let message = error.to_string();
    match error {
        SourceError::Unexpected { missing, mismatched, .. } => {
            assert_eq!(missing, ["absent", "gone"]);
            assert_eq!(mismatched.iter().map(|m| &*m.tensor).collect::<Vec<_>>(), ["shape", "dtype"]);
        }
        other => panic!("{other}"),
    }
    assert!(message.contains("expected BF16 [2], found F32 [2]"), "{message}");
    assert!(message.contains("expected F32 [1, 2], found F32 [2]"), "{message}");
}

#[test]
fn a_bad_single_file_is_reported_as_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path().join("x.safetensors"), file_bytes(one("F32", "[2]", 0, 4), 4));
    match Source::open(&path).unwrap_err() {
        SourceError::Format(gds_loader::format::FormatError::Header { path: named, fault }) => {
            assert_eq!(named, path);
            assert!(matches!(fault, HeaderFault::SizeMismatch { expected: 8, found: 4, .. }));
        }
        other => panic!("{other}"),
    }
}
