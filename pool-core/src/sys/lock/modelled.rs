//! The lock in builds for loom and shuttle, which try the orders in which threads take it.

use crate::checker::sync::{Mutex, MutexGuard};

/// A value behind a lock.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);
/// The guard of a [`Lock`].
pub(crate) type LockGuard<'l, T> = MutexGuard<'l, T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }

    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
