//! Whole caches under random schedules, by shuttle: more threads and longer ways than loom can try.
//! A failure prints the schedule that replays it. `cargo xtask ci` runs it.
#![expect(unsafe_code, reason = "an allocator is called through pointers")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "each block is freed once, by its owner")]

use super::*;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::alloc::Layout;
use std::collections::HashSet;

/// Schedules of each model.
const SCHEDULES: usize = 300;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20; // a cache is made on it
    let schedules = shuttle::scheduler::RandomScheduler::new(SCHEDULES);
    shuttle::Runner::new(schedules, config).run(model);
}

/// Hands out numbers, and knows which of them are out.
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

struct World {
    cache: Cache,
    numbers: Numbers,
    /// What programs hold.
    live: Mutex<HashSet<usize>>,
}

const KIB: usize = 1 << 10;
const LIMIT: usize = 2048 * KIB;

fn world() -> Arc<World> {
    let cache = Cache::new();
    cache.configure(LIMIT, 64 * KIB, 10_000, 0);
    Arc::new(World { cache, numbers: Numbers::default(), live: Mutex::new(HashSet::new()) })
}

impl World {
    fn inner(&self) -> Inner<'_, Numbers> {
        Inner { allocator: &self.numbers, huge_pages: false }
    }

    fn allocate(&self, front: &Front, bytes: usize) -> (Class, usize) {
        let class = Class::of(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
        let hit = if class.is_of_front() {
            front.take(class)
        } else {
            self.cache.take_large(front, class)
        };
        let slow = || self.cache.allocate(Some(front), class, false, &self.inner()).0;
        let block = hit.unwrap_or_else(slow).addr();
        assert!(self.live.lock().unwrap().insert(block), "nobody else has it");
        (class, block)
    }

    fn free(&self, front: &Front, (class, block): (Class, usize)) {
        assert!(self.live.lock().unwrap().remove(&block));
        let block = std::ptr::without_provenance_mut(block);
        let kept = match class.is_of_front() {
            true => front.put(class, block),
            false => self.cache.put_large(front, class, block),
        };
        if !kept {
            unsafe { self.cache.free(Some(front), class, block, &self.inner()) };
        }
        assert!(self.cache.depot.leases.leased() <= LIMIT);
    }

    /// Everybody is gone: what is left is idle, and goes.
    fn check(&self) {
        self.cache.clear(None, &self.inner());
        // What a stack could not take when a thread left is with its front.
        for front in self.cache.fronts.iter() {
            self.cache.clear(Some(front), &self.inner());
        }
        assert!(self.numbers.0.lock().unwrap().1.is_empty(), "nothing is lost");
        self.cache.depot.reclaim_leases();
        assert_eq!(self.cache.depot.leases.leased(), 0);
    }
}

/// Threads that come and go, hand blocks over, and push each other's out of a small bound.
#[test]
fn model_threads_come_and_go() {
    check(|| {
        let world = world();
        let handed: Arc<Mutex<Vec<(Class, usize)>>> = Arc::default();
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (world, handed) = (world.clone(), handed.clone());
                thread::spawn(move || {
                    let front = world.cache.fronts.enter().unwrap();
                    for bytes in [64, 20 * KIB, 300 * KIB, 700 * KIB, 64] {
                        let own = world.allocate(front, bytes + number);
                        let other = world.allocate(front, bytes);
                        handed.lock().unwrap().push(other);
                        world.free(front, own);
                        let theirs = handed.lock().unwrap().pop();
                        theirs.into_iter().for_each(|block| world.free(front, block));
                    }
                    world.cache.leave(front);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.check();
    });
}

/// Somebody trims and lets time pass meanwhile.
#[test]
fn model_trimming_and_time() {
    check(|| {
        let world = world();
        let other = world.clone();
        let trims = thread::spawn(move || {
            for second in 1..6 {
                other.cache.decay(1000 * second, &other.inner());
                other.cache.trim(100 * KIB, &other.inner());
            }
        });
        let front = world.cache.fronts.enter().unwrap();
        for _ in 0..6 {
            let held = [64, 300 * KIB, 300 * KIB, 5 * KIB].map(|b| world.allocate(front, b));
            held.into_iter().for_each(|block| world.free(front, block));
        }
        world.cache.leave(front);
        trims.join().unwrap();
        world.check();
    });
}
