//! Gives the library the driver's soname: preloaded under any file name, it then satisfies `dlopen("libcuda.so.1")`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close it (cudarc does, after looking whether it is there), but its threads may be running.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
