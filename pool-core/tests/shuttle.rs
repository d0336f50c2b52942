//! Pools under random schedules of threads, by shuttle: more threads and longer ways than loom can
//! try. A failure prints the schedule that replays it. `cargo xtask ci` runs it; `BUCKETPOOL_SCHEDULES`
//! sets how many are tried of each pool.
#![cfg(shuttle)]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::check::set_thread_number as set_number;
use pool_core::limits::FullBucket;
use pool_core::port::{Immediate, Limit, Memory, Request};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PoolBuilder,
    PooledBuffer, StreamClock, StreamOf, Why,
};
use pool_sim::SimDevice;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::collections::BTreeMap;
use std::time::Duration;

/// Schedules of each pool, unless the environment says how many.
const SCHEDULES: usize = 300;
/// Calls of each thread.
const STEPS: usize = 12;
const THREADS: usize = 3;

/// A number of things, and the most that there were at once.
#[derive(Clone, Copy, Default)]
struct Count {
    now: u64,
    most: u64,
}

impl Count {
    fn add(&mut self) {
        self.now += 1;
        self.most = self.most.max(self.now);
    }
}

/// Memory that tells where the bytes of a buffer are.
trait Tried: DeviceAllocator + Clone + Send + Sync + 'static {
    fn create() -> Self;
    /// From where to where.
    fn place(buffer: &PooledBuffer<Self>) -> (u64, u64);
    fn held(&self) -> u64;
    /// The blocks that it has given of each size.
    fn given(&self) -> BTreeMap<u64, Count>;
}

impl Tried for SimDevice {
    fn create() -> Self {
        Self::new()
    }
    fn place(buffer: &PooledBuffer<Self>) -> (u64, u64) {
        let on = buffer.allocator().clock().default_stream();
        let bytes = buffer.on(on).unwrap().bytes();
        (bytes.start, bytes.end)
    }
    fn held(&self) -> u64 {
        self.held_bytes()
    }
    fn given(&self) -> BTreeMap<u64, Count> {
        BTreeMap::new()
    }
}

/// Memory without streams whose blocks are cheap to make, as the host's: there shards are bounded by what
/// was needed. It has no bytes.
#[derive(Clone, Default)]
struct Cheap(Arc<std::sync::Mutex<Given>>);

#[derive(Default)]
struct Given {
    next: u64,
    of_size: BTreeMap<u64, Count>,
}

impl DeviceAllocator for Cheap {
    type Block = (u64, u64);
    type View<'b> = (u64, u64);
    type Kind = ();
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, request: Request<()>, (): &()) -> Result<(u64, u64), DeviceError> {
        thread::yield_now(); // a call to a device takes time
        let given = &mut *self.0.lock().unwrap();
        given.of_size.entry(request.bytes).or_default().add();
        given.next += request.bytes;
        Ok((given.next - request.bytes, given.next))
    }
    fn free(&self, (start, end): (u64, u64), _: &[()]) -> Result<(), DeviceError> {
        thread::yield_now();
        let given = &mut *self.0.lock().unwrap();
        let of_size = given.of_size.get_mut(&(end - start)).unwrap();
        of_size.now = of_size.now.checked_sub(1).unwrap();
        Ok(())
    }
    fn view<'b>(
        &'b self,
        block: &'b (u64, u64),
        at: u64,
        bytes: u64,
        (): &StreamOf<Self>,
    ) -> (u64, u64) {
        (block.0 + at, block.0 + at + bytes)
    }
    fn zero(&self, _: &mut (u64, u64), _: u64, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Tried for Cheap {
    fn create() -> Self {
        Self::default()
    }
    fn place(buffer: &PooledBuffer<Self>) -> (u64, u64) {
        *buffer.on(&()).unwrap()
    }
    fn held(&self) -> u64 {
        self.given().iter().map(|(bytes, count)| bytes * count.now).sum()
    }
    fn given(&self) -> BTreeMap<u64, Count> {
        self.0.lock().unwrap().of_size.clone()
    }
}

/// The buffers that threads share besides the pool.
struct Table<A: Tried> {
    /// Buffers that one thread left for another.
    left: Vec<PooledBuffer<A>>,
    /// The bytes of all live buffers, from where to where.
    live: BTreeMap<u64, u64>,
    /// Whether threads change the limits of the cache.
    limits_change: bool,
    /// Whether the pool takes more shards while threads use it.
    spreads: bool,
    /// Blocks of each size from before the request until after the free.
    wanted: BTreeMap<u64, Count>,
}

impl<A: Tried> Table<A> {
    fn new() -> Self {
        let (left, live, wanted) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { left, live, limits_change: false, spreads: false, wanted }
    }
    fn add(&mut self, buffer: &PooledBuffer<A>) {
        let (start, end) = A::place(buffer);
        let below = self.live.range(..end).next_back();
        assert!(below.is_none_or(|(_, other)| *other <= start), "two owners of one byte");
        self.live.insert(start, end);
    }

    fn remove(&mut self, buffer: &PooledBuffer<A>) {
        assert!(self.live.remove(&A::place(buffer).0).is_some(), "freed twice");
    }
    fn freed(&mut self, bytes: u64) {
        if let Some(wanted) = self.wanted.get_mut(&bytes) {
            wanted.now -= 1;
        }
    }
}

/// A buffer of `bytes` bytes, if the reserved limit allows it.
fn take<A: Tried>(
    pool: &BucketPool<A>,
    table: &Mutex<Table<A>>,
    bytes: u64,
) -> Option<PooledBuffer<A>> {
    let size = bytes.next_power_of_two().max(512);
    table.lock().unwrap().wanted.entry(size).or_default().add();
    match pool.allocate(bytes) {
        Ok(buffer) => {
            table.lock().unwrap().add(&buffer);
            Some(buffer)
        }
        Err(error) => {
            assert_eq!(error.why(), Why::Limit(Limit::Reserved), "{error}");
            table.lock().unwrap().freed(size);
            None
        }
    }
}

/// Frees a buffer, in the table first.
fn free<A: Tried>(table: &Mutex<Table<A>>, buffer: PooledBuffer<A>) {
    let size = buffer.size().next_power_of_two().max(512);
    table.lock().unwrap().remove(&buffer);
    drop(buffer);
    table.lock().unwrap().freed(size);
}

/// One of all that a program does with a pool.
fn step<A: Tried>(pool: &BucketPool<A>, table: &Mutex<Table<A>>, own: &mut Vec<PooledBuffer<A>>) {
    let choose = |count: usize| thread_rng().gen_range(0..count);
    match choose(18) {
        0..=6 => {
            let sizes = [64, 64, 4 * KIB, 8 * KIB];
            own.extend(take(pool, table, sizes[choose(sizes.len())]));
        }
        7..=9 => own.pop().into_iter().for_each(|buffer| free(table, buffer)),
        10 => table.lock().unwrap().left.append(own),
        11 => {
            let left = std::mem::take(&mut table.lock().unwrap().left);
            left.into_iter().for_each(|buffer| free(table, buffer));
        }
        // Blocks of one size for another thread to free.
        16 | 17 => {
            for buffer in (0..4).filter_map(|_| take(pool, table, 64)) {
                table.lock().unwrap().left.push(buffer);
            }
        }
        12 => assert!(pool.trim(4 * KIB).is_ok() && pool.shrink_to(8 * KIB).is_ok()),
        13 if table.lock().unwrap().limits_change => {
            pool.set_bucket_limit(choose(4)).unwrap();
            pool.set_cached_limit(8 * KIB + 8 * KIB * choose(3) as u64).unwrap();
        }
        13 if table.lock().unwrap().spreads => pool.take_shards(1 + choose(4)),
        13 => assert!(pool.clear().is_ok()),
        14 => assert!(pool.stats().allocated_bytes <= MIB && pool.tick(Duration::MAX).is_ok()),
        _ => assert!(pool.stats().deallocations <= pool.cached_buffers().len() as u64 + 1000),
    }
}

/// Asserts what holds when no thread is inside and no buffer is live.
fn check<A: Tried>(pool: &BucketPool<A>) {
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{stats}");
    assert_eq!(stats.allocations - stats.failures, stats.deallocations, "{stats}");
    let cached: u64 = pool.cached_buffers().iter().map(|(bytes, n)| bytes * *n as u64).sum();
    pool.check();
    assert!(pool.trim(0).is_ok());
    assert!(
        stats.cached_bytes >= cached,
        "deferred frees are cached, and are not buffers: {stats}"
    );
    assert_eq!(pool.stats().cached_bytes, pool.stats().reserved_bytes);
    assert!(pool.clear().is_ok());
    assert_eq!((pool.stats().reserved_bytes, pool.allocator().held()), (0, 0));
}

/// Asserts that the shards together had at most 1.5 times what was wanted at once of each size, and a block
/// for each thread that asked at once. Where a block serves smaller requests, which takes others' place, at
/// most twice what was wanted of all.
fn check_bound<A: Tried>(given: &BTreeMap<u64, Count>, table: &Table<A>, own_size_only: bool) {
    let (mut of_all, mut wanted_of_all) = (0, 0);
    for (bytes, given) in given {
        let wanted = table.wanted[bytes].most;
        let most = wanted + wanted / 2 + THREADS as u64;
        let own = !own_size_only || given.most <= most;
        assert!(own, "{} blocks of {bytes} bytes for {wanted}", given.most);
        of_all += bytes * given.most;
        wanted_of_all += bytes * (2 * wanted + THREADS as u64);
    }
    assert!(of_all <= wanted_of_all, "{of_all} bytes in all");
}

/// What threads do besides.
#[derive(Clone, Copy, Default)]
struct Also {
    /// A block serves requests of smaller sizes, too.
    larger_serve: bool,
    limits_change: bool,
    spreads: bool,
}

fn run<A: Tried>(builder: impl Fn(PoolBuilder<A>) -> PoolBuilder<A> + Send + Sync + 'static) {
    run_where(Also::default(), builder);
}

/// Tries schedules of a program.
fn try_schedules(program: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let count = std::env::var("BUCKETPOOL_SCHEDULES");
    let count = count.map_or(SCHEDULES, |count| count.parse().expect("a number of schedules"));
    let schedules = shuttle::scheduler::RandomScheduler::new(count);
    shuttle::Runner::new(schedules, config).run(program);
}

fn run_where<A: Tried>(
    Also { larger_serve, limits_change, spreads }: Also,
    builder: impl Fn(PoolBuilder<A>) -> PoolBuilder<A> + Send + Sync + 'static,
) {
    try_schedules(move || {
        set_number(0);
        let device = A::create();
        let pool = builder(BucketPool::builder(device.clone())).build();
        let table = Arc::new(Mutex::new(Table { limits_change, spreads, ..Table::new() }));
        let work = |number: usize| {
            let (pool, table) = (pool.clone(), table.clone());
            move || {
                set_number(number);
                let mut own = Vec::new();
                for at in 0..STEPS {
                    if spreads && (number, at) == (1, STEPS / 2) {
                        pool.take_shards(2);
                    }
                    step(&pool, &table, &mut own);
                }
                own.into_iter().for_each(|buffer| free(&table, buffer));
            }
        };
        let threads: Vec<_> = (1..THREADS).map(|number| thread::spawn(work(number))).collect();
        work(0)();
        for thread in threads {
            thread.join().unwrap();
        }
        let table = Arc::into_inner(table).unwrap().into_inner().unwrap();
        check_bound(&device.given(), &table, !larger_serve);
        drop(table);
        let shards = pool.check().free_by_shard.len();
        assert!(!spreads || shards > 1, "the pool has taken shards");
        check(&pool);
        drop(pool);
        assert_eq!(device.held(), 0);
    });
}

#[test]
fn model_of_blocks() {
    run::<SimDevice>(|builder| builder);
}

#[test]
fn model_of_blocks_under_a_cached_limit() {
    run::<SimDevice>(|builder| builder.cached_limit(16 * KIB));
}

#[test]
fn model_of_blocks_under_a_bucket_limit() {
    run::<SimDevice>(|builder| builder.bucket_limit(2));
}

#[test]
fn model_of_blocks_under_a_reserved_limit() {
    run::<SimDevice>(|builder| builder.reserved_limit(32 * KIB));
}

#[test]
fn model_of_an_arena() {
    run::<SimDevice>(|builder| builder.arena(ArenaConfig::segments(64 * KIB)));
}

#[test]
fn model_of_an_arena_in_pages() {
    run::<SimDevice>(|builder| {
        builder.arena(ArenaConfig::pages(4 * KIB, 0.5)).cached_limit(64 * KIB)
    });
}

#[test]
fn model_of_cheap_blocks_in_several_shards() {
    run::<Cheap>(|builder| builder.shards(2));
    run::<Cheap>(|builder| builder.shards(3));
}

#[test]
fn model_of_cheap_blocks_under_a_bucket_limit() {
    run::<Cheap>(|builder| builder.bucket_limit(2).shards(3));
    run::<Cheap>(|builder| {
        builder
            .bucket_limit(3)
            .full_bucket(FullBucket::RefuseNewest)
            .cached_limit(16 * KIB)
            .shards(2)
    });
}

#[test]
fn model_of_cheap_blocks_that_serve_smaller_requests() {
    run_where::<Cheap>(Also { larger_serve: true, ..Also::default() }, |builder| {
        builder.policy(BucketPolicy::Fit { alpha: 2.0 }).shards(3)
    });
}

#[test]
fn model_of_cheap_blocks_whose_limits_change() {
    run_where::<Cheap>(Also { limits_change: true, ..Also::default() }, |builder| {
        builder.bucket_limit(3).cached_limit(16 * KIB).shards(3)
    });
    run_where::<Cheap>(Also { limits_change: true, ..Also::default() }, |builder| {
        builder.bucket_limit(3).shards(1)
    });
}

#[test]
fn model_of_cheap_blocks_in_a_pool_that_takes_shards() {
    run_where::<Cheap>(Also { spreads: true, ..Also::default() }, |builder| builder);
}

#[test]
fn model_of_an_arena_that_takes_shards() {
    let arena = ArenaConfig::segments(64 * KIB);
    run_where::<SimDevice>(Also { spreads: true, ..Also::default() }, move |builder| {
        builder.arena(arena.clone())
    });
}

/// Handles go in any order, and buffers outlive them: those of a thread, and those that it left for another.
fn close_while_in_use<A: Tried>(
    builder: impl Fn(PoolBuilder<A>) -> PoolBuilder<A> + Send + Sync + 'static,
) {
    try_schedules(move || {
        set_number(0);
        let device = A::create();
        let pool = builder(BucketPool::builder(device.clone())).build();
        let table = Arc::new(Mutex::new(Table { spreads: true, ..Table::new() }));
        let work = |number: usize| {
            let (pool, table) = (pool.clone(), table.clone());
            move || {
                set_number(number);
                let mut own = Vec::new();
                (0..STEPS / 2).for_each(|_| step(&pool, &table, &mut own));
                drop(pool);
                own.into_iter().for_each(|buffer| free(&table, buffer));
                let left = std::mem::take(&mut table.lock().unwrap().left);
                left.into_iter().for_each(|buffer| free(&table, buffer));
            }
        };
        let works: Vec<_> = (0..THREADS).map(work).collect();
        drop(pool);
        let mut works = works.into_iter();
        let own = works.next().unwrap();
        let threads: Vec<_> = works.map(thread::spawn).collect();
        own();
        for thread in threads {
            thread.join().unwrap();
        }
        let table = Arc::into_inner(table).unwrap().into_inner().unwrap();
        assert!(table.live.len() == table.left.len(), "each buffer was freed, or left in the end");
        drop(table);
        assert_eq!(device.held(), 0, "the last buffer took all memory with it");
    });
}

#[test]
fn model_of_blocks_whose_pool_closes() {
    close_while_in_use::<SimDevice>(|builder| builder);
}

#[test]
fn model_of_cheap_blocks_whose_pool_closes() {
    close_while_in_use::<Cheap>(|builder| builder.shards(3));
}

#[test]
fn model_of_an_arena_whose_pool_closes() {
    close_while_in_use::<SimDevice>(|builder| builder.arena(ArenaConfig::segments(64 * KIB)));
}
