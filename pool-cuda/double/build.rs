//! Gives the library the name by which cudarc asks for the driver.
//!
//! The FILE keeps another name, so that it never stands in for a real driver: only a test that has
//! loaded it by its path gets it, when cudarc then asks for `libcuda.so`.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
