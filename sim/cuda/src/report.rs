//! The report: calls, faults, copies, and what of whose is alive, as JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process;

use crate::ledger::{self, Account, KINDS, Tally};
use crate::state::driver;
use crate::{call, copy};

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A JSON object of `(name, JSON value)`.
fn object(members: impl IntoIterator<Item = (String, String)>) -> String {
    let members = members.into_iter().map(|(name, value)| format!("{}: {value}", quoted(&name)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

fn array(values: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", values.into_iter().collect::<Vec<_>>().join(",\n  "))
}

/// The libraries of which something is in the tallies that `side` picks.
fn accounts(accounts: &[Account], side: impl Fn(&Account) -> &[Tally; KINDS.len()]) -> String {
    let with_something = accounts.iter().filter(|account| side(account).iter().any(|tally| tally.count > 0));
    array(with_something.map(|account| {
        let kinds = KINDS.iter().zip(side(account)).map(|((_, name), tally)| {
            let value = format!("{{\"count\": {}, \"bytes\": {}}}", tally.count, tally.bytes);
            ((*name).to_owned(), value)
        });
        object([("library".to_owned(), quoted(&account.library))].into_iter().chain(kinds))
    }))
}

/// The report as of now.
pub(crate) fn json() -> String {
    let usage = call::usage();
    let calls = usage.iter().map(|usage| (usage.name.to_owned(), usage.count.to_string()));
    let faults = usage.iter().filter(|usage| usage.faults > 0);
    let faults = faults.map(|usage| (usage.name.to_owned(), usage.faults.to_string()));
    let total: u64 = usage.iter().map(|usage| usage.count).sum();
    let (copies, bytes, corrupted) = copy::counts();
    let devices = driver().map_or_else(
        |_| Vec::new(),
        |driver| {
            let line = |device: &crate::state::device::Device| {
                let (memory, (bar1, bar1_used)) = (&device.memory, device.bar1());
                let (resident, resident_used) = memory.resident();
                let members = [
                    ("index", device.index as u64),
                    ("memory", memory.size()),
                    ("used", memory.used()),
                    ("peak", memory.peak()),
                    ("resident", resident),
                    ("resident_used", resident_used),
                    ("bar1", bar1),
                    ("bar1_used", bar1_used),
                ];
                object(members.map(|(name, value)| (name.to_owned(), value.to_string())))
            };
            driver.devices.iter().map(line).collect()
        },
    );
    let owners = ledger::accounts();
    let command = std::env::args_os().map(|word| quoted(&word.to_string_lossy()));
    let members = [
        ("format", "1".to_owned()),
        ("pid", process::id().to_string()),
        ("command", array(command)),
        ("devices", array(devices)),
        ("total_calls", total.to_string()),
        ("calls", object(calls)),
        ("faults", object(faults)),
        ("copies", format!("{{\"count\": {copies}, \"bytes\": {bytes}, \"corrupted\": {corrupted}}}")),
        ("alive", accounts(&owners, |account| &account.alive)),
        ("dropped_with_context", accounts(&owners, |account| &account.dropped)),
    ];
    let lines = members.map(|(name, value)| format!(" {}: {value}", quoted(name)));
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// The file of this process's report: `%p` is the process's number, which is appended where there is no `%p`.
fn path(setting: &Path, pid: u32) -> PathBuf {
    let text = setting.to_string_lossy();
    if text.contains("%p") {
        PathBuf::from(text.replace("%p", &pid.to_string()))
    } else {
        PathBuf::from(format!("{text}.{pid}"))
    }
}

/// Writes the report that the settings ask for.
pub(crate) fn write_at_exit() {
    let Ok(settings) = crate::process::settings() else { return };
    let Some(report) = &settings.report else { return };
    let path = path(report, process::id());
    // First under another name, so that who sees the file sees all of it.
    let unfinished = path.with_extension("unfinished");
    let written = std::fs::write(&unfinished, json()).and_then(|()| std::fs::rename(&unfinished, &path));
    if let Err(error) = written {
        eprintln!("cuda-sim: CUDA_SIM_REPORT: writing {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_report_of_its_own() {
        assert_eq!(path(Path::new("/tmp/r-%p.json"), 7), Path::new("/tmp/r-7.json"));
        assert_eq!(path(Path::new("/tmp/report"), 7), Path::new("/tmp/report.7"));
    }

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
