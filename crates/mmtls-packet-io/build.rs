//! Compiles the programs that the kernel runs, where clang is there; without it the library says at start why the kernel
//! forwards nothing by itself.

use std::path::Path;
use std::process::Command;

const SOURCES: [&str; 2] = ["offload", "guard"];

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rustc-check-cfg=cfg(has_offload)");
    for name in SOURCES {
        println!("cargo::rerun-if-changed=bpf/{name}.bpf.c");
    }
    match SOURCES.into_iter().try_for_each(compile) {
        Ok(()) => println!("cargo::rustc-cfg=has_offload"),
        Err(error) => {
            println!("cargo::warning=clang, {error}: the kernel will forward nothing by itself");
        }
    }
}

fn compile(name: &str) -> Result<(), String> {
    let directory = std::env::var("OUT_DIR").unwrap_or_default();
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut clang = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned()));
    clang.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    // Where Debian has <asm/types.h>.
    clang.arg(format!("-I/usr/include/{target}-linux-gnu"));
    clang.args(["-c", &format!("bpf/{name}.bpf.c"), "-o"]);
    clang.arg(Path::new(&directory).join(format!("{name}.o")));
    match clang.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
