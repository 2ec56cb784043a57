//! The loads themselves, in a process of their own, by the library's front door.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cuda_staging::{Device, Region};
use gds_loader::{Backend, Engine as ReadsBy, Error, ErrorKind, Loader, PathKind};

use crate::meddle::Watch;
use crate::model::{LONGEST, Model};
use crate::oracle;
use crate::provoke::{self, Provoked};
use crate::sample::Sample;
use crate::spec::{Engine, Errors, Findings, Spec};
use crate::verdict::steady_threads;

/// How long threads that have been joined may take to leave /proc.
const SETTLE: Duration = Duration::from_secs(2);

/// How many seconds more a row has in which no load was whole yet.
const UNLUCKY: f64 = 20.0;

/// Bytes that each arena of the C library's allocator may keep free at its end: its own default, as long as nothing moves it.
pub(crate) const TRIM_THRESHOLD: libc::c_int = 128 << 10;

/// Loads before the measuring begins: what is made once is made in the first, what is kept for reuse grows until each of the threads'
/// allocators has seen each kind of load.
pub(crate) fn warm_up(rounds: u64) -> u64 {
    (rounds / 5).max(4).min(rounds.saturating_sub(1)).max(1)
}

/// Lets the C library give memory back as soon as so many bytes at the end of an arena are free. Left to itself it raises its
/// thresholds to the longest block that was ever freed, up to 32 MiB, and keeps twice that in every arena: that would hide what
/// a load leaves, or look like it.
fn keep_little_free_memory() {
    // SAFETY: sets a number of the allocator's.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD) };
}

/// Does what `spec` says.
pub(crate) fn run(spec: &Spec) -> Result<Findings> {
    keep_little_free_memory();
    let device = if spec.gpu { Device::cuda(0)? } else { Device::cpu() };
    let loader = loader(spec, &device)?;
    // What is compared is copied here, from the first look on: it is ours, and no load's.
    let longest = if spec.gpu { LONGEST } else { 0 };
    let mut buffers = vec![vec![0x5a; longest]; spec.models.len()];
    let mut findings = Findings { start: Some(Sample::now(0)?), ..Findings::default() };
    let at_once = spec.models.len() as u64;
    let begin = Instant::now();
    for round in 0.. {
        match (spec.models.as_slice(), buffers.as_mut_slice()) {
            ([model], [buffer]) => findings.add(load(spec, &loader, model, round, buffer)),
            (models, buffers) => {
                let loads: Vec<Findings> = thread::scope(|scope| {
                    let loads = models.iter().zip(buffers);
                    let loads = loads.map(|(model, buffer)| {
                        let loader = &loader;
                        scope.spawn(move || load(spec, loader, model, round, buffer))
                    });
                    let loads: Vec<_> = loads.collect();
                    loads
                        .into_iter()
                        .map(|load| load.join().map_err(|_| "panicked"))
                        .collect::<Result<_, _>>()
                })
                .map_err(anyhow::Error::msg)
                .context("a loading thread")?;
                loads.into_iter().for_each(|load| findings.add(load));
            }
        }
        findings.samples.push(Sample::now(findings.loads)?);
        let (loads, seconds) = (at_once * (round + 1), begin.elapsed().as_secs_f64());
        let done = loads >= spec.loads && seconds >= spec.least_seconds;
        // A row that is out of time has at least something to be judged by, and one in which all failed so far may have had no luck.
        let failed: u64 = findings.errors.values().sum();
        let is_lucky = failed < findings.loads || seconds >= spec.seconds + UNLUCKY;
        if is_lucky && (done || (seconds >= spec.seconds && round >= 3)) {
            break;
        }
    }
    findings.seconds = begin.elapsed().as_secs_f64();
    findings.end = Some(settled(&findings)?);
    Ok(findings)
}

/// A last look, once there are no more threads than the fewest there have been between loads, or there is no hope of that.
fn settled(findings: &Findings) -> Result<Sample> {
    let threads = steady_threads(&findings.samples);
    let begin = Instant::now();
    loop {
        let now = Sample::now(findings.loads)?;
        if now.threads <= threads || begin.elapsed() >= SETTLE {
            return Ok(now);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn loader(spec: &Spec, device: &Device) -> Result<Loader> {
    let loader = Loader::new()
        .device(device.clone())
        .backend(spec.backend.parse::<Backend>().map_err(|error| anyhow::anyhow!("{error}"))?)
        .cufile_batches(spec.batches);
    Ok(match spec.engine {
        Engine::Auto => loader,
        Engine::IoUring => loader.engine(ReadsBy::IoUring),
        Engine::Threads => loader.engine(ReadsBy::Threads),
    })
}

/// One load, compared and let go.
fn load(spec: &Spec, loader: &Loader, model: &Model, round: u64, buffer: &mut Vec<u8>) -> Findings {
    let provoked = match spec.errors {
        Errors::Provoked => provoke::of(round),
        _ => Provoked::Nothing,
    };
    let mut findings = Findings { loads: 1, ..Findings::default() };
    if let Err(problem) = load_and_judge(spec, provoked, loader, model, buffer, &mut findings) {
        findings.problems.push(format!("load {round}: {problem:#}"));
    }
    findings
}

fn load_and_judge(
    spec: &Spec,
    provoked: Provoked,
    loader: &Loader,
    model: &Model,
    buffer: &mut Vec<u8>,
    findings: &mut Findings,
) -> Result<()> {
    if spec.errors != Errors::MayChange {
        let outcome = provoke::load(provoked, loader, model);
        return judge(spec, provoked, model, outcome, false, buffer, findings);
    }
    let watch = Arc::new(Watch::of(model).context("the count of writes")?);
    let looks = Arc::clone(&watch);
    let outcome = loader.clone().on_progress(move |_| looks.look()).load(&model.path);
    judge(spec, provoked, model, outcome, !watch.saw_a_write(), buffer, findings)
}

fn judge(
    spec: &Spec,
    provoked: Provoked,
    model: &Model,
    outcome: Result<gds_loader::Model, Error>,
    may_rest: bool,
    buffer: &mut Vec<u8>,
    findings: &mut Findings,
) -> Result<()> {
    match outcome {
        Ok(_) if provoked != Provoked::Nothing => bail!("{provoked:?} was no error"),
        Ok(loaded) => {
            findings.compared += model.bytes();
            match compare(model, &loaded, buffer)? {
                Ok(version) => *findings.versions.entry(version).or_default() += 1,
                Err(_) if may_rest => *findings.errors.entry("HalfWritten".to_owned()).or_default() += 1,
                Err(mix) => bail!("{mix}"),
            }
            check_report(spec, model, &loaded, findings)
        }
        Err(error) => {
            let right = match &spec.errors {
                Errors::None => false,
                Errors::MayChange => error.kind() == ErrorKind::InvalidData,
                Errors::Provoked => provoked.kind() == Some(error.kind()),
            };
            if !right {
                bail!("{provoked:?}: {:?}: {error}", error.kind());
            }
            *findings.errors.entry(format!("{:?}", error.kind())).or_default() += 1;
            Ok(())
        }
    }
}

/// Compares every byte; the version that all of it is of, or how it is of none.
fn compare(model: &Model, loaded: &gds_loader::Model, buffer: &mut Vec<u8>) -> Result<Result<u32, String>> {
    let mut versions = BTreeSet::new();
    let mut tensors = 0;
    for (name, len) in (0..model.shards).flat_map(|shard| model.tensors(shard)) {
        tensors += 1;
        let tensor = loaded.get(&name).with_context(|| format!("{name} is missing"))?;
        if tensor.len() != len as u64 {
            bail!("{name} has {} bytes instead of {len}", tensor.len());
        }
        if len > 0 {
            let bytes = on_host(loaded.device(), tensor.region(), buffer)?;
            match oracle::version_of(model.number, &model.versions, &name, bytes) {
                Ok(version) => versions.insert(version),
                Err(mix) => return Ok(Err(mix)),
            };
        }
    }
    if loaded.len() != tensors {
        bail!("{} tensors instead of {tensors}", loaded.len());
    }
    Ok(match versions.len() {
        1 => Ok(versions.pop_first().unwrap_or_default()),
        _ => Err(format!("A MIX: tensors of the versions {versions:?} in one model")),
    })
}

fn on_host<'a>(device: &Device, region: &'a Region, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    if let Some(bytes) = region.host_bytes() {
        return Ok(bytes);
    }
    buffer.resize(region.len() as usize, 0);
    // What is not written by the copy is not what was there before.
    buffer.fill(0x5a);
    device.copy_to_host(region, buffer)?;
    Ok(buffer)
}

/// Whether it went the way that was asked for.
fn check_report(
    spec: &Spec,
    model: &Model,
    loaded: &gds_loader::Model,
    findings: &mut Findings,
) -> Result<()> {
    let report = loaded.report();
    findings.pinned = report.peak_pinned_bytes;
    for kind in PathKind::ALL {
        let bytes = report.paths.get(kind);
        if bytes > 0 {
            *findings.paths.entry(kind.to_string()).or_default() += bytes;
        }
        if kind.as_str() == spec.backend && bytes != model.bytes() {
            bail!("{bytes} of {} bytes by {kind}: {:?}", model.bytes(), report.fallbacks);
        }
    }
    let Some(engine) = &report.engine else { return Ok(()) };
    let by_queue = engine.name == ReadsBy::IoUring;
    if (spec.engine == Engine::IoUring && !by_queue) || (spec.no_io_uring && by_queue) {
        bail!("{:?} read: {:?}", engine.name, engine.reason);
    }
    Ok(())
}

impl Findings {
    /// The look after the warm-up.
    pub(crate) fn warm(&self) -> Option<&Sample> {
        self.samples.get(warm_up(self.samples.len() as u64) as usize - 1)
    }

    /// Adds what other loads found, or another process.
    pub(crate) fn add(&mut self, other: Self) {
        self.loads += other.loads;
        self.compared += other.compared;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        for (path, bytes) in other.paths {
            *self.paths.entry(path).or_default() += bytes;
        }
        for (version, count) in other.versions {
            *self.versions.entry(version).or_default() += count;
        }
        self.pinned = self.pinned.max(other.pinned);
        self.seconds = self.seconds.max(other.seconds);
        self.problems.extend(other.problems);
    }
}
