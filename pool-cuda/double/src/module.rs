//! There are no kernels: a module is refused.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::call;

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(_module: Out<usize>, _image: Host) -> Code {
    call("cuModuleLoadData", |_| Err(code::NOT_SUPPORTED))
}
