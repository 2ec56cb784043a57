//! Faults to inject: `CALL@K=CODE`, comma separated.
//!
//! Each fault counts the calls it matches from when it was set, and fires at the K-th. `CALL` is an exported function, with or
//! without its version suffix (`cuMemAlloc` matches `cuMemAlloc_v2`), or `*` for any call. `CODE` is a number or a name.
//! `corrupt@K` flips one bit of what the K-th copy brings.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::code::Code;
use crate::sync::lock;
use crate::{names, process};

/// A parsed list of faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    calls: Vec<CallFault>,
    /// The copies to corrupt, counted from 1.
    corrupt: Vec<u64>,
}

#[derive(Debug)]
struct CallFault {
    /// `None` matches every call.
    call: Option<String>,
    at: u64,
    code: Code,
    seen: u64,
}

/// The name without a version suffix: `cuMemAlloc_v2` is a `cuMemAlloc`.
fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

impl Faults {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let form = || format!("{item:?}: expected CALL@K=CODE or corrupt@K");
            let (call, rest) = item.split_once('@').ok_or_else(form)?;
            let (at, code) = match rest.split_once('=') {
                Some((at, code)) => (at, Some(code)),
                None => (rest, None),
            };
            let at = at.parse().ok().filter(|&at: &u64| at > 0).ok_or_else(|| {
                format!("{item:?}: K is the number of the call, counted from 1, not {at:?}")
            })?;
            if call == "corrupt" && code.is_none() {
                faults.corrupt.push(at);
                continue;
            }
            let code = code.ok_or_else(form)?;
            let number = code.parse().ok().or_else(|| names::code(code)).filter(|&number| number > 0);
            let number = number.ok_or_else(|| format!("{item:?}: {code:?} is no error code"))?;
            if call != "*" && !process::exports(call) {
                return Err(format!("{item:?}: the simulated driver has no function {call}"));
            }
            let call = (call != "*").then(|| call.to_owned());
            faults.calls.push(CallFault { call, at, code: Code(number), seen: 0 });
        }
        Ok(faults)
    }
}

impl CallFault {
    fn matches(&self, name: &str) -> bool {
        self.call.as_deref().is_none_or(|call| call == name || call == base(name))
    }
}

/// The faults in force.
static CALLS: Mutex<Vec<CallFault>> = Mutex::new(Vec::new());
static ANY_CALLS: AtomicBool = AtomicBool::new(false);
static CORRUPT: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static COPIES: AtomicU64 = AtomicU64::new(0);

/// Replaces the faults in force; all counts start anew.
pub(crate) fn set(faults: Faults) {
    COPIES.store(0, Ordering::Relaxed);
    *lock(&CORRUPT) = faults.corrupt;
    let mut calls = lock(&CALLS);
    ANY_CALLS.store(!faults.calls.is_empty(), Ordering::Relaxed);
    *calls = faults.calls;
}

/// Counts a call of `name`; the code it must fail with, where a fault fires.
pub(crate) fn at_call(name: &str) -> Option<Code> {
    if !ANY_CALLS.load(Ordering::Relaxed) {
        return None;
    }
    let mut fired = None;
    for fault in lock(&CALLS).iter_mut().filter(|fault| fault.matches(name)) {
        fault.seen += 1;
        if fault.seen == fault.at {
            fired = fired.or(Some(fault.code));
        }
    }
    fired
}

/// Counts a copy; whether it must bring a wrong bit.
pub(crate) fn at_copy() -> bool {
    let number = COPIES.fetch_add(1, Ordering::Relaxed) + 1;
    lock(&CORRUPT).contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_suffixes_are_no_part_of_the_base_name() {
        assert_eq!(base("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base("cuMemAlloc"), "cuMemAlloc");
        assert_eq!(base("cu_value"), "cu_value");
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "cuInit",
            "cuInit@0=1",
            "cuInit@x=1",
            "cuInit@1=0",
            "cuInit@1=NO_SUCH_CODE",
            "cuNothing@1=2",
            "corrupt@",
        ] {
            assert!(Faults::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_numbers_are_codes() {
        let faults = Faults::parse("*@3=CUDA_ERROR_OUT_OF_MEMORY, *@4=999,corrupt@7").unwrap();
        assert_eq!(faults.calls[0].code, Code(2));
        assert_eq!(faults.calls[1].code, Code(999));
        assert_eq!(faults.corrupt, [7]);
    }
}
