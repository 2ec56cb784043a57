//! What the pipeline's threads share and wait with: the standard library's, or loom's with the feature `loom`, which runs a model once
//! for every order of events.

#[cfg(not(feature = "loom"))]
mod chosen {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;
}

#[cfg(feature = "loom")]
mod chosen {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Threads that borrow, which loom has none of.
    pub(crate) mod thread {
        use std::io;
        use std::marker::PhantomData;
        use std::mem;
        use std::sync::{Arc, Mutex, PoisonError};

        /// In words: errors are formatted and files are read on it.
        const STACK: usize = 0x8000;

        /// As [`std::thread::Scope`].
        pub(crate) struct Scope<'env>(PhantomData<&'env mut &'env ()>);

        /// As [`std::thread::scope`].
        pub(crate) fn scope<'env, T>(body: impl FnOnce(&Scope<'env>) -> T) -> T {
            body(&Scope(PhantomData))
        }

        /// As [`std::thread::Builder`].
        pub(crate) struct Builder(loom::thread::Builder);

        impl Builder {
            pub(crate) fn new() -> Self {
                Self(loom::thread::Builder::new().stack_size(STACK))
            }

            pub(crate) fn name(self, name: String) -> Self {
                Self(self.0.name(name))
            }

            pub(crate) fn spawn_scoped<'env, T: Send + 'env>(
                self,
                _scope: &Scope<'env>,
                body: impl FnOnce() -> T + Send + 'env,
            ) -> io::Result<Scoped<'env, T>> {
                let outcome = Arc::new(Mutex::new(None));
                let place = Arc::clone(&outcome);
                let body =
                    Box::new(move || *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(body()));
                // SAFETY: only the lifetime changes. The handle waits for the thread when it is joined or dropped, within what
                // it borrows; the pipeline, whose models this is for, forgets none.
                let body = unsafe {
                    mem::transmute::<Box<dyn FnOnce() + Send + 'env>, Box<dyn FnOnce() + Send>>(body)
                };
                Ok(Scoped { handle: Some(self.0.spawn(body)?), outcome, env: PhantomData })
            }
        }

        /// As [`std::thread::ScopedJoinHandle`].
        pub(crate) struct Scoped<'env, T> {
            handle: Option<loom::thread::JoinHandle<()>>,
            outcome: Arc<Mutex<Option<T>>>,
            env: PhantomData<&'env mut &'env ()>,
        }

        impl<T> Scoped<'_, T> {
            pub(crate) fn join(mut self) -> std::thread::Result<T> {
                self.wait();
                let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
                outcome.ok_or_else(|| Box::new("it left nothing") as _)
            }

            fn wait(&mut self) {
                // A thread that panics ends its model.
                drop(self.handle.take().map(loom::thread::JoinHandle::join));
            }
        }

        impl<T> Drop for Scoped<'_, T> {
            fn drop(&mut self) {
                self.wait();
            }
        }
    }
}

pub(crate) use chosen::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, thread};
