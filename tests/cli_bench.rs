//! `gds bench`: what is called cold was cold, medians are medians, and what did not run says why.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod cli_support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli_support::{claim, gds, keys, run, run_simulated, synth};
use serde_json::Value;
use test_support::{cufile_sim, folder, process, simulator};

const LIBRARY: &str = "GDS_CUFILE_LIBRARY";

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().unwrap()
}

fn floats(values: &Value, field: &str) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value[field].as_f64().unwrap()).collect()
}

/// The middle of an odd number of values.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[track_caller]
fn assert_close(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * a.abs().max(b.abs()), "{what}: {a} and {b}");
}

/// Checks each row against its own rounds.
#[track_caller]
fn assert_figures_follow_from_rounds(report: &Value) {
    let bytes = report["subject"]["bytes"].as_f64().unwrap();
    for row in rows(report) {
        let label = row["label"].as_str().unwrap();
        let rounds = row["rounds"].as_array().unwrap();
        assert_eq!(rounds.len() as u64, report["rounds"].as_u64().unwrap(), "{label}");
        let mut numbers: Vec<u64> = rounds.iter().map(|round| round["round"].as_u64().unwrap()).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), rounds.len(), "{label}: every round once");
        for round in rounds {
            let before = round["cache"]["resident_before"].as_f64();
            let as_asked = match row["asked"].as_str() {
                Some("cold") => before.is_some_and(|share| share <= 0.01),
                Some("warm") => before.is_some_and(|share| share >= 0.99),
                _ => true,
            };
            assert_eq!(round["proven"], as_asked, "{label}: {round}");
        }
        if row["left_out"] == 0 && !row["asked"].is_null() {
            let seconds = floats(&row["rounds"], "seconds");
            let least = seconds.iter().copied().fold(f64::MAX, f64::min);
            assert_close(row["seconds"]["median"].as_f64().unwrap(), middle(seconds), label);
            assert_close(row["seconds"]["min"].as_f64().unwrap(), least, label);
            let of_median = bytes / row["seconds"]["median"].as_f64().unwrap() / 1e9;
            assert_close(row["gb_per_s"]["median"].as_f64().unwrap(), of_median, label);
            let cpu = floats(&row["rounds"], "cpu_s").into_iter().map(|cpu| cpu / bytes * 1e9).collect();
            assert_close(row["cpu_s_per_gb"]["median"].as_f64().unwrap(), middle(cpu), label);
        }
    }
}

#[test]
fn every_path_runs_cold_and_warm_in_every_round() {
    let folder = folder::on_disk("every_path_runs_cold_and_warm_in_every_round");
    let summary = synth(folder.path(), "--size 64MB --shards 2");
    let report = run("bench --device cpu --rounds 3 --json", &[folder.path()]).json();
    let fields = [
        "copies",
        "gds_absent",
        "gds_against_host",
        "limits",
        "machine",
        "overlap",
        "overlap_absent",
        "rounds",
        "rows",
        "seconds",
        "seed",
        "settings",
        "subject",
        "unavailable",
        "version",
    ];
    assert_eq!(keys(&report), fields);
    assert_eq!(report["subject"]["bytes"], summary["bytes"]);
    assert_eq!(report["subject"]["files"], 2);
    assert!(report["machine"]["kernel"].is_string() && report["machine"]["memory"].is_u64());
    assert_figures_follow_from_rounds(&report);

    for (path, engine) in [("direct", "threads"), ("buffered", ""), ("mmap", "")] {
        for asked in ["cold", "warm"] {
            let of_case = |row: &&Value| {
                row["path"] == path && row["engine"].as_str().unwrap_or("") == engine && row["asked"] == asked
            };
            assert_eq!(rows(&report).iter().filter(of_case).count(), 1, "{path} {asked}");
        }
    }
    let buffered =
        rows(&report).iter().find(|row| row["path"] == "buffered" && row["asked"] == "cold").unwrap();
    assert_eq!(buffered["state"], "cold", "a disk's files can be cold");
    assert!(
        buffered["rounds"][0]["cache"]["resident_after"].as_f64().unwrap() > 0.9,
        "and are read through the cache"
    );

    let limits = report["limits"].as_array().unwrap();
    let named: Vec<&str> = limits.iter().map(|limit| limit["limit"].as_str().unwrap()).collect();
    assert_eq!(named, ["storage", "memory"]);
    for limit in limits {
        assert_eq!(limit["gb_per_s"]["count"], 3, "{limit}");
        let rates = floats(&limit["rounds"], "gb_per_s");
        assert_close(limit["gb_per_s"]["median"].as_f64().unwrap(), middle(rates), "limit");
    }
    assert_eq!(buffered["limit"]["limit"], "storage");
    let missing = report["unavailable"].as_array().unwrap();
    assert!(
        missing.iter().any(|entry| entry["path"] == "gds" && !entry["reason"].as_str().unwrap().is_empty())
    );
    assert_eq!(report["gds_absent"], missing[0]["reason"]);
    assert!(report["overlap_absent"].is_string() && report["copies"].is_null());
}

#[test]
fn what_was_not_cold_is_not_called_cold() {
    let Some(folder) = folder::in_memory("what_was_not_cold_is_not_called_cold") else { return };
    synth(folder.path(), "--size 8MB");
    let report = run("bench --device cpu --rounds 3 --json", &[folder.path()]).json();
    assert_figures_follow_from_rounds(&report);
    let asked_cold: Vec<&Value> = rows(&report).iter().filter(|row| row["asked"] == "cold").collect();
    assert!(!asked_cold.is_empty());
    for row in asked_cold {
        assert_eq!(row["state"], "not cold", "tmpfs is the page cache: {row}");
        assert!(row["label"].as_str().unwrap().ends_with(", not cold"));
        assert!(row["rounds"].as_array().unwrap().iter().all(|round| round["proven"] == false));
    }
    let storage = &report["limits"][0];
    assert!(storage["gb_per_s"].is_null() && storage["failure"].is_string(), "{storage}");

    let table = run("bench --device cpu --rounds 1 --cache cold", &[folder.path()]).ok().stdout().to_owned();
    let of_path = |line: &&str| line.starts_with("buffered ") || line.starts_with("mmap ");
    assert_eq!(table.lines().filter(of_path).filter(|line| line.contains("not cold")).count(), 2, "{table}");
}

#[test]
fn what_is_forced_and_not_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    synth(folder.path(), "--size 1MB");
    run("bench --backend gds --rounds 1", &[folder.path()]).fails(3, &["gds"]);
    run("bench --backend teleport", &[folder.path()]).fails(2, &["teleport", "buffered"]);
    run("bench --rounds 0", &[folder.path()]).fails(2, &["rounds"]);
    run("bench --sweep depth=0", &[folder.path()]).fails(2, &["depth"]);
    run("bench --sweep width=1", &[folder.path()]).fails(2, &["width", "read-size"]);
    run("bench --raw --backend direct --backend buffered", &[folder.path()]).fails(2, &["one --backend"]);
    run("bench --block-size 1MiB", &[folder.path()]).fails(2, &["--raw"]);
    run("bench", &[&folder.path().join("missing")]).fails(1, &["missing"]);
}

/// In a debug build arithmetic that wraps round is a panic.
#[test]
fn a_file_that_claims_more_than_can_be_counted_is_an_error() {
    const TEST: &str = "a_file_that_claims_more_than_can_be_counted_is_an_error";
    let Some(folder) = folder::in_memory(TEST) else { return };
    let path = folder.path().join("claims.safetensors");
    if let Err(error) = claim(&path, "t", &[(1 << 61) - 1; 3]) {
        return test_support::not_run(TEST, &error.to_string());
    }
    // Few addresses, so that half of the machine's memory is not taken before each load.
    let line = "ulimit -v 2097152; exec \"$0\" bench \"$1\" --device cpu --backend buffered --backend mmap";
    let mut limited = Command::new("sh");
    limited.args(["-c", line, env!("CARGO_BIN_EXE_gds")]).arg(&path);
    let run = process::run(limited.env("RAYON_NUM_THREADS", "2"), process::LIMIT);
    assert_eq!(run.code(), Some(1), "{run}");
    assert!(run.stderr.starts_with("error: buffered: out of memory"), "{run}");
}

#[test]
fn gds_is_compared_with_the_host_and_proven() {
    let folder = folder::on_disk("gds_is_compared_with_the_host_and_proven");
    synth(folder.path(), "--size 64MB --shards 2");
    let library = cufile_sim::library().to_str().unwrap();
    let machine = [(LIBRARY, library), ("CUFILE_SIM_MODE", "real"), ("CUDA_SIM_COPY_GB_PER_S", "4")];
    let report = run_simulated(&machine, "bench --rounds 3 --json", &[folder.path()]).json();
    assert_figures_follow_from_rounds(&report);
    assert_eq!(report["machine"]["gpu"]["simulated"], true);
    assert_eq!(report["unavailable"], Value::Array(Vec::new()));

    let headlines = report["gds_against_host"].as_array().unwrap();
    assert_eq!(headlines.iter().map(|headline| &headline["asked"]).collect::<Vec<_>>(), ["cold", "warm"]);
    for headline in headlines {
        assert_eq!(headline["speed"]["count"], 3);
        assert_eq!(headline["proof"]["proof"], "verified");
        assert!(headline["host"].as_str().unwrap().starts_with("direct"));
        // The ratio is of rounds, not of medians.
        let seconds = |label: &Value| -> Vec<f64> {
            floats(&rows(&report).iter().find(|row| row["label"] == *label).unwrap()["rounds"], "seconds")
        };
        let (gds, host) = (seconds(&headline["gds"]), seconds(&headline["host"]));
        let ratios = gds.iter().zip(&host).map(|(gds, host)| host / gds).collect();
        assert_close(headline["speed"]["median"].as_f64().unwrap(), middle(ratios), "speed");
    }
    let gds = rows(&report).iter().find(|row| row["path"] == "gds").unwrap();
    assert!(
        gds["start"]["cufile_s"].as_f64().unwrap() > 0.0 && gds["start"]["device_s"].as_f64().unwrap() > 0.0
    );
    assert!(gds["start"]["first"]["seconds"].as_f64().unwrap() > 0.0);
    assert!(gds["rounds"].as_array().unwrap().iter().all(|round| round["gds"]["proof"] == "verified"));
    let direct = rows(&report).iter().find(|row| row["path"] == "direct").unwrap();
    assert!(direct["pin_s"]["median"].as_f64().unwrap() > 0.0 && direct["start"]["cufile_s"].is_null());

    assert_eq!(report["limits"][2]["limit"], "link");
    assert!(report["limits"][2]["gb_per_s"]["max"].as_f64().unwrap() < 4.4, "the simulated link has 4 GB/s");
    let overlap = report["overlap"].as_array().unwrap();
    assert_eq!(overlap.len(), 2, "cold and warm");
    for overlap in overlap {
        assert!(overlap["over_longer"]["count"] == 3 && overlap["gain"]["median"].as_f64().unwrap() > 0.5);
    }
    let copies = &report["copies"];
    assert!(copies["pieces"]["copies"].as_u64().unwrap() < copies["tensors"]["copies"].as_u64().unwrap());
    assert_eq!(copies["pieces"]["bytes"], report["subject"]["bytes"]);

    let bounced = [(LIBRARY, library), ("CUFILE_SIM_MODE", "lying")];
    let line = "bench --rounds 1 --cache cold --backend gds --backend direct --json";
    let report = run_simulated(&bounced, line, &[folder.path()]).json();
    assert_eq!(report["gds_against_host"], Value::Array(Vec::new()));
    assert!(
        report["gds_absent"].as_str().unwrap().contains("served by the host"),
        "{}",
        report["gds_absent"]
    );
}

/// The processes that `parent` started.
fn children_of(parent: u32) -> Vec<i32> {
    let of_parent = |status: &str| {
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").is_some_and(|id| id.trim() == parent.to_string()))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|id| {
            std::fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|status| of_parent(&status))
        })
        .collect()
}

#[test]
fn a_process_that_dies_is_a_row_that_says_so() {
    let folder = folder::on_disk("a_process_that_dies_is_a_row_that_says_so");
    synth(folder.path(), "--size 32MB");
    let mut command = gds();
    simulator::prepare(&mut command);
    command.env("CUDA_SIM_COPY_GB_PER_S", "0.1").args([
        "bench",
        "--json",
        "--rounds",
        "4",
        "--backend",
        "buffered",
    ]);
    command.args(["--backend", "mmap"]).arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let bench = command.spawn().unwrap();
    let start = Instant::now();
    // One for each path: the second starts when the first has warmed up.
    let worker = loop {
        if let [first, _second] = children_of(bench.id())[..] {
            break first;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the benchmark's processes did not start");
        std::thread::sleep(Duration::from_millis(5));
    };
    // SAFETY: the process is a child of our child, which has not waited for it yet.
    assert_eq!(unsafe { libc::kill(worker, libc::SIGKILL) }, 0);
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed: Vec<&Value> = rows(&report).iter().filter(|row| row["failure"].is_string()).collect();
    assert!(!failed.is_empty(), "{report}");
    for row in &failed {
        assert!(row["failure"].as_str().unwrap().contains("signal: 9"), "{}", row["failure"]);
        assert_eq!(row["path"], failed[0]["path"]);
    }
    let whole =
        |row: &&Value| row["path"] != failed[0]["path"] && row["rounds"].as_array().unwrap().len() == 4;
    assert!(rows(&report).iter().filter(whole).count() >= 2, "the other path went on");
}

#[test]
fn raw_reads_count_every_byte() {
    let folder = folder::on_disk("raw_reads_count_every_byte");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let lens: [usize; 4] = [0, 1, 65536, 1_000_001];
    for (index, len) in lens.into_iter().enumerate() {
        let place = if index % 2 == 0 { folder.path() } else { &inner };
        std::fs::write(place.join(index.to_string()), vec![7; len]).unwrap();
    }
    let (bytes, blocks) =
        (lens.iter().sum::<usize>(), lens.iter().map(|len| len.div_ceil(8192)).sum::<usize>());
    let check = |report: &Value, line: &str| {
        let result = &report["result"];
        assert_eq!(result["bytes"], bytes, "{line}");
        assert_eq!((&result["operations"], &result["files"]), (&blocks.into(), &4.into()), "{line}");
        let seconds = result["seconds"].as_f64().unwrap();
        assert_close(result["gb_per_s"].as_f64().unwrap(), bytes as f64 / seconds / 1e9, line);
        let latency = |field: &str| result["latency"][field].as_f64().unwrap();
        assert!(latency("p50_us") <= latency("p99_us") && latency("p99_us") <= latency("max_us"), "{line}");
    };
    for backend in ["direct", "buffered"] {
        for pattern in ["sequential", "random"] {
            for engine in ["auto", "threads"] {
                let line = format!(
                    "bench --raw --json --device cpu --block-size 8KiB --backend {backend} --pattern {pattern} --engine {engine}"
                );
                check(&run(&line, &[folder.path()]).json(), &line);
                check(&run_simulated(&[], &line.replace("cpu", "cuda"), &[folder.path()]).json(), &line);
            }
        }
    }
    let machine = [(LIBRARY, cufile_sim::library().to_str().unwrap()), ("CUFILE_SIM_MODE", "real")];
    let line = "bench --raw --json --block-size 8KiB --backend gds";
    let report = run_simulated(&machine, line, &[folder.path()]).json();
    check(&report, line);
    assert_eq!(report["result"]["gds"]["proof"], "verified");
    assert_eq!(report["result"]["device"]["kind"], "cuda");

    let line = "bench --raw --json --device cpu --backend buffered --seconds 1 --block-size 64KiB";
    let timed = run(line, &[&inner]).json();
    let seconds = timed["result"]["seconds"].as_f64().unwrap();
    assert!(
        (0.9..10.0).contains(&seconds) && timed["result"]["bytes"].as_u64().unwrap() > bytes as u64,
        "{timed}"
    );
    let words = run("bench --raw --device cpu", &[&inner]).ok().stdout().to_owned();
    for word in ["GiB/s", "µs", "99%", "Operations"] {
        assert!(words.contains(word), "{word} is not in {words}");
    }
}

#[test]
fn a_sweep_measures_its_winner_again() {
    let folder = folder::on_disk("a_sweep_measures_its_winner_again");
    synth(folder.path(), "--size 16MB");
    let line = "bench --device cpu --rounds 3 --json --sweep read-size=1MiB..4MiB --sweep threads=1,2";
    let report = run(line, &[folder.path()]).json();
    let tried = report["tried"].as_array().unwrap();
    assert!(tried.len() >= 6, "{tried:?}");
    let default = &tried[0];
    assert!(
        default["settings"].as_object().unwrap().values().all(Value::is_null),
        "the default is the first"
    );
    assert_close(default["against_default"]["median"].as_f64().unwrap(), 1.0, "the default against itself");
    let best = &report["best"];
    assert!(tried.iter().any(|tried| tried["settings"] == best["settings"]));
    match &best["against_default"] {
        Value::Null => assert_eq!(best["settings"], default["settings"]),
        speed => assert_eq!(best["better"], speed["lower_quartile"].as_f64().unwrap() > 1.0),
    }

    let full = format!("{line} --full");
    let report = run(&full, &[folder.path()]).json();
    assert_eq!(report["tried"].as_array().unwrap().len(), 1 + 3 * 2);
    let run = run("bench --device cpu --rounds 1 --sweep depth=1,2", &[folder.path()]).ok();
    assert!(run.stderr().contains("loads, about"), "the size of a sweep is told first: {}", run.stderr());
    assert!(run.stdout().contains("Best"));
}

#[test]
fn the_plot_is_well_formed_and_names_every_row() {
    let folder = folder::on_disk("the_plot_is_well_formed_and_names_every_row");
    let model = folder.path().join("a <model> & \"more\"\u{1b}[2J\u{ffff}");
    std::fs::create_dir(&model).unwrap();
    synth(&model, "--size 64MB --shards 2");
    let plot = folder.path().join("plot.svg");
    let report = plotted(&plot, &model, "bench --rounds 1 --json");
    let picture = std::fs::read_to_string(&plot).unwrap();
    let document = roxmltree::Document::parse(&picture).unwrap();
    let texts: Vec<&str> = document
        .descendants()
        .filter(|node| node.is_text())
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for row in rows(&report).iter().filter(|row| row["measure"] == "pipelined") {
        let lane = row["label"].as_str().unwrap().rsplit_once(", ").unwrap().0;
        assert_eq!(texts.iter().filter(|text| **text == lane).count(), 2, "{lane}, cold and warm: {texts:?}");
    }
    for words in ["storage limit: ", "Cold: ", "Warm: ", "Loading a <model> & \"more\"", "Simulated GPU"] {
        assert!(texts.iter().any(|text| text.contains(words)), "{words}: {texts:?}");
    }
    for part in ["serial", "read alone", "copy alone", "pipelined"] {
        assert!(texts.contains(&part), "{part}: {texts:?}");
    }
    // Dots are circles where files were cold.
    let dots = document.descendants().filter(|node| node.has_tag_name("circle")).count();
    assert!(dots >= 3, "{dots} circles");
}

fn plotted(plot: &Path, model: &Path, line: &str) -> Value {
    let plot = format!("--plot={}", plot.display());
    run_simulated(&[], line, &[Path::new(&plot), model]).json()
}

#[test]
fn a_plot_replaces_nothing_but_a_plot() {
    let folder = folder::on_disk("a_plot_replaces_nothing_but_a_plot");
    let model = folder.path().join("model.safetensors");
    synth(folder.path(), "--size 1MB");
    let before = std::fs::read(&model).unwrap();
    let plot = |file: &Path| run("bench --device cpu --rounds 1 --cache warm --plot", &[file, folder.path()]);
    plot(&model).fails(2, &["model.safetensors"]);
    let notes = folder.path().join("notes");
    std::fs::write(&notes, "do not lose").unwrap();
    plot(&notes).fails(2, &["notes", "another file"]);
    plot(&folder.path().join("nowhere/plot.svg")).fails(1, &["nowhere/plot.svg"]);
    assert_eq!(std::fs::read(&model).unwrap(), before);
    assert_eq!(cli_support::names_in(folder.path()), ["model.safetensors", "notes"]);
    let picture = folder.path().join("plot.svg");
    for _ in 0..2 {
        assert!(plot(&picture).ok().stdout().contains("buffered"));
        assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    }
}

#[test]
fn a_plot_that_cannot_be_written_costs_no_figures() {
    let folder = folder::on_disk("a_plot_that_cannot_be_written_costs_no_figures");
    let (model, plots) = (folder.path().join("model"), folder.path().join("plots"));
    std::fs::create_dir(&plots).unwrap();
    synth(&model, "--size 16MB");
    let mut bench = gds();
    bench.args(["bench", "--device", "cpu", "--rounds", "3", "--json", "--progress", "always", "--plot"]);
    bench.arg(plots.join("plot.svg")).arg(&model);
    let mut child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.starts_with("warming up"), "{line}");
    std::fs::remove_dir(&plots).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(rest.contains("error: writing") && rest.contains("plot.svg"), "{rest}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!rows(&report).is_empty());
}

#[test]
fn a_failure_is_told_rather_than_a_path_that_is_not_here() {
    let folder = folder::on_disk("a_failure_is_told_rather_than_a_path_that_is_not_here");
    synth(folder.path(), "--size 1MB");
    // Enough for this process, and not for another.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 8; exec \"$0\" bench --device cpu --rounds 1 \"$1\""]);
    limited.arg(gds().get_program()).arg(folder.path());
    let finished = test_support::process::run(&mut limited, test_support::process::LIMIT);
    assert_eq!(finished.code(), Some(1), "{finished}");
    assert!(finished.stderr.contains("Too many open files"), "{finished}");
    assert!(!finished.stderr.contains("error: gds:"), "{finished}");
}
