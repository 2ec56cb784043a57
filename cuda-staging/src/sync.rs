//! What threads hand over by, or wait with: the standard library's, or loom's with the feature `loom`, which runs a model once for
//! every order of events.
//!
//! Only where the order decides what is right: leases of regions, whose count says that a region is whole again, and the
//! questions that are asked of an event. See `models`.

#[cfg(not(feature = "loom"))]
mod chosen {
    pub(crate) use std::mem::forget as leak;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::thread::{sleep, yield_now};
}

#[cfg(feature = "loom")]
mod chosen {
    use std::time::Duration;

    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::thread::yield_now;

    #[cfg(test)]
    pub(crate) use crate::models::leak;
    #[cfg(not(test))]
    pub(crate) use std::mem::forget as leak;

    /// A model has no clock: whoever else can go on does.
    pub(crate) fn sleep(_: Duration) {
        yield_now();
    }
}

pub(crate) use chosen::{Arc, leak, sleep, yield_now};
