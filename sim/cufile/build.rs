//! Gives the library the soname of NVIDIA's, so that it satisfies `dlopen("libcufile.so.0")` wherever it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcufile.so.0");
}
