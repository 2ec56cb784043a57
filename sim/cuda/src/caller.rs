//! Which library called: the first frame outside this one.
//!
//! A C function cannot ask for its return address in stable Rust without assembly, so the unwinder walks the simulator's own
//! frames, which always have unwind tables. That costs about a microsecond, paid only by calls that make something.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::{OnceLock, RwLock};

use crate::ledger::{self, Library};
use crate::sync::{read, write};

// SAFETY: the signatures are those of the platform's `unwind.h`; the opaque types are pointers here.
unsafe extern "C" {
    fn _Unwind_Backtrace(
        frame: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// `_URC_NO_REASON`: go on to the next frame. Any other value ends the walk.
const NEXT_FRAME: c_int = 0;
const STOP: c_int = 4;

struct Walk {
    own: Range<usize>,
    found: usize,
}

extern "C" fn frame(context: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: `walk` is the &mut Walk that `address` gave to the unwinder, alive during the walk.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: `context` is the unwinder's own.
    let address = unsafe { _Unwind_GetIP(context) };
    if walk.own.contains(&address) {
        return NEXT_FRAME;
    }
    walk.found = address;
    STOP
}

/// The return address in the first frame outside this library; 0 where there is none.
fn address() -> usize {
    static OWN: OnceLock<Range<usize>> = OnceLock::new();
    let mut walk = Walk { own: OWN.get_or_init(own_range).clone(), found: 0 };
    // SAFETY: the callback gets the address of `walk`, which outlives the call.
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
    walk.found
}

/// The addresses this library is loaded at.
fn own_range() -> Range<usize> {
    extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker gives a valid info; `found` is the Range below.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Range<usize>>()) };
        let (mut start, mut end) = (usize::MAX, 0);
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the table has dlpi_phnum entries.
            let segment = unsafe { &*info.dlpi_phdr.add(index) };
            if segment.p_type == libc::PT_LOAD {
                let first = info.dlpi_addr as usize + segment.p_vaddr as usize;
                (start, end) = (start.min(first), end.max(first + segment.p_memsz as usize));
            }
        }
        if (start..end).contains(&(own_range as *const () as usize)) {
            *found = start..end;
            return 1;
        }
        0
    }
    let mut found = 0..0;
    // SAFETY: the callback gets the address of `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// The library that made the call being served.
pub(crate) fn library() -> Library {
    static KNOWN: OnceLock<RwLock<HashMap<usize, Library>>> = OnceLock::new();
    let known = KNOWN.get_or_init(RwLock::default);
    let address = address();
    if let Some(library) = read(known).get(&address) {
        return *library;
    }
    let library = ledger::library(&object_file(address));
    write(known).insert(address, library);
    library
}

/// The file that `address` was loaded from, as an absolute path.
fn object_file(address: usize) -> String {
    // SAFETY: an all-zero Dl_info is a valid value of that C struct.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for writing; any address may be asked for.
    if unsafe { libc::dladdr(address as *const c_void, &mut info) } == 0 || info.dli_fname.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: dladdr gave a terminated path that lives as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    // Of the main program the linker knows only argv[0].
    let path = if name.contains('/') { Path::new(&name).canonicalize() } else { std::env::current_exe() };
    path.map_or(name, |path| path.to_string_lossy().into_owned())
}
