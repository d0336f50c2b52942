//! One limit for several pools.

use crate::waiting::{Calls, poll};
use pool_core::limits::Budget;
use pool_core::port::Limit;
use pool_core::{ArenaConfig, BucketPool, MIB, Why};
use pool_sim::{SimCall, SimDevice};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

/// Pools of several devices under one budget.
fn pools<const N: usize>(budget: &Budget) -> [BucketPool<SimDevice>; N] {
    [(); N].map(|()| BucketPool::builder(SimDevice::new()).budget(budget).build())
}

#[test]
fn pools_of_several_devices_share_one_limit() {
    let budget = Budget::new(3 * MIB);
    let [a, b] = pools(&budget);
    let held = (a.allocate(MIB).unwrap(), b.allocate(2 * MIB).unwrap());
    let refused = a.allocate(MIB).unwrap_err();
    assert_eq!((refused.why(), budget.reserved_bytes()), (Why::Limit(Limit::Budget), 3 * MIB));
    insta::assert_snapshot!(refused);
    drop(held);
}

#[test]
fn a_pool_that_is_short_takes_what_others_cache() {
    let budget = Budget::new(4 * MIB);
    let [a, b, c] = pools(&budget);
    drop((a.allocate(MIB).unwrap(), b.allocate(MIB).unwrap()));
    let kept = c.allocate(2 * MIB).unwrap();
    let more = c.allocate(2 * MIB).unwrap();
    assert_eq!((a.reserved_bytes(), b.reserved_bytes(), c.reserved_bytes()), (0, 0, 4 * MIB));
    assert_eq!((kept.size() + more.size(), budget.reserved_bytes()), (4 * MIB, 4 * MIB));
    assert_eq!(c.stats().served_by.trimmed, 1);
}

/// The device is full, and no limit is: what other pools of the budget cache serves the request.
#[test]
fn a_pool_of_a_full_device_takes_what_others_cache() {
    let (device, budget) = (SimDevice::with_capacity(4 * MIB), Budget::default());
    let [a, b] = [(); 2].map(|()| BucketPool::builder(device.clone()).budget(&budget).build());
    for bytes in [MIB, 2 * MIB] {
        drop(a.allocate(bytes).unwrap());
    }
    assert_eq!(b.allocate(4 * MIB).unwrap().size(), 4 * MIB);
    assert_eq!(a.reserved_bytes(), 0);
}

/// A request takes a whole page of the device, for which there is less room than for its bytes.
#[test]
fn an_arena_whose_page_exceeds_what_is_left_takes_what_others_cache() {
    let budget = Budget::new(3 * MIB);
    let [other] = pools(&budget);
    drop(other.allocate(2 * MIB).unwrap());
    let builder = BucketPool::builder(SimDevice::new()).budget(&budget);
    let pool = builder.arena(ArenaConfig::pages(2 * MIB, 0.0)).build();
    assert!(pool.allocate(4096).is_ok());
    assert_eq!(other.reserved_bytes(), 0);
}

#[test]
fn a_lower_limit_gives_cached_memory_back_and_leaves_buffers_alone() {
    let budget = Budget::default();
    let [a, b] = pools(&budget);
    let held = a.allocate(2 * MIB).unwrap();
    drop((a.allocate(MIB).unwrap(), b.allocate(MIB).unwrap()));
    assert_eq!(budget.set_limit(3 * MIB), MIB);
    assert_eq!(budget.set_limit(MIB), MIB);
    assert_eq!((budget.reserved_bytes(), held.size()), (2 * MIB, 2 * MIB));
    assert_eq!(b.allocate(4096).unwrap_err().why(), Why::Limit(Limit::Budget));
    drop(held);
    assert!(b.allocate(MIB).is_ok());
}

#[test]
fn a_pool_that_goes_gives_its_bytes_back_to_the_budget() {
    let budget = Budget::new(2 * MIB);
    let [a, b] = pools(&budget);
    let last = a.allocate(MIB).unwrap();
    drop(a.allocate(MIB).unwrap());
    drop(a);
    assert_eq!(budget.reserved_bytes(), MIB);
    drop(last);
    assert_eq!(budget.reserved_bytes(), 0);
    assert!(b.allocate(2 * MIB).is_ok());
}

#[test]
fn a_refused_device_call_reserves_nothing_in_the_budget() {
    let budget = Budget::new(8 * MIB);
    let pool = BucketPool::builder(SimDevice::with_capacity(MIB)).budget(&budget).build();
    assert_eq!(pool.allocate(2 * MIB).unwrap_err().why(), Why::OutOfMemory);
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn the_limit_of_a_pool_can_change_while_it_is_used() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(2 * MIB).build();
    let held = pool.allocate(2 * MIB).unwrap();
    assert_eq!(pool.allocate(MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    pool.set_reserved_limit(3 * MIB).unwrap();
    drop(pool.allocate(MIB).unwrap());
    assert_eq!(pool.set_reserved_limit(0).unwrap(), MIB);
    drop(held);
    assert_eq!(pool.stats().reserved_peak_bytes, 3 * MIB);
}

#[test]
fn marks_call_once_each_time_they_are_reached() {
    let budget = Budget::new(10 * MIB);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for share in [0.5, 0.8] {
        let seen = seen.clone();
        budget.on_high_water(share, move |pressure| {
            seen.lock().unwrap().push((share, pressure.reserved_bytes / MIB));
        });
    }
    let [pool] = pools(&budget);
    let mut held: Vec<_> = (0..9).map(|_| pool.allocate(MIB).unwrap()).collect();
    assert_eq!(*seen.lock().unwrap(), [(0.5, 5), (0.8, 8)]);
    held.truncate(6);
    pool.clear().unwrap(); // below 0.8, not below 0.5
    held.extend((0..3).map(|_| pool.allocate(MIB).unwrap()));
    assert_eq!(*seen.lock().unwrap(), [(0.5, 5), (0.8, 8), (0.8, 8)]);
    budget.set_limit(4 * MIB);
    assert_eq!(budget.reserved_bytes(), 9 * MIB);
}

/// Nothing but the mark itself is reached between the two times.
#[test]
fn a_mark_is_armed_again_below_it() {
    let (budget, calls) = (Budget::new(10 * MIB), Arc::new(AtomicU64::new(0)));
    let count = calls.clone();
    budget.on_high_water(0.5, move |_| {
        count.fetch_add(1, Relaxed);
    });
    let [pool] = pools(&budget);
    for times in 1..=3 {
        drop(pool.allocate(6 * MIB).unwrap());
        assert_eq!(calls.load(Relaxed), times);
        pool.clear().unwrap();
    }
}

#[test]
fn a_limit_that_rises_arms_the_marks_above_the_reserved_bytes() {
    let (budget, calls) = (Budget::new(10 * MIB), Arc::new(AtomicU64::new(0)));
    let count = calls.clone();
    budget.on_high_water(0.9, move |_| {
        count.fetch_add(1, Relaxed);
    });
    let [pool] = pools(&budget);
    let mut held: Vec<_> = (0..9).map(|_| pool.allocate(MIB).unwrap()).collect();
    assert_eq!(calls.load(Relaxed), 1);
    budget.set_limit(20 * MIB);
    held.extend((9..18).map(|_| pool.allocate(MIB).unwrap()));
    assert_eq!(calls.load(Relaxed), 2, "18 of 20 MiB");
}

/// A request that passes the mark and the limit at once may be served by what the call drops.
#[test]
fn a_mark_is_told_of_a_request_that_would_exceed_the_limit() {
    let (budget, spare) = (Budget::new(10 * MIB), Arc::new(Mutex::new(None)));
    let [pool] = pools(&budget);
    let taken = spare.clone();
    budget.on_high_water(0.9, move |pressure| {
        assert_eq!(pressure.reserved_bytes, 12 * MIB);
        drop(taken.lock().unwrap().take());
        pressure.trim(pressure.requested_bytes);
    });
    *spare.lock().unwrap() = Some(pool.allocate(8 * MIB).unwrap());
    assert!(pool.allocate(4 * MIB).is_ok());
}

#[test]
fn a_mark_can_trim_ahead_of_failure() {
    let (budget, given_back) = (Budget::new(4 * MIB), Arc::new(AtomicU64::new(0)));
    let note = given_back.clone();
    budget.on_high_water(0.75, move |pressure| {
        note.store(pressure.trim(pressure.requested_bytes), Relaxed);
    });
    let [a, b] = pools(&budget);
    drop(a.allocate(2 * MIB).unwrap());
    let held = b.allocate(MIB).unwrap();
    assert_eq!((given_back.load(Relaxed), a.reserved_bytes()), (2 * MIB, 0));
    drop(held);
}

#[test]
fn a_panic_in_a_mark_reserves_nothing() {
    let budget = Budget::new(2 * MIB);
    budget.on_high_water(0.5, |_| panic!("on purpose"));
    let [pool] = pools(&budget);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.allocate(MIB)));
    assert!(caught.is_err());
    assert_eq!((budget.reserved_bytes(), pool.reserved_bytes()), (0, 0));
    assert!(pool.allocate(4096).is_ok());
}

#[test]
fn pools_of_a_cloned_builder_share_no_budget() {
    let builder = BucketPool::builder(SimDevice::new());
    let [limited, other] = [builder.clone().build(), builder.build()];
    limited.budget().set_limit(MIB);
    drop(other.allocate(2 * MIB).unwrap());
    limited.budget().trim(u64::MAX);
    assert_eq!(other.stats().cached_bytes, 2 * MIB);
    assert_eq!((limited.budget().limit(), other.budget().limit()), (MIB, u64::MAX));
}

#[test]
fn pools_of_a_cloned_builder_share_the_budget_that_it_was_given() {
    let budget = Budget::new(2 * MIB);
    let builder = BucketPool::builder(SimDevice::new()).budget(&budget);
    let [a, b] = [builder.clone().build(), builder.build()];
    let _live = a.allocate(2 * MIB).unwrap();
    assert_eq!(b.allocate(MIB).unwrap_err().why(), Why::Limit(Limit::Budget));
}

/// The program spares a buffer of another pool than the one that is short.
#[test]
fn a_request_is_served_by_what_the_program_spares_in_another_pool() {
    let budget = Budget::new(MIB);
    let [other] = pools(&budget);
    let spare = Arc::new(Mutex::new(Some(other.allocate(MIB).unwrap())));
    let builder = BucketPool::builder(SimDevice::new()).budget(&budget);
    let pool = builder.on_shortage(move |_| spare.lock().unwrap().take().is_some()).build();
    let served = pool.allocate(MIB);
    assert!(served.is_ok(), "{}", served.unwrap_err());
}

/// A pool whose own limit is mostly lost bytes, and another of its budget that has memory.
#[test]
fn a_request_that_its_own_limit_could_never_serve_waits_for_no_other_pool() {
    let budget = Budget::new(64 * MIB);
    let device = SimDevice::new();
    let builder = BucketPool::builder(device.clone()).budget(&budget);
    let (a, [b]) = (builder.reserved_limit(8 * MIB).build(), pools(&budget));
    drop([(); 6].map(|()| a.allocate(MIB).unwrap()));
    device.fail(SimCall::Free, 0, 6);
    assert!(a.clear().is_err());
    assert_eq!(a.stats().lost_bytes, 6 * MIB);
    // Both pools have memory that could come back, of which 2 MiB at most are of use.
    let _held = (a.allocate(MIB).unwrap(), b.allocate(MIB).unwrap());
    let refused = a.allocate_timeout(4 * MIB, Duration::MAX).unwrap_err();
    assert_eq!(refused.why(), Why::Limit(Limit::Reserved));
    let refused = a.allocate_timeout(2 * MIB, Duration::ZERO).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut, "2 MiB may come back");
}

/// A device that a stranger fills, and a pool over another device that has memory.
#[test]
fn a_request_of_a_full_device_waits_for_no_pool_of_another() {
    let (device, budget) = (SimDevice::with_capacity(8 * MIB), Budget::new(64 * MIB));
    let stranger = BucketPool::new(device.clone());
    let _fills = [4, 2].map(|mib| stranger.allocate(mib * MIB).unwrap());
    let a = BucketPool::builder(device.clone()).budget(&budget).build();
    let [other] = pools(&budget);
    let _held = other.allocate(MIB).unwrap();
    let refused = a.allocate_timeout(4 * MIB, Duration::MAX).unwrap_err();
    assert_eq!(refused.why(), Why::OutOfMemory);
    // A pool over the same device could give memory back.
    let same = BucketPool::builder(device).budget(&budget).build();
    let _held = same.allocate(MIB).unwrap();
    let refused = a.allocate_timeout(4 * MIB, Duration::ZERO).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
}

/// Lost bytes of all pools are gone from the budget.
#[test]
fn a_request_above_what_lost_bytes_leave_of_the_budget_is_refused_at_once() {
    let (device, budget) = (SimDevice::new(), Budget::new(8 * MIB));
    let a = BucketPool::builder(device.clone()).budget(&budget).build();
    let [b] = pools(&budget);
    drop([(); 6].map(|()| a.allocate(MIB).unwrap()));
    device.fail(SimCall::Free, 0, 6);
    assert!(a.clear().is_err());
    let _held = b.allocate(MIB).unwrap();
    let refused = b.allocate_timeout(4 * MIB, Duration::MAX).unwrap_err();
    assert_eq!(refused.why(), Why::Limit(Limit::Budget));
}

/// One request waits for bytes of its own pool's limit. Requests of other pools, threads and tasks,
/// go past it; those of its own pool do not.
#[test]
fn a_request_that_lacks_its_own_limit_holds_up_its_own_pool_alone() {
    let budget = Budget::new(64 * MIB);
    let builder = BucketPool::builder(SimDevice::new()).budget(&budget);
    let (a, [b]) = (builder.reserved_limit(2 * MIB).build(), pools(&budget));
    let held = [(); 2].map(|()| a.allocate(MIB).unwrap());
    let mut first = a.allocate_async(2 * MIB);
    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls.clone());
    assert!(poll(&mut first, &waker).is_pending());
    let mut next = a.allocate_async(MIB);
    assert!(poll(&mut next, Waker::noop()).is_pending(), "it is behind the first");
    assert!(b.allocate_timeout(4096, Duration::ZERO).is_ok(), "there is room in the budget");
    let mut task = b.allocate_async(4096);
    assert!(poll(&mut task, Waker::noop()).is_ready());
    // Its own pool has 1 MiB now, which is not enough for the first, and which it does not leave to
    // the next.
    let [one, other] = held;
    drop(one);
    assert!(poll(&mut first, &waker).is_pending());
    assert!(poll(&mut next, Waker::noop()).is_pending(), "it lets the first come");
    drop(other);
    assert!(calls.0.load(Relaxed) > 0);
    assert!(poll(&mut first, &waker).is_ready());
}

/// What one lacks of a device, another pool over the same device could use.
#[test]
fn requests_that_lack_their_device_hold_up_all_pools_over_it() {
    let (device, budget) = (SimDevice::with_capacity(8 * MIB), Budget::default());
    let [a, b] = [(); 2].map(|()| BucketPool::builder(device.clone()).budget(&budget).build());
    let [other] = pools(&budget);
    let [one, two] = [(); 2].map(|()| b.allocate(4 * MIB).unwrap());
    let mut large = a.allocate_async(8 * MIB);
    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls);
    assert!(poll(&mut large, &waker).is_pending());
    drop(one);
    // The large one comes, and there is not enough: it waits on, and nobody takes what there is.
    assert!(poll(&mut large, &waker).is_pending());
    let refused = b.allocate_timeout(4 * MIB, Duration::ZERO).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
    assert!(other.allocate_timeout(4 * MIB, Duration::ZERO).is_ok(), "of another device");
    drop(two);
    assert!(poll(&mut large, &waker).is_ready());
}

/// A thread and a task of another pool wait behind it for the budget: they come when that has bytes.
#[test]
fn what_comes_back_calls_those_behind_a_request_that_lacks_its_own_limit() {
    let budget = Budget::new(4 * MIB);
    let builder = BucketPool::builder(SimDevice::new()).budget(&budget);
    let (a, [b]) = (builder.reserved_limit(MIB).build(), pools(&budget));
    let (of_a, of_b) = (a.allocate(MIB).unwrap(), [2, 1].map(|mib| b.allocate(mib * MIB).unwrap()));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| a.allocate_timeout(MIB, Duration::MAX).map(drop));
        await_waiters(&budget, 1);
        let second = scope.spawn(|| b.allocate_timeout(2 * MIB, Duration::MAX).map(drop));
        await_waiters(&budget, 2);
        let third = scope.spawn(|| pollster::block_on(b.allocate_async(MIB)).map(drop));
        await_waiters(&budget, 3);
        drop(of_b);
        assert!(second.join().unwrap().is_ok());
        assert!(third.join().unwrap().is_ok());
        assert!(!first.is_finished());
        drop(of_a);
        assert!(first.join().unwrap().is_ok());
    });
    assert_eq!(budget.waiter_count(), 0);
}

fn await_waiters(budget: &Budget, count: usize) {
    while budget.waiter_count() < count {
        std::thread::yield_now();
    }
}
