//! Handles: numbers that are never used twice, so that a use after destruction is found out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use crate::sync::{read, write};

/// The objects of one kind by handle.
pub(crate) struct Registry<T> {
    objects: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Registry<T> {
    /// `kind` sets the handles of this registry apart from all others'.
    pub(crate) fn new(kind: u64) -> Self {
        // Not the address of anything, and not one of the small numbers that CUDA gives a meaning of their own.
        Self { objects: RwLock::default(), next: AtomicU64::new((0xC0DA << 32) + (kind << 28)) }
    }

    /// Makes an object that knows its handle.
    pub(crate) fn insert(&self, make: impl FnOnce(u64) -> T) -> Arc<T> {
        let handle = self.next.fetch_add(16, Ordering::Relaxed);
        let object = Arc::new(make(handle));
        write(&self.objects).insert(handle, Arc::clone(&object));
        object
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<T>> {
        read(&self.objects).get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        write(&self.objects).remove(&handle)
    }

    /// The objects for which `wanted` holds.
    pub(crate) fn find(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        read(&self.objects).values().filter(|object| wanted(object)).cloned().collect()
    }

    /// Removes and returns the objects for which `wanted` holds.
    pub(crate) fn remove_all(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = write(&self.objects);
        let handles: Vec<u64> =
            objects.iter().filter(|(_, object)| wanted(object)).map(|(&handle, _)| handle).collect();
        handles.iter().filter_map(|handle| objects.remove(handle)).collect()
    }
}
