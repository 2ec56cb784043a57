//! Faults to inject, and which of them hits a call.
//!
//! Each fault counts the uses it matches from when it was set, and fires at those that its script names.

mod grammar;
mod names;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cufile_sys::CUFILEStatus_enum;

pub(crate) use grammar::parse;

use crate::error::Failure;
use crate::lock;

/// What a fault does to the use it hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The call fails with this; a transfer returns -1 with it in `errno`.
    Fail(Failure),
    /// The transfer returns this negative number.
    Count(isize),
    /// The transfer moves at most this many bytes.
    AtMost(usize),
    /// The transfer moves this part of the bytes: one half, one third, ...
    Part(usize),
    /// Nothing for this long, or for ever; then as if there were no fault.
    Hang(Option<Duration>),
    /// One bit of what arrives is wrong.
    Corrupt,
    /// The bytes bounce through the host, whatever the mode.
    Posix,
    /// A batch's event has this status, and this count; no byte moves.
    Event(CUFILEStatus_enum, isize),
    /// A batch's event never comes.
    Lost,
}

/// Which uses of those that match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Only(u64),
    From(u64),
}

/// One fault of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// As the script has it.
    text: String,
    /// The call by its short name.
    call: String,
    /// Only uses of more bytes than this.
    above: Option<u64>,
    /// Only files with this in their path.
    file: Option<String>,
    when: When,
    effect: Effect,
    seen: u64,
    fired: u64,
}

/// What a use of a call is about, for faults that ask.
#[derive(Default, Debug)]
pub(crate) struct Subject {
    pub(crate) bytes: u64,
    pub(crate) file: Option<Arc<str>>,
}

impl Subject {
    /// Of so many bytes of memory.
    pub(crate) fn bytes(bytes: usize) -> Self {
        Self { bytes: bytes as u64, file: None }
    }
}

impl Fault {
    fn matches(&self, call: &str, subject: &Subject) -> bool {
        let in_file =
            |text: &String| subject.file.as_deref().is_some_and(|path| path.contains(text.as_str()));
        self.call == call
            && self.above.is_none_or(|bytes| subject.bytes > bytes)
            && self.file.as_ref().is_none_or(in_file)
    }

    /// Counts a use; whether the fault fires at it.
    fn count(&mut self) -> bool {
        self.seen += 1;
        let fires = match self.when {
            When::Only(number) => self.seen == number,
            When::From(number) => self.seen >= number,
        };
        self.fired += u64::from(fires);
        fires
    }
}

static IN_FORCE: Mutex<Vec<Fault>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// Replaces the faults in force.
pub(crate) fn set(script: Vec<Fault>) {
    let mut faults = lock(&IN_FORCE);
    ANY.store(!script.is_empty(), Ordering::Relaxed);
    *faults = script;
}

/// Counts a use of the exported function `call`; what hits it. Of several faults that fire the first one does.
pub(crate) fn at(call: &str, subject: impl FnOnce() -> Subject) -> Option<Effect> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    hit(&names::short(call), &subject())
}

/// Counts an entry of a batch; what hits it.
pub(crate) fn at_batch_event(subject: &Subject) -> Option<Effect> {
    hit(names::BATCH_EVENT, subject)
}

fn hit(call: &str, subject: &Subject) -> Option<Effect> {
    let mut effect = None;
    for fault in lock(&IN_FORCE).iter_mut().filter(|fault| fault.matches(call, subject)) {
        if fault.count() {
            effect = effect.or(Some(fault.effect));
        }
    }
    effect
}

/// Every fault's text, with how often it fired.
pub(crate) fn fired() -> Vec<(String, u64)> {
    lock(&IN_FORCE).iter().map(|fault| (fault.text.clone(), fault.fired)).collect()
}

/// All counts begin again.
pub(crate) fn reset() {
    for fault in lock(&IN_FORCE).iter_mut() {
        (fault.seen, fault.fired) = (0, 0);
    }
}

/// Does nothing for this long, or for ever.
pub(crate) fn hang(duration: Option<Duration>) {
    match duration {
        Some(duration) => thread::sleep(duration),
        None => loop {
            thread::sleep(Duration::from_secs(3600));
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(script: &str, uses: &[(u64, &str)]) -> Vec<bool> {
        let mut fault = parse(script).unwrap().remove(0);
        let mut hit = |&(bytes, file): &(u64, &str)| {
            let subject = Subject { bytes, file: Some(file.into()) };
            fault.matches("read", &subject) && fault.count()
        };
        uses.iter().map(&mut hit).collect()
    }

    #[test]
    fn faults_count_what_they_match() {
        let uses = [(4096, "/x/a"), (1, "/x/b"), (4096, "/x/b"), (4096, "/x/b")];
        assert_eq!(fires("read@2=-5", &uses), [false, true, false, false]);
        assert_eq!(fires("read@2+=-5", &uses), [false, true, true, true]);
        assert_eq!(fires("read@*=-5", &uses), [true; 4]);
        assert_eq!(fires("read=-5", &uses), [true; 4]);
        assert_eq!(fires("read>1[/b]@2=-5", &uses), [false, false, false, true]);
        assert_eq!(fires("write=-5", &uses), [false; 4]);
    }
}
