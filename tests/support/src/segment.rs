//! System V shared memory by the number of a process, in which NVIDIA's libcufile keeps its statistics.

use std::ptr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of such a segment, as libcufile 1.20 makes it.
const LEN: usize = 32256;

/// A segment whose key is the number of a process.
#[derive(Debug)]
pub struct Segment {
    id: libc::c_int,
}

/// Memory of a segment, attached to this process until it is dropped.
#[derive(Debug)]
pub struct Attached(*mut libc::c_void);

impl Segment {
    /// One as libcufile makes it in the process `key`, and leaves where that is killed.
    ///
    /// # Panics
    /// Where there is one, or the kernel refuses.
    pub fn make(key: u32) -> Self {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o644;
        // SAFETY: takes numbers.
        let id = unsafe { libc::shmget(number(key), LEN, flags) };
        assert!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
        Self { id }
    }

    /// The one of the process `key`, where there is one.
    pub fn of(key: u32) -> Option<Self> {
        // SAFETY: takes numbers; without IPC_CREAT it only looks.
        let id = unsafe { libc::shmget(number(key), 0, 0) };
        (id >= 0).then_some(Self { id })
    }

    /// Locks its pages, as libcufile does.
    ///
    /// # Panics
    /// Where the kernel refuses.
    pub fn lock(&self) {
        // SAFETY: takes numbers; locking reads no structure.
        let answer = unsafe { libc::shmctl(self.id, libc::SHM_LOCK, ptr::null_mut()) };
        assert_eq!(answer, 0, "SHM_LOCK: {}", std::io::Error::last_os_error());
    }

    /// Unlocks its pages.
    ///
    /// # Panics
    /// Where the kernel refuses.
    pub fn unlock(&self) {
        // SAFETY: takes numbers; unlocking reads no structure.
        let answer = unsafe { libc::shmctl(self.id, libc::SHM_UNLOCK, ptr::null_mut()) };
        assert_eq!(answer, 0, "SHM_UNLOCK: {}", std::io::Error::last_os_error());
    }

    /// Attaches it.
    ///
    /// # Panics
    /// Where the kernel refuses.
    pub fn attach(&self) -> Attached {
        // SAFETY: the kernel chooses where; nothing looks into the memory.
        let memory = unsafe { libc::shmat(self.id, ptr::null(), 0) };
        assert_ne!(memory as isize, -1, "shmat: {}", std::io::Error::last_os_error());
        Attached(memory)
    }

    /// How often it is attached, in all processes; `None` where it is gone.
    pub fn attached(&self) -> Option<u64> {
        self.about().map(|about| about.shm_nattch)
    }

    fn about(&self) -> Option<libc::shmid_ds> {
        // SAFETY: plain data, for which zeros are valid.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is writable.
        (unsafe { libc::shmctl(self.id, libc::IPC_STAT, &mut about) } == 0).then_some(about)
    }

    /// Whether `process` made it, at this time or after it.
    pub fn was_made(&self, process: u32, since: SystemTime) -> bool {
        let Some(about) = self.about() else { return false };
        let made = UNIX_EPOCH + Duration::from_secs(u64::try_from(about.shm_ctime).unwrap_or(0));
        // The segment's time is in whole seconds.
        about.shm_cpid == number(process) && made + Duration::from_secs(1) >= since
    }

    /// Removes it: at once, or when nobody has it attached any more.
    pub fn remove(self) {
        // SAFETY: takes numbers; removing reads no structure.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, ptr::null_mut()) };
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: attached by `attach`, and detached once.
        unsafe { libc::shmdt(self.0) };
    }
}

fn number(process: u32) -> libc::pid_t {
    libc::pid_t::try_from(process).expect("a process's number")
}
