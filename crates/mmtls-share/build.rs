//! Gives the shared library the name under which it is installed, and keeps it loaded: contexts of OpenSSL have its callback.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmmtls-share.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
