//! Running operations with one fault after the other, and judging each run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use gds_loader::ErrorKind;
use test_support::syscalls::{Calls, Effect, Fault, Seen};

use crate::long;
use crate::operation::{Ended, Operation};
use crate::resources::Resources;
use crate::table::Table;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(40);

/// So many uses of a call in one operation are tried where not all are.
const MOST_USES: u64 = 12;

/// Where the samples begin; the same in every run.
const SEED: u64 = 20_261_129;

/// What each call is made to do: every code, and for those that move bytes, fewer and none.
pub(crate) fn effects(call: i64) -> impl Iterator<Item = Effect> {
    let codes = [libc::EINTR, libc::EAGAIN, libc::EIO, libc::EINVAL, libc::ENOMEM, libc::ENOSPC];
    let bytes = if Effect::moves_bytes(call) { &[Effect::Short, Effect::Nothing][..] } else { &[] };
    codes.into_iter().map(Effect::Errno).chain(bytes.iter().copied())
}

/// Which faults are tried.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sweep {
    /// Each use of each call.
    EveryCall,
    /// So many, at random, of each operation.
    Sampled(usize),
}

impl Sweep {
    pub(crate) fn every_call() -> Self {
        Self::EveryCall
    }

    pub(crate) fn sampled() -> Self {
        Self::Sampled(if long() { 2000 } else { 150 })
    }

    /// Sweeps the operations, prints what was seen.
    ///
    /// # Panics
    /// Where anything was wrong, with all that was.
    pub(crate) fn run(self, calls: &Calls, operations: &[Operation]) {
        let mut table = Table::default();
        let mut wrong = Vec::new();
        let watchdog = Watchdog::start();
        let said = note_panics();
        for operation in operations {
            let start = Instant::now();
            let mut bench = Bench { calls, operation, watchdog, said, ran: 0 };
            let (first, uses) = bench.without_fault();
            let before = Resources::now();
            uses.iter().for_each(|(call, uses)| table.used(*call, *uses));
            let (mut fired, mut kept) = (0, 0);
            for fault in self.faults(&uses) {
                let (ended, mut findings, seen) = bench.with_fault(fault);
                let Some(hit) = seen.hit else {
                    if seen.uses.iter().all(|(call, _)| *call != fault.call) {
                        table.absent(fault.call, fault.effect);
                    }
                    continue;
                };
                fired += 1;
                table.fired(fault.call, fault.effect, ended.as_ref());
                let failed = !matches!(ended, Some(Ended::Right(_)));
                if long() || failed || !findings.is_empty() {
                    findings.extend(bench.again(&first));
                }
                kept += u64::from(fault.call == libc::SYS_munmap);
                wrong.extend(
                    findings.into_iter().map(|finding| format!("{}, {hit}: {finding}", operation.name)),
                );
            }
            let changed = Resources::locked_since(&before, kept);
            wrong.extend(changed.map(|changed| format!("{}, in the end: {changed}", operation.name)));
            println!("{}: {} runs, {fired} faults fired, {:.1?}", operation.name, bench.ran, start.elapsed());
        }
        table.print();
        println!("{} faults fired", table.total());
        if matches!(self, Self::EveryCall) {
            wrong.extend(table.missed());
        }
        assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
    }

    /// The faults to try in an operation that makes these calls so often.
    fn faults(self, uses: &[(i64, u64)]) -> Vec<Fault> {
        match self {
            Self::EveryCall => {
                let step = |uses: u64| if long() { 1 } else { uses.div_ceil(MOST_USES) as usize };
                let all =
                    uses.iter().flat_map(|(call, uses)| (1..=*uses).step_by(step(*uses)).map(|k| (*call, k)));
                let chosen = |(call, k): (i64, u64)| {
                    let effects: Vec<Effect> = effects(call).collect();
                    let turn = (k / 2) as usize % effects.len();
                    let all = long() || k == 1;
                    let chosen =
                        effects.into_iter().enumerate().filter(move |(index, _)| all || *index == turn);
                    chosen.map(move |(_, effect)| Fault { call, k, effect })
                };
                all.flat_map(chosen).collect()
            }
            Self::Sampled(count) => {
                println!("{count} faults from seed {SEED}");
                let mut numbers = Numbers(SEED);
                let one = |_| {
                    let (call, uses) = uses[numbers.below(uses.len() as u64) as usize];
                    let effects: Vec<Effect> = effects(call).collect();
                    let effect = effects[numbers.below(effects.len() as u64) as usize];
                    Fault { call, k: 1 + numbers.below(uses), effect }
                };
                (0..count).map(one).collect()
            }
        }
    }
}

/// One operation, and what its runs are judged by.
struct Bench<'a> {
    calls: &'a Calls,
    operation: &'a Operation,
    watchdog: &'static Watchdog,
    said: &'static Mutex<Vec<String>>,
    ran: u64,
}

impl Bench<'_> {
    /// How it ends, and the calls that it makes, counted when all that is done once a process has been done.
    fn without_fault(&mut self) -> (Ended, Vec<(i64, u64)>) {
        let mut last = None;
        for _ in 0..3 {
            last = Some(self.run(None));
        }
        let (ended, seen) = last.unwrap();
        assert!(matches!(ended, Some(Ended::Right(_))), "{} without a fault: {ended:?}", self.operation.name);
        let ended = ended.unwrap();
        let left = (self.operation.left)(&ended);
        assert_eq!(left, Ok(()), "{} without a fault", self.operation.name);
        (ended, seen.uses)
    }

    /// Runs it once; `None` where it panicked.
    fn run(&mut self, fault: Option<Fault>) -> (Option<Ended>, Seen) {
        (self.operation.reset)();
        self.ran += 1;
        self.watchdog.begin(format!("{} with {fault:?}", self.operation.name));
        self.calls.arm(fault, self.operation.within.as_deref());
        let ended = catch_unwind(AssertUnwindSafe(|| (self.operation.run)()));
        let seen = self.calls.disarm();
        self.watchdog.end();
        (ended.ok(), seen)
    }

    /// Whether mappings may be left: where unmapping was what failed; and where only some calls are ours, since the simulated driver's
    /// threads come and go.
    fn forgives_mappings(&self, fault: Option<Fault>) -> bool {
        self.operation.within.is_some() || fault.is_some_and(|fault| fault.call == libc::SYS_munmap)
    }

    /// Runs it with a fault; what was wrong.
    fn with_fault(&mut self, fault: Fault) -> (Option<Ended>, Vec<String>, Seen) {
        let before = Resources::now();
        let (ended, seen) = self.run(Some(fault));
        let mut wrong: Vec<String> = std::mem::take(&mut *self.said.lock().unwrap())
            .into_iter()
            .map(|said| format!("panicked: {said}"))
            .collect();
        if let Some(ended) = &ended {
            wrong.extend(unclear(fault, ended));
            wrong.extend((self.operation.left)(ended).err());
        }
        let changed = Resources::changed_since(&before, self.forgives_mappings(Some(fault)));
        wrong.extend(changed.map(|changed| format!("{changed}, after {ended:?}")));
        (ended, wrong, seen)
    }

    /// Runs it without one, after one with; what was wrong.
    fn again(&mut self, first: &Ended) -> Vec<String> {
        let before = Resources::now();
        let (ended, _) = self.run(None);
        let mut wrong = Vec::new();
        if ended.as_ref() != Some(first) {
            wrong.push(format!("the next run without a fault: {ended:?}, the first: {first:?}"));
        }
        let left = ended.and_then(|ended| (self.operation.left)(&ended).err());
        wrong.extend(left.map(|left| format!("the next run: {left}")));
        let changed = Resources::changed_since(&before, self.forgives_mappings(None));
        wrong.extend(changed.map(|changed| format!("the next run: {changed}")));
        wrong
    }
}

/// What is wrong with how a run with this fault ended.
fn unclear(fault: Fault, ended: &Ended) -> Option<String> {
    let Ended::Failed(kind, text) = ended else { return None };
    let said = match fault.effect {
        // pthread_create(3) has one code for all that keeps a thread from being started.
        Effect::Errno(_) if fault.call == libc::SYS_clone3 => text.contains("os error"),
        // cuFile has codes of its own for what the kernel told it.
        Effect::Errno(_) if text.contains("cuFile") || text.contains("in a batch ended") => true,
        Effect::Errno(code) => text.contains(&format!("os error {code})")),
        // The end of a file, or of a disk, has no code.
        Effect::Short | Effect::Nothing => !text.is_empty(),
    };
    let kind_fits = match kind {
        ErrorKind::Failed | ErrorKind::Unavailable => true,
        ErrorKind::InvalidData => fault.effect == Effect::Nothing,
        _ => false,
    };
    (!said || !kind_fits).then(|| format!("no clear error: {kind:?}: {text}"))
}

/// Ends the process where a run takes too long.
#[derive(Debug)]
struct Watchdog(Mutex<Option<(String, Instant)>>);

impl Watchdog {
    fn start() -> &'static Self {
        let watchdog: &'static Self = Box::leak(Box::new(Self(Mutex::new(None))));
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_secs(1));
                if let Some((what, since)) = &*watchdog.0.lock().unwrap()
                    && since.elapsed() > LIMIT
                {
                    eprintln!("watchdog: {what} did not end within {LIMIT:?}");
                    std::process::abort();
                }
            }
        });
        watchdog
    }

    fn begin(&self, what: String) {
        *self.0.lock().unwrap() = Some((what, Instant::now()));
    }

    fn end(&self) {
        *self.0.lock().unwrap() = None;
    }
}

/// Notes what panics say from now on, in any thread, instead of printing it; the last word, where the sweep itself fails, is printed.
fn note_panics() -> &'static Mutex<Vec<String>> {
    let said: &'static Mutex<Vec<String>> = Box::leak(Box::default());
    std::panic::set_hook(Box::new(move |panic| {
        said.lock().unwrap().push(panic.to_string());
        eprintln!("{panic}");
    }));
    said
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
