//! What a load says of itself: when, by which paths, why, and what proves it.

use std::time::{Duration, Instant};

use super::session::{Job, Session};
use crate::error::{Error, Result};
use crate::pipeline::Tally;
use crate::plan::Plan;
use crate::policy::{Backend, Proof, Route, Verdict};
use crate::report::{
    CacheReport, Choice, DeviceReport, GdsProof, GdsReport, Intervals, LoadReport, Stages, cpu_time,
    gb_per_s, share_of,
};
use crate::transport::PathKind;

/// When a load began, and how long its stages took.
pub(crate) struct Clock {
    start: Instant,
    lap: Instant,
    stages: Stages,
    /// The process's CPU time at the start.
    cpu: Duration,
}

impl Clock {
    /// Starts at the call.
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { start: now, lap: now, stages: Stages::default(), cpu: cpu_time() }
    }

    /// The time since then.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds the time since the last lap to a stage.
    pub(crate) fn lap(&mut self, stage: impl FnOnce(&mut Stages) -> &mut f64) {
        *stage(&mut self.stages) += self.lap.elapsed().as_secs_f64();
        self.lap = Instant::now();
    }
}

impl Session {
    /// Holds the claim that bytes went by `gds` against cuFile's own statistics.
    pub(super) fn judge(
        &self,
        proof: Option<Proof>,
        tally: &mut Tally,
        window_bytes: u64,
    ) -> Result<Option<GdsReport>> {
        let claimed = tally.paths.get(PathKind::Gds);
        let report = |proof, reason| Some(GdsReport { proof, reason, window_bytes });
        let Some(proof) = proof.filter(|_| claimed > 0) else {
            return Ok(self.cufile.refusal().and_then(|reason| report(None, Some(reason.to_owned()))));
        };
        Ok(match proof.verdict() {
            Verdict::Verified => report(Some(GdsProof::Verified), None),
            Verdict::Unverified(reason) => report(Some(GdsProof::Unverified), Some(reason)),
            Verdict::Bounced(reads) => {
                let reason = format!(
                    "cuFile's statistics say that {reads} of its reads were served by the host, although compatibility mode \
                     was not allowed"
                );
                if self.backend == Backend::Only(PathKind::Gds) {
                    return Err(Error::Unavailable { path: self.path.clone(), by: PathKind::Gds, reason });
                }
                tally.paths.reassign(PathKind::Gds, PathKind::GdsCompat);
                report(Some(GdsProof::Bounced), Some(reason))
            }
        })
    }

    pub(super) fn report(&self, job: &Job<'_>, plan: &Plan, tally: &Tally, time: Duration) -> LoadReport {
        let bytes = if job.measure.reads() { plan.bytes } else { tally.copied_unread };
        let reads = Intervals::union(tally.reads.iter().copied());
        let copies = Intervals::union(tally.copies.iter().copied());
        let before = self.facts.iter().map(|facts| (facts.len, facts.residency));
        let after = self.routes.iter().map(|route| (route.len(), route.residency()));
        LoadReport {
            path: self.path.clone(),
            device: DeviceReport::of(job.device),
            files: self.routes.len(),
            tensors: self.chosen.len(),
            bytes,
            seconds: time.as_secs_f64(),
            gb_per_s: gb_per_s(bytes, time),
            cpu_s: cpu_time().saturating_sub(self.clock.cpu).as_secs_f64(),
            paths: tally.paths,
            fallbacks: Vec::new(),
            choices: self.choices(),
            stages: Stages {
                pin_s: tally.pin.as_secs_f64(),
                read_s: reads.length().as_secs_f64(),
                copy_s: copies.length().as_secs_f64(),
                copy_hidden: copies.share_within(&reads),
                touch_s: Intervals::union(tally.touches.iter().copied()).length().as_secs_f64(),
                ..self.clock.stages
            },
            copies: tally.copy_calls,
            cache: CacheReport { resident_before: share_of(before), resident_after: share_of(after) },
            peak_pinned_bytes: tally.pinned,
            tensors_not_indexed: self.not_indexed,
            engine: None,
            gds: None,
            verified: None,
            digests: None,
        }
    }

    /// What was chosen for the files, and why.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Choice::grouped(self.routes.iter().flat_map(Route::choices));
        if self.backend == Backend::Prefetch {
            for choice in &mut choices {
                choice.why = match self.no_prefetch() {
                    None => "it was asked for, and what it reads is brought into the page cache ahead of it"
                        .into(),
                    Some(reason) => format!("it was asked for; nothing is read ahead of it: {reason}"),
                };
            }
        }
        choices
    }
}
