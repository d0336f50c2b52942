//! Models of whole caches under random schedules of shuttle, with more threads and longer runs than
//! loom can explore.
//!
//! A failure prints the schedule that replays it. `cargo xtask ci` runs the models.
#![expect(unsafe_code, reason = "an allocator is called through pointers")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "each block is freed once, by its owner")]

use super::*;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::alloc::Layout;
use std::collections::HashSet;

/// Number of schedules that each model runs.
const SCHEDULES: usize = 3000;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20; // `Cache::new` builds the cache on the stack
    let schedules = shuttle::scheduler::RandomScheduler::new(SCHEDULES);
    shuttle::Runner::new(schedules, config).run(model);
}

/// An inner allocator that returns numbers instead of addresses and records which of them are live.
#[derive(Default)]
struct Numbers(std::sync::Mutex<(usize, HashSet<usize>)>);

unsafe impl GlobalAlloc for Numbers {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        let mut numbers = self.0.lock().unwrap();
        numbers.0 += 16;
        let number = numbers.0;
        assert!(numbers.1.insert(number));
        std::ptr::without_provenance_mut(number)
    }
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        assert!(self.0.lock().unwrap().1.remove(&block.addr()), "freed twice");
    }
}

/// A cache, its inner allocator, and the blocks that the program has.
struct World {
    cache: Cache,
    numbers: Numbers,
    /// Addresses of the blocks that the program has.
    live: Mutex<HashSet<usize>>,
}

const KIB: usize = 1 << 10;
const LIMIT: usize = 512 * KIB;

fn world() -> Arc<World> {
    let cache = Cache::new();
    // Without pages: all blocks come from `Numbers`.
    cache.pages.reserve_at_most(0);
    cache.configure(LIMIT, 64 * KIB, 10_000, 0);
    Arc::new(World { cache, numbers: Numbers::default(), live: Mutex::new(HashSet::new()) })
}

impl World {
    fn inner(&self) -> Inner<'_, Numbers> {
        Inner(&self.numbers)
    }

    fn allocate(&self, local: &ThreadCache, bytes: usize) -> (Class, usize) {
        let class = Class::of(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
        let slow = || self.cache.allocate(Some(local), class, false, &self.inner()).block;
        let block = local.take(class).unwrap_or_else(slow).addr();
        assert!(self.live.lock().unwrap().insert(block), "nobody else has it");
        (class, block)
    }

    fn free(&self, local: &ThreadCache, (class, block): (Class, usize)) {
        assert!(self.live.lock().unwrap().remove(&block));
        let block = std::ptr::without_provenance_mut(block);
        let kept = local.put(class, block);
        if !kept {
            unsafe { self.cache.free(Some(local), class, block, &self.inner()) };
        }
    }

    /// Clears the cache after all threads ended, and checks that no block is left.
    fn check(&self) {
        self.cache.clear(None, &self.inner());
        assert!(self.numbers.0.lock().unwrap().1.is_empty(), "nothing is lost");
    }
}

/// Three threads allocate, free each other's blocks, evict each other's blocks from a small cache,
/// and end.
#[test]
fn model_threads_that_exchange_blocks_and_end_lose_none() {
    check(|| {
        let world = world();
        let handed: Arc<Mutex<Vec<(Class, usize)>>> = Arc::default();
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (world, handed) = (world.clone(), handed.clone());
                thread::spawn(move || {
                    let local = world.cache.thread_caches.enter().unwrap();
                    for bytes in [64, 20 * KIB, 5 * KIB, 40 * KIB, 64] {
                        let own = world.allocate(local, bytes + number);
                        let other = world.allocate(local, bytes);
                        handed.lock().unwrap().push(other);
                        world.free(local, own);
                        let theirs = handed.lock().unwrap().pop();
                        theirs.into_iter().for_each(|block| world.free(local, block));
                    }
                    world.cache.leave(local);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.check();
    });
}

/// One thread allocates and frees while another trims the cache and lets blocks decay.
#[test]
fn model_trim_and_decay_lose_no_block() {
    check(|| {
        let world = world();
        let other = world.clone();
        let trims = thread::spawn(move || {
            for second in 1..6 {
                other.cache.look(1000 * second, None, &other.inner());
                other.cache.trim(100 * KIB);
            }
        });
        let local = world.cache.thread_caches.enter().unwrap();
        for _ in 0..6 {
            let held = [64, 20 * KIB, 20 * KIB, 5 * KIB].map(|b| world.allocate(local, b));
            held.into_iter().for_each(|block| world.free(local, block));
        }
        world.cache.leave(local);
        trims.join().unwrap();
        world.check();
    });
}

/// Cached blocks are taken back from two threads while these allocate and free in the same class.
#[test]
fn model_taking_blocks_back_from_working_threads_loses_none() {
    check(|| {
        let world = world();
        let owners: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    let local = world.cache.thread_caches.enter().unwrap();
                    for round in 0..8 {
                        let held: Vec<_> =
                            (0..=round % 3).map(|_| world.allocate(local, 64)).collect();
                        held.into_iter().for_each(|block| world.free(local, block));
                    }
                    world.cache.leave(local);
                })
            })
            .collect();
        for second in 1..12 {
            world.cache.look(1000 * second, None, &world.inner());
            if second % 4 == 0 {
                world.cache.clear(None, &world.inner());
            }
        }
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        world.check();
    });
}

/// A thread takes and puts blocks while another stops it. Each block then belongs to the one or the
/// other, or is still in the bin.
#[test]
fn model_each_block_of_a_stopped_thread_has_one_owner() {
    check(|| {
        let world = world();
        let class = Class::numbered(0);
        let local = world.cache.thread_caches.enter().unwrap();
        let held = local.hold().unwrap();
        held.widen(class, usize::MAX);
        for number in 1..=3 {
            let mut batch = Batch::EMPTY;
            batch.add(std::ptr::without_provenance_mut(16 * number));
            held.count_allocation(class);
            held.fill(class, &mut batch);
        }
        drop(held);
        let owner = thread::spawn(move || {
            let mut out: Vec<_> = (0..2).filter_map(|_| local.take(class)).map(addr).collect();
            if let Some(last) = out.pop()
                && !local.put(class, std::ptr::without_provenance_mut(last))
            {
                out.push(last);
            }
            out
        });
        let mut all = vec![];
        for _ in 0..2 {
            if let Some(stopped) = local.stop() {
                all.extend(stopped.pop(class).map(addr));
            }
        }
        all.extend(owner.join().unwrap());
        let held = local.hold().unwrap();
        all.extend(std::iter::from_fn(|| held.pop(class)).map(addr));
        all.sort_unstable();
        assert_eq!(all, [16, 32, 48]);
    });
}

/// Three threads begin and end while others do. Each thread cache has one owner at a time.
#[test]
fn model_no_thread_cache_has_two_owners() {
    check(|| {
        let world = world();
        let owned: Arc<Mutex<HashSet<usize>>> = Arc::default();
        let begins = |world: &World, owned: &Mutex<HashSet<usize>>| {
            let local = world.cache.thread_caches.enter().unwrap();
            assert!(owned.lock().unwrap().insert(std::ptr::from_ref(local).addr()), "two owners");
            local
        };
        let ends = |world: &World, owned: &Mutex<HashSet<usize>>, local: &ThreadCache| {
            assert!(owned.lock().unwrap().remove(&std::ptr::from_ref(local).addr()));
            world.cache.thread_caches.leave(local, true);
        };
        let first = [(); 3].map(|()| begins(&world, &owned));
        first.into_iter().for_each(|local| ends(&world, &owned, local));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (world, owned) = (world.clone(), owned.clone());
                thread::spawn(move || {
                    for _ in 0..4 {
                        // Some have two at a time, so that one comes back below another.
                        let local = begins(&world, &owned);
                        let other = (number > 0).then(|| begins(&world, &owned));
                        ends(&world, &owned, local);
                        other.into_iter().for_each(|local| ends(&world, &owned, local));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let count = world.cache.thread_caches.iter().count();
        for _ in 0..count {
            begins(&world, &owned);
        }
        assert_eq!(world.cache.thread_caches.iter().count(), count, "none is lost");
    });
}

fn addr(block: *mut u8) -> usize {
    block.addr()
}
