//! Tests of what refused calls of the system leave behind.
#![expect(unsafe_code, reason = "the system is called")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "each place is the test's own")]
#![expect(clippy::unwrap_used, clippy::cast_ptr_alignment, reason = "tests, of pages")]

use super::*;
use crate::pages::PAGE;
use crate::system::holds;

const BYTES: usize = 16 * PAGE;

/// Returns open pages.
fn opened(mapping: &Mapping) -> *mut u8 {
    let start = mapping.reserve(BYTES).unwrap();
    assert!(unsafe { mapping.open(start, BYTES) });
    start
}

/// Returns pages of which the first half is missing: a move of all is refused.
fn torn(mapping: &Mapping) -> *mut u8 {
    let start = opened(mapping);
    unsafe { kernel::unmap(start, BYTES / 2) }.unwrap();
    start
}

#[test]
fn memory_moves_with_its_first_word() {
    let mapping = Mapping::new();
    let (from, to) = (opened(&mapping), opened(&mapping));
    unsafe { from.write_bytes(7, BYTES) };
    assert_eq!(unsafe { mapping.transfer(from, to, BYTES) }, Moved::Yes);
    assert_eq!([to, from].map(|place| unsafe { place.read() }), [7, 0]);
}

/// A range without a beginning does not move. The destination is what it was, or reserved again.
#[test]
fn a_refused_move_leaves_the_destination_as_it_was_or_closed() {
    let mapping = Mapping::new();
    let (from, to) = (torn(&mapping), opened(&mapping));
    unsafe { to.write_bytes(9, BYTES) };
    match unsafe { mapping.transfer(from, to, BYTES) } {
        Moved::No => assert_eq!(unsafe { to.read() }, 9),
        Moved::Closed => assert!(unsafe { mapping.open(to, BYTES) } && unsafe { to.read() } == 0),
        other => panic!("{other:?}"),
    }
    assert!(mapping.moves());
}

/// What another thread has mapped at the destination of a refused move is not taken for the destination.
#[test]
fn a_place_of_another_thread_does_not_hold_the_mark() {
    let mapping = Mapping::new();
    let place = opened(&mapping);
    let word = place.cast::<u32>();
    unsafe { word.write(5) };
    assert!(holds(word, 5) && !holds(word, 6));
    assert!(unsafe { mapping.close(place, BYTES) });
    assert!(!holds(word, 5), "no code may read it");
    unsafe { kernel::unmap(place, BYTES) }.unwrap();
    assert!(!holds(word, 5), "there is nothing");
    let how = libc::MAP_FIXED_NOREPLACE;
    if unsafe { kernel::map(place, BYTES, READ_WRITE, how) }.is_ok() {
        assert!(!holds(word, 5), "it is another's");
    }
}

/// Under a filter, memory goes back by one call, after which the addresses are open.
#[test]
fn memory_goes_back_quietly_and_stays_open() {
    let mapping = Mapping::new();
    let place = opened(&mapping);
    unsafe { place.write_bytes(3, BYTES) };
    mapping.be_quiet();
    assert!(!unsafe { mapping.close(place, BYTES) });
    assert_eq!(unsafe { place.read() }, 3);
    assert_eq!(unsafe { mapping.forget(place, BYTES) }, Forgotten::Open);
    assert_eq!(unsafe { place.read() }, 0);
}

/// A limit on addresses that is heard counts where the system may not be asked, unless nothing may be
/// given up.
#[test]
fn a_limit_that_is_heard_counts_in_a_sandbox() {
    let mapping = Mapping::new();
    mapping.be_quiet();
    mapping.hear_address_limit(1 << 30);
    assert_eq!(mapping.address_limit(), Some(1 << 30));
    mapping.hear_address_limit(u64::MAX);
    assert_eq!(mapping.address_limit(), None);
    mapping.hear_address_limit(1 << 30);
    mapping.be_silent();
    assert_eq!(mapping.address_limit(), None);
}
