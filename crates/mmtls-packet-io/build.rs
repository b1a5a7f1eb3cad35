//! Compiles the programs that the kernel runs, where clang is there; without it the library says at start why the kernel
//! forwards nothing by itself.

use std::path::Path;
use std::process::Command;

const SOURCE: &str = "bpf/offload.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rustc-check-cfg=cfg(has_offload)");
    let directory = std::env::var("OUT_DIR").unwrap_or_default();
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut clang = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned()));
    clang.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    // Where Debian has <asm/types.h>.
    clang.arg(format!("-I/usr/include/{target}-linux-gnu"));
    clang.args(["-c", SOURCE, "-o"]).arg(Path::new(&directory).join("offload.o"));
    match clang.status() {
        Ok(status) if status.success() => println!("cargo::rustc-cfg=has_offload"),
        Ok(status) => {
            println!("cargo::warning=clang, {status}: the kernel will forward nothing by itself")
        }
        Err(error) => {
            println!("cargo::warning=clang, {error}: the kernel will forward nothing by itself")
        }
    }
}
