//! `gds inspect`: the same as the reference library sees.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod cli_support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cli_support::{claim, keys, run, synth};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use test_support::process;

#[test]
fn it_says_what_the_reference_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.safetensors");
    let data = [7u8; 64];
    let tensors = [
        ("scalar", Dtype::F32, vec![], 4),
        ("empty", Dtype::I64, vec![0, 5], 0),
        ("matrix", Dtype::BF16, vec![4, 8], 64),
        ("small", Dtype::F4, vec![2, 3], 3),
        ("ends.with.a.bool", Dtype::BOOL, vec![5], 5),
    ];
    let views = tensors.iter().map(|(name, dtype, shape, len)| {
        (*name, TensorView::new(*dtype, shape.clone(), &data[..*len]).unwrap())
    });
    let metadata = [("origin".to_owned(), "a test".to_owned())].into();
    std::fs::write(&path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();

    let found = run("inspect --json", &[&path]).json();
    assert_eq!(keys(&found), ["dtypes", "files", "metadata", "path", "tensors", "totals"]);
    assert_eq!(
        keys(&found["totals"]),
        ["bytes", "file_bytes", "files", "header_bytes", "tensors", "tensors_not_indexed"]
    );
    assert_eq!(keys(&found["files"][0]), ["bytes", "header_bytes", "path", "tensors"]);
    assert_eq!(keys(&found["tensors"][0]), ["bytes", "dtype", "file", "name", "offset", "shape"]);

    let bytes = std::fs::read(&path).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let list = found["tensors"].as_array().unwrap();
    assert_eq!(list.len(), reference.len());
    for tensor in list {
        let view = reference.tensor(tensor["name"].as_str().unwrap()).unwrap();
        assert_eq!(tensor["dtype"], view.dtype().to_string());
        assert_eq!(tensor["shape"], serde_json::json!(view.shape()));
        assert_eq!(tensor["bytes"], view.data().len());
        if !view.data().is_empty() {
            assert_eq!(tensor["offset"], view.data().as_ptr() as usize - bytes.as_ptr() as usize);
        }
    }
    assert_eq!(found["totals"]["file_bytes"], bytes.len());
    assert_eq!(found["totals"]["bytes"], 64 + 4 + 3 + 5);
    assert_eq!(found["metadata"]["origin"], "a test");
    assert_eq!(found["dtypes"]["BF16"], serde_json::json!({"tensors": 1, "bytes": 64}));
}

#[test]
fn a_glob_chooses_tensors_and_their_sums() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 1MB --shards 2");
    let all = run("inspect --json", &[folder.path()]).json();
    assert_eq!(all["totals"]["tensors"], summary["tensors"]);
    assert_eq!(all["totals"]["bytes"], summary["bytes"]);

    let some = run("inspect --json --tensors *.q_proj.* --tensors lm_head.weight", &[folder.path()]).json();
    let names: Vec<&str> =
        some["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    assert_eq!(names.len() as u64, summary["layers"].as_u64().unwrap() + 1);
    assert!(names.iter().all(|name| name.contains(".q_proj.") || *name == "lm_head.weight"));
    let bytes: u64 =
        some["tensors"].as_array().unwrap().iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    assert_eq!(some["totals"]["bytes"], bytes);
    assert_eq!(some["totals"]["files"], 2);
}

#[test]
fn tensors_that_the_index_does_not_name_are_counted_apart() {
    let folder = tempfile::tempdir().unwrap();
    let summary = synth(folder.path(), "--size 1MB --shards 2");
    let path = folder.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight").unwrap();
    std::fs::write(&path, index.to_string()).unwrap();
    let found = run("inspect --json", &[folder.path()]).json();
    assert_eq!(found["totals"]["tensors_not_indexed"], 1);
    assert_eq!(found["totals"]["tensors"].as_u64(), summary["tensors"].as_u64().map(|tensors| tensors - 1));
    assert!(run("inspect", &[folder.path()]).ok().stdout().contains("1 tensor that the index"));
}

#[test]
fn a_long_table_is_cut_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 100MB");
    let short = run("inspect", &[folder.path()]).ok().stdout().to_owned();
    assert!(short.contains("more tensors; --all lists them"), "{short}");
    assert!(!short.contains("lm_head.weight"));
    let long = run("inspect --all", &[folder.path()]).ok().stdout().to_owned();
    assert!(long.contains("lm_head.weight") && !long.contains("--all"));
    assert!(!long.contains('\u{1b}'), "no colours where nobody sees them");
}

/// A file with this header and `data` bytes of data.
fn hostile(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_message_about_a_file_cannot_steer_the_terminal_or_forge_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    let name = "\\u001b[2Jn\\nerror: forged \\u202egnp";
    let entry = r#""shape": [2], "data_offsets": [0, 4]"#;
    let headers = [
        format!("{{\"{name}\": {{\"dtype\": \"F32\", {entry}}}}}"),
        format!("{{\"a\": {{\"dtype\": \"{name}\", {entry}}}}}"),
        format!("{{\"a\": {{\"{name}\": 1, \"{name}\": 1, \"dtype\": \"F32\", {entry}}}}}"),
        format!("{{\"__metadata__\": {{\"{name}\": 1}}}}"),
    ];
    for header in headers {
        hostile(&path, &header, 4);
        let run = run("inspect", &[&path]);
        assert_eq!(run.code(), Some(1));
        let said = run.stderr().strip_suffix('\n').unwrap();
        assert!(!said.contains(|c: char| c.is_control() || c == '\u{202e}'), "{said:?}");
        assert!(said.contains("\\u{1b}[2Jn\\nerror: forged \\u{202e}gnp"), "{said}");
    }
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, format!("{{\"weight_map\": {{\"{name}\": \"../{name}\"}}}}")).unwrap();
    run("inspect", &[&index]).fails(1, &["`\\u{1b}[2Jn\\nerror", "\"../\\u{1b}[2Jn\\nerror"]);
    // Long ones are cut short.
    hostile(&path, &format!("{{\"{}\": {{\"dtype\": \"F32\", {entry}}}}}", "n".repeat(1 << 20)), 4);
    let run = run("inspect", &[&path]);
    assert!(run.code() == Some(1) && run.stderr().len() < 2000, "{}", run.stderr().len());
}

/// Paths of shards are of the index's making, and the numbers of a set of whoever named its files.
#[test]
fn a_message_about_paths_is_short_and_of_our_own_lines() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    for shard in ["x".repeat(20_000_000), "y/".repeat(1_000_000) + "z", "a\\n  forged\\n".to_owned()] {
        std::fs::write(&index, format!("{{\"weight_map\": {{\"a\": \"{shard}\"}}}}")).unwrap();
        for command in ["inspect", "load --device cpu", "verify"] {
            let run = run(command, &[folder.path()]);
            let said = run.stderr();
            assert!(run.code() == Some(1) && said.len() < 3000, "{}", said.len());
            assert!(said.contains("model.safetensors.index.json") && said.lines().count() == 2, "{said}");
        }
    }
    std::fs::remove_file(&index).unwrap();
    for number in (1..3000).step_by(2) {
        std::fs::write(folder.path().join(format!("model-{number:05}-of-03000.safetensors")), "").unwrap();
    }
    let run = run("inspect", &[folder.path()]);
    let said = run.stderr();
    assert!(said.contains("without number 2, 4, 6") && said.contains("and 1480 more"), "{said}");
    assert!(said.len() < 1000, "{said}");
}

/// Texts that would cost more than they are long, if anything in reading them were square in their length or deep in calls.
#[test]
fn little_memory_and_time_are_enough_to_refuse_a_hostile_header() {
    const ENTRIES: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let many = |name: &dyn Fn(usize) -> String, value: &str| {
        (0..ENTRIES).map(|k| format!("\"{}\":{value}", name(k))).collect::<Vec<_>>().join(",")
    };
    let numbered = |k: usize| format!("t{k}");
    let headers = [
        ("deep", format!("{{\"a\":{}", "[".repeat(1 << 20))),
        ("deep and unknown", format!("{{\"a\":{{\"x\":{}", "{\"y\":".repeat(1 << 18))),
        ("the last name twice", format!("{{{},\"t0\":{entry}}}", many(&numbered, entry))),
        ("all the same name", format!("{{{}}}", many(&|_| "t".into(), entry))),
        ("many fields", format!("{{\"a\":{{{},\"t0\":1}}}}", many(&numbered, "1"))),
        ("much metadata", format!("{{\"__metadata__\":{{{},\"t0\":\"\"}}}}", many(&numbered, "\"\""))),
        ("many dimensions", format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{}1]", "1,".repeat(1 << 20))),
        (
            "an overlap at the end",
            format!(
                "{{{},\"z\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}},\"y\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}}}",
                many(&numbered, entry)
            ),
        ),
    ];
    for (what, header) in headers {
        hostile(&path, &header, 1);
        // 512 MiB of addresses, which is some 100 times the text, and the threads' stacks.
        let mut limited = Command::new("sh");
        limited
            .args(["-c", "ulimit -v 524288; exec \"$0\" inspect \"$1\"", env!("CARGO_BIN_EXE_gds")])
            .arg(&path);
        let run = process::run(limited.env("RAYON_NUM_THREADS", "2"), Duration::from_secs(20));
        assert_eq!(run.code(), Some(1), "{what}: {run}");
        assert!(run.stderr.starts_with("error: ") && run.stderr.len() < 3000, "{what}: {run}");
    }
}

#[test]
fn a_name_from_a_file_cannot_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    let view = TensorView::new(Dtype::U8, vec![1], &[1]).unwrap();
    std::fs::write(&path, safetensors::serialize([("a\u{1b}[2J\nb", view)], None).unwrap()).unwrap();
    let table = run("inspect", &[&path]).ok().stdout().to_owned();
    assert!(!table.contains('\u{1b}') && table.contains("a\\u{1b}[2J\\nb"), "{table}");
}

/// Characters that a terminal acts on, or that show a text in another order than it is written.
const STEERING: [&str; 4] = ["\u{1b}", "\u{9b}", "\u{7f}", "\u{202e}"];

#[test]
fn neither_errors_nor_json_of_a_strangers_file_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = format!("a\nb{}", STEERING.concat());
    let plain = |text: &str| {
        assert!(!text.contains(STEERING[0]) && !text.contains(STEERING[1]), "{text:?}");
        assert!(!text.contains(STEERING[2]) && !text.contains(STEERING[3]), "{text:?}");
    };
    // A tensor, and the file itself.
    let path = folder.path().join(format!("{hostile}.safetensors"));
    let view = TensorView::new(Dtype::U8, vec![1], &[1]).unwrap();
    std::fs::write(&path, safetensors::serialize([(&hostile, view)], None).unwrap()).unwrap();
    let json = run("inspect --json", &[&path]).ok();
    plain(json.stdout());
    assert_eq!(json.stdout().matches('\n').count(), 1);
    assert_eq!(json.json()["tensors"][0]["name"], hostile);
    plain(run("load --device cpu --backend buffered", &[&path]).ok().stdout());
    // Errors that name both; the line breaks are those of the program's own list.
    std::fs::write(&path, [&[0xff; 7][..], b"\0", hostile.as_bytes()].concat()).unwrap();
    for line in ["inspect", "load --device cpu", "verify"] {
        for path in [&*path, folder.path()] {
            let run = run(line, &[path]);
            assert_eq!((run.code(), run.stdout()), (Some(1), ""));
            plain(run.stderr());
            let lines: Vec<&str> = run.stderr().lines().collect();
            assert!(lines.iter().skip(1).all(|line| line.starts_with("  ")), "{lines:?}");
            assert!(run.stderr().contains("a\\nb\\u{1b}\\u{9b}"), "{lines:?}");
        }
    }
    // `gds inspect *` where there are several.
    let run = run("inspect", &[folder.path(), &path]);
    assert_eq!(run.code(), Some(2));
    plain(run.stderr());
}

#[test]
fn files_that_claim_more_than_64_bits_together_are_told_of_and_not_loaded() {
    let Some(folder) = test_support::folder::in_memory("claims") else { return };
    // Tensors as large as tensors can be; without a limit the sum of all wraps round to 12 KiB.
    let most = (1_u64 << 61) - 4096;
    for name in ["a", "b", "c"] {
        let last = if name == "c" { 8 * 4096 + (12 << 10) } else { most };
        let path = folder.path().join(format!("{name}.safetensors"));
        if let Err(error) = claim(&path, name, &[most, most, last]) {
            test_support::not_run("files_that_claim_more_than_64_bits_together", &error.to_string());
            return;
        }
    }
    let found = run("inspect --json", &[folder.path()]).json();
    assert_eq!(found["totals"]["bytes"], u64::MAX);
    run("load --device cpu", &[folder.path()]).fails(1, &[&u64::MAX.to_string()]);
}
