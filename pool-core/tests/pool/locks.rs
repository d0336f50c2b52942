//! A pool holds no lock while it calls its allocator: at each call,
//! another thread enters them.

use crate::hooked::{configs, hooked, program};
use pool_core::limits::Retention;
use pool_core::stream::StealPolicy;
use pool_core::{BucketPool, MIB};
use pool_sim::SimDevice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Code that runs at each call of the allocator; `None` before the pool is built.
type Visit = Arc<Mutex<Option<Arc<dyn Fn() + Send + Sync>>>>;

/// Only a thread that waits for ever takes this long.
const FOR_EVER: Duration = Duration::from_mins(1);

#[test]
fn caches_and_book_are_open_while_the_allocator_is_called() {
    for (name, config) in configs() {
        let (visit, calls) = (Visit::default(), Arc::new(AtomicU64::new(0)));
        let (at_call, counted) = (visit.clone(), calls.clone());
        let hook = move || {
            counted.fetch_add(1, Relaxed);
            let visit = at_call.lock().unwrap_or_else(PoisonError::into_inner).clone();
            visit.unwrap()();
        };
        let device = SimDevice::new();
        let allocator = hooked(&device, hook, false);
        let builder = BucketPool::builder(allocator).steal(StealPolicy::Wait);
        let builder = builder.reserved_limit(16 * MIB).cached_limit(12 * MIB);
        let builder = builder.retention(Retention { allocations: Some(8), time: None });
        let pool = match config {
            Some(config) => builder.arena(config).build(),
            None => builder.build(),
        };
        let (visited, stuck) = (pool.clone(), AtomicBool::new(false));
        *visit.lock().unwrap() = Some(Arc::new(move || {
            if stuck.load(Relaxed) {
                return;
            }
            let (pool, (done, end)) = (visited.clone(), mpsc::channel());
            // The figures and the map lock all shards, a tick its times.
            thread::spawn(move || {
                let ticked = pool.tick(Duration::ZERO);
                done.send((pool.stats(), pool.map(), ticked)).unwrap();
            });
            let ended = end.recv_timeout(FOR_EVER);
            stuck.store(ended.is_err(), Relaxed);
            let (_, _, ticked) = ended.expect("a lock is held while the allocator is called");
            ticked.expect("the simulated device refuses nothing");
        }));
        assert_eq!(program(&pool, &device), 0, "{name}: a visit failed");
        assert!(calls.load(Relaxed) > 20, "{name}: {calls:?} calls");
        // Else the pool would keep itself alive: its allocator has the hook.
        *visit.lock().unwrap() = Some(Arc::new(|| ()));
    }
}
