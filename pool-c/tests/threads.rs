//! Sixteen threads on four streams, with addresses and streams that are none: on the double of libcuda, which tells
//! of hazards. Sanitizers build it, since these are the functions of C in one program with their callers.
#![cfg(all(unix, feature = "cuda"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use bucketpool_c::calls::{
    bp_alloc, bp_free, bp_free_here, bp_hold, bp_lookup, bp_pool_drop, bp_pool_new, bp_record,
    bp_stats, bp_use,
};
use bucketpool_c::handle::Handle;
use bucketpool_c::report::{BlockDetails, Figures};
use bucketpool_c::status::Status;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::{size_of, zeroed};
use std::sync::Mutex;
use std::{ptr, thread};

#[path = "../../pool-cuda/tests/double/stand_in.rs"]
mod stand_in;

const THREADS: usize = 16;
const STREAMS: usize = 4;
const TURNS: usize = if cfg!(miri) { 10 } else { 400 };

/// A function of the double.
fn driver<F: Copy>(name: &[u8]) -> F {
    // SAFETY: `stand_in` has loaded it, and it stays.
    let library = unsafe { libloading::os::unix::Library::new("libcuda.so") }.unwrap();
    // SAFETY: each caller names the type of its function.
    let function = *unsafe { library.get::<F>(name) }.unwrap();
    std::mem::forget(library);
    function
}

type Stream = *mut c_void;

/// Makes the context of a device current to this thread.
fn use_device(device: i32) {
    let mut context: Stream = ptr::null_mut();
    assert_eq!(driver::<extern "C" fn(u32) -> i32>(b"cuInit")(0), 0);
    let retain = driver::<extern "C" fn(*mut Stream, i32) -> i32>(b"cuDevicePrimaryCtxRetain");
    assert_eq!(retain(&raw mut context, device), 0);
    assert_eq!(driver::<extern "C" fn(Stream) -> i32>(b"cuCtxSetCurrent")(context), 0);
}

fn new_stream() -> usize {
    let mut stream: Stream = ptr::null_mut();
    let create = driver::<extern "C" fn(*mut Stream, u32) -> i32>(b"cuStreamCreate");
    assert_eq!(create(&raw mut stream, 1), 0);
    stream.expose_provenance()
}

fn kernel(on: usize, at: usize, bytes: usize) {
    let kernel = driver::<extern "C" fn(usize, u64, usize) -> u32>(b"cuda_double_kernel");
    assert_eq!(kernel(on, at as u64, bytes), 0);
}

fn hazards() -> usize {
    driver::<extern "C" fn() -> usize>(b"cuda_double_hazards")()
}

/// The pool, for threads: it is used from any of them.
#[derive(Clone, Copy)]
struct Shared(*const Handle);
// SAFETY: each function may be called from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn alloc(self, bytes: usize, on: usize) -> usize {
        let mut at = ptr::null_mut();
        let stream = ptr::with_exposed_provenance_mut(on);
        // SAFETY: the pool and the streams live through the test.
        let said = unsafe { bp_alloc(self.0, bytes, 0, stream, &raw mut at) };
        assert_eq!(said, Status::BpOk);
        at.expose_provenance()
    }

    fn call(
        self,
        call: unsafe extern "C" fn(*const Handle, *mut c_void, Stream) -> Status,
        at: usize,
        on: usize,
    ) -> Status {
        let pointer = ptr::with_exposed_provenance_mut;
        // SAFETY: as above.
        unsafe { call(self.0, pointer(at), pointer(on)) }
    }
}

/// A block on its way from one thread to another, which frees it.
type Passed = Mutex<Vec<(usize, usize, usize)>>;

/// One of the threads: allocates, uses, records, holds, and frees its own blocks or those of others.
fn one(pool: Shared, streams: &[usize; STREAMS], foreign: usize, passed: &Passed, seed: u64) {
    use_device(0);
    let mut random = StdRng::seed_from_u64(seed);
    let mut noise = 0_u64;
    for _ in 0..TURNS {
        let (on, bytes) =
            (streams[random.random_range(0..STREAMS)], random.random_range(1..50_000));
        let at = pool.alloc(bytes, on);
        kernel(on, at, bytes);
        let other = streams[random.random_range(0..STREAMS)];
        match random.random_range(0..6) {
            0 => {
                let at = ptr::with_exposed_provenance_mut(at);
                let stream = ptr::with_exposed_provenance_mut(other);
                // SAFETY: the pool and the stream live through the test.
                let said = unsafe { bp_record(pool.0, at, ptr::with_exposed_provenance_mut(on)) };
                assert_eq!(said, Status::BpOk, "its latest work counts");
                // SAFETY: as above.
                assert_eq!(unsafe { bp_use(pool.0, at, stream, 0) }, Status::BpOk);
                kernel(other, at.addr(), bytes);
            }
            1 => assert_eq!(pool.call(bp_record, at, foreign), Status::BpOk),
            2 => {
                let unknown = (&raw mut noise).expose_provenance();
                assert_eq!(pool.call(bp_free, unknown, on), Status::BpUnknown);
                // SAFETY: plain numbers.
                let mut found: BlockDetails = unsafe { zeroed() };
                found.size = size_of::<BlockDetails>();
                let inside = ptr::with_exposed_provenance(at + bytes - 1);
                // SAFETY: `found` is a local variable of its size.
                let said = unsafe { bp_lookup(pool.0, inside, &raw mut found) };
                assert_eq!((said, found.base), (Status::BpOk, at));
            }
            3 => {
                let at = ptr::with_exposed_provenance_mut(at);
                // SAFETY: the pool lives through the test.
                assert_eq!(unsafe { bp_hold(pool.0, at) }, Status::BpOk);
                // SAFETY: as above.
                assert_eq!(unsafe { bp_free_here(pool.0, at) }, Status::BpOk);
            }
            _ => {}
        }
        let mut waiting = passed.lock().unwrap();
        waiting.push((at, bytes, on));
        let index = random.random_range(0..waiting.len());
        let theirs = if waiting.len() > 32 || random.random() {
            Some(waiting.swap_remove(index))
        } else {
            None
        };
        drop(waiting);
        if let Some((at, _, on)) = theirs {
            assert_eq!(pool.call(bp_free, at, on), Status::BpOk);
        }
    }
}

#[test]
fn sixteen_threads_on_four_streams() {
    stand_in::stand_in();
    driver::<extern "C" fn(bool)>(b"cuda_double_calls_wait")(false);
    for (settings, memory) in [(c"policy = 'pow2'", c"cuda"), (c"policy = 'arena'", c"cuda-vmm")] {
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("SEED={seed} replays it");
        use_device(1);
        let foreign = new_stream();
        use_device(0);
        let streams = [(); STREAMS].map(|()| new_stream());
        let mut pool = ptr::null();
        // SAFETY: texts that end with a zero byte, and a local variable.
        let said = unsafe { bp_pool_new(settings.as_ptr(), memory.as_ptr(), 0, &raw mut pool) };
        assert_eq!(said, Status::BpOk);
        let (pool, passed) = (Shared(pool), Passed::default());
        thread::scope(|scope| {
            for at in 0..THREADS as u64 {
                let (streams, passed) = (&streams, &passed);
                scope.spawn(move || one(pool, streams, foreign, passed, seed ^ (at << 32)));
            }
        });
        for (at, _, on) in passed.into_inner().unwrap() {
            assert_eq!(pool.call(bp_free, at, on), Status::BpOk);
        }
        assert_eq!(driver::<extern "C" fn() -> i32>(b"cuCtxSynchronize")(), 0);
        let mut figures = Figures { size: size_of::<Figures>(), ..Figures::default() };
        // SAFETY: `figures` is a local variable of its size.
        assert_eq!(unsafe { bp_stats(pool.0, &raw mut figures) }, Status::BpOk);
        assert_eq!(
            (hazards(), figures.live_blocks, figures.allocated_bytes),
            (0, 0, 0),
            "{memory:?}"
        );
        assert!(figures.hits > figures.misses, "{figures:?}");
        // SAFETY: its only owner.
        assert_eq!(unsafe { bp_pool_drop(pool.0) }, Status::BpOk);
    }
}
