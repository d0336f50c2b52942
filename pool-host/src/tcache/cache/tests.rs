#![expect(unsafe_code, reason = "an allocator is called through pointers")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block is freed once, as its model says, and that is what is tested"
)]

use super::super::stats::TcacheStats;
use super::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

mod loads;

const NULL: *mut u8 = std::ptr::null_mut();
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// An allocator with a budget, which checks that each block comes back as it was handed out.
#[derive(Debug, Default)]
struct Below {
    live: AtomicUsize,
    budget: AtomicUsize,
    calls: AtomicUsize,
}

impl Below {
    fn new(budget: usize) -> Self {
        Self { budget: AtomicUsize::new(budget), ..Self::default() }
    }

    fn inner(&self) -> Inner<'_, Self> {
        Inner { allocator: self, huge_pages: false }
    }

    fn live(&self) -> usize {
        self.live.load(Relaxed)
    }
}

unsafe impl GlobalAlloc for Below {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Relaxed);
        if self.live() + layout.size() > self.budget.load(Relaxed) {
            return std::ptr::null_mut();
        }
        self.live.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

fn cache(limit: usize, lease: usize) -> Cache {
    let cache = Cache::new();
    cache.configure(limit, lease, 10_000, 0);
    cache
}

fn class(bytes: usize) -> Class {
    Class::of(Layout::from_size_align(bytes, 8).unwrap()).unwrap()
}

/// What a thread's shell does.
fn allocate(cache: &Cache, front: Option<&Front>, class: Class, below: &Below) -> *mut u8 {
    let hit = front.and_then(|front| match class.is_of_front() {
        true => front.take(class),
        false => cache.take_large(front, class),
    });
    hit.unwrap_or_else(|| cache.allocate(front, class, false, &below.inner()).0)
}

fn free(cache: &Cache, front: Option<&Front>, class: Class, block: *mut u8, below: &Below) {
    let kept = front.is_some_and(|front| match class.is_of_front() {
        true => front.put(class, block),
        false => cache.put_large(front, class, block),
    });
    if !kept {
        unsafe { cache.free(front, class, block, &below.inner()) };
    }
}

/// What lies idle is leased, and what is leased is within the bound.
fn check(cache: &Cache, below: &Below, live: usize) -> TcacheStats {
    let stats = cache.stats();
    assert!(stats.cached_bytes() <= stats.leased_bytes, "{stats:?}");
    assert!(stats.leased_bytes <= stats.cached_limit_bytes, "{stats:?}");
    assert_eq!(stats.live_bytes, live as u64, "{stats:?}");
    assert_eq!(below.live() as u64, stats.live_bytes + stats.cached_bytes(), "{stats:?}");
    stats
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 11).unwrap() % most
    }
}

/// Random requests of three threads' fronts and of a thread without one, against a list of what is
/// alive: no two blocks overlap, each keeps what was written, and the bound holds at each step.
#[test]
fn blocks_are_nobody_elses_and_the_bound_holds_at_each_step() {
    let seed = std::env::var("SEED").map_or(88_172_645_463_325_252, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random(seed);
    let below = Below::new(usize::MAX);
    let cache = cache(6 * MIB, 512 * KIB);
    let fronts: Vec<_> = (0..3).map(|_| cache.fronts.enter().unwrap()).collect();
    let mut live: BTreeMap<usize, (Class, u8)> = BTreeMap::new();
    let mut bytes = 0;
    for step in 0..if cfg!(miri) { 600 } else { 60_000 } {
        let front = fronts.get(random.below(4)).copied();
        if live.len() > 200 || (random.below(2) == 0 && !live.is_empty()) {
            let at = *live.keys().nth(random.below(live.len())).unwrap();
            let (class, mark) = live.remove(&at).unwrap();
            let block = std::ptr::with_exposed_provenance_mut::<u8>(at);
            for byte in [0, class.bytes() / 2, class.bytes() - 1] {
                assert_eq!(unsafe { block.add(byte).read() }, mark, "step {step}");
            }
            free(&cache, front, class, block, &below);
            bytes -= class.bytes();
        } else {
            let most = [100, 2000, 300 * KIB, 2 * MIB][random.below(4)];
            let class = class(random.below(most) + 1);
            let block = allocate(&cache, front, class, &below);
            let at = block.expose_provenance();
            let before = live.range(..=at).next_back();
            assert!(before.is_none_or(|(start, (class, _))| start + class.bytes() <= at));
            assert!(live.range(at..).next().is_none_or(|(next, _)| at + class.bytes() <= *next));
            let mark = u8::try_from(random.below(256)).unwrap();
            unsafe { block.write_bytes(mark, class.bytes()) };
            live.insert(at, (class, mark));
            bytes += class.bytes();
        }
        check(&cache, &below, bytes);
    }
    let stats = cache.stats();
    assert!(stats.hits > 5000 && stats.evictions > 100 && stats.refills > 100, "{stats:?}");
    for (at, (class, _)) in live {
        free(&cache, None, class, std::ptr::with_exposed_provenance_mut(at), &below);
    }
    for front in fronts {
        cache.leave(front);
    }
    assert_eq!(check(&cache, &below, 0).front_bytes, 0);
    cache.clear(None, &below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}

#[test]
fn the_newest_comes_first_and_the_oldest_goes_first() {
    let below = Below::new(usize::MAX);
    let cache = cache(8 * MIB, MIB);
    let front = cache.fronts.enter();
    let of = |mib: usize| class(mib * MIB);
    let blocks: Vec<_> = (0..3).map(|_| allocate(&cache, front, of(2), &below)).collect();
    for block in &blocks {
        free(&cache, front, of(2), *block, &below);
    }
    let newest = allocate(&cache, front, of(2), &below);
    assert_eq!(newest, blocks[2]);
    free(&cache, front, of(2), newest, &below);
    // 6 of 8 MiB are idle; 3 more do not fit, so the first two go.
    let other = allocate(&cache, front, of(3), &below);
    free(&cache, front, of(3), other, &below);
    let stats = check(&cache, &below, 0);
    assert_eq!((stats.evictions, stats.depot_bytes), (1, 7 * MIB as u64));
    assert_eq!(allocate(&cache, front, of(2), &below), blocks[2]);
    assert_eq!(allocate(&cache, front, of(2), &below), blocks[1]);
    let fresh = below.calls.load(Relaxed);
    allocate(&cache, front, of(2), &below);
    assert_eq!(below.calls.load(Relaxed), fresh + 1, "the first is gone");
}

#[test]
fn a_block_of_more_than_half_the_bound_is_not_kept() {
    let below = Below::new(usize::MAX);
    let cache = cache(80 * MIB, MIB);
    let (small, large) = (class(20 * MIB), class(48 * MIB));
    let block = allocate(&cache, None, small, &below);
    free(&cache, None, small, block, &below);
    let block = allocate(&cache, None, large, &below);
    free(&cache, None, large, block, &below);
    assert_eq!(check(&cache, &below, 0).depot_bytes, 20 * MIB as u64);
}

/// Above 4 MiB: aligned, zeroed when asked for, and so after growing; each goes back as it came.
#[test]
fn huge_pages_are_a_matter_of_the_class() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let inner = Inner { allocator: &below, huge_pages: true };
    let mut block = NULL;
    for (old, new) in [(0, 3), (3, 5), (5, 40), (40, 2)] {
        let is_huge = new >= 4;
        let (from, to) = (class(old.max(1) * MIB), class(new * MIB));
        block = match old {
            0 => cache.allocate(None, to, true, &inner).0,
            _ => unsafe { cache.resize(None, block, from, to, &inner) },
        };
        assert!(!is_huge || block.addr().is_multiple_of(2 * MIB), "{new} MiB");
        if old == 0 {
            unsafe { block.write_bytes(7, to.bytes()) };
        }
        let kept = if old == 0 { new } else { old.min(new).min(3) } * MIB;
        let bytes = unsafe { std::slice::from_raw_parts(block, kept) };
        assert!(bytes.iter().all(|byte| *byte == 7), "{old} to {new} MiB");
    }
    unsafe { cache.free(None, class(2 * MIB), block, &inner) };
    let zeroed = cache.allocate(None, class(9 * MIB), true, &inner).0;
    let bytes = unsafe { std::slice::from_raw_parts(zeroed, 9 * MIB) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    unsafe { cache.free(None, class(9 * MIB), zeroed, &inner) };
    cache.clear(None, &inner);
    assert_eq!(below.live(), 0);
}

#[test]
fn out_of_memory_gives_back_what_is_idle_and_asks_once_more() {
    let below = Below::new(4 * MIB);
    let cache = cache(64 * MIB, MIB);
    let front = cache.fronts.enter();
    for bytes in [2 * MIB, MIB, 16 * KIB, 64] {
        let block = allocate(&cache, front, class(bytes), &below);
        free(&cache, front, class(bytes), block, &below);
    }
    let idle = check(&cache, &below, 0);
    assert_eq!(idle.cached_bytes(), (3 * MIB + 16 * KIB + 64) as u64);
    let all = allocate(&cache, front, class(4 * MIB), &below);
    assert!(!all.is_null());
    assert_eq!(check(&cache, &below, 4 * MIB).cached_bytes(), 0);
    for bytes in [64, 5 * MIB] {
        assert!(allocate(&cache, front, class(bytes), &below).is_null());
        check(&cache, &below, 4 * MIB);
    }
    free(&cache, front, class(4 * MIB), all, &below);
    assert!(!allocate(&cache, front, class(64), &below).is_null(), "the next call works");
}

#[test]
fn what_nobody_needs_goes_back_in_time() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let live: Vec<_> = (0..64).map(|_| allocate(&cache, None, class(MIB), &below)).collect();
    for block in live {
        free(&cache, None, class(MIB), block, &below);
    }
    let idle = || cache.stats().depot_bytes / MIB as u64;
    cache.decay(999, &below.inner());
    assert_eq!(idle(), 64, "not before a tenth of the time");
    // All of them were in use since the last time; half of what is idle from then on goes each
    // time.
    cache.decay(1000, &below.inner());
    let mut before = idle();
    for second in 2..=12 {
        cache.decay(1000 * second, &below.inner());
        assert!(idle() <= before.div_ceil(2), "{second} s: {} of {before}", idle());
        before = idle();
    }
    assert_eq!(idle(), 0);
    let block = allocate(&cache, None, class(64 * MIB), &below);
    free(&cache, None, class(64 * MIB), block, &below);
    cache.decay(3_600_000, &below.inner());
    check(&cache, &below, 0);
    assert_eq!(idle(), 0, "an hour went by at once");
}

/// A program that grows by more than what is idle has no use for it.
#[test]
fn what_a_small_program_does_not_need_while_it_grows_goes_back() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let live: Vec<_> = (0..4).map(|_| allocate(&cache, None, class(MIB), &below)).collect();
    for block in live {
        free(&cache, None, class(MIB), block, &below);
    }
    let idle = || cache.stats().depot_bytes / MIB as u64;
    assert_eq!(idle(), 4);
    let grown: Vec<_> =
        (1..40).map(|n| allocate(&cache, None, class(300 * KIB + n * 40 * KIB), &below)).collect();
    assert_eq!(idle(), 0, "{} blocks", grown.len());
}

#[test]
fn a_thousand_short_threads_strand_nothing() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let work = |front: &'static Front| {
        for bytes in [16, 64, 1000, 5000, 100 * KIB, MIB] {
            let blocks: Vec<_> =
                (0..30).map(|_| allocate(&cache, Some(front), class(bytes), &below)).collect();
            for block in blocks {
                free(&cache, Some(front), class(bytes), block, &below);
            }
        }
        cache.leave(front);
    };
    for _ in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| work(cache.fronts.enter().unwrap()));
            scope.spawn(|| work(cache.fronts.enter().unwrap()));
        });
    }
    let stats = check(&cache, &below, 0);
    assert_eq!(stats.front_bytes, 0, "{stats:?}");
    let unused = stats.leased_bytes - stats.cached_bytes();
    assert!(unused <= 2 * MIB as u64, "leases do not pile up: {stats:?}");
    assert!(stats.fronts <= 2, "{stats:?}");
    // Not more than two threads held at once.
    let of_one: usize =
        [16, 64, 1000, 5000, 100 * KIB, MIB].map(|b| 30 * class(b).bytes()).iter().sum();
    assert!(stats.depot_bytes <= 2 * of_one as u64, "{stats:?}");
    cache.clear(None, &below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}

#[test]
fn a_front_that_cannot_give_up_its_blocks_hands_them_to_the_next_thread() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let front = cache.fronts.enter().unwrap();
    let block = allocate(&cache, Some(front), class(64), &below);
    free(&cache, Some(front), class(64), block, &below);
    cache.depot.while_held(class(64), || cache.leave(front));
    assert_eq!(check(&cache, &below, 0).front_bytes, 64);
    let next = cache.fronts.enter().unwrap();
    assert_eq!(allocate(&cache, Some(next), class(64), &below), block);
}

/// A child that was forked while another thread was in a stack goes past it.
#[test]
fn a_stack_that_is_held_for_ever_is_passed_by() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, 0);
    for bytes in [64, MIB] {
        let block = allocate(&cache, None, class(bytes), &below);
        free(&cache, None, class(bytes), block, &below);
        let hot = (bytes == MIB).then(|| allocate(&cache, None, class(bytes), &below));
        cache.depot.while_held(class(bytes), || {
            let calls = below.calls.load(Relaxed);
            let other = allocate(&cache, None, class(bytes), &below);
            assert_eq!(below.calls.load(Relaxed), calls + 1);
            free(&cache, None, class(bytes), other, &below);
            cache.clear(None, &below.inner());
            // Another class is none the worse.
            let other = allocate(&cache, None, class(512), &below);
            free(&cache, None, class(512), other, &below);
            assert_eq!(allocate(&cache, None, class(512), &below), other);
            free(&cache, None, class(512), other, &below);
        });
        if let Some(hot) = hot {
            free(&cache, None, class(bytes), hot, &below);
        }
    }
    check(&cache, &below, 0);
}

/// Two threads hand blocks to each other through the depot, and a third trims and decays.
#[test]
fn blocks_wander_between_threads() {
    let below = Below::new(usize::MAX);
    let cache = cache(4 * MIB, 256 * KIB);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (to_other, from_other) = std::sync::mpsc::sync_channel::<(usize, Class)>(64);
        let (cache, below, done) = (&cache, &below, &done);
        scope.spawn(move || {
            let front = cache.fronts.enter().unwrap();
            let mut random = Random(7);
            for _ in 0..if cfg!(miri) { 300 } else { 60_000 } {
                let class = class([64, 4 * KIB, 64 * KIB, 300 * KIB][random.below(4)]);
                let block = allocate(cache, Some(front), class, below);
                unsafe { block.write(1) };
                to_other.send((block.expose_provenance(), class)).unwrap();
            }
            cache.leave(front);
        });
        scope.spawn(move || {
            let front = cache.fronts.enter().unwrap();
            for (at, class) in from_other {
                let block = std::ptr::with_exposed_provenance_mut::<u8>(at);
                assert_eq!(unsafe { block.replace(2) }, 1, "nobody else wrote to it");
                free(cache, Some(front), class, block, below);
            }
            cache.leave(front);
            done.store(true, Relaxed);
        });
        scope.spawn(move || {
            let mut now = 0;
            while !done.load(Relaxed) {
                now += 1000;
                cache.decay(now, &below.inner());
                cache.trim(64 * KIB, &below.inner());
                assert!(cache.depot.leases.leased() <= 4 * MIB);
                std::thread::yield_now();
            }
        });
    });
    check(&cache, &below, 0);
    cache.clear(None, &below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}
