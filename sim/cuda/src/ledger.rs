//! Who made what, and what of it is still alive: one account per library.
//!
//! Ours can then be told from NVIDIA's, which leaks on its own.

use std::sync::Mutex;

use crate::caller;
use crate::sync::lock;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Device memory, in bytes as asked for.
    Allocation,
    /// Pinned host memory, allocated or registered.
    Pin,
    /// Contexts made by `cuCtxCreate`.
    Context,
    /// Retains of primary contexts.
    Retain,
    Stream,
    Event,
    Pool,
}

pub(crate) const KINDS: [(Kind, &str); 7] = [
    (Kind::Allocation, "allocations"),
    (Kind::Pin, "pins"),
    (Kind::Context, "contexts"),
    (Kind::Retain, "retains"),
    (Kind::Stream, "streams"),
    (Kind::Event, "events"),
    (Kind::Pool, "pools"),
];

/// A library by its number in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Library(usize);

/// A count and the bytes it stands for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// What one library made.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// The library's file.
    pub(crate) library: String,
    /// Made and not released, by [`Kind`].
    pub(crate) alive: [Tally; KINDS.len()],
    /// Never released, but gone with its context.
    pub(crate) dropped: [Tally; KINDS.len()],
}

static ACCOUNTS: Mutex<Vec<Account>> = Mutex::new(Vec::new());

/// The account of the library at `path`.
pub(crate) fn library(path: &str) -> Library {
    let mut accounts = lock(&ACCOUNTS);
    if let Some(index) = accounts.iter().position(|account| account.library == path) {
        return Library(index);
    }
    accounts.push(Account {
        library: path.to_owned(),
        alive: Default::default(),
        dropped: Default::default(),
    });
    Library(accounts.len() - 1)
}

/// A line in the ledger: something made by a library. To be closed once, by [`Entry::release`] or [`Entry::drop_with_context`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    library: Library,
    kind: Kind,
    bytes: u64,
}

impl Entry {
    /// Writes down that the caller of the call being served made something.
    pub(crate) fn open(kind: Kind, bytes: u64) -> Self {
        let entry = Self { library: caller::library(), kind, bytes };
        entry.on_account(|account| add(&mut account.alive, kind, bytes));
        entry
    }

    /// It was released.
    pub(crate) fn release(&self) {
        self.on_account(|account| subtract(&mut account.alive, self.kind, self.bytes));
    }

    /// It was not released, and went with its context.
    pub(crate) fn drop_with_context(&self) {
        self.release();
        self.on_account(|account| add(&mut account.dropped, self.kind, self.bytes));
    }

    fn on_account(&self, change: impl FnOnce(&mut Account)) {
        if let Some(account) = lock(&ACCOUNTS).get_mut(self.library.0) {
            change(account);
        }
    }

    pub(crate) fn library(&self) -> Library {
        self.library
    }
}

fn add(tallies: &mut [Tally], kind: Kind, bytes: u64) {
    if let Some(tally) = tallies.get_mut(kind as usize) {
        tally.count += 1;
        tally.bytes += bytes;
    }
}

fn subtract(tallies: &mut [Tally], kind: Kind, bytes: u64) {
    if let Some(tally) = tallies.get_mut(kind as usize) {
        tally.count = tally.count.saturating_sub(1);
        tally.bytes = tally.bytes.saturating_sub(bytes);
    }
}

/// Every library's account.
pub(crate) fn accounts() -> Vec<Account> {
    lock(&ACCOUNTS).clone()
}
