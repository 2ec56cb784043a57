//! Indexes that say nothing, the wrong thing, or lead elsewhere.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::path::Path;

use format_support::{vectors, write};
use gds_loader::format::{Index, IndexError};
use gds_loader::source::{Source, SourceError};

fn fault(text: impl AsRef<[u8]>) -> IndexError {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path().join("a.safetensors"), vectors(&["x"], 1));
    let path = write(folder.path().join("model.safetensors.index.json"), text);
    let error = Source::open(folder.path()).unwrap_err();
    assert!(error.is_invalid_data());
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    match error {
        SourceError::Index { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn degenerate_texts_have_errors_of_their_own() {
    assert_eq!(fault(""), IndexError::Empty);
    assert_eq!(fault("\u{feff}{\"weight_map\":{\"x\":\"a.safetensors\"}}"), IndexError::ByteOrderMark);
    assert_eq!(fault("{}"), IndexError::NoWeightMap);
    assert_eq!(fault(r#"{"metadata":{"total_size":4}}"#), IndexError::NoWeightMap);
    assert_eq!(fault(r#"{"weight_map":{}}"#), IndexError::EmptyWeightMap);
    assert_eq!(fault("[]"), IndexError::NotAnObject { found: "an array" });
    assert_eq!(fault("  "), IndexError::NotAnObject { found: "nothing but blanks" });
    assert_eq!(fault("null"), IndexError::NotAnObject { found: "null" });
    for text in [r#"{"weight_map":["a.safetensors"]}"#, r#"{"weight_map":null}"#, r#"{"weight_map":"a"}"#] {
        assert!(matches!(fault(text), IndexError::WeightMap { .. }), "{text}");
    }
    for (value, found) in
        [("1", "a number"), ("null", "null"), ("[]", "an array"), ("{}", "an object"), ("true", "a boolean")]
    {
        let text = format!(r#"{{"weight_map":{{"x":{value}}}}}"#);
        assert_eq!(fault(text), IndexError::ShardType { tensor: "x".into(), found });
    }
    for (text, words) in [
        ("{", "EOF"),
        (r#"{"weight_map":{"x":"a.safetensors"}} trailing"#, "trailing characters"),
        ("nothing", "line 1"),
        ("<html>", "HTML"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
            "Git LFS pointer to a file of 12345",
        ),
        ("\0\0\0\0", "line 1"),
    ] {
        let fault = fault(text);
        assert!(matches!(fault, IndexError::Json { .. }) && fault.to_string().contains(words), "{fault}");
    }
    assert_eq!(fault(b"{\"weight_map\":\xff"), IndexError::NotUtf8 { valid_up_to: 14 });
    let deep = format!(r#"{{"metadata":{}"#, "[".repeat(100_000));
    assert!(matches!(fault(deep), IndexError::Json { .. }));
}

#[test]
fn no_key_may_appear_twice() {
    for (text, key) in [
        (r#"{"weight_map":{"x":"a.safetensors","x":"a.safetensors"}}"#, "x"),
        (r#"{"weight_map":{"x":"a.safetensors","\u0078":"b.safetensors"}}"#, "x"),
        (r#"{"weight_map":{"x":"a.safetensors"},"weight_map":{"x":"a.safetensors"}}"#, "weight_map"),
        (r#"{"metadata":{"a":1,"a":1},"weight_map":{"x":"a.safetensors"}}"#, "a"),
        (r#"{"metadata":{},"metadata":{},"weight_map":{"x":"a.safetensors"}}"#, "metadata"),
    ] {
        assert_eq!(fault(text), IndexError::DuplicateKey { key: key.into() });
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused_before_anything_is_opened() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("model");
    std::fs::create_dir_all(folder.join("a")).unwrap();
    // Whatever slips through the check would load.
    write(root.path().join("x.safetensors"), vectors(&["x"], 1));
    write(folder.join("m.safetensors"), vectors(&["x"], 1));
    write(folder.join("a/m.safetensors"), vectors(&["x"], 1));
    let absolute = root.path().join("x.safetensors");
    let names = [
        "../x.safetensors",
        "a/../../x.safetensors",
        "a/../m.safetensors",
        "./m.safetensors",
        "a/./m.safetensors",
        absolute.to_str().unwrap(),
        "/etc/passwd",
        "",
        ".",
        "..",
        "m.safetensors/",
        "a//m.safetensors",
        "m.safetensors\0.txt",
        "..\\x.safetensors",
        "C:\\x.safetensors",
    ];
    for name in names {
        let text = serde_json::json!({"weight_map": {"x": name}}).to_string();
        // Pure: no folder is known here, so nothing can have been opened.
        match Index::parse(text.as_bytes()).unwrap_err() {
            IndexError::ShardName { tensor, shard, .. } => assert_eq!((&*tensor, &*shard), ("x", name)),
            other => panic!("{name:?}: {other}"),
        }
        write(folder.join("model.safetensors.index.json"), text);
        let error = Source::open(&folder).unwrap_err();
        assert!(matches!(error, SourceError::Index { fault: IndexError::ShardName { .. }, .. }), "{error}");
    }
}

#[test]
fn plain_sub_directories_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("part/one")).unwrap();
    write(folder.path().join("part/one/m.safetensors"), vectors(&["x"], 1));
    write(folder.path().join("..weird.safetensors"), vectors(&["y"], 1));
    let text = r#"{"weight_map":{"x":"part/one/m.safetensors","y":"..weird.safetensors"}}"#;
    write(folder.path().join("model.safetensors.index.json"), text);
    assert_eq!(Source::open(folder.path()).unwrap().tensors.len(), 2);
}

#[test]
fn an_index_in_the_current_folder_finds_its_shards() {
    // A relative path without a folder has an empty parent, which must not become the root.
    let index = Path::new("no-such.safetensors.index.json");
    assert!(Source::open(index).unwrap_err().is_not_found());
    assert_eq!(index.parent().map(|parent| parent.join("a")), Some("a".into()));
}

#[test]
fn files_are_sorted_and_tensors_keep_the_order_of_the_text() {
    let index = Index::parse(br#"{"weight_map":{"z":"b","a":"a","m":"b","b":"a"}}"#).unwrap();
    assert_eq!(index.files().iter().map(|file| &**file).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(index.tensors().collect::<Vec<_>>(), [("z", 1), ("a", 0), ("m", 1), ("b", 0)]);
    assert_eq!(index.position("m"), Some((2, 1)));
    assert_eq!(index.position("q"), None);
}

/// A file of sysfs says that it has a page and ends after a few bytes, as one that is cut off while it is read.
#[test]
fn an_index_that_ends_early_is_invalid_data_and_says_what_to_do() {
    let test = "an_index_that_ends_early_is_invalid_data_and_says_what_to_do";
    let longer = Path::new("/sys/kernel/uevent_seqnum");
    match (std::fs::metadata(longer), std::fs::read(longer)) {
        (Ok(metadata), Ok(bytes)) if metadata.len() > bytes.len() as u64 => {}
        _ => return test_support::not_run(test, "there is no sysfs here"),
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    std::os::unix::fs::symlink(longer, &path).unwrap();
    let error = Source::open(&path).unwrap_err();
    assert!(error.is_invalid_data(), "{error}");
    assert!(error.to_string().contains("load it again when its writer is done"), "{error}");
}
