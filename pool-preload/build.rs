//! Links GCC's unwinder into the library instead of naming `libgcc_s.so` as needed: to load that
//! costs each start of a preloaded program 0.1 ms.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_CFG_TARGET_ENV").is_some_and(|env| env == "gnu") {
        // Rust's standard library asks for `gcc_s`; the linker finds this script first.
        let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        fs::write(folder.join("libgcc_s.so"), "GROUP ( -lgcc_eh -lgcc )\n")?;
        println!("cargo::rustc-link-search=native={}", folder.display());
        // The library's thread runs its code, so a program that loads it later must not unload it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    Ok(())
}
