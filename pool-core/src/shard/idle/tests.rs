use super::*;
use proptest::prelude::*;

type Shelves = Idle<u8, u32>;

fn take(idle: &mut Shelves, key: u8, sizes: RangeInclusive<u64>) -> Option<(u64, u32)> {
    idle.take(key, &sizes, |_| true).map(|taken| (taken.bytes, taken.item))
}

#[test]
fn a_size_is_a_stack_and_age_is_a_line() {
    let mut idle = Shelves::new();
    for (item, bytes) in [(1, 512), (2, 4096), (3, 4096), (4, 512)] {
        idle.push(0, bytes, 0, item);
    }
    assert_eq!(take(&mut idle, 0, 4096..=4096), Some((4096, 3)));
    assert_eq!(idle.take_oldest().unwrap().item, 1);
    assert_eq!(idle.take_largest().unwrap().item, 2);
    assert_eq!(take(&mut idle, 1, 0..=u64::MAX), None);
    assert_eq!((idle.bytes(), take(&mut idle, 0, 0..=u64::MAX)), (512, Some((512, 4))));
    assert!(idle.take_oldest().is_none());
}

#[test]
fn the_smallest_size_that_fits_is_taken_and_refused_items_are_passed_over() {
    let mut idle = Shelves::new();
    for (item, bytes) in [(1, 300), (2, 200), (3, 200), (4, 100)] {
        idle.push(0, bytes, 0, item);
    }
    assert_eq!(take(&mut idle, 0, 150..=300), Some((200, 3)));
    let odd = idle.take(0, &(150..=300), |item| *item % 2 == 1).unwrap();
    assert_eq!((odd.bytes, odd.item), (300, 1));
    assert_eq!(idle.take_oldest_of(0, 200).unwrap().item, 2);
    assert!(idle.take_oldest_of(0, 200).is_none());
}

#[test]
fn the_smallest_size_is_found_on_whichever_shelf_it_lies() {
    let mut idle = Shelves::new();
    for (key, bytes, item) in [(0, 2048, 1), (1, 1024, 2), (2, 512, 3)] {
        idle.push(key, bytes, 0, item);
    }
    let taken = idle.take_among(|key| *key < 2, &(1000..=4096), |_| true).unwrap();
    assert_eq!((taken.bytes, taken.item), (1024, 2));
}

#[test]
fn a_loan_keeps_its_place_its_age_and_its_bytes() {
    let mut idle = Shelves::new();
    for item in 1..=3 {
        idle.push(0, 100, 0, item);
    }
    let mut shelf = 0;
    let loan = idle.lend(&mut shelf, |_| true, &(1..=100), |_| true).unwrap();
    assert_eq!((loan.item, idle.bytes(), idle.len()), (1, 300, 3));
    assert!(idle.lend(&mut shelf, |_| true, &(1..=100), |_| true).is_none(), "one of each shelf");
    assert_eq!(idle.take_oldest().unwrap().item, 2, "what is lent is passed over");
    idle.put_back(loan);
    assert_eq!(idle.take_oldest().unwrap().item, 1, "and is as old as it was");
    let loan = idle.lend(&mut 0, |_| true, &(1..=100), |_| true).unwrap();
    assert!(idle.take_oldest().is_none() && idle.take_largest().is_none());
    assert_eq!(idle.take_lent(loan).map(|taken| taken.item), Some(3));
    assert_eq!((idle.bytes(), idle.len()), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "many thousands of sizes, which Miri would take hours for")]
fn sizes_that_are_never_seen_again_leave_nothing_behind() {
    let mut idle = Shelves::new();
    for bytes in 1..100_000 {
        idle.push(0, bytes, 0, 0);
        idle.take_oldest();
    }
    let stacks: usize = idle.shelves.iter().map(|shelf| shelf.stacks.sizes.len()).sum();
    assert!(stacks <= 2 * EMPTY_STACKS_KEPT, "{stacks} stacks");
    assert_eq!(idle.nodes.len(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Push(u8, u64),
    Take(u8, u64, u64),
    Oldest,
    OldestOf(u8, u64),
    Largest,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..3, 1u64..20).prop_map(|(key, bytes)| Op::Push(key, bytes)),
        2 => (0u8..3, 1u64..20, 0u64..10).prop_map(|(key, s, slack)| Op::Take(key, s, slack)),
        1 => Just(Op::Oldest),
        1 => (0u8..3, 1u64..20).prop_map(|(key, bytes)| Op::OldestOf(key, bytes)),
        1 => Just(Op::Largest),
    ]
}

proptest! {
    /// The model is a plain list in order of arrival.
    #[test]
    fn agrees_with_a_plain_list(ops in prop::collection::vec(op(), 0..200)) {
        let mut idle = Shelves::new();
        let mut model: Vec<(u8, u64, u32)> = Vec::new();
        for (i, op) in ops.into_iter().enumerate() {
            let item = u32::try_from(i).unwrap();
            let (got, expected) = match op {
                Op::Push(key, bytes) => {
                    model.push((key, bytes, item));
                    let same = model.iter().filter(|m| (m.0, m.1) == (key, bytes)).count();
                    idle.push(key, bytes, i as u64, item);
                    prop_assert_eq!(idle.count_of(key, bytes), same);
                    continue;
                }
                Op::Take(key, s, slack) => {
                    let fits = |m: &&(u8, u64, u32)| m.0 == key && (s..=s + slack).contains(&m.1);
                    let best = model.iter().filter(fits).map(|m| m.1).min();
                    let at = model.iter().rposition(|m| m.0 == key && Some(m.1) == best);
                    (idle.take(key, &(s..=s + slack), |_| true), at)
                }
                Op::Oldest => (idle.take_oldest(), (!model.is_empty()).then_some(0)),
                Op::OldestOf(key, bytes) => (
                    idle.take_oldest_of(key, bytes),
                    model.iter().position(|m| (m.0, m.1) == (key, bytes)),
                ),
                Op::Largest => {
                    let largest = idle.largest_bytes();
                    let taken = idle.take_largest();
                    let of = |item| model.iter().position(|m| m.2 == item).unwrap();
                    let at = taken.as_ref().map(|taken| of(taken.item));
                    prop_assert_eq!(largest, model.iter().map(|m| m.1).max().unwrap_or(0));
                    prop_assert_eq!(taken.as_ref().map_or(0, |t| t.bytes), largest);
                    (taken, at)
                }
            };
            let expected = expected.map(|at| model.remove(at));
            prop_assert_eq!(got.map(|t| (t.bytes, t.item)), expected.map(|m| (m.1, m.2)));
            prop_assert_eq!(idle.bytes(), model.iter().map(|m| m.1).sum::<u64>());
            prop_assert_eq!(idle.items().count(), model.len());
            prop_assert_eq!(idle.stacks().map(|s| s.1).sum::<usize>(), model.len());
        }
    }
}
