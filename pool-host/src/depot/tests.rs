use super::*;
use std::ptr;

/// Magazines that the shared list could not take stay with their free list, which uses them again.
#[test]
fn no_empty_magazine_is_lost_while_the_shared_list_is_locked() {
    let depot = Depot::new(usize::MAX);
    let class = Class::all().last().unwrap(); // each batch has its own magazine
    let push = || depot.push(class, &mut Batch::of(ptr::dangling_mut()), class.bytes());
    for _ in 0..3 {
        push().unwrap();
    }
    depot.vacant.while_held(|| {
        while depot.pop(class, 1).is_some() {}
        for number in 0..3 {
            assert!(push().is_ok(), "magazine {number} is lost");
        }
        assert_eq!(push(), Err(Refused::Busy), "there are no more");
    });
}
