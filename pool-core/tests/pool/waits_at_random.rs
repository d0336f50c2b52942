//! Requests of many threads that wait for one budget in all the ways that there are: each ends, and
//! in its time.
//!
//! `BUCKETPOOL_REQUESTS=725000` makes a long run; `BUCKETPOOL_SEED` chooses the choices of the
//! threads, though not their order. The run prints how many requests took 20 ms longer than they
//! were to wait, which depends on the machine.
#![expect(clippy::unwrap_used, reason = "tests")]

use parking_lot::Mutex;
use pool_core::limits::Budget;
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PooledBuffer, Why};
use pool_sim::SimDevice;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Requests of a CI run.
const REQUESTS: u64 = 4000;
/// Threads that request.
const THREADS: u64 = 6;
const BUDGET: u64 = 8 * MIB;
const SIZES: [u64; 5] = [64 * KIB, 300 * KIB, MIB, 3 * MIB, 5 * MIB];
/// A run in which no request ends for so long stands still.
const STALL: Duration = Duration::from_mins(1);
/// How much longer than its timeout a request may take.
const LATE: Duration = Duration::from_millis(20);
/// One request in 16 times this many is a future that is forgotten: each keeps its place in the line,
/// and a pool.
const FORGOTTEN: u64 = 20;

type Buffer = PooledBuffer<SimDevice>;
type Pool = BucketPool<SimDevice>;
type Future = pool_core::AllocateAsync<SimDevice>;

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn poll(future: &mut Future) -> Poll<Result<Buffer, Why>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
    polled.map(|served| served.map_err(|error| error.why()))
}

/// What a thread has: its choices, the pools, and what it shares with the others.
struct Worker<'r> {
    dice: StdRng,
    pools: &'r [Pool; 2],
    /// Futures that another thread began to poll.
    moved: &'r Mutex<Vec<Future>>,
    /// Buffers that a shortage frees.
    spare: &'r Mutex<Vec<Buffer>>,
    late: u64,
    forgotten: u64,
}

impl Worker<'_> {
    fn request(&mut self) {
        let pool = &self.pools[self.dice.random_range(0..2)];
        let bytes = SIZES[self.dice.random_range(0..SIZES.len())];
        match self.dice.random_range(0..16) {
            0 => drop(pool.allocate(bytes)),
            1..=4 => {
                let timeout = Duration::from_millis([1, 5, 20, 100][self.dice.random_range(0..4)]);
                let begin = Instant::now();
                let served = pool.allocate_timeout(bytes, timeout).map_err(|error| error.why());
                self.late += u64::from(begin.elapsed() > timeout + LATE);
                assert!(served.is_ok() || matches!(served, Err(Why::TimedOut)), "{served:?}");
            }
            5..=8 => drop(pool.allocate_timeout(bytes, Duration::MAX).unwrap()),
            9 | 10 => finish(pool.allocate_async(bytes)),
            11 => {
                // Given up after a poll.
                let _ = poll(&mut pool.allocate_async(bytes));
            }
            12 => {
                // Moved: the next thread that comes by polls it to its end.
                let mut future = pool.allocate_async(bytes);
                match poll(&mut future) {
                    Poll::Ready(served) => drop(served.unwrap()),
                    Poll::Pending => self.moved.lock().push(future),
                }
            }
            13 => {
                let future = self.moved.lock().pop();
                if let Some(future) = future {
                    finish(future);
                }
            }
            14 if self.dice.random_range(0..FORGOTTEN) == 0 => {
                let mut future = pool.allocate_async(bytes);
                if poll(&mut future).is_pending() {
                    std::mem::forget(future);
                    self.forgotten += 1;
                }
            }
            _ => {
                let spare = pool.allocate_timeout(64 * KIB, Duration::MAX).unwrap();
                let mut spares = self.spare.lock();
                let oldest = if spares.len() > 16 { Some(spares.remove(0)) } else { None };
                spares.push(spare);
                drop(spares);
                drop(oldest);
            }
        }
    }
}

/// Polls a future until it is served.
fn finish(mut future: Future) {
    loop {
        match poll(&mut future) {
            Poll::Ready(served) => return drop(served.unwrap()),
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn each_request_ends() {
    let setting = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let requests = setting("BUCKETPOOL_REQUESTS").unwrap_or(REQUESTS);
    let seed = setting("BUCKETPOOL_SEED").unwrap_or(5);
    let (moved, spare) = (Mutex::new(Vec::new()), Arc::new(Mutex::new(Vec::<Buffer>::new())));
    let budget = Budget::new(BUDGET);
    let build = || {
        let spare = Arc::downgrade(&spare);
        BucketPool::builder(SimDevice::new()).budget(&budget).on_shortage(move |_| {
            let freed = spare.upgrade().and_then(|spare| spare.lock().pop());
            freed.is_some()
        })
    };
    let pools = [build().build(), build().arena(ArenaConfig::segments(MIB)).build()];
    // The first in the line are forgotten.
    let held = pools[0].allocate(BUDGET).unwrap();
    for pool in &pools {
        let mut future = pool.allocate_async(BUDGET);
        assert!(poll(&mut future).is_pending());
        std::mem::forget(future);
    }
    drop(held);
    let (ended, seen) = mpsc::channel();
    let [late, forgotten] = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|at| {
                let (pools, moved, spare, ended) = (&pools, &moved, &*spare, ended.clone());
                scope.spawn(move || {
                    let dice = StdRng::seed_from_u64(seed * THREADS + at);
                    let mut worker = Worker { dice, pools, moved, spare, late: 0, forgotten: 0 };
                    for _ in 0..requests / THREADS {
                        worker.request();
                        ended.send(()).unwrap();
                    }
                    // What the others had begun to wait for is not waited for any more.
                    moved.lock().clear();
                    spare.lock().clear();
                    [worker.late, worker.forgotten]
                })
            })
            .collect();
        drop(ended);
        loop {
            match seen.recv_timeout(STALL) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // The threads do not end, so a panic would wait for them.
                    eprintln!("no request ended, seed {seed}: {} wait", budget.waiter_count());
                    std::process::abort();
                }
            }
        }
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]])
    });
    moved.lock().clear();
    spare.lock().clear();
    println!(
        "{requests} requests ended, {late} more than 20 ms after their timeout, {forgotten} futures \
         forgotten; seed {seed}"
    );
    for pool in &pools {
        assert_eq!(pool.stats().allocated_bytes, 0);
        pool.check();
    }
}
