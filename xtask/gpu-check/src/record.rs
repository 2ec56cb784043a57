//! What the steps found, as a table for people and as one JSON object.

use serde::Serialize;
use serde_json::Value;

/// Characters of what a step says that people are shown; the file has all.
const LONGEST: usize = 160;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// As it should.
    Passed,
    /// This machine does not have it, and says so.
    Refused,
    /// With other bytes than it should.
    Wrong,
    /// With an error, a crash or no end.
    Failed,
    /// It was not begun.
    Skipped,
}

/// What a step decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Weight {
    /// It must pass.
    Required,
    /// It may be refused; if not, it must pass.
    Correctness,
    /// Whatever it finds is a finding.
    Finding,
}

/// A step that is over.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) step: String,
    pub(crate) weight: Weight,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    /// What it found, in a line.
    pub(crate) said: String,
    /// All that it found.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) found: Value,
}

impl Record {
    /// Whether the whole may be called correct in spite of it.
    pub(crate) fn is_well(&self) -> bool {
        match (self.outcome, self.weight) {
            (Outcome::Passed, _) => true,
            (Outcome::Wrong, _) | (_, Weight::Required) => false,
            (Outcome::Refused, _) | (_, Weight::Finding) => true,
            (Outcome::Failed | Outcome::Skipped, Weight::Correctness) => false,
        }
    }

    /// A line for people.
    pub(crate) fn line(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Passed => "passed",
            Outcome::Refused => "refused",
            Outcome::Wrong => "WRONG",
            Outcome::Failed if self.is_well() => "failed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        };
        let said = match self.said.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", &self.said[..end]),
            None => self.said.clone(),
        };
        format!("{:<44} {outcome:<8} {:>6.1} s  {said}", self.step, self.seconds)
    }
}

/// All that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Findings<'a> {
    pub(crate) correct: bool,
    pub(crate) seconds: f64,
    pub(crate) model_bytes: u64,
    pub(crate) steps: &'a [Record],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(weight: Weight, outcome: Outcome) -> Record {
        Record { step: "x".into(), weight, outcome, seconds: 1.0, said: "y".into(), found: Value::Null }
    }

    #[test]
    fn what_a_machine_refuses_is_no_failure_unless_it_must_have_it() {
        use Outcome::{Failed, Passed, Refused, Skipped, Wrong};
        use Weight::{Correctness, Finding, Required};
        for (weight, well) in [
            (Required, &[Passed][..]),
            (Correctness, &[Passed, Refused]),
            (Finding, &[Passed, Refused, Failed, Skipped]),
        ] {
            for outcome in [Passed, Refused, Wrong, Failed, Skipped] {
                assert_eq!(
                    record(weight, outcome).is_well(),
                    well.contains(&outcome),
                    "{weight:?} {outcome:?}"
                );
            }
        }
    }
}
