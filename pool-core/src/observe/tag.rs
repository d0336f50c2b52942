//! Tags of requests, as small numbers that a record has room for.
#![expect(unsafe_code, reason = "names are shared by address, without a lock")]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// The number of a tag; 0 stands for a request without a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag(u16);

/// A name that is never freed, or null.
type Name = AtomicPtr<&'static str>;

/// The names of all tags of the process, before the first null. A name is written once and stays.
/// There is no lock: a forked child could find one held for ever.
static NAMES: [Name; u16::MAX as usize] = [const { Name::new(ptr::null_mut()) }; _];

impl Tag {
    /// Returns the tag of a name; no tag when all numbers have names. The cost is linear in the
    /// number of names.
    pub(crate) fn new(name: &'static str) -> Self {
        let number = NAMES.iter().position(|known| is_or_becomes(known, name));
        Self(number.and_then(|at| u16::try_from(at + 1).ok()).unwrap_or(0))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Returns its name; empty for no tag.
    pub(crate) fn name(self) -> &'static str {
        let at = usize::from(self.0).checked_sub(1);
        at.and_then(|at| NAMES.get(at)).and_then(read).unwrap_or("")
    }
}

fn read(known: &Name) -> Option<&'static str> {
    // SAFETY: a pointer that is not null came from `Box::leak` in `is_or_becomes`, and no code
    // writes or frees its target.
    NonNull::new(known.load(Acquire)).map(|name| unsafe { *name.as_ref() })
}

/// Returns whether an entry has the name `name`. An empty entry is set to `name` first.
fn is_or_becomes(known: &Name, name: &'static str) -> bool {
    if let Some(known) = read(known) {
        return known == name;
    }
    let new = ptr::from_mut(Box::leak(Box::new(name)));
    if known.compare_exchange(ptr::null_mut(), new, Release, Acquire).is_ok() {
        return true;
    }
    // SAFETY: it came from the box above, and no other thread has seen it.
    drop(unsafe { Box::from_raw(new) });
    read(known) == Some(name)
}

/// Returns the name of the tag with a number
/// ([`PoolEvent::tag_number`](crate::observe::PoolEvent::tag_number)): empty for 0, and for a number that no
/// tag has.
///
/// ```
/// assert_eq!(pool_core::observe::tag_name(0), "");
/// ```
#[must_use]
pub fn tag_name(number: u16) -> &'static str {
    Tag(number).name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_that_name_the_same_tags_get_the_same_numbers() {
        const OF_TEST: [&str; 4] = ["tag one", "tag two", "tag three", "tag four"];
        let of_thread = |turn: usize| {
            let mut tags = [Tag::default(); 4];
            (0..4).map(|at| (at + turn) % 4).for_each(|at| tags[at] = Tag::new(OF_TEST[at]));
            tags
        };
        let all: Vec<_> = thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|turn| scope.spawn(move || of_thread(turn)));
            threads.map(|thread| thread.join().unwrap_or_default()).into()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        assert_eq!(all[0].map(Tag::name), OF_TEST);
        assert!(all[0].iter().all(|tag| tag_name(tag.number()) == tag.name()));
        assert_eq!((Tag::default().name(), tag_name(u16::MAX)), ("", ""));
    }
}
