//! Loads by `gds load`: which paths are checked and timed, and what a load's report says.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::record::{Outcome, Weight};
use crate::run::{End, Finished};

/// One way to load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) backend: &'static str,
    /// Who keeps direct reads in flight.
    pub(crate) engine: &'static str,
    /// Whether the page cache is emptied of the files first.
    pub(crate) cold: bool,
    /// What it decides that its bytes are right.
    pub(crate) weight: Weight,
}

const fn way(backend: &'static str, engine: &'static str, cold: bool, weight: Weight) -> Way {
    Way { backend, engine, cold, weight }
}

/// Every path, by both engines, from the page cache and from storage.
pub(crate) const CHECKED: [Way; 9] = [
    way("auto", "auto", true, Weight::Required),
    way("auto", "auto", false, Weight::Required),
    way("buffered", "auto", false, Weight::Required),
    way("mmap", "auto", false, Weight::Correctness),
    way("direct", "threads", true, Weight::Correctness),
    way("direct", "io-uring", true, Weight::Correctness),
    way("gds", "auto", true, Weight::Correctness),
    way("gds", "auto", false, Weight::Correctness),
    way("gds-compat", "auto", true, Weight::Correctness),
];

/// Those whose speed says something on any machine.
pub(crate) const TIMED: [Way; 7] = [
    way("auto", "auto", true, Weight::Finding),
    way("auto", "auto", false, Weight::Finding),
    way("gds", "auto", true, Weight::Finding),
    way("direct", "io-uring", true, Weight::Finding),
    way("direct", "threads", true, Weight::Finding),
    way("buffered", "auto", false, Weight::Finding),
    way("gds-compat", "auto", true, Weight::Finding),
];

impl Way {
    /// For people.
    pub(crate) fn name(&self) -> String {
        let engine = if self.engine == "auto" { String::new() } else { format!(" by {}", self.engine) };
        format!("{}{engine}, {}", self.backend, if self.cold { "cold" } else { "warm" })
    }

    /// Adds it to a `gds load`.
    pub(crate) fn apply(&self, load: &mut Command) {
        load.args(["--backend", self.backend, "--engine", self.engine]);
        if self.cold {
            load.arg("--cold");
        }
    }
}

/// `gds load`, to be told where to and how.
pub(crate) fn load(gds: &Path, model: &Path, device: &str) -> Command {
    let mut command = Command::new(gds);
    command.arg("load").arg(model).args(["--device", device, "--json", "--progress", "never"]);
    command
}

/// The exit status of "not available here".
const UNAVAILABLE: i32 = 3;

/// What came of a command that prints one JSON object: the object, or how it failed and why. NVIDIA's library may have
/// printed before it.
pub(crate) fn object(finished: &Finished) -> Result<Value, (Outcome, String)> {
    let said = &finished.stdout;
    match finished.end {
        End::Status(0) => serde_json::from_str(&said[said.find('{').unwrap_or(0)..])
            .map_err(|error| (Outcome::Failed, format!("what it printed is no JSON: {error}"))),
        End::Status(UNAVAILABLE) => Err((Outcome::Refused, finished.reason())),
        _ => Err((Outcome::Failed, finished.reason())),
    }
}

/// Compares the digests of a load with those of the reference.
pub(crate) fn compare(reference: &Value, report: &Value) -> (Outcome, String) {
    let none = serde_json::Map::new();
    let expected = reference["digests"].as_object().unwrap_or(&none);
    let found = report["digests"].as_object().unwrap_or(&none);
    let differs = expected.iter().find(|(name, digest)| found.get(*name) != Some(digest));
    match differs {
        Some((name, _)) => (Outcome::Wrong, format!("tensor {name:?} has other bytes than in host memory")),
        None if expected.is_empty() || found.len() != expected.len() => {
            (Outcome::Wrong, format!("{} tensors, not {}", found.len(), expected.len()))
        }
        None => (Outcome::Passed, format!("{} tensors are right; {}", expected.len(), paths(report))),
    }
}

impl Way {
    /// A timed load in a line. One that did not find the page cache as it should says so.
    pub(crate) fn speed(&self, report: &Value) -> String {
        let resident = report["cache"]["resident_before"].as_f64();
        let as_asked = resident.is_some_and(|share| if self.cold { share <= 0.01 } else { share >= 0.99 });
        let doubt = match (as_asked, self.cold) {
            (true, _) => "",
            (false, true) => "NOT PROVEN COLD: ",
            (false, false) => "NOT PROVEN WARM: ",
        };
        format!("{doubt}{}", speed(report))
    }
}

/// A timed load in a line.
pub(crate) fn speed(report: &Value) -> String {
    let runs = report["runs"].as_array().map_or(1, Vec::len);
    let number = |value: &Value| value.as_f64().map_or("?".to_owned(), |number| format!("{number:.2}"));
    format!(
        "{} GB/s (median of {runs}), copy hidden {}, {} CPU s; {}",
        number(&report["gb_per_s"]),
        number(&report["stages"]["copy_hidden"]),
        number(&report["cpu_s"]),
        paths(report)
    )
}

/// Which paths took bytes, and who read.
fn paths(report: &Value) -> String {
    let none = serde_json::Map::new();
    let paths = report["paths"].as_object().unwrap_or(&none);
    let used = paths.iter().filter(|(_, bytes)| bytes.as_u64() > Some(0)).map(|(path, _)| path.as_str());
    let engine = report["engine"]["name"].as_str().map_or(String::new(), |name| format!(" by {name}"));
    format!("{}{engine}", used.collect::<Vec<_>>().join(" and "))
}

/// A report without its digests, which are many and have been compared.
pub(crate) fn without_digests(mut report: Value) -> Value {
    if let Some(count) = report["digests"].as_object().map(serde_json::Map::len) {
        report["digests"] = json!(count);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_other_byte_is_seen() {
        let reference = json!({"digests": {"a": "01", "b": "02"}});
        let verdict =
            |digests: Value| compare(&reference, &json!({"digests": digests, "paths": {"gds": 5}})).0;
        assert_eq!(verdict(json!({"a": "01", "b": "02"})), Outcome::Passed);
        assert_eq!(verdict(json!({"a": "01", "b": "03"})), Outcome::Wrong);
        assert_eq!(verdict(json!({"a": "01"})), Outcome::Wrong);
        assert_eq!(verdict(json!({"a": "01", "b": "02", "c": "03"})), Outcome::Wrong);
        assert_eq!(compare(&json!({}), &json!({})).0, Outcome::Wrong, "nothing proves nothing");
    }

    #[test]
    fn a_load_is_not_called_cold_where_the_page_cache_held_some_of_it() {
        let [cold, warm] = [true, false].map(|cold| way("auto", "auto", cold, Weight::Finding));
        let said = |way: &Way, share: Value| way.speed(&json!({"cache": {"resident_before": share}}));
        assert!(said(&cold, json!(0.5)).starts_with("NOT PROVEN COLD"));
        assert!(said(&cold, Value::Null).starts_with("NOT PROVEN COLD"));
        assert!(said(&warm, json!(0.5)).starts_with("NOT PROVEN WARM"));
        assert!(said(&cold, json!(0.0)).starts_with('?'));
        assert!(said(&warm, json!(1.0)).starts_with('?'));
    }

    #[test]
    fn what_a_machine_lacks_is_told_from_what_failed() {
        let ended = |end, stdout: &str| Finished {
            end,
            stdout: stdout.to_owned(),
            stderr: "error: why\n".to_owned(),
            seconds: 1.0,
        };
        assert_eq!(object(&ended(End::Status(0), "a library's word\n{}")), Ok(json!({})));
        assert_eq!(object(&ended(End::Status(3), "")), Err((Outcome::Refused, "error: why".to_owned())));
        assert_eq!(object(&ended(End::Status(1), "")), Err((Outcome::Failed, "error: why".to_owned())));
        assert!(matches!(object(&ended(End::TimedOut, "")), Err((Outcome::Failed, _))));
        assert!(matches!(object(&ended(End::Status(0), "no")), Err((Outcome::Failed, _))));
    }
}
