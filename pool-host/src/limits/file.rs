//! Files of the system, read without an allocation.
#![expect(unsafe_code, reason = "files are read through C")]

use crate::kernel;
use std::ffi::CStr;

/// Bytes of a path, with its final zero byte. A longer path is not read.
pub(super) const PATH: usize = 512;

/// A path that ends with a zero byte, without an allocation.
pub(crate) struct Path([u8; PATH]);

impl Path {
    /// Concatenates the parts; `None` if they are too long.
    pub(crate) fn of(parts: &[&[u8]]) -> Option<Self> {
        let (mut path, mut end) = ([0; PATH], 0);
        for part in parts {
            path.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        (end < PATH).then_some(Self(path))
    }
}

#[cfg(test)]
thread_local!(
    /// Files that a test has read.
    pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) }
);

/// Reads the first bytes of a file, at most as many as `text` has; `None` if it cannot be opened.
pub(crate) fn read<'t>(path: &Path, text: &'t mut [u8]) -> Option<&'t [u8]> {
    #[cfg(test)]
    READS.set(READS.get() + 1);
    let path = CStr::from_bytes_until_nul(&path.0).ok()?;
    let file = kernel::open(path)?;
    let mut len = 0;
    while len < text.len() {
        match kernel::read(file, &mut text[len..]) {
            Some(0) | None => break,
            Some(read) => len += read,
        }
    }
    // SAFETY: `open` returned this descriptor above, and it is not used after this call.
    unsafe { kernel::close(file) };
    Some(&text[..len])
}
