//! Functions that are not there.
//!
//! An older library lacks symbols, and `dlsym` says so. One build serves every version: when the library is loaded, before
//! anyone can look a function up, the entries of those it must not have are made undefined in its table of symbols, in
//! memory, where each process has its own copy of that page.

use std::ffi::{CStr, CString, c_int, c_void};
use std::{mem, ptr};

// SAFETY: the signature is the one of glibc's `dlfcn.h`.
unsafe extern "C" {
    /// As `dladdr`; with [`RTLD_DL_SYMENT`] also the symbol's entry.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

const RTLD_DL_SYMENT: c_int = 1;

/// Makes the exported function `name` of this library one that `dlsym` does not find.
pub(crate) fn hide(name: &str) -> Result<(), String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    let entry = entry(&name)?;
    let page = page_size();
    let first = entry.addr() / page * page;
    let end = (entry.addr() + mem::size_of::<libc::Elf64_Sym>()).next_multiple_of(page);
    let pages = entry.with_addr(first).cast::<c_void>();
    protect(pages, end - first, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the entry lies in pages made writable just now, a private mapping; the dynamic linker, which holds its lock
    // while this runs, reads it anew at each lookup.
    unsafe {
        (*entry).st_shndx = 0;
        (*entry).st_value = 0;
    }
    protect(pages, end - first, libc::PROT_READ)
}

/// The entry of `name` in this library's table of dynamic symbols.
fn entry(name: &CStr) -> Result<*mut libc::Elf64_Sym, String> {
    let (mut info, _) = look_up(hide as *const c_void)?;
    // SAFETY: dladdr1 gave a terminated path. NOLOAD only looks up what is loaded.
    let library = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if library.is_null() {
        return Err("the library does not find itself".to_owned());
    }
    // SAFETY: the handle is open; the name is terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: opened above; who loads this library holds it as well.
    unsafe { libc::dlclose(library) };
    let entry;
    (info, entry) = look_up(address)?;
    // SAFETY: dladdr1 gave a terminated name, or null.
    let found = !info.dli_sname.is_null() && unsafe { CStr::from_ptr(info.dli_sname) } == name;
    if found && !entry.is_null() { Ok(entry) } else { Err("its symbol was not found".to_owned()) }
}

fn look_up(address: *const c_void) -> Result<(libc::Dl_info, *mut libc::Elf64_Sym), String> {
    // SAFETY: an all-zero Dl_info is a valid value of that C struct.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    let mut entry = ptr::null_mut();
    // SAFETY: both results are valid for writing; any address may be asked for.
    match unsafe { dladdr1(address, &mut info, &mut entry, RTLD_DL_SYMENT) } {
        0 => Err("the dynamic linker does not know its address".to_owned()),
        _ => Ok((info, entry.cast())),
    }
}

fn protect(pages: *mut c_void, len: usize, protection: c_int) -> Result<(), String> {
    // SAFETY: whole pages of this library's table of symbols; no Rust reference points into it.
    match unsafe { libc::mprotect(pages, len, protection) } {
        0 => Ok(()),
        _ => Err(format!("mprotect: {}", std::io::Error::last_os_error())),
    }
}

fn page_size() -> usize {
    // SAFETY: a call without pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
