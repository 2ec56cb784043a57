//! The kernel's side of a queue.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda_staging::SlotsMemory;
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};

/// A file as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    /// By its descriptor.
    Descriptor(RawFd),
    /// By its place among the registered files.
    Registered(u32),
}

/// One read as the kernel is asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Comes back with its event.
    pub(crate) key: u64,
    pub(crate) file: FileName,
    /// In the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) into: *mut u8,
    /// In bytes.
    pub(crate) len: u32,
}

/// What the kernel says of a read that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) key: u64,
    /// Bytes that arrived, or a negated error number.
    pub(crate) result: i32,
}

/// The kernel's side of a queue; in tests, a script.
pub(crate) trait Kernel {
    /// Asks for a read. Where that fails it was not asked for, and there will be no event.
    ///
    /// # Safety
    /// Until the event of its key has come out of [`Kernel::events`]:
    /// - `into..into + len` stays allocated, and nothing else reads or writes it;
    /// - the file stays open under its name.
    unsafe fn ask(&mut self, request: &Request) -> io::Result<()>;

    /// Waits until there is an event or `limit` has passed; returns earlier now and then.
    ///
    /// # Errors
    /// Those after which no event can be expected.
    fn wait(&mut self, limit: Duration) -> io::Result<()>;

    /// How many of the reads asked for the kernel has not taken yet: the newest. It hears of them in [`Kernel::ask`] and
    /// [`Kernel::wait`], and nowhere else.
    fn untaken(&mut self) -> usize;

    /// Whether there are events.
    fn has_events(&mut self) -> bool;

    /// The events so far, each once.
    ///
    /// # Errors
    /// Where the kernel has lost some.
    fn events(&mut self) -> io::Result<Vec<Event>>;
}

/// An io_uring.
pub(crate) struct Ring {
    /// Before what is registered with it, which is released after it.
    ring: IoUring,
    slots: Option<SlotsMemory>,
    files: Vec<Arc<File>>,
}

impl Ring {
    /// A ring for `entries` reads at once.
    ///
    /// # Errors
    /// What `io_uring_setup(2)` says; `EOPNOTSUPP` from kernels that know no such reads (before 5.6), or cannot bound a wait
    /// (before 5.11).
    pub(super) fn open(entries: u32) -> io::Result<Self> {
        // Not inherited by forked children, who could only do harm with it.
        let ring = IoUring::builder().dontfork().build(entries)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let known = probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::ReadFixed::CODE);
        if !(known && ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop()) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(Self { ring, slots: None, files: Vec::new() })
    }

    /// Lets the kernel keep `files` open, which saves looking each up for every read.
    ///
    /// # Errors
    /// What `io_uring_register(2)` says, for instance beyond `RLIMIT_NOFILE`.
    pub(super) fn register_files(&mut self, files: Vec<Arc<File>>) -> io::Result<()> {
        let descriptors: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        self.ring.submitter().register_files(&descriptors)?;
        self.files = files;
        Ok(())
    }

    /// Where `file` is among the registered ones.
    pub(super) fn registered(&self, file: &Arc<File>) -> Option<u32> {
        let index = self.files.iter().position(|registered| Arc::ptr_eq(registered, file))?;
        u32::try_from(index).ok()
    }

    /// Lets the kernel pin the slots once, instead of for every read.
    ///
    /// # Errors
    /// What `io_uring_register(2)` says: `ENOMEM` beyond `RLIMIT_MEMLOCK`.
    pub(super) fn register_slots(&mut self, slots: SlotsMemory) -> io::Result<()> {
        let all = libc::iovec { iov_base: slots.as_mut_ptr().cast(), iov_len: slots.len() };
        // SAFETY: the memory stays mapped while `slots` lives, which is until this ring is gone.
        unsafe { self.ring.submitter().register_buffers(&[all]) }?;
        self.slots = Some(slots);
        Ok(())
    }

    fn is_registered(&self, request: &Request) -> bool {
        let (start, len) = (request.into.addr(), request.len as usize);
        self.slots.as_ref().is_some_and(|slots| {
            let (first, all) = (slots.as_mut_ptr().addr(), slots.len());
            start >= first && len <= all && start - first <= all - len
        })
    }
}

impl Kernel for Ring {
    unsafe fn ask(&mut self, request: &Request) -> io::Result<()> {
        let Request { key, file, offset, into, len } = *request;
        let entry = match (file, self.is_registered(request)) {
            (FileName::Descriptor(file), false) => {
                opcode::Read::new(Fd(file), into, len).offset(offset).build()
            }
            (FileName::Registered(file), false) => {
                opcode::Read::new(Fixed(file), into, len).offset(offset).build()
            }
            (FileName::Descriptor(file), true) => {
                opcode::ReadFixed::new(Fd(file), into, len, 0).offset(offset).build()
            }
            (FileName::Registered(file), true) => {
                opcode::ReadFixed::new(Fixed(file), into, len, 0).offset(offset).build()
            }
        };
        // SAFETY: the caller's promise is what the entry needs.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(key)) };
        pushed.map_err(|_| io::Error::other("the submission queue is full"))?;
        // What the kernel cannot take now it takes with the next wait, which also tells why.
        if let Err(error) = self.ring.submit() {
            tracing::debug!(%error, "a read waits to be submitted");
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        /// How long the kernel is left alone when it has no memory for requests.
        const PAUSE: Duration = Duration::from_millis(1);
        let limit = Timespec::from(limit);
        match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit)) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                Some(libc::EAGAIN) => {
                    thread::sleep(PAUSE);
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    fn untaken(&mut self) -> usize {
        self.ring.submission().len()
    }

    fn has_events(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn events(&mut self) -> io::Result<Vec<Event>> {
        let completion = self.ring.completion();
        if completion.overflow() > 0 {
            // The kernel keeps events for which there is no room; a count here means that it could not.
            return Err(io::Error::other(format!("the kernel lost {} completions", completion.overflow())));
        }
        Ok(completion.map(|entry| Event { key: entry.user_data(), result: entry.result() }).collect())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("entries", &self.ring.params().sq_entries()).finish_non_exhaustive()
    }
}
