//! The functions that PyTorch's `CUDAPluggableAllocator` takes, over the one pool of each device.
//!
//! A null pointer is no error to PyTorch, and Rust throws none of its exceptions: where memory is refused they call the
//! function of `bp_torch_on_oom`, which is in C++ and throws.
#![expect(unsafe_code, reason = "PyTorch calls them, with pointers")]

use crate::calls::{Stream, bp_alloc, bp_clear, bp_free_here, bp_private_begin, bp_set_fraction};
use crate::graphs::{DoneCall, FilterCall};
use crate::handle::{self, Handle};
use crate::pool::AnyPool;
use crate::status::{self, Failure, Status, told};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// The devices whose pools are found without a lock.
const DEVICES: usize = 64;

/// The pool of each device that has served a request.
static POOLS: [AtomicPtr<Handle>; DEVICES] = [const { AtomicPtr::new(ptr::null_mut()) }; DEVICES];

/// Throws a refusal: its text, and whether memory is what is missing.
pub type Throw = Option<unsafe extern "C-unwind" fn(*const c_char, c_int)>;

/// The function of `bp_torch_on_oom`, or null.
static THROW: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The pool of a device.
#[inline]
fn pool_of(device: c_int) -> *const Handle {
    let known = usize::try_from(device).ok().and_then(|device| POOLS.get(device));
    match known.map_or(ptr::null_mut(), |known| known.load(Acquire)) {
        none if none.is_null() => first_of(device),
        pool => pool.cast_const(),
    }
}

#[cold]
fn first_of(device: c_int) -> *const Handle {
    let mut pool = ptr::null();
    let _ = told(|| {
        pool = ptr::from_ref(handle::of_device(None, device)?);
        Ok(())
    });
    if let Some(known) = usize::try_from(device).ok().and_then(|device| POOLS.get(device)) {
        known.store(pool.cast_mut(), Release);
    }
    pool
}

/// Sets the function that throws where memory is refused.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_on_oom(throw: Throw) {
    let throw = throw.map_or(ptr::null_mut(), |throw| throw as *mut c_void);
    THROW.store(throw, Release);
}

/// Allocates. Calls the function of `bp_torch_on_oom` where it cannot, and returns null if there is none.
///
/// # Safety
///
/// The stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bp_torch_alloc(
    bytes: isize,
    device: c_int,
    stream: Stream,
) -> *mut c_void {
    let (pool, bytes) = (pool_of(device), usize::try_from(bytes).unwrap_or(0));
    let mut at = ptr::null_mut();
    let said = match pool.is_null() {
        true => status::last_error(0).status,
        // SAFETY: pools of devices live as long as the process; the stream as the caller promises.
        false => unsafe { bp_alloc(pool, bytes, 0, stream, &raw mut at) },
    };
    if said != Status::BpOk {
        throw(said);
    }
    at
}

/// Throws the last error of the thread, if the program has said how.
#[cold]
fn throw(said: Status) {
    // SAFETY: null is no function, and `bp_torch_on_oom` stored a function of this type.
    let call: Throw = unsafe { std::mem::transmute(THROW.load(Acquire)) };
    if let Some(call) = call {
        let is_memory = c_int::from(said == Status::BpOutOfMemory);
        // SAFETY: the text is the thread's. Nothing here has anything to drop while it throws.
        unsafe { call(status::last_error(0).text, is_memory) }
    }
}

/// Frees on the stream of the allocation, which is what PyTorch names.
///
/// # Safety
///
/// `at` is of `bp_torch_alloc`, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_torch_free(
    at: *mut c_void,
    _bytes: isize,
    device: c_int,
    _stream: Stream,
) {
    // SAFETY: pools of devices live as long as the process.
    let _ = unsafe { bp_free_here(pool_of(device), at) };
}

/// The pool that has a block. PyTorch names no device here. The start of a block is found at once; for another address
/// the blocks of all pools are looked at.
fn having(at: *mut c_void) -> Result<&'static dyn AnyPool, Failure> {
    if at.is_null() {
        return Err(Failure::unknown(0));
    }
    let pools = POOLS.iter().map(|pool| pool.load(Acquire).cast_const());
    // SAFETY: pools of devices live as long as the process.
    let known: Vec<_> =
        pools.filter_map(|pool| unsafe { pool.as_ref() }).map(Handle::pool).collect();
    let starts = known.iter().find(|pool| pool.is_start(at.addr()));
    let found = starts.or_else(|| known.iter().find(|pool| pool.find(at.addr()).is_ok()));
    found.copied().ok_or_else(|| Failure::unknown(at.addr()))
}

/// A segment for PyTorch's own allocator, behind a `MemPool`: usable on all streams.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_upstream_alloc(
    bytes: isize,
    device: c_int,
    _stream: Stream,
) -> *mut c_void {
    let mut at = 0;
    let _ = told(|| {
        let pool = handle::of_device(None, device)?.pool();
        at = pool.allocate_sync(usize::try_from(bytes).unwrap_or(0), 0)?;
        Ok(())
    });
    ptr::with_exposed_provenance_mut(at)
}

/// Frees a segment, behind all work of the device: nobody tells of uses.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_upstream_free(
    at: *mut c_void,
    _bytes: isize,
    device: c_int,
    _stream: Stream,
) {
    let _ = told(|| match at.is_null() {
        true => Ok(()),
        false => handle::of_device(None, device)?.pool().free_behind_all(at.addr()),
    });
}

/// Records a stream, for `Tensor.record_stream`.
///
/// # Safety
///
/// The stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_torch_record(at: *mut c_void, stream: Stream) {
    let _ = told(|| having(at)?.record(at.addr(), stream.addr()));
}

/// Gives all cached memory of all devices back, for `torch.cuda.empty_cache`.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_empty() {
    for pool in &POOLS {
        let pool = pool.load(Acquire).cast_const();
        if !pool.is_null() {
            // SAFETY: pools of devices live as long as the process.
            let _ = unsafe { bp_clear(pool, ptr::null_mut()) };
        }
    }
}

/// Sets the limit to a share of the device, for `torch.cuda.set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_fraction(share: f64, device: c_int) {
    // SAFETY: pools of devices live as long as the process.
    let _ = unsafe { bp_set_fraction(pool_of(device), share, ptr::null_mut()) };
}

/// The block that an address lies in, and its size.
///
/// # Safety
///
/// `bytes` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_torch_base(at: *mut c_void, bytes: *mut usize) -> *mut c_void {
    let mut base = at;
    let _ = told(|| {
        let found = having(at)?.find(at.addr())?;
        base = ptr::with_exposed_provenance_mut(found.base);
        if !bytes.is_null() {
            // SAFETY: as the caller promises.
            unsafe { bytes.write(usize::try_from(found.rounded).unwrap_or(usize::MAX)) };
        }
        Ok(())
    });
    base
}

/// Begins a capture, as `bp_private_begin` does. The hook of PyTorch passes an object of C++, which
/// `bucketpool_torch.cpp` turns into these arguments; without it, each captured stream is of the capture.
///
/// # Safety
///
/// As for `bp_private_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_torch_begin(
    device: c_int,
    a: u64,
    b: u64,
    filter: FilterCall,
    context: *mut c_void,
    done: DoneCall,
) {
    // SAFETY: as the caller promises.
    let _ = unsafe { bp_private_begin(pool_of(device), a, b, filter, context, done) };
}

/// Begins a capture for a hook without its filter: PyTorch passes one by an address that this does not read.
///
/// # Safety
///
/// As for `bp_private_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_torch_begin_any(device: c_int, a: u64, b: u64, _filter: *const c_void) {
    // SAFETY: as the caller promises.
    unsafe { bp_torch_begin(device, a, b, None, ptr::null_mut(), None) };
}

/// Ends a capture, as `bp_private_end` does. What is refused now, a later call of the pool does: PyTorch calls once.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_end(device: c_int, a: u64, b: u64) {
    let _ = told(|| handle::of_device(None, device)?.pool().end((a, b), true));
}

/// Says that a graph is gone, as `bp_private_release` does; later, where that is refused now.
#[unsafe(no_mangle)]
pub extern "C" fn bp_torch_release(device: c_int, a: u64, b: u64) {
    let _ = told(|| handle::of_device(None, device)?.pool().release((a, b), true));
}
