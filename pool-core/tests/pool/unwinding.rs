//! A panic of the allocator in a call that ends something, or that prepares something: nothing is
//! lost with it but the block of that call.

use crate::hooked::outcome;
use pool_core::limits::{Budget, CachedLimit};
use pool_core::port::{Memory, Zeroing};
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, DeviceError, MIB, PoolBuilder, PrivatePool,
    StreamClock, ZeroPolicy,
};
use pool_sim::{Call, Claims, Hooked, Hooks, SimDevice};
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};

/// Which of the next calls panics, counted from one; 0 for none.
type Fuse = Arc<AtomicU64>;

/// Counts a call.
fn burn(fuse: &Fuse) {
    let before = fuse.try_update(SeqCst, SeqCst, |left| left.checked_sub(1));
    if before == Ok(1) {
        resume_unwind(Box::new("on purpose"));
    }
}

/// A device each of whose calls may panic.
struct Burns(Fuse);

impl Hooks<SimDevice> for Burns {
    fn before(&self, _: &SimDevice, _: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        burn(&self.0);
        Ok(())
    }
}

fn builder(device: &SimDevice) -> (PoolBuilder<Hooked<SimDevice>>, Fuse) {
    let fuse = Fuse::default();
    let allocator = Hooked::with(device.clone(), Burns(fuse.clone()));
    (BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited), fuse)
}

#[test]
fn a_pool_whose_free_panics_while_it_closes_keeps_nothing_else() {
    for arena in [None, Some(ArenaConfig::segments(MIB)), Some(ArenaConfig::grow())] {
        for at in 1..=3 {
            let (device, budget) = (SimDevice::new(), Budget::new(8 * MIB));
            let (builder, fuse) = builder(&device);
            let builder = builder.budget(&budget);
            let pool = match arena.clone() {
                Some(config) => builder.arena(config).build(),
                None => builder.build(),
            };
            drop([pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap()]);
            fuse.store(at, SeqCst);
            let panicked = outcome(|| drop(pool)).is_none();
            let what = format!("{arena:?}, call {at}");
            assert_eq!(panicked, fuse.load(SeqCst) == 0, "{what}: the panic was swallowed");
            assert_eq!(device.clones(), 1, "{what}: the store is alive");
            assert_eq!(budget.reserved_bytes(), 0, "{what}: the budget");
            assert!(device.held_bytes() <= MIB, "{what}: {} bytes", device.held_bytes());
        }
    }
}

#[test]
fn a_closure_that_panics_when_it_goes_keeps_no_pool() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new("on purpose"));
        }
    }
    let (device, budget, bomb) = (SimDevice::new(), Budget::new(8 * MIB), Bomb);
    let builder = BucketPool::builder(device.clone()).budget(&budget);
    let pool = builder
        .on_shortage(move |_| {
            let _kept = &bomb;
            false
        })
        .build();
    drop(pool.allocate(MIB).unwrap());
    assert!(outcome(|| drop(pool)).is_none(), "the panic was swallowed");
    assert_eq!((device.clones(), device.held_bytes(), budget.reserved_bytes()), (1, 0, 0));
}

#[test]
fn a_buffer_whose_free_panics_gives_up_its_pool() {
    for is_detached in [true, false] {
        let device = SimDevice::new();
        let (builder, fuse) = builder(&device);
        let pool = builder.build();
        let buffer = pool.allocate(MIB).unwrap();
        let happened = if is_detached {
            fuse.store(1, SeqCst);
            let happened = outcome(|| buffer.detach().free()).is_some();
            assert_eq!(pool.stats().deallocations, 1);
            drop(pool);
            happened
        } else {
            drop(pool);
            fuse.store(1, SeqCst);
            outcome(|| drop(buffer)).is_some()
        };
        assert!(!happened, "detached: {is_detached}: the panic was swallowed");
        assert_eq!(device.clones(), 1, "detached: {is_detached}: the store is alive");
    }
}

/// A device whose zeroing is done when the call returns, and which a drop may call. Both its
/// zeroing and its free may panic.
struct AtOnce(Fuse);

impl Claims<SimDevice> for AtOnce {
    const MEMORY: Memory =
        Memory { zeroing: Zeroing::AtOnce, free_in_drop: true, ..Memory::DEVICE };
}

impl Hooks<SimDevice> for AtOnce {
    fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        if matches!(call, Call::Free { .. } | Call::Zero { .. }) {
            burn(&self.0);
        }
        Ok(())
    }
}

#[test]
fn a_buffer_whose_zeroing_panics_when_it_is_freed_is_free() {
    for is_detached in [false, true] {
        let (device, fuse) = (SimDevice::new(), Fuse::default());
        let allocator = Hooked::with(device.clone(), AtOnce(fuse.clone())).claiming::<AtOnce>();
        let pool = BucketPool::builder(allocator).zero(ZeroPolicy::OnReturn).build();
        let buffer = pool.allocate(MIB).unwrap();
        let clock = pool.allocator().clock();
        clock.synchronize(clock.mark(clock.default_stream())).unwrap(); // no stream may read it
        fuse.store(1, SeqCst);
        let happened = match is_detached {
            true => outcome(|| assert!(buffer.detach().free().is_ok())),
            false => outcome(|| drop(buffer)),
        };
        assert!(happened.is_none(), "the panic was swallowed");
        let stats = pool.stats();
        assert_eq!((stats.allocated_bytes, stats.deallocations), (0, 1), "{stats}");
        drop(pool);
        assert_eq!((device.clones(), device.held_bytes()), (1, 0));
    }
}

/// Another pool of the budget waits for the memory that a closed pool gives back.
#[test]
fn a_pool_that_ends_with_a_panic_wakes_a_request() {
    let (device, budget) = (SimDevice::new(), Budget::new(MIB));
    let (builder, fuse) = builder(&device);
    let pool = builder.budget(&budget).arena(ArenaConfig::grow()).build();
    let other = BucketPool::builder(SimDevice::new()).budget(&budget).build();
    let last = pool.allocate(MIB).unwrap();
    drop(pool);
    let calls = Arc::new(Calls::default());
    let mut request = pin!(other.allocate_async(MIB));
    let waker = Waker::from(calls.clone());
    assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    fuse.store(2, SeqCst); // the pages go, and then the release of the addresses panics
    assert!(outcome(|| drop(last)).is_none(), "the panic was swallowed");
    assert_eq!((calls.0.load(SeqCst), budget.reserved_bytes(), device.clones()), (1, 0, 1));
    assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// Counts its calls.
#[derive(Default)]
struct Calls(AtomicU64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn an_arena_that_panics_while_it_warms_up_keeps_what_it_has() {
    let device = SimDevice::new();
    let (builder, fuse) = builder(&device);
    let pool = builder.arena(ArenaConfig::segments(MIB)).build();
    fuse.store(2, SeqCst);
    assert!(outcome(|| pool.warm_up(&[(MIB, 2)])).is_none(), "the panic was swallowed");
    let stats = pool.stats();
    assert_eq!((stats.cached_bytes, stats.reserved_bytes, stats.lost_bytes), (MIB, MIB, 0));
    assert_eq!((pool.clear().unwrap(), device.held_bytes()), (MIB, 0));
}

#[test]
fn a_private_pool_whose_blocks_panic_when_they_go_loses_only_those() {
    let (device, fuse) = (SimDevice::new(), Fuse::default());
    // Nothing is cached, so each block goes to the device.
    let allocator = Hooked::with(device, AtOnce(fuse.clone())).claiming::<AtOnce>();
    let pool = BucketPool::builder(allocator).cached_limit(0).build();
    let private = PrivatePool::new(&pool);
    private.bind(pool.default_stream()).unwrap();
    let live: Vec<_> = (0..4).map(|_| pool.allocate(MIB).unwrap()).collect();
    drop(live);
    private.end(&[]);
    assert_eq!(pool.stats().private_bytes, 4 * MIB);
    fuse.store(2, SeqCst);
    assert!(outcome(|| drop(private)).is_none(), "the panic was swallowed");
    pool.clear().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.private_bytes, stats.lost_bytes, stats.reserved_bytes), (0, MIB, MIB));
}
