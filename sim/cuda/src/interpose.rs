//! Files that libcufile wants and machines without a GPU often lack, served when this library is preloaded.
//!
//! `/proc/modules` (absent in kernels built without module support; libcufile 1.20 never returns from its driver open without
//! it), and the udev record of a block device (absent in containers; libcufile then refuses ext4). Each is served only where
//! the real file is missing, and only for reading; everything else goes to the next library untouched. These functions run in other
//! libraries' constructors too, so they use nothing but libc and atomics. `CUDA_SIM_PROC_MODULES=0` and `CUDA_SIM_UDEV=0` turn
//! them off. Opened later instead of preloaded, the library interposes nothing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{ENOENT, FILE, mode_t};

/// No nvidia_fs in it: GDS proper is not there.
const PROC_MODULES: &[u8] = b"loop 40960 0 - Live 0x0000000000000000\n";
/// What udevd writes about an ext4 file system's device, as far as libcufile reads it.
const UDEV_RECORD: &[u8] = b"E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n";
const UDEV_PREFIX: &[u8] = b"/run/udev/data/b";

/// Contents for a file that is missing; `None` for every path but the few.
///
/// # Safety
/// - `path` is null or a terminated string.
unsafe fn contents(path: *const c_char) -> Option<&'static [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: terminated, by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path == b"/proc/modules" {
        return is_on(c"CUDA_SIM_PROC_MODULES").then_some(PROC_MODULES);
    }
    let device = path.strip_prefix(UDEV_PREFIX)?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let numbers = number(device.get(..colon)?) && number(device.get(colon + 1..)?);
    (numbers && is_on(c"CUDA_SIM_UDEV") && is_block_device(device)).then_some(UDEV_RECORD)
}

/// Whether the variable is anything but 0.
fn is_on(variable: &CStr) -> bool {
    // SAFETY: the name is terminated; a value found is too, and stays: no program that is tested changes its environment
    // once it has threads.
    unsafe {
        let value = libc::getenv(variable.as_ptr());
        value.is_null() || CStr::from_ptr(value).to_bytes() != b"0"
    }
}

/// Whether there is a block device of these numbers (`major:minor`); a tmpfs, say, has none.
fn is_block_device(numbers: &[u8]) -> bool {
    const PREFIX: &[u8] = b"/sys/dev/block/";
    let mut path = [0u8; 64];
    if PREFIX.len() + numbers.len() >= path.len() {
        return false;
    }
    for (place, byte) in path.iter_mut().zip(PREFIX.iter().chain(numbers)) {
        *place = *byte;
    }
    let errno_before = errno();
    // SAFETY: terminated by the zeros that are left.
    let found = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 };
    set_errno(errno_before);
    found
}

/// A descriptor of a file with these contents, at its start.
fn serve(contents: &[u8], flags: c_int) -> c_int {
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: plain system calls on a terminated name, our descriptor and our bytes.
    unsafe {
        let fd = libc::memfd_create(c"cuda-sim interposed".as_ptr(), close_on_exec);
        if fd >= 0 {
            libc::pwrite(fd, contents.as_ptr().cast(), contents.len(), 0);
        }
        fd
    }
}

fn errno() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

/// After a real open failed: the served file, where there is one.
///
/// # Safety
/// - `path` is null or a terminated string.
unsafe fn instead(path: *const c_char, flags: c_int, errno_before: c_int) -> c_int {
    let errno_after = errno();
    let wanted =
        errno_after == ENOENT && flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_CREAT == 0;
    // SAFETY: handed on.
    if wanted && let Some(contents) = unsafe { contents(path) } {
        let fd = serve(contents, flags);
        if fd >= 0 {
            set_errno(errno_before);
            return fd;
        }
    }
    set_errno(errno_after);
    -1
}

/// A function of the next library in the search order, looked up once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is terminated.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        (!found.is_null()).then_some(found)
    }
}

/// The next library has no such function.
fn missing<T>(value: T) -> T {
    set_errno(libc::ENOSYS);
    value
}

type Open = unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, mode_t) -> c_int;
type OpenChecked = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type StreamOpen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;

/// Functions that return a descriptor: type, arguments before path and flags, name, arguments after them. The variable `mode` is passed on always: where the caller gave none, nobody reads it.
macro_rules! interpose_open {
    ($($type:ident [$($before:ident: $before_type:ty)?] $name:ident [$($mode:ident: $mode_type:ty)?])*) => {$(
        /// # Safety
        /// - As libc's function of this name: the path is terminated.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)? path: *const c_char, flags: c_int $(, $mode: $mode_type)?
        ) -> c_int {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let errno_before = errno();
            let Some(next) = NEXT.get() else { return missing(-1) };
            // SAFETY: libc's function of this name has this type.
            let next = unsafe { transmute::<*mut c_void, $type>(next) };
            // SAFETY: the caller's arguments, handed on.
            let fd = unsafe { next($($before,)? path, flags $(, $mode)?) };
            if fd >= 0 {
                return fd;
            }
            // SAFETY: the path is the caller's, terminated.
            unsafe { instead(path, flags, errno_before) }
        }
    )*};
}

interpose_open! {
    Open [] open [mode: mode_t]
    Open [] open64 [mode: mode_t]
    OpenAt [directory: c_int] openat [mode: mode_t]
    OpenAt [directory: c_int] openat64 [mode: mode_t]
    OpenChecked [] __open_2 []
    OpenChecked [] __open64_2 []
}

/// # Safety
/// - As libc's `fopen`: both strings are terminated.
unsafe fn open_stream(next: &Next, path: *const c_char, mode: *const c_char) -> *mut FILE {
    let errno_before = errno();
    let Some(next) = next.get() else { return missing(null_mut()) };
    // SAFETY: libc's function of this name has this type.
    let next = unsafe { transmute::<*mut c_void, StreamOpen>(next) };
    // SAFETY: the caller's arguments, handed on.
    let stream = unsafe { next(path, mode) };
    // SAFETY: the mode is terminated.
    if !stream.is_null() || mode.is_null() || unsafe { *mode } != b'r' as c_char {
        return stream;
    }
    // SAFETY: the path is terminated. (`r+` would write to the copy, which nobody sees.)
    let fd = unsafe { instead(path, libc::O_RDONLY, errno_before) };
    // SAFETY: a descriptor of ours, handed over to the stream.
    if fd < 0 { null_mut() } else { unsafe { libc::fdopen(fd, c"r".as_ptr()) } }
}

/// # Safety
/// - As libc's `fopen`: both strings are terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    static NEXT: Next = Next::new(c"fopen");
    // SAFETY: handed on.
    unsafe { open_stream(&NEXT, path, mode) }
}

/// # Safety
/// - As libc's `fopen`: both strings are terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    static NEXT: Next = Next::new(c"fopen64");
    // SAFETY: handed on.
    unsafe { open_stream(&NEXT, path, mode) }
}

/// # Safety
/// - As libc's `access`: the path is terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    static NEXT: Next = Next::new(c"access");
    let errno_before = errno();
    let Some(next) = NEXT.get() else { return missing(-1) };
    // SAFETY: libc's function of this name has this type.
    let next = unsafe { transmute::<*mut c_void, Access>(next) };
    // SAFETY: the caller's arguments, handed on.
    let answer = unsafe { next(path, mode) };
    // SAFETY: the path is terminated.
    if answer != 0 && errno() == ENOENT && mode & libc::W_OK == 0 && unsafe { contents(path) }.is_some() {
        set_errno(errno_before);
        return 0;
    }
    answer
}
