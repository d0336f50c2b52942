//! All fronts. One that a finished thread left is taken over by the next that comes, with what it
//! has counted; none is ever unmapped, so there are as many as threads lived at once.

use super::front::Front;
use crate::virtual_memory;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

#[derive(Debug)]
pub(crate) struct Fronts {
    first: AtomicPtr<Front>,
}

impl Fronts {
    pub(crate) const fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// A front for this thread alone; none if the system has no memory.
    pub(crate) fn enter(&self) -> Option<&'static Front> {
        let free = |front: &&Front| {
            !front.in_use.load(Relaxed)
                && front.in_use.compare_exchange(false, true, Acquire, Relaxed).is_ok()
        };
        self.iter().find(free).or_else(|| self.add())
    }

    #[cold]
    fn add(&self) -> Option<&'static Front> {
        let front = virtual_memory::zeroed::<Front>(1)?.first()?;
        front.in_use.store(true, Relaxed);
        let address = ptr::from_ref(front).cast_mut();
        let mut first = self.first.load(Relaxed);
        loop {
            front.next.store(first, Relaxed);
            match self.first.compare_exchange_weak(first, address, AcqRel, Relaxed) {
                Ok(_) => return Some(front),
                Err(other) => first = other,
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Front> {
        let first = at(&self.first);
        std::iter::successors(first, |front| at(&front.next))
    }
}

fn at(link: &AtomicPtr<Front>) -> Option<&'static Front> {
    #[expect(unsafe_code, reason = "a list without an allocator")]
    // SAFETY: null, or from `add`, which maps a front for good; Acquire, as it was published there.
    unsafe {
        link.load(Acquire).as_ref()
    }
}
