//! Random operations on blocks beside a plain list of them.

use crate::block::record::{Place, Record, RecordOwner};
use crate::block::{Key, PoolRequest};
use crate::blocks::by_age::{BY_AGE_ONE_IN, OLDEST};
use crate::blocks::{Blocks, Effort};
use crate::port::{DeviceAllocator, DeviceError, Immediate, Memory, Request, StreamOf, Why};
use crate::size::{BucketPolicy, SizeClasses};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Memory without memory.
pub(crate) struct Nothing;

impl DeviceAllocator for Nothing {
    type Block = u64;
    type View<'b> = ();
    type Kind = u8;
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, _: u8, _: u64) -> Result<u8, DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, _: Request<u8>, (): &()) -> Result<u64, DeviceError> {
        Ok(0)
    }
    fn free(&self, _: u64, _: &[()]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, _: &'b u64, _: u64, _: u64, (): &StreamOf<Self>) {}
    fn zero(&self, _: &mut u64, _: u64, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A block, as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    id: u64,
    bytes: u64,
    key: (u8, u64),
    freed_at: u64,
}

pub(crate) fn record(id: u64, bytes: u64, kind: u8, freed_at: u64) -> RecordOwner<Nothing> {
    let classes = SizeClasses::new(BucketPolicy::Exact, Some(1), 1, u64::MAX);
    let class = classes.of(bytes).unwrap();
    let key = Key { kind, stream_id: 0 };
    let request = PoolRequest {
        on: &(),
        stream: &(),
        key,
        class,
        requested: bytes,
        private: None,
        is_untold: false,
        joins_line: false,
    };
    let mut record = Record::new(Place::Whole(id), bytes, &request, ());
    record.freed_at = freed_at;
    RecordOwner::boxed(record)
}

fn id_of(record: RecordOwner<Nothing>) -> u64 {
    record.into_block().unwrap()
}

/// The block of a size and key that came last.
fn newest(model: &[Known], bytes: u64, key: (u8, u64)) -> Option<Known> {
    model.iter().rev().find(|known| (known.bytes, known.key) == (bytes, key)).copied()
}

/// The block that goes for others: the largest of the oldest few, or the oldest.
fn to_evict(blocks: &Blocks<Nothing>, model: &[Known]) -> Option<Known> {
    let looks = if (blocks.evicted + 1).is_multiple_of(BY_AGE_ONE_IN) { 1 } else { OLDEST };
    let most = model.iter().take(looks).map(|known| known.bytes).max();
    model.iter().find(|known| Some(known.bytes) == most).copied()
}

/// Takes a block out of the model.
fn forget(model: &mut Vec<Known>, id: u64) -> Known {
    let at = model.iter().position(|known| known.id == id).expect("the model has it");
    model.remove(at)
}

/// Puts a block into the model where it was: blocks have their numbers in the order in which they came.
fn remember(model: &mut Vec<Known>, known: Known) {
    let at = model.partition_point(|older| older.id < known.id);
    model.insert(at, known);
}

/// The blocks by age, as the heap of their bins says.
fn by_age(blocks: &mut Blocks<Nothing>) -> Vec<u64> {
    let mut ages = Vec::new();
    blocks.each_by_age(|record, _| {
        ages.push(record.freed_at);
        ControlFlow::Continue(())
    });
    ages
}

/// Blocks, what a plain list says of them, and those that were taken out while their room is held.
struct Both {
    blocks: Blocks<Nothing>,
    model: Vec<Known>,
    held: Vec<(RecordOwner<Nothing>, Known)>,
}

/// What a step took, and what it should have.
type Taken = (Option<RecordOwner<Nothing>>, Option<Known>);

impl Both {
    /// One step with a size and key.
    fn step(&mut self, random: &mut StdRng, id: u64, (bytes, key): (u64, (u8, u64))) -> Taken {
        let Self { blocks, model, held } = self;
        let (own, sizes) = (own_key(key), bytes..=2 * bytes);
        let fits = model.iter().filter(|it| it.key.0 == key.0 && sizes.contains(&it.bytes));
        let own_fits = fits.clone().filter(|it| it.key == key);
        match random.random_range(0..14) {
            0..=5 => {
                let mut record = record(id, bytes, key.0, id);
                // As it was the last time, or in another one.
                record.slot = u32::try_from(blocks.table.slot(bytes, own)).unwrap()
                    ^ u32::from(id.is_multiple_of(3));
                if let Err(record) = blocks.push_again(own, record) {
                    blocks.push(own, record);
                }
                model.push(Known { id, bytes, key, freed_at: id });
            }
            6..=7 => return (blocks.pop(own, bytes, |_| true), newest(model, bytes, key)),
            8 => {
                let least = own_fits.map(|known| known.bytes).min();
                let expected = least.and_then(|bytes| newest(model, bytes, key));
                return (blocks.pop_in_range(own, &sizes, |_| true), expected);
            }
            9 => {
                let expected = to_evict(blocks, model);
                return (blocks.pop_to_evict(), expected);
            }
            10 => {
                // Some blocks are refused, by the time of their free.
                let refused = random.random_range(1..6_u64);
                let accepts = |freed_at: u64| freed_at % 6 >= refused;
                let before = id.saturating_sub(random.random_range(0..20));
                let old = model.iter().take_while(|it| it.freed_at < before);
                let expected = old.copied().find(|it| accepts(it.freed_at));
                return (blocks.pop_oldest(before, |it| accepts(it.freed_at)), expected);
            }
            11 => {
                let least = fits.clone().map(|it| it.bytes).min();
                let expected = fits.copied().find(|it| Some(it.bytes) == least);
                return (blocks.pop_of_any(key.0, &sizes, Effort::All, |_| true), expected);
            }
            12 if !model.is_empty() => {
                let known = model.remove(random.random_range(0..model.len()));
                let sizes = known.bytes..=known.bytes;
                let is = |record: &mut Record<_>| record.freed_at == known.freed_at;
                let record = blocks.pop_of_any(known.key.0, &sizes, Effort::All, is).unwrap();
                blocks.hold_room(&record);
                held.push((record, known));
            }
            13 if !held.is_empty() => {
                let at = random.random_range(0..held.len());
                self.put_back(at);
            }
            _ => {}
        }
        (None, None)
    }

    fn put_back(&mut self, at: usize) {
        let (record, known) = self.held.swap_remove(at);
        self.blocks.put_back(own_key(known.key), record);
        remember(&mut self.model, known);
    }

    /// Compares all figures.
    fn check(&mut self, (bytes, key): (u64, (u8, u64))) {
        let Self { blocks, model, held } = self;
        let held: u64 = held.iter().map(|(record, _)| record.bytes).sum();
        blocks.bytes -= held;
        blocks.check();
        blocks.bytes += held;
        let largest = model.iter().map(|known| known.bytes).max().unwrap_or(0);
        assert_eq!(blocks.largest(), largest);
        assert_eq!(blocks.oldest().map(|it| it.freed_at), model.first().map(|it| it.freed_at));
        let own = model.iter().filter(|it| it.key == key && it.bytes == bytes);
        assert_eq!(blocks.count_of(own_key(key), bytes), own.count());
        let first = model.iter().take(7).map(|it| it.bytes).sum::<u64>();
        assert_eq!(blocks.bytes_of_oldest(7), first);
    }
}

fn run(seed: u64, steps: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut both = Both { blocks: Blocks::new(), model: Vec::new(), held: Vec::new() };
    let streams = random.random_range(1..40_u64);
    for id in 0..steps {
        let bytes =
            [64, 128, 4096, 5000, 64 * random.random_range(1..200)][random.random_range(0..5)];
        let key = (random.random_range(0..2_u8), random.random_range(0..streams));
        let (found, expected) = both.step(&mut random, id, (bytes, key));
        assert_eq!(found.map(id_of), expected.map(|known| known.id), "step {id}");
        if let Some(known) = expected {
            forget(&mut both.model, known.id);
        }
        let held: u64 = both.held.iter().map(|(record, _)| record.bytes).sum();
        let of_model: u64 = both.model.iter().map(|it| it.bytes).sum();
        assert_eq!(both.blocks.bytes - held, of_model);
        assert_eq!(both.blocks.iter().count(), both.model.len());
        if id % 16 == 0 {
            both.check((bytes, key));
        }
    }
    while !both.held.is_empty() {
        both.put_back(0);
    }
    let Both { mut blocks, model, .. } = both;
    blocks.check();
    let expected: Vec<u64> = model.iter().map(|known| known.freed_at).collect();
    assert_eq!(by_age(&mut blocks), expected, "all by age");
    let largest = blocks.pop_largest(|_| true).map(|record| record.bytes);
    assert_eq!(largest, model.iter().map(|known| known.bytes).max());
}

fn own_key((kind, stream_id): (u8, u64)) -> Key<u8> {
    Key { kind, stream_id }
}

#[test]
fn random_operations_do_what_a_plain_list_does() {
    for seed in 0..if cfg!(miri) { 4 } else { 400 } {
        println!("seed {seed}");
        run(seed, if cfg!(miri) { 60 } else { 600 });
    }
}

#[test]
fn many_sizes_that_are_gone_leave_a_small_table() {
    let mut blocks = Blocks::<Nothing>::new();
    let key = Key { kind: 0, stream_id: 0 };
    for id in 0..if cfg!(miri) { 300 } else { 10_000 } {
        blocks.push(key, record(id, 64 + id, 0, id));
        assert_eq!(blocks.pop(key, 64 + id, |_| true).map(id_of), Some(id));
    }
    assert!(blocks.table.len() <= 64, "{} slots", blocks.table.len());
    assert!(blocks.listed_by_size() <= 64, "{} bins by size", blocks.listed_by_size());
    blocks.check();
}

#[test]
fn many_frees_between_two_requests_keep_their_order() {
    let mut blocks = Blocks::<Nothing>::new();
    let count = if cfg!(miri) { 60 } else { 100_000 };
    // One time for all of them: nothing was allocated meanwhile.
    for id in 0..count {
        blocks.push(own_key((0, id % 7)), record(id, 64 * (1 + id % 5), 0, 1));
    }
    for id in 0..count {
        assert_eq!(blocks.pop_oldest(u64::MAX, |_| true).map(id_of), Some(id));
    }
}

/// How many blocks are looked at for the one that is taken last of all.
#[test]
fn the_oldest_is_found_by_few_looks_where_bins_came_and_went() {
    let mut blocks = Blocks::<Nothing>::new();
    let sizes = if cfg!(miri) { 20 } else { 1000 };
    for round in 0..3 {
        for id in 0..sizes {
            blocks.push(own_key((0, 0)), record(round * sizes + id, 64 + id, 0, round));
            if round < 2 {
                blocks.pop(own_key((0, 0)), 64 + id, |_| true).map(id_of).expect("just pushed");
            }
        }
    }
    let mut looks = 0;
    for id in 2 * sizes..3 * sizes {
        let looked = std::cell::Cell::new(0);
        let found = blocks.pop_oldest(u64::MAX, |_| {
            looked.set(looked.get() + 1);
            true
        });
        assert_eq!(found.map(id_of), Some(id));
        looks += looked.get();
    }
    assert_eq!(looks, sizes, "one look for each");
}

#[test]
fn a_block_that_comes_back_often_leaves_few_entries() {
    let mut blocks = Blocks::<Nothing>::new();
    let key = own_key((0, 0));
    blocks.push(key, record(0, 64, 0, 0));
    blocks.push(key, record(1, 64, 0, 1));
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        let oldest = blocks.pop_oldest(u64::MAX, |_| true).unwrap();
        assert_eq!(oldest.freed_at, 0);
        blocks.hold_room(&oldest);
        assert_eq!(blocks.oldest().map(|it| it.freed_at), Some(1), "its bin has a later entry");
        blocks.put_back(key, oldest);
        assert_eq!(blocks.oldest().map(|it| it.freed_at), Some(0));
        blocks.check(); // which bounds the entries
    }
}

#[test]
fn a_look_by_age_that_panics_loses_no_bin() {
    let mut blocks = Blocks::<Nothing>::new();
    for id in 0..10 {
        blocks.push(own_key((0, id % 3)), record(id, 64 * (1 + id % 2), 0, id));
    }
    let panics = |record: &mut Record<_>| {
        if record.freed_at == 4 {
            resume_unwind(Box::new("on purpose"))
        }
        false
    };
    let look = AssertUnwindSafe(|| drop(blocks.pop_oldest(u64::MAX, panics)));
    assert!(catch_unwind(look).is_err());
    blocks.check();
    assert_eq!(by_age(&mut blocks), (0..10).collect::<Vec<_>>());
}

/// A search for a block of any stream that looks at few leaves no bin listed that it found empty.
#[test]
fn a_bounded_search_unlists_the_empty_bins_that_it_meets() {
    let mut blocks = Blocks::<Nothing>::new();
    let last = if cfg!(miri) { 40 } else { 999 };
    for id in 0..=last {
        blocks.push(own_key((0, id)), record(id, 64, 0, id));
    }
    for id in 0..last {
        blocks.pop(own_key((0, id)), 64, |_| true).map(id_of).expect("just pushed");
    }
    let found = blocks.pop_of_any(0, &(64..=64), Effort::Bounded, |_| true).map(id_of);
    assert_eq!((found, blocks.listed_by_size()), (Some(last), 1));
    blocks.check();
}
