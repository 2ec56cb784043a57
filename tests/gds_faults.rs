//! What goes wrong in cuFile, as a table: in every row the bytes are right, and the report says which path brought them, and why.
//!
//! The simulated libcufile goes wrong where its script says so (`sim/cufile/README.md`). One thread reads, in pieces of 1 MiB, so
//! that "the seventh read" is the seventh piece of the file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod gds_support;
mod program;

use std::time::Duration;

use gds_support::{Checkpoint, REAL, Run, load, load_well};
use program::{digests, fallbacks, paths};
use serde_json::Value;
use test_support::cufile_sim::Alive;

const MIB: u64 = 1 << 20;

const LINE: &str = "load --device cuda:0 --digest --json --threads 1 --read-size 1MiB --backend";

/// What the paths must have brought.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Everything by this path.
    All(&'static str),
    /// So many pieces of 1 MiB by `gds`, the rest by another.
    First(u64),
    /// All but one piece by `gds`.
    AllBut1,
    /// The first shard by another path, the second by `gds`.
    SecondShard,
    /// Everything by any path but cuFile's.
    Elsewhere,
}

/// One row.
struct Case {
    /// What is wrong, for messages.
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    by: By,
    /// Words in the reason of each fallback; empty where there is none.
    because: &'static [&'static str],
    /// `gds.proof` of the report.
    proof: Option<&'static str>,
    /// What `--backend gds` answers: its exit status, and words of its message.
    forced: (i32, &'static [&'static str]),
}

const SCRIPT: &str = "CUFILE_SIM_SCRIPT";
const VERSION: &str = "CUFILE_SIM_VERSION";
const WITHOUT: &str = "CUFILE_SIM_WITHOUT";

const SERVED: (i32, &[&str]) = (0, &[]);

const CASES: &[Case] = &[
    Case {
        name: "nothing",
        settings: &[],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "each read moves half of what it is asked",
        settings: &[(SCRIPT, "read@*=short:2")],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "reads move 4096 bytes, and fewer",
        settings: &[(SCRIPT, "read@1=bytes:4096,read@3=bytes:1,read@5=bytes:777")],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "the seventh read says that its file is not registered",
        settings: &[(SCRIPT, "read@7=-1:5027")],
        by: By::First(6),
        because: &["5027"],
        proof: Some("verified"),
        forced: (3, &["5027"]),
    },
    Case {
        name: "a read is refused by the system",
        settings: &[(SCRIPT, "read@3=-1:22")],
        by: By::First(2),
        because: &["Invalid argument"],
        proof: Some("verified"),
        forced: (3, &["Invalid argument"]),
    },
    Case {
        name: "a code that nobody knows",
        settings: &[(SCRIPT, "read@2=-1:5999")],
        by: By::First(1),
        because: &["5999"],
        proof: Some("verified"),
        forced: (3, &["5999"]),
    },
    Case {
        name: "a code of cuFile in the count",
        settings: &[(SCRIPT, "read@2=-5030")],
        by: By::First(1),
        because: &["5030"],
        proof: Some("verified"),
        forced: (3, &["5030"]),
    },
    Case {
        name: "a code of CUDA's, of a GPU that is well",
        settings: &[(SCRIPT, "read@3=-1:5011")],
        by: By::First(2),
        because: &["5011"],
        proof: Some("verified"),
        forced: (3, &["5011"]),
    },
    Case {
        name: "the first file does not register",
        settings: &[(SCRIPT, "handle_register[00001-of]=5030")],
        by: By::SecondShard,
        because: &["5030"],
        proof: Some("verified"),
        forced: (3, &["5030", "00001-of"]),
    },
    Case {
        name: "no file registers: a disk without a udev record",
        settings: &[(SCRIPT, "handle_register=5027")],
        by: By::Elsewhere,
        because: &["5027"],
        proof: None,
        forced: (3, &["5027", "udev"]),
    },
    Case {
        name: "files do not register, and nobody knows the code",
        settings: &[(SCRIPT, "handle_register=5999")],
        by: By::Elsewhere,
        because: &["5999"],
        proof: None,
        forced: (3, &["5999"]),
    },
    Case {
        name: "no window above 16 MiB",
        settings: &[(SCRIPT, "buf_register>16MiB=5016")],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "no window at all",
        settings: &[(SCRIPT, "buf_register=5016")],
        by: By::Elsewhere,
        because: &["registering a window", "5016"],
        proof: None,
        forced: (3, &["registering a window", "5016"]),
    },
    Case {
        name: "a window refused for another reason, with a code of CUDA's",
        settings: &[(SCRIPT, "buf_register=5021/719")],
        by: By::Elsewhere,
        because: &["5021"],
        proof: None,
        forced: (3, &["5021"]),
    },
    Case {
        name: "an I/O error that the kernel does not see",
        settings: &[(SCRIPT, "read@3=-1:5")],
        by: By::AllBut1,
        because: &["Input/output error"],
        proof: Some("verified"),
        forced: (1, &["Input/output error"]),
    },
    Case {
        name: "an end of file where there is none",
        settings: &[(SCRIPT, "read@3=bytes:0")],
        by: By::AllBut1,
        because: &["ended after 0"],
        proof: Some("verified"),
        forced: (1, &["ended after 0"]),
    },
    Case {
        name: "opening hangs",
        settings: &[(SCRIPT, "open=hang"), ("GDS_CUFILE_OPEN_SECONDS", "1")],
        by: By::Elsewhere,
        because: &[],
        proof: None,
        forced: (3, &["did not end within 1 s"]),
    },
    Case {
        name: "opening fails",
        settings: &[(SCRIPT, "open=5003")],
        by: By::Elsewhere,
        because: &[],
        proof: None,
        forced: (3, &["5003"]),
    },
    Case {
        name: "a base function is missing",
        settings: &[(WITHOUT, "cuFileRead")],
        by: By::Elsewhere,
        because: &[],
        proof: None,
        forced: (3, &["cuFileRead"]),
    },
    Case {
        name: "the library is not there",
        settings: &[(gds_support::LIBRARY, "/nonexistent/libcufile.so.0")],
        by: By::Elsewhere,
        because: &[],
        proof: None,
        forced: (3, &["/nonexistent"]),
    },
    Case {
        name: "a version without statistics and parameters",
        settings: &[(VERSION, "1.8")],
        by: By::All("gds"),
        because: &[],
        proof: Some("unverified"),
        forced: SERVED,
    },
    Case {
        name: "a version that says nothing of itself",
        settings: &[(VERSION, "1.2")],
        by: By::All("gds"),
        because: &[],
        proof: Some("unverified"),
        forced: SERVED,
    },
    Case {
        name: "the statistics of the GPUs are missing",
        settings: &[(WITHOUT, "cuFileGetStatsL3")],
        by: By::All("gds"),
        because: &[],
        proof: Some("unverified"),
        forced: SERVED,
    },
    Case {
        name: "the statistics are refused",
        settings: &[(SCRIPT, "get_stats_l3=5999")],
        by: By::All("gds"),
        because: &[],
        proof: Some("unverified"),
        forced: SERVED,
    },
    Case {
        name: "one read is served by the host",
        settings: &[(SCRIPT, "read@3=posix")],
        by: By::All("gds-compat"),
        because: &[],
        proof: Some("bounced"),
        forced: (3, &["served by the host"]),
    },
    Case {
        name: "the library lies",
        settings: &[("CUFILE_SIM_MODE", "lying")],
        by: By::All("gds-compat"),
        because: &[],
        proof: Some("bounced"),
        forced: (3, &["served by the host"]),
    },
    Case {
        name: "there is no GPUDirect Storage",
        settings: &[("CUFILE_SIM_MODE", "compat")],
        by: By::Elsewhere,
        because: &[],
        proof: None,
        forced: (3, &["only have bounced"]),
    },
    Case {
        name: "device memory for the model and little more",
        settings: &[("CUDA_SIM_MEMORY", "36MiB")],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "little BAR1",
        settings: &[("CUDA_SIM_BAR1", "32MiB")],
        by: By::All("gds"),
        because: &[],
        proof: Some("verified"),
        forced: SERVED,
    },
    Case {
        name: "less BAR1 than a window needs",
        settings: &[("CUDA_SIM_BAR1", "8MiB")],
        by: By::Elsewhere,
        because: &["registering a window", "5016"],
        proof: None,
        forced: (3, &["registering a window", "5016"]),
    },
];

fn settings(case: &Case) -> Vec<(&'static str, &'static str)> {
    [&[REAL], case.settings].concat()
}

#[test]
fn every_fault_of_the_table() {
    let test = "every_fault_of_the_table";
    let Some(whole) = Checkpoint::on_disk(test, "--size 12MiB") else { return };
    let Some(sharded) = Checkpoint::on_disk(test, "--size 8MiB --shards 2") else { return };
    let mut wrong = Vec::new();
    for case in CASES {
        let checkpoint = if matches!(case.by, By::SecondShard) { &sharded } else { &whole };
        let outcome = std::panic::catch_unwind(|| {
            let (report, run) = load_well(&format!("{LINE} auto"), &checkpoint.path, &settings(case));
            check(case, checkpoint, &report, &run);
            check_forced(case, checkpoint);
        });
        println!("{:<70} {}", case.name, if outcome.is_ok() { "ok" } else { "WRONG" });
        if outcome.is_err() {
            wrong.push(case.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[track_caller]
fn check(case: &Case, checkpoint: &Checkpoint, report: &Value, run: &Run) {
    let name = case.name;
    assert_eq!(digests(report), checkpoint.digests, "{name}");
    let (by, bytes) = (paths(report), report["bytes"].as_u64().unwrap());
    let of = |path: &str| by.get(path).copied().unwrap_or(0);
    assert_eq!(by.values().sum::<u64>(), bytes, "{name}: {by:?}");
    match case.by {
        By::All(path) => assert_eq!(of(path), bytes, "{name}: {by:?}"),
        // The first piece begins with the header, the length of which is not counted.
        By::First(pieces) => {
            let gds = of("gds");
            assert!(gds <= pieces * MIB && gds > pieces * MIB - MIB / 2, "{name}: {by:?}");
            assert_eq!(of("gds-compat"), 0, "{name}");
            // What arrived is not read again, and the file's other reads are not tried.
            let transfers = run.cufile().transfers;
            assert_eq!((transfers.failed, transfers.read_bytes), (1, pieces * MIB), "{name}: {transfers:?}");
        }
        By::AllBut1 => {
            let elsewhere = of("direct") + of("buffered");
            assert!(elsewhere <= MIB && elsewhere > MIB / 2 && of("gds") > 0, "{name}: {by:?}");
        }
        By::SecondShard => {
            assert!(
                of("gds") > 0 && of("direct") + of("buffered") > 0 && of("gds-compat") == 0,
                "{name}: {by:?}"
            );
        }
        By::Elsewhere => assert_eq!(of("gds") + of("gds-compat"), 0, "{name}: {by:?}"),
    }
    let fallbacks = fallbacks(report);
    assert_eq!(fallbacks.is_empty(), case.because.is_empty(), "{name}: {fallbacks:?}");
    for (from, to, reason) in &fallbacks {
        assert_eq!(
            (from.as_str(), to == "direct" || to == "buffered"),
            ("gds", true),
            "{name}: {fallbacks:?}"
        );
        for words in case.because {
            assert!(reason.contains(words), "{name}: {words:?} is missing in {reason}");
        }
    }
    assert_eq!(report["gds"]["proof"].as_str(), case.proof, "{name}: {}", report["gds"]);
    if case.proof != Some("verified") && fallbacks.is_empty() {
        assert!(
            !report["gds"]["reason"].as_str().unwrap_or_default().is_empty(),
            "{name}: {}",
            report["gds"]
        );
    }
    // Every byte went to the device once, and back once for its digest: a window's bytes within the device.
    if of("gds-compat") == 0 || case.proof == Some("bounced") {
        assert_eq!(run.driver.as_ref().unwrap().copies.bytes, 2 * bytes, "{name}");
    }
    if let Some(cufile) = &run.cufile {
        let transfers = cufile.transfers;
        assert_eq!(transfers.unregistered, 0, "{name}: {transfers:?}");
        assert!(
            of("gds") == 0 || case.proof != Some("verified") || transfers.bounced_bytes == 0,
            "{name}: {transfers:?}"
        );
    }
}

/// A forced path serves or fails, and never lets another serve.
#[track_caller]
fn check_forced(case: &Case, checkpoint: &Checkpoint) {
    let name = case.name;
    let run = load(&format!("{LINE} gds"), &checkpoint.path, &settings(case));
    let (code, words) = case.forced;
    assert_eq!(run.finished.code(), Some(code), "{name}: {}", run.finished);
    run.assert_nothing_left();
    if code == 0 {
        let report = run.json();
        assert_eq!(digests(&report), checkpoint.digests, "{name}");
        assert_eq!(paths(&report), [("gds".to_owned(), report["bytes"].as_u64().unwrap())].into(), "{name}");
        return assert!(fallbacks(&report).is_empty(), "{name}");
    }
    assert!(run.finished.stdout.is_empty(), "{name}: {}", run.finished);
    for words in words.iter().chain(&["gds"]) {
        assert!(
            run.finished.stderr.contains(words),
            "{name}: {words:?} is missing in: {}",
            run.finished.stderr
        );
    }
}

/// The window is as large as the budget and the library allow, and its share is in the report.
#[test]
fn the_window_keeps_within_its_bounds() {
    let test = "the_window_keeps_within_its_bounds";
    let Some(checkpoint) = Checkpoint::on_disk(test, "--size 20MiB") else { return };
    for (setting, at_most) in [
        (("CUDA_SIM_BAR1", "8GiB"), 128 * MIB),
        (("CUDA_SIM_BAR1", "256MiB"), 64 * MIB),
        (("CUDA_SIM_BAR1", "100MiB"), 25 * MIB),
        // A quarter of it would be too small to be worth it.
        (("CUDA_SIM_BAR1", "32MiB"), 16 * MIB),
        ((SCRIPT, "buf_register>16MiB=5016"), 16 * MIB),
        ((SCRIPT, "buf_register>40MiB=5016"), 40 * MIB),
        ((SCRIPT, "buf_register@1=5043"), 32 * MIB),
    ] {
        for read_size in ["1MiB", "3MiB", "8MiB"] {
            let line = format!("load --device cuda:0 --digest --json --read-size {read_size} --backend gds");
            let (report, run) = load_well(&line, &checkpoint.path, &[REAL, setting]);
            assert_eq!(digests(&report), checkpoint.digests, "{setting:?}");
            let window = report["gds"]["window_bytes"].as_u64().unwrap();
            let peak = run.cufile().peak_registered_device_bytes;
            let what =
                format!("{setting:?} with reads of {read_size}: a window of {window}, {peak} registered");
            assert!(window <= peak && peak <= at_most, "{what}");
            assert!(peak > at_most / 2, "{what}");
            assert_eq!(report["peak_pinned_bytes"], 0, "{what}");
        }
    }
}

/// The negative control: where the library brings a wrong bit, the digests tell.
#[test]
fn a_wrong_bit_is_seen() {
    let Some(checkpoint) = Checkpoint::on_disk("a_wrong_bit_is_seen", "--size 4MiB") else { return };
    let (report, _) =
        load_well(&format!("{LINE} gds"), &checkpoint.path, &[REAL, (SCRIPT, "read@2=corrupt")]);
    let found = digests(&report);
    assert_eq!(found.iter().filter(|(name, digest)| checkpoint.digests[*name] != **digest).count(), 1);
}

/// A library that opens never is not waited for twice in a process, nor longer than was said.
#[test]
fn a_hang_is_bounded() {
    let Some(checkpoint) = Checkpoint::on_disk("a_hang_is_bounded", "--size 4MiB") else { return };
    let hang = [REAL, (SCRIPT, "open=hang"), ("GDS_CUFILE_OPEN_SECONDS", "1")];
    let (report, run) = load_well(&format!("{LINE} auto --repeat 3"), &checkpoint.path, &hang);
    assert_eq!(digests(&report), checkpoint.digests);
    let reason = report["gds"]["reason"].as_str().unwrap();
    assert!(reason.contains("did not end within 1 s"), "{reason}");
    assert_eq!(run.cufile().calls["cuFileDriverOpen"], 1);
    assert!(run.finished.elapsed < Duration::from_secs(20), "{}", run.finished);

    // Slow is not hanging.
    let slow = [REAL, (SCRIPT, "open=hang:300ms")];
    let (report, run) = load_well(&format!("{LINE} gds"), &checkpoint.path, &slow);
    assert_eq!(digests(&report), checkpoint.digests);
    assert_eq!(run.cufile().alive, Alive::default());
}

/// What cuFile says of the GPU is not final: `auto` goes on by another path, and `gds`, where it was forced, is an error with the code.
#[test]
fn what_cufile_says_of_the_gpu_is_not_final() {
    let test = "what_cufile_says_of_the_gpu_is_not_final";
    let Some(checkpoint) = Checkpoint::on_disk(test, "--size 4MiB") else { return };
    let settings = [REAL, (SCRIPT, "read@2=-5011")];
    let run = load(&format!("{LINE} auto"), &checkpoint.path, &settings);
    assert_eq!(digests(&run.json()), checkpoint.digests);
    run.assert_nothing_left();
    let run = load(&format!("{LINE} gds"), &checkpoint.path, &settings);
    assert_eq!((run.finished.code(), run.finished.stdout.as_str()), (Some(3), ""), "{}", run.finished);
    assert!(run.finished.stderr.contains("5011"), "{}", run.finished);
    run.assert_nothing_left();
}

#[test]
fn a_refusal_says_what_to_do() {
    let Some(checkpoint) = Checkpoint::on_disk("a_refusal_says_what_to_do", "--size 4MiB") else { return };
    for (script, words) in [
        ("handle_register=5027", "udev"),
        ("handle_register=5020", "O_DIRECT"),
        ("buf_register=5016", "BAR1"),
        ("open=5001", "nvidia-fs"),
    ] {
        let run = load(&format!("{LINE} gds"), &checkpoint.path, &[REAL, (SCRIPT, script)]);
        assert_eq!(run.finished.code(), Some(3), "{script}: {}", run.finished);
        let message = &run.finished.stderr;
        for words in [words, "--backend auto", script.split_once('=').unwrap().1] {
            assert!(message.contains(words), "{script}: {words:?} is missing in: {message}");
        }
    }
}
