//! Random operations on blocks beside a plain list of them.

use crate::block::record::{Place, Record, RecordOwner};
use crate::block::request::{Key, PoolRequest};
use crate::blocks::by_age::{BY_AGE, OLDEST};
use crate::blocks::{Blocks, Effort};
use crate::port::{DeviceAllocator, DeviceError, Immediate, Memory, Request, StreamOf, Why};
use crate::size::{BucketPolicy, SizeClasses};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

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
    let looks = if (blocks.evicted + 1).is_multiple_of(BY_AGE) { 1 } else { OLDEST };
    let most = model.iter().take(looks).map(|known| known.bytes).max();
    model.iter().find(|known| Some(known.bytes) == most).copied()
}

/// Takes a block out of the model.
fn forget(model: &mut Vec<Known>, id: u64) -> Known {
    let at = model.iter().position(|known| known.id == id).expect("the model has it");
    model.remove(at)
}

fn run(seed: u64, steps: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let by_size = seed.is_multiple_of(2);
    let (mut blocks, mut model) = (Blocks::<Nothing>::new(by_size), Vec::<Known>::new());
    for id in 0..steps {
        let bytes =
            [64, 128, 4096, 5000, 64 * random.random_range(1..200)][random.random_range(0..5)];
        let key = (random.random_range(0..2_u8), random.random_range(0..3_u64));
        let own = Key { kind: key.0, stream_id: key.1 };
        match random.random_range(0..11) {
            0..=4 => {
                blocks.push(own, record(id, bytes, key.0, id));
                model.push(Known { id, bytes, key, freed_at: id });
            }
            5..=7 => {
                let found = blocks.take(own, bytes, |_| true).map(id_of);
                assert_eq!(found, newest(&model, bytes, key).map(|known| known.id));
                if let Some(id) = found {
                    forget(&mut model, id);
                }
            }
            8 if by_size => {
                let sizes = bytes..=2 * bytes;
                let found = blocks.take_in_range(own, &sizes, |_| true).map(id_of);
                let fits = model.iter().filter(|it| it.key == key && sizes.contains(&it.bytes));
                let least = fits.map(|known| known.bytes).min();
                let expected = least.and_then(|bytes| newest(&model, bytes, key));
                assert_eq!(found, expected.map(|known| known.id));
                if let Some(id) = found {
                    forget(&mut model, id);
                }
            }
            9 => {
                let expected = to_evict(&blocks, &model);
                let found = blocks.take_to_evict().map(id_of);
                assert_eq!(found, expected.map(|known| known.id), "the largest of the oldest");
                if let Some(id) = found {
                    forget(&mut model, id);
                }
            }
            8 => {
                let found = blocks.take_oldest(u64::MAX, |_| true).map(id_of);
                assert_eq!(found, model.first().map(|known| known.id), "the oldest of all");
                if let Some(id) = found {
                    forget(&mut model, id);
                }
            }
            _ => {
                let sizes = bytes..=bytes;
                let of_kind = blocks.take_of_any(key.0, &sizes, Effort::All, |_| true).map(id_of);
                let any = model.iter().any(|it| it.key.0 == key.0 && it.bytes == bytes);
                assert_eq!(of_kind.is_some(), any);
                let known = of_kind.map(|id| forget(&mut model, id));
                assert!(known.is_none_or(|it| it.key.0 == key.0 && it.bytes == bytes));
            }
        }
        assert_eq!(blocks.iter().count(), model.len());
        assert_eq!(blocks.bytes, model.iter().map(|known| known.bytes).sum::<u64>());
        if id % 16 == 0 {
            blocks.check();
            let largest = model.iter().map(|known| known.bytes).max().unwrap_or(0);
            assert_eq!(blocks.largest(), largest);
            let own = model.iter().filter(|it| it.key == key && it.bytes == bytes);
            assert_eq!(blocks.count_of(own_key(key), bytes), own.count());
        }
    }
    put_back_one(&mut blocks, &model);
    blocks.check();
    let largest = blocks.take_largest(|_| true).map(|record| record.bytes);
    assert_eq!(largest, model.iter().map(|known| known.bytes).max());
}

/// A block that was taken out goes back to where it was by age.
fn put_back_one(blocks: &mut Blocks<Nothing>, model: &[Known]) {
    let Some(Known { bytes, key, .. }) = model.get(model.len() / 3).copied() else { return };
    let ages = |blocks: &Blocks<Nothing>| -> Vec<u64> {
        blocks.iter().map(|record| record.freed_at).collect()
    };
    let before = ages(blocks);
    let taken = blocks.take_of_any(key.0, &(bytes..=bytes), Effort::All, |_| true);
    let record = taken.expect("the model has one of this size");
    let known = model.iter().find(|known| known.freed_at == record.freed_at).unwrap();
    blocks.hold_room(&record);
    blocks.put_back(own_key(known.key), record);
    if before.len() < 64 {
        assert_eq!(ages(blocks), before, "by age");
    }
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
    let mut blocks = Blocks::<Nothing>::new(true);
    let key = Key { kind: 0, stream_id: 0 };
    for id in 0..10_000 {
        blocks.push(key, record(id, 64 + id, 0, id));
        assert_eq!(blocks.take(key, 64 + id, |_| true).map(id_of), Some(id));
    }
    assert!(blocks.places() <= 64, "{} places", blocks.places());
    blocks.check();
}
