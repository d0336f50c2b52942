//! Counts what the calls of a frame do, for the tests that hold frames of many buffers linear: entries of tables that
//! they look at, locks of the table of scopes, and calls of the device. Other builds count nothing.

#[cfg(all(test, feature = "noop"))]
mod tests;

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a look at an entry of a table, a lock or a call of the device.
#[inline]
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}
