//! Requests that wait for memory: who is served when, and what wakes them.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::hooked::{hooked, outcome};
use pool_core::error::Verdict;
use pool_core::limits::{Budget, CachedLimit};
use pool_core::port::Limit;
use pool_core::{AllocateAsync, ArenaConfig, BucketPolicy, BucketPool, MIB, PooledBuffer, Why};
use pool_sim::{Hooked, MappedSim, SimCall, SimDevice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

type Pool = BucketPool<SimDevice>;

/// A pool of 1 MiB blocks of which `blocks` fit.
fn pool_of(blocks: u64) -> Pool {
    BucketPool::builder(SimDevice::new()).reserved_limit(blocks * MIB).build()
}

/// Counts its calls.
#[derive(Default)]
pub(crate) struct Calls(pub(crate) AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_request_that_is_served_at_once_waits_for_nothing() {
    let pool = pool_of(1);
    assert_eq!(pool.allocate_timeout(MIB, Duration::ZERO).unwrap().size(), MIB);
    assert_eq!(pollster::block_on(pool.allocate_async(MIB)).unwrap().size(), MIB);
    assert_eq!(pool.budget().waiter_count(), 0);
}

#[test]
fn a_dropped_buffer_is_for_the_first_request_as_long_as_that_comes() {
    let (pool, calls) = (pool_of(1), [Arc::new(Calls::default()), Arc::new(Calls::default())]);
    let wakers = calls.clone().map(Waker::from);
    let held = pool.allocate(MIB).unwrap();
    let mut requests = [pool.allocate_async(MIB), pool.allocate_async(MIB)];
    for (request, waker) in requests.iter_mut().zip(&wakers) {
        assert!(poll(request, waker).is_pending());
    }
    assert_eq!(pool.budget().waiter_count(), 2);
    drop(held);
    assert_eq!(calls.clone().map(|calls| calls.0.load(SeqCst)), [1, 1]);
    // The second lets the first come.
    assert!(poll(&mut requests[1], &wakers[1]).is_pending());
    let Poll::Ready(Ok(first)) = poll(&mut requests[0], &wakers[0]) else { panic!("not served") };
    drop(first);
    assert!(poll(&mut requests[1], &wakers[1]).is_ready());
    assert_eq!((pool.budget().waiter_count(), pool.stats().failures), (0, 0));
}

#[test]
fn a_cancelled_request_leaks_nothing_and_passes_its_turn_on() {
    let (pool, calls) = (pool_of(1), Arc::new(Calls::default()));
    let waker = Waker::from(calls.clone());
    let held = pool.allocate(MIB).unwrap();
    let (mut first, mut second) = (pool.allocate_async(MIB), pool.allocate_async(MIB));
    assert!(poll(&mut first, Waker::noop()).is_pending());
    assert!(poll(&mut second, &waker).is_pending());
    drop(held); // wakes the first, which does not come any more
    drop(first);
    assert_eq!(calls.0.load(SeqCst), 1);
    assert!(poll(&mut second, &waker).is_ready());
    drop(second);
    assert_eq!((pool.budget().waiter_count(), pool.allocated_bytes()), (0, 0));
    assert!(pool.allocate(MIB).is_ok());
}

#[test]
fn a_request_that_no_return_could_serve_is_refused_at_once() {
    let pool = pool_of(2);
    let refused = pool.allocate_timeout(3 * MIB, Duration::MAX).unwrap_err();
    assert_eq!(refused.why(), Why::Limit(Limit::Reserved));
    let small = BucketPool::new(SimDevice::with_capacity(MIB));
    let refused = small.allocate_timeout(2 * MIB, Duration::MAX).unwrap_err();
    assert_eq!((refused.why(), small.stats().failures), (Why::OutOfMemory, 1));
}

#[test]
fn a_request_that_no_return_could_serve_is_refused_at_once_behind_others_too() {
    let pool = pool_of(1);
    let _held = pool.allocate(MIB).unwrap();
    let mut first = pool.allocate_async(MIB);
    assert!(poll(&mut first, Waker::noop()).is_pending());
    let refused = pool.allocate_timeout(3 * MIB, Duration::MAX).unwrap_err();
    assert_eq!((refused.why(), pool.budget().waiter_count()), (Why::Limit(Limit::Reserved), 1));
}

#[test]
fn a_request_does_not_wait_for_memory_that_is_lost() {
    let device = SimDevice::with_capacity(MIB);
    let pool = BucketPool::builder(device.clone()).cached_limit(CachedLimit::Unlimited).build();
    drop(pool.allocate(MIB).unwrap());
    device.fail(SimCall::Free, 0, 1);
    pool.clear().unwrap_err();
    assert_eq!(pool.stats().lost_bytes, MIB);
    let refused = pool.allocate_timeout(MIB, Duration::from_millis(1)).unwrap_err();
    assert_eq!(refused.why(), Why::OutOfMemory);
}

/// A request begins to wait while a call of the allocator is in progress that has reserved what it
/// needs. Runs `work`, and returns how often the request is woken by the end of it.
fn woken_after(arena: Option<ArenaConfig>, panics: bool, work: fn(&Hooking) -> bool) -> usize {
    let (visit, calls) = (Visit::default(), Arc::new(Calls::default()));
    let at_call = visit.clone();
    let hook: Hook = Box::new(move || {
        let visit = at_call.lock().unwrap().take();
        if let Some(visit) = visit {
            visit();
        }
    });
    let allocator = hooked(&SimDevice::new(), hook, false);
    let builder = BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited);
    let builder = builder.reserved_limit(MIB);
    let pool = match arena {
        Some(config) => builder.arena(config).build(),
        None => builder.build(),
    };
    let request = Arc::new(Mutex::new(pool.allocate_async(MIB)));
    let (polled, waker) = (request.clone(), Waker::from(calls.clone()));
    *visit.lock().unwrap() = Some(Box::new(move || {
        assert!(poll(&mut *polled.lock().unwrap(), &waker).is_pending());
        if panics {
            resume_unwind(Box::new("on purpose"));
        }
    }));
    let happened = outcome(|| assert!(work(&pool))).is_some();
    assert!(happened != panics, "the panic was swallowed, or a call failed");
    let woken = calls.0.load(SeqCst);
    assert!(poll(&mut *request.lock().unwrap(), Waker::noop()).is_ready() || woken == 0);
    woken
}

type Hook = Box<dyn Fn() + Send + Sync>;
type Hooking = BucketPool<Hooked<SimDevice>>;
/// Code that runs at the next call of the allocator.
type Visit = Arc<Mutex<Option<Hook>>>;

#[test]
fn blocks_that_were_taken_ahead_of_time_wake_a_request() {
    for arena in [None, Some(ArenaConfig::segments(MIB))] {
        let woken = woken_after(arena.clone(), false, |pool| pool.warm_up(&[(MIB, 1)]).is_ok());
        assert_eq!(woken, 1, "{arena:?}");
    }
}

#[test]
fn a_request_that_panics_wakes_a_request() {
    for arena in [None, Some(ArenaConfig::segments(MIB))] {
        let woken = woken_after(arena.clone(), true, |pool| pool.allocate(MIB).is_ok());
        assert_eq!(woken, 1, "{arena:?}");
        let woken = woken_after(arena.clone(), true, |pool| pool.warm_up(&[(MIB, 1)]).is_ok());
        assert_eq!(woken, 1, "{arena:?}, ahead of time");
    }
}

/// A pool of 8 MiB, and what its device calls once, at the next call that moves memory.
fn visited() -> (BucketPool<Hooked<SimDevice>>, Visit) {
    let visit = Visit::default();
    let at_call = visit.clone();
    let hook: Hook = Box::new(move || {
        let visit = at_call.lock().unwrap().take();
        if let Some(visit) = visit {
            visit();
        }
    });
    let allocator = hooked(&SimDevice::new(), hook, false);
    let builder = BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited);
    (builder.policy(BucketPolicy::Exact).reserved_limit(8 * MIB).build(), visit)
}

/// A first try gives more back than it needs while another request begins to wait.
#[test]
fn a_request_that_is_served_at_its_first_try_wakes_a_request() {
    let ((pool, visit), calls) = (visited(), Arc::new(Calls::default()));
    drop(pool.allocate(8 * MIB).unwrap());
    let request = Arc::new(Mutex::new(pool.allocate_async(7 * MIB)));
    let (polled, waker) = (request.clone(), Waker::from(calls.clone()));
    // At the free of the cached block.
    *visit.lock().unwrap() = Some(Box::new(move || {
        assert!(poll(&mut *polled.lock().unwrap(), &waker).is_pending());
    }));
    let served = pollster::block_on(pool.allocate_async(MIB)).unwrap();
    assert!(calls.0.load(SeqCst) > 0, "7 MiB are free");
    assert!(poll(&mut *request.lock().unwrap(), Waker::noop()).is_ready());
    drop(served);
}

/// A request passes the first one, which does not come, and has a larger block given back; meanwhile that one comes,
/// and finds nothing yet.
#[test]
fn a_request_that_is_served_in_the_line_wakes_the_one_that_it_has_passed() {
    let ((pool, visit), calls) = (visited(), Arc::new(Calls::default()));
    let held = pool.allocate(8 * MIB).unwrap();
    let first = Arc::new(Mutex::new(pool.allocate_async(7 * MIB)));
    let mut second = pool.allocate_async(MIB);
    assert!(poll(&mut *first.lock().unwrap(), Waker::noop()).is_pending());
    assert!(poll(&mut second, Waker::noop()).is_pending());
    drop(held);
    let (polled, waker) = (first.clone(), Waker::from(calls.clone()));
    let has_come = Arc::new(AtomicUsize::new(0));
    let comes = has_come.clone();
    // At the free of the cached block.
    *visit.lock().unwrap() = Some(Box::new(move || {
        comes.fetch_add(1, SeqCst);
        assert!(poll(&mut *polled.lock().unwrap(), &waker).is_pending());
    }));
    let served = (0..100).find_map(|_| match poll(&mut second, Waker::noop()) {
        Poll::Ready(served) => Some(served.unwrap()),
        Poll::Pending => None,
    });
    assert!(served.is_some() && has_come.load(SeqCst) == 1, "the first came during the try");
    assert!(calls.0.load(SeqCst) > 0, "7 MiB are free");
    assert!(poll(&mut *first.lock().unwrap(), Waker::noop()).is_ready());
}

#[test]
fn a_handle_that_waits_does_not_pass_requests_that_wait_already() {
    let pool = pool_of(2);
    let [one, other] = [(); 2].map(|()| pool.allocate(MIB).unwrap());
    let mut first = pool.allocate_async(2 * MIB);
    assert!(poll(&mut first, Waker::noop()).is_pending());
    drop(one);
    // It comes, gives the half back, and lacks the other one.
    for _ in 0..3 {
        assert!(poll(&mut first, Waker::noop()).is_pending());
    }
    let refused = pool.with_timeout(Duration::from_micros(1)).allocate(MIB).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
    drop(other);
    assert!(poll(&mut first, Waker::noop()).is_ready());
}

#[test]
fn a_free_block_is_no_hit_for_a_handle_that_waits_behind_another_request() {
    let pool = pool_of(2);
    let [one, other] = [(); 2].map(|()| pool.allocate(MIB).unwrap());
    let mut first = pool.allocate_async(2 * MIB);
    assert!(poll(&mut first, Waker::noop()).is_pending());
    drop(one); // it stays free until the first request comes
    let refused = pool.with_timeout(Duration::from_micros(1)).allocate(MIB).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
    assert!(pool.allocate(MIB).is_ok(), "a handle that does not wait takes it");
    drop(other);
    assert!(poll(&mut first, Waker::noop()).is_ready());
}

#[test]
fn a_request_whose_time_is_over_says_so_with_figures() {
    let pool = pool_of(1);
    let _held = pool.allocate(MIB).unwrap();
    let refused = pool.allocate_timeout(MIB, Duration::from_micros(1)).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
    assert_eq!(refused.figures().reserved_bytes, MIB);
    assert_eq!((pool.budget().waiter_count(), pool.stats().failures), (0, 1));
    insta::assert_snapshot!(refused);
}

#[test]
fn a_trim_and_a_limit_that_rises_wake_the_first_request() {
    let budget = Budget::new(2 * MIB);
    let pools = [(); 2].map(|()| BucketPool::builder(SimDevice::new()).budget(&budget).build());
    let held = [pools[0].allocate(MIB).unwrap(), pools[1].allocate(MIB).unwrap()];
    let mut request = pools[0].allocate_async(MIB);
    assert!(poll(&mut request, Waker::noop()).is_pending());
    budget.set_limit(3 * MIB);
    let Poll::Ready(Ok(third)) = poll(&mut request, Waker::noop()) else { panic!("not served") };

    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls.clone());
    let mut request = pools[0].allocate_async(MIB);
    assert!(poll(&mut request, &waker).is_pending());
    drop(held); // in both pools; that of the second is given back for the first
    assert_eq!(calls.0.load(SeqCst), 1);
    assert!(poll(&mut request, &waker).is_ready());
    drop(third);
}

/// A request finds the blocks of other threads' caches, and is woken by what they free later.
#[test]
fn frees_into_other_threads_caches_are_seen() {
    for arena in [false, true] {
        let builder = BucketPool::builder(SimDevice::new()).reserved_limit(8 * MIB);
        let pool = match arena {
            true => builder.arena(ArenaConfig::grow()).build(),
            false => builder.build(),
        };
        let held: Vec<_> = (0..8).map(|_| pool.allocate(MIB).unwrap()).collect();
        std::thread::scope(|scope| {
            for buffer in held {
                scope.spawn(move || drop(buffer));
            }
            let mine: Vec<PooledBuffer<_>> =
                (0..8).map(|_| pool.allocate_timeout(MIB, Duration::MAX).unwrap()).collect();
            assert_eq!(mine.len(), 8);
        });
        assert_eq!(pool.budget().waiter_count(), 0);
    }
}

#[test]
fn sixty_four_tasks_on_two_threads_share_three_blocks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let pool = pool_of(3);
    let held = pool.allocate(3 * MIB).unwrap_err(); // rounds up to 4 MiB
    assert_eq!(held.why(), Why::Limit(Limit::Reserved));
    let held: Vec<_> = (0..3).map(|_| pool.allocate(MIB).unwrap()).collect();
    let at_once = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let (mut request, at_once) = (pool.allocate_async(MIB), at_once.clone());
            assert!(poll(&mut request, Waker::noop()).is_pending()); // it has its place now
            runtime.spawn(async move {
                if number == 20 {
                    return None; // cancelled
                }
                let buffer = request.await.unwrap();
                assert!(at_once.fetch_add(1, SeqCst) < 3, "more than the limit");
                tokio::task::yield_now().await;
                at_once.fetch_sub(1, SeqCst);
                drop(buffer);
                Some(number)
            })
        })
        .collect();
    drop(held);
    let done = runtime.block_on(async {
        let mut done = 0;
        for task in tasks {
            done += usize::from(task.await.unwrap().is_some());
        }
        done
    });
    assert_eq!(done, 63);
    assert_eq!((pool.budget().waiter_count(), pool.allocated_bytes()), (0, 0));
    assert_eq!(pool.stats().failures, 1);
}

/// The executor polls the tasks in a random order, but each of them once in a round, as one does
/// whose threads all run. (A thread that the system stops for long is passed: it may hold nobody up.)
#[test]
fn tasks_that_are_polled_in_any_order_are_served_in_that_of_their_arrival() {
    for seed in 1..=20_u64 {
        let pool = pool_of(3);
        let mut held: Vec<_> = (0..3).map(|_| pool.allocate(MIB).unwrap()).collect();
        let mut requests: Vec<_> =
            (0..64).map(|number| (number, pool.allocate_async(MIB))).collect();
        for (_, request) in &mut requests {
            assert!(poll(request, Waker::noop()).is_pending()); // it has its place now
        }
        drop(requests.remove(20)); // cancelled
        let (mut random, mut served) = (seed, Vec::new());
        for _round in 0..1000 {
            if requests.is_empty() {
                break;
            }
            held.clear();
            for last in (1..requests.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                let other = usize::try_from(random >> 33).unwrap() % (last + 1);
                requests.swap(last, other);
            }
            requests.retain_mut(|(number, request)| match poll(request, Waker::noop()) {
                Poll::Ready(buffer) => {
                    held.push(buffer.unwrap());
                    served.push(*number);
                    false
                }
                Poll::Pending => true,
            });
        }
        let expected: Vec<usize> = (0..64).filter(|number| *number != 20).collect();
        assert_eq!(served, expected, "seed {seed}");
    }
}

#[test]
fn one_block_is_handed_on_strictly_in_order() {
    let (pool, order) = (pool_of(1), Arc::new(Mutex::new(Vec::new())));
    let held = pool.allocate(MIB).unwrap();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (pool, order) = (&pool, order.clone());
            scope.spawn(move || {
                let buffer = pool.allocate_timeout(MIB, Duration::MAX).unwrap();
                order.lock().unwrap().push(number);
                drop(buffer);
            });
            while pool.budget().waiter_count() <= number {
                std::thread::yield_now();
            }
        }
        drop(held);
    });
    assert_eq!(*order.lock().unwrap(), (0..16).collect::<Vec<_>>());
}

/// The state of a task that has a buffer of the pool. The last reference to it is a waker.
struct Task(#[expect(dead_code, reason = "it is dropped")] PooledBuffer<SimDevice>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_whose_task_has_a_buffer_goes_without_a_lock() {
    let pool = pool_of(4);
    let waker = Waker::from(Arc::new(Task(pool.allocate(MIB).unwrap())));
    let mut request = pool.allocate_async(4 * MIB);
    assert!(poll(&mut request, &waker).is_pending());
    drop(waker); // only the line has it now
    drop(request);
    assert_eq!((pool.budget().waiter_count(), pool.stats().allocated_bytes), (0, 0));
}

/// The first request that waits is cancelled, and its waker's drop panics.
#[test]
fn a_waker_whose_drop_panics_wakes_the_next_request() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new("on purpose"));
        }
    }
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }
    let (pool, calls) = (pool_of(4), Arc::new(Calls::default()));
    let live = pool.allocate(4 * MIB).unwrap();
    let (mut first, mut second) = (pool.allocate_async(4 * MIB), pool.allocate_async(MIB));
    assert!(poll(&mut first, Waker::noop()).is_pending());
    assert!(poll(&mut second, &Waker::from(calls.clone())).is_pending());
    let bomb = Waker::from(Arc::new(Bomb));
    assert!(poll(&mut first, &bomb).is_pending());
    drop(bomb);
    assert!(outcome(|| drop(first)).is_none(), "the panic was swallowed");
    drop(live);
    assert_eq!(calls.0.load(SeqCst), 1);
}

#[test]
fn a_request_whose_time_is_over_has_the_verdict_of_one_that_does_not_wait() {
    let builder = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::segments(MIB));
    let pool = builder.reserved_limit(16 * MIB).build();
    drop(pool.allocate(11 * MIB).unwrap());
    let _live = pool.allocate(MIB).unwrap();
    let refused = pool.allocate_timeout(11 * MIB, Duration::from_millis(1)).unwrap_err();
    assert_eq!((refused.why(), refused.verdict()), (Why::TimedOut, Verdict::Fragmentation));
}

/// A closure that takes a buffer of the pool and frees it, and so lets the request try again.
fn frees_in_a_shortage() -> Pool {
    let own: Arc<Mutex<Option<Pool>>> = Arc::default();
    let of_closure = own.clone();
    let device = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB);
    let pool = device
        .on_shortage(move |_| {
            let pool = of_closure.lock().unwrap().clone();
            drop(pool.map(|pool| pool.allocate(4096)));
            false
        })
        .build();
    *own.lock().unwrap() = Some(pool.clone());
    pool
}

// It tried again without end, since each try freed something.
#[test]
fn a_request_ends_in_time_although_each_of_its_tries_frees() {
    let pool = frees_in_a_shortage();
    let _held = pool.allocate(2 * MIB).unwrap();
    let refused = pool.allocate_timeout(3 * MIB, Duration::from_millis(10)).unwrap_err();
    assert_eq!(refused.why(), Why::TimedOut);
    assert!(refused.figures().freed_while_waiting > Some(0), "{refused}");
    assert!(refused.to_string().contains("wait longer"), "{refused}");
}

#[test]
fn a_poll_ends_although_each_try_frees_and_is_called_again() {
    let (pool, calls) = (frees_in_a_shortage(), Arc::new(Calls::default()));
    let _held = pool.allocate(2 * MIB).unwrap();
    let mut request = pool.allocate_async(3 * MIB);
    assert!(poll(&mut request, &Waker::from(calls.clone())).is_pending());
    assert_eq!(calls.0.load(SeqCst), 1, "memory came back during the try");
}

// It called the closure again, and again, until the stack was full.
#[test]
fn a_request_inside_of_a_shortage_is_refused_without_another_call() {
    let (own, calls) = (Arc::new(Mutex::new(None::<Pool>)), Arc::new(Calls::default()));
    let (of_closure, counted) = (own.clone(), calls.clone());
    let pool = BucketPool::builder(SimDevice::new())
        .reserved_limit(MIB)
        .on_shortage(move |bytes| {
            counted.0.fetch_add(1, SeqCst);
            let pool = of_closure.lock().unwrap().clone();
            // Twice: the refusal of the first is not the end of the call.
            pool.is_some_and(|pool| (0..2).any(|_| pool.allocate(bytes).is_ok()))
        })
        .build();
    *own.lock().unwrap() = Some(pool.clone());
    let _held = pool.allocate(MIB).unwrap();
    for _ in 0..2 {
        assert!(pool.allocate(MIB).is_err());
    }
    assert_eq!(calls.0.load(SeqCst), 2);
    drop(own.lock().unwrap().take());
}

// A future that was called and not polled held up all that came after it.
#[test]
fn a_future_that_is_not_polled_holds_nobody() {
    let pool = pool_of(4);
    let held = pool.allocate(4 * MIB).unwrap();
    let mut kept = pool.allocate_async(4 * MIB);
    let mut forgotten = Box::new(pool.allocate_async(4 * MIB));
    for request in [&mut kept, &mut *forgotten] {
        assert!(poll(request, Waker::noop()).is_pending());
    }
    std::mem::forget(forgotten);
    drop(held);
    let first = pool.allocate_timeout(MIB, Duration::MAX).unwrap();
    let second = pollster::block_on(pool.allocate_async(MIB)).unwrap();
    std::thread::scope(|scope| {
        let third = scope.spawn(|| pool.allocate_timeout(4 * MIB, Duration::MAX).unwrap().size());
        while pool.budget().waiter_count() < 3 {
            std::thread::yield_now();
        }
        drop((first, second));
        assert_eq!(third.join().unwrap(), 4 * MIB);
    });
    assert!(poll(&mut kept, Waker::noop()).is_ready());
}

/// Tasks in the order in which they were woken, each once until it is polled.
#[derive(Default)]
struct Woken(Mutex<VecDeque<usize>>);

struct WakeTask(usize, Arc<Woken>);

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        let mut woken = self.1.0.lock().unwrap();
        if !woken.contains(&self.0) {
            woken.push_back(self.0);
        }
    }
}

/// `tasks` tasks share one block, each of which has it for a turn of the executor. Returns how often all of them
/// were polled, and the order in which they were served.
fn share_one_block(tasks: usize, forgotten: usize) -> (usize, Vec<usize>) {
    let (pool, woken, mut served) = (pool_of(1), Arc::new(Woken::default()), Vec::new());
    let held = pool.allocate(MIB).unwrap();
    for _ in 0..forgotten {
        let mut forgotten = pool.allocate_async(MIB);
        assert!(poll(&mut forgotten, Waker::noop()).is_pending());
        std::mem::forget(forgotten);
    }
    let mut requests: Vec<_> = (0..tasks).map(|_| Some(pool.allocate_async(MIB))).collect();
    let wakers: Vec<_> =
        (0..tasks).map(|task| Waker::from(Arc::new(WakeTask(task, woken.clone())))).collect();
    wakers.iter().for_each(Waker::wake_by_ref);
    let (mut polls, mut held) = (0, Some((usize::MAX, held)));
    loop {
        let next = woken.0.lock().unwrap().pop_front();
        let Some(task) = next else {
            match held.take() {
                Some((_, buffer)) => drop(buffer), // when all have begun to wait
                None => break,
            }
            continue;
        };
        polls += 1;
        if held.as_ref().is_some_and(|(of, _)| *of == task) {
            held = None; // its second turn
        } else if let Some(request) = &mut requests[task]
            && let Poll::Ready(buffer) = poll(request, &wakers[task])
        {
            (requests[task], held) = (None, Some((task, buffer.unwrap())));
            served.push(task);
            wakers[task].wake_by_ref();
        }
    }
    assert_eq!(pool.budget().waiter_count(), forgotten + tasks - served.len());
    (polls, served)
}

// Each return called all tasks: 1000 of them were polled 503 500 times.
#[test]
fn a_return_of_memory_polls_a_bounded_number_of_tasks() {
    let in_order: Vec<usize> = (0..500).collect();
    let (polls, served) = share_one_block(500, 0);
    assert_eq!(served, in_order);
    // It joins, is in reserve, tries in vain when the one before it was served, is served, and has its second turn.
    assert!(polls <= 5 * 500, "{polls} polls");
}

// Each task polled itself 1000 times behind it.
#[test]
fn tasks_behind_a_forgotten_future_pass_it_soon() {
    let (polls, served) = share_one_block(500, 1);
    assert_eq!(served, (0..500).collect::<Vec<_>>());
    assert!(polls <= 5 * 500 + 100, "{polls} polls");
}

/// Futures that wait for 1 MiB each, and whether each was woken.
struct Asking {
    futures: Vec<Option<AllocateAsync<SimDevice>>>,
    calls: Vec<Arc<Calls>>,
    seen: Vec<usize>,
}

impl Asking {
    fn new() -> Self {
        Self { futures: Vec::new(), calls: Vec::new(), seen: Vec::new() }
    }

    /// Begins to wait. Returns the number of the future.
    fn begin(&mut self, pool: &Pool) -> usize {
        self.futures.push(Some(pool.allocate_async(MIB)));
        self.calls.push(Arc::new(Calls::default()));
        self.seen.push(0);
        self.futures.len() - 1
    }

    fn poll(&mut self, at: usize) -> Option<PooledBuffer<SimDevice>> {
        self.seen[at] = self.calls[at].0.load(SeqCst);
        let waker = Waker::from(self.calls[at].clone());
        match poll(self.futures[at].as_mut()?, &waker) {
            Poll::Ready(buffer) => {
                self.futures[at] = None;
                Some(buffer.unwrap())
            }
            Poll::Pending => None,
        }
    }

    /// Those that were woken since they were polled last.
    fn woken(&self) -> Vec<usize> {
        let is_woken = |at: &usize| self.calls[*at].0.load(SeqCst) > self.seen[*at];
        (0..self.futures.len()).filter(|at| self.futures[*at].is_some() && is_woken(at)).collect()
    }
}

// Two behind the first had been called, so that it was not.
#[test]
fn the_first_is_called_although_those_behind_it_were() {
    let (pool, mut asking) = (pool_of(1), Asking::new());
    let held = pool.allocate(MIB).unwrap();
    for _ in 0..4 {
        let at = asking.begin(&pool);
        assert!(asking.poll(at).is_none());
    }
    drop(held);
    (0..6).for_each(|_| drop(pool.allocate(MIB).unwrap())); // passes the first, and calls those behind
    let held = pool.allocate(MIB).unwrap();
    assert!(asking.poll(0).is_none());
    drop(held);
    assert!(asking.woken().contains(&0), "{:?}", asking.woken());
}

// Only requests of the pool of the first were called.
#[test]
fn a_forgotten_future_holds_up_no_other_pool_of_the_budget() {
    let budget = Budget::new(MIB);
    let build = || BucketPool::builder(SimDevice::new()).budget(&budget).build();
    let (one, other, mut asking) = (build(), build(), Asking::new());
    let held = one.allocate(MIB).unwrap();
    let _forgotten = asking.begin(&other);
    let at = asking.begin(&one);
    assert!(asking.poll(0).is_none() && asking.poll(at).is_none());
    drop(held);
    let mut served = None;
    for _ in 0..100 {
        if asking.woken().contains(&at) {
            served = served.or(asking.poll(at));
        }
    }
    assert!(served.is_some());
}

// One that was served called nobody, since one had been called already.
#[test]
fn a_request_that_keeps_its_memory_calls_those_behind_a_forgotten_future() {
    let (pool, mut asking) = (pool_of(2), Asking::new());
    let held = [pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap()];
    for _ in 0..3 {
        let at = asking.begin(&pool);
        assert!(asking.poll(at).is_none());
    }
    drop(held);
    let _kept = asking.poll(0).unwrap();
    let mut served = None; // the second is forgotten
    for _ in 0..100 {
        if asking.woken().contains(&2) {
            served = served.or(asking.poll(2));
        }
    }
    assert!(served.is_some());
}

/// No memory is free that a future waits for while nobody is woken, with one forgotten future at most, and requests
/// that do not wait.
#[test]
fn no_call_is_lost_at_random() {
    for seed in 0..if cfg!(miri) { 2 } else { 400 } {
        let mut dice = StdRng::seed_from_u64(seed);
        let blocks = dice.random_range(1..4);
        let budget = Budget::new(blocks * MIB);
        let build = || BucketPool::builder(SimDevice::new()).budget(&budget).build();
        let pools: Vec<_> = (0..dice.random_range(1..4)).map(|_| build()).collect();
        let (mut asking, mut held, mut forgotten) = (Asking::new(), Vec::new(), None);
        let mut waited = 0;
        for _ in 0..200 {
            let pool = &pools[dice.random_range(0..pools.len())];
            let woken: Vec<_> =
                asking.woken().into_iter().filter(|at| Some(*at) != forgotten).collect();
            match dice.random_range(0..10) {
                0 | 1 if asking.futures.iter().flatten().count() < 8 => {
                    let at = asking.begin(pool);
                    held.extend(asking.poll(at));
                    waited += usize::from(asking.futures[at].is_some());
                    if forgotten.is_none() && dice.random_range(0..8) == 0 {
                        forgotten = Some(at);
                    }
                }
                2 => held.extend(pool.allocate(MIB).ok()),
                3..=5 if !held.is_empty() => {
                    drop(held.swap_remove(dice.random_range(0..held.len())));
                }
                6 if !asking.futures.is_empty() => {
                    let at = dice.random_range(0..asking.futures.len());
                    asking.futures[at] = None; // cancelled
                }
                _ if !woken.is_empty() => {
                    held.extend(asking.poll(woken[dice.random_range(0..woken.len())]));
                }
                _ => {}
            }
        }
        // All that are woken come.
        let mut turns = 0;
        loop {
            let woken = asking.woken().into_iter().find(|at| Some(*at) != forgotten);
            let Some(at) = woken else { break };
            held.extend(asking.poll(at));
            turns += 1;
            assert!(turns < 10_000, "seed {seed}: futures poll each other without end");
        }
        let waiting = (0..asking.futures.len())
            .filter(|at| asking.futures[*at].is_some() && Some(*at) != forgotten);
        let is_free = (held.len() as u64) < blocks;
        assert!(
            !is_free || waiting.count() == 0,
            "seed {seed}: memory is free, and nobody is woken"
        );
        assert!(waited > 0 || seed > 0, "seed {seed}: nobody waited");
    }
}

// Nobody else frees: who joins passes all that do not come.
#[test]
fn a_request_that_joins_passes_many_forgotten_futures() {
    let pool = pool_of(1);
    let held = pool.allocate(MIB).unwrap();
    for _ in 0..8 {
        let mut forgotten = pool.allocate_async(MIB);
        assert!(poll(&mut forgotten, Waker::noop()).is_pending());
        std::mem::forget(forgotten);
    }
    drop(held);
    assert_eq!(pollster::block_on(pool.allocate_async(MIB)).unwrap().size(), MIB);
    assert_eq!(pool.allocate_timeout(MIB, Duration::MAX).unwrap().size(), MIB);
}

// Only a free called it, and none follows the end of the work.
#[test]
fn a_request_sees_that_device_work_has_ended() {
    let device = SimDevice::new();
    let builder = BucketPool::builder(MappedSim::new(device.clone()));
    let pool = builder.arena(ArenaConfig::segments(2 * MIB)).reserved_limit(2 * MIB).build();
    let stream = device.stream();
    let _live = pool.allocate_on(&stream, MIB).unwrap();
    let used = pool.allocate_on(&stream, MIB).unwrap();
    device.kernel(&stream, &used.on(&stream).unwrap());
    drop(used);
    assert_eq!(pool.allocate(MIB).unwrap_err().verdict(), Verdict::Pending);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.allocate_timeout(MIB, Duration::MAX).unwrap().size());
        while pool.budget().waiter_count() == 0 {
            std::thread::yield_now();
        }
        device.run();
        assert_eq!(waits.join().unwrap(), MIB);
    });
}

// Each free let the request that waits empty all caches.
#[test]
fn a_request_that_waits_leaves_the_others_their_cache() {
    let pool = pool_of(8);
    let held = pool.allocate(4 * MIB).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.allocate_timeout(8 * MIB, Duration::MAX).unwrap().size());
        while pool.budget().waiter_count() == 0 {
            std::thread::yield_now();
        }
        let before = pool.stats();
        for _ in 0..100_000 {
            drop(pool.allocate(MIB).unwrap());
        }
        let misses = pool.stats().misses - before.misses;
        assert!(misses < 10_000, "{misses} of 100 000 requests missed");
        drop(held);
        assert_eq!(waits.join().unwrap(), 8 * MIB);
    });
}
