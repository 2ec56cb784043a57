//! Threads that share some work.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::error::{Error, Result};

/// Starts up to `count` threads that do `work`, each taking what is left of it: fewer are slower, none is a failure.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    count: usize,
    work: impl FnOnce() -> T + Clone + Send + 'scope,
) -> Result<Vec<ScopedJoinHandle<'scope, T>>> {
    let mut handles = Vec::with_capacity(count);
    for index in 0..count {
        match Builder::new().name(format!("{name}-{index}")).spawn_scoped(scope, work.clone()) {
            Ok(handle) => handles.push(handle),
            Err(error) if handles.is_empty() => return Err(Error::Worker { reason: error.to_string() }),
            Err(error) => tracing::warn!(%error, "a thread could not be started; going on with fewer"),
        }
    }
    Ok(handles)
}
