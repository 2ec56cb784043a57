//! What this process writes to its standard output and standard error during a call.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;

/// Both, and what the call returned.
pub(crate) struct Captured<T> {
    pub(crate) returned: T,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Calls `work` with both outputs in memory. A panic's message is seen as ever: the hook that runs first puts them back.
pub(crate) fn captured<T>(work: impl FnOnce() -> T) -> Captured<T> {
    static STREAMS: LazyLock<[Stream; 2]> = LazyLock::new(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            STREAMS.iter().for_each(Stream::put_back);
            report(panic);
        }));
        [libc::STDOUT_FILENO, libc::STDERR_FILENO].map(Stream::new)
    });
    STREAMS.iter().for_each(Stream::take);
    let returned = work();
    let flushed = std::io::stdout().flush();
    STREAMS.iter().for_each(Stream::put_back);
    flushed.expect("memory takes all that is written");
    let [stdout, stderr] = STREAMS.each_ref().map(Stream::contents);
    Captured { returned, stdout, stderr }
}

/// One of them.
struct Stream {
    descriptor: i32,
    /// Where it goes otherwise.
    original: OwnedFd,
    memory: File,
}

impl Stream {
    fn new(descriptor: i32) -> Self {
        // SAFETY: two calls that take no memory but a C string and make descriptors that nothing else owns.
        let [original, memory] = unsafe {
            [
                libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3),
                libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC),
            ]
        };
        assert!(original >= 0 && memory >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: as above.
        let (original, memory) = unsafe { (OwnedFd::from_raw_fd(original), File::from_raw_fd(memory)) };
        Self { descriptor, original, memory }
    }

    fn take(&self) {
        self.memory.set_len(0).unwrap();
        // The copy shares the position, which is at the end of what was written last.
        // SAFETY: moves a position.
        unsafe { libc::lseek(self.memory.as_raw_fd(), 0, libc::SEEK_SET) };
        self.become_a_copy_of(self.memory.as_raw_fd());
    }

    fn put_back(&self) {
        self.become_a_copy_of(self.original.as_raw_fd());
    }

    fn become_a_copy_of(&self, other: i32) {
        // SAFETY: both are open for as long as the process lives.
        assert!(unsafe { libc::dup2(other, self.descriptor) } >= 0);
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.metadata().unwrap().len() as usize];
        self.memory.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}
