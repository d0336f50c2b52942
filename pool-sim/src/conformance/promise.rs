//! A promise and its check: what the suites report when a backend breaks one.
#![expect(clippy::panic, reason = "a suite of tests: a panic is how it reports")]

use super::subject::message;
use pool_core::{BucketPool, PooledBuffer, Transfer};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the check of one promise.
///
/// # Panics
///
/// If the check panics: with the promise, and with what the check said.
pub(super) fn promise(promise: &str, check: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(check)) {
        panic!("broken promise: {promise}\n  {}", message(&*panic));
    }
}

/// The result of a call of the suites that must not be refused.
pub(super) trait Served<T> {
    /// Returns the result.
    ///
    /// # Panics
    ///
    /// If the call was refused, with the error.
    fn served(self, call: impl fmt::Display) -> T;
}

impl<T, E: fmt::Display> Served<T> for Result<T, E> {
    fn served(self, call: impl fmt::Display) -> T {
        self.unwrap_or_else(|error| panic!("{call} was refused: {error}"))
    }
}

/// Returns all bytes of a buffer.
pub(super) fn contents<A: Transfer>(buffer: &PooledBuffer<A>) -> Vec<u8> {
    buffer.contents().served(format_args!("a read of {} bytes", buffer.size()))
}

/// Allocates a buffer.
pub(super) fn allocate<A: Transfer>(pool: &BucketPool<A>, bytes: u64) -> PooledBuffer<A> {
    pool.allocate(bytes).served(format_args!("a request of {bytes} B"))
}
