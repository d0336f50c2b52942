//! The functions of `bucketpool.h`.
//!
//! Each may be called from any thread, with any context of CUDA current or none. `stream`: 0 and 1 are the legacy
//! default stream, 2 is that of the calling thread, anything else a handle that lives through the call. After a fork
//! each says `BP_FORKED` and does nothing.
#![expect(unsafe_code, reason = "C calls them, with pointers")]

use crate::graphs::{DoneCall, Filter, FilterCall};
use crate::handle::{self, Handle, Hook, OomCall, ShortageCall, give, handle_of, known, text};
use crate::memory::Kind;
use crate::pool::AnyPool;
use crate::report::{self, BlockDetails, Figures};
use crate::status::{self, ErrorDetails, Failure, Status, told};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

/// A stream: 0 and 1 the legacy default stream, 2 that of the calling thread, else its handle.
pub type Stream = *mut c_void;

/// The version of this interface, which changes where a function or a struct does.
const ABI: u32 = 1;

/// Returns the version of the interface: `BP_ABI` of the header that a program was compiled with.
#[unsafe(no_mangle)]
pub extern "C" fn bp_abi() -> u32 {
    ABI
}

/// Returns the version of the library, as a text.
#[unsafe(no_mangle)]
pub extern "C" fn bp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Tells of the last error of this thread. `details->size` is set by the caller.
///
/// # Safety
///
/// `details` is null or a struct of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_last_error(details: *mut ErrorDetails) -> Status {
    // SAFETY: as the caller promises.
    let Some(details) = (unsafe { details.as_mut() }) else { return Status::BpInvalid };
    if details.size < size_of::<ErrorDetails>() {
        return Status::BpInvalid;
    }
    *details = status::last_error(details.size);
    Status::BpOk
}

/// Makes a pool. `settings`: TOML as in `docs/configuration.md`, or null for `policy = "arena"`. `memory`: "cuda",
/// "cuda-vmm", "cuda-async", "pinned" or "host". `device`: its ordinal; none for the host.
///
/// # Safety
///
/// The texts are null or end with a zero byte; `pool` is null or a place for the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_pool_new(
    settings: *const c_char,
    memory: *const c_char,
    device: c_int,
    pool: *mut *const Handle,
) -> Status {
    told(|| {
        if pool.is_null() {
            return Err(Failure::invalid("a null pointer for the pool"));
        }
        // SAFETY: as the caller promises.
        let settings = unsafe { text(settings) }?;
        // SAFETY: as the caller promises.
        let memory = unsafe { text(memory) }?;
        let new = Handle::open(settings, Kind::read(memory)?, device)?;
        // SAFETY: as the caller promises.
        unsafe { give(new, pool) }
    })
}

/// Returns the process's one pool of a device, which the first call makes, and which lives as long as the process.
/// `memory`: as for `bp_pool_new`; null for the pool of device memory, whatever its memory is.
///
/// # Safety
///
/// As for `bp_pool_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_pool_of_device(
    memory: *const c_char,
    device: c_int,
    pool: *mut *const Handle,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let shared = handle::of_device(unsafe { kind_of(memory) }?, device)?;
        // SAFETY: as the caller promises.
        unsafe { give_shared(shared, pool) }
    })
}

/// The memory of a pool that is named, if any is.
///
/// # Safety
///
/// Null, or a text that ends with a zero byte.
unsafe fn kind_of(memory: *const c_char) -> Result<Option<Kind>, Failure> {
    // SAFETY: as the caller promises.
    let memory = unsafe { text(memory) }?;
    if memory.is_empty() { Ok(None) } else { Kind::read(memory).map(Some) }
}

/// Gives a further owner of a pool of a device, whose drop leaves it alive.
///
/// # Safety
///
/// `pool` is null or a place for the pool.
unsafe fn give_shared(shared: &Handle, pool: *mut *const Handle) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    unsafe { give(ptr::from_ref(shared), pool) }?;
    shared.add_owner();
    Ok(())
}

/// As `bp_pool_of_device`, for a pool that has been made: `BP_UNKNOWN` if none has, and none is made.
///
/// # Safety
///
/// As for `bp_pool_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_pool_if_made(
    memory: *const c_char,
    device: c_int,
    pool: *mut *const Handle,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let kind = unsafe { kind_of(memory) }?;
        let none =
            || Failure::new(Status::BpUnknown, format!("no pool of device {device} was made"));
        let shared = handle::if_made(kind, device)?.ok_or_else(none)?;
        // SAFETY: as the caller promises.
        unsafe { give_shared(shared, pool) }
    })
}

/// Says with which settings and memory the pools of `bp_pool_of_device` are made. Call it before the first of them.
///
/// # Safety
///
/// The texts are null or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_set_devices(settings: *const c_char, memory: *const c_char) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let settings = unsafe { text(settings) }?;
        // SAFETY: as the caller promises.
        let memory = unsafe { text(memory) }?;
        handle::set_devices(settings, Kind::read(memory)?)
    })
}

/// Returns a further owner of a pool: the same pointer, for which `bp_pool_drop` is called once more.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_pool_clone(pool: *const Handle) -> *const Handle {
    // SAFETY: as the caller promises.
    if let Some(pool) = unsafe { pool.as_ref() } {
        pool.add_owner();
    }
    pool
}

/// Ends an owner's part. The last one closes the pool; its live blocks stay valid, and may be freed afterwards.
///
/// # Safety
///
/// `pool` is null, or one of its owners drops it once. No other call with it is under way at the last drop, and none
/// comes after it but the frees of its live blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_pool_drop(pool: *const Handle) -> Status {
    told(|| {
        if !pool.is_null() {
            // SAFETY: as the caller promises.
            unsafe { Handle::drop_owner(pool) };
        }
        Ok(())
    })
}

/// Allocates `bytes` bytes for work on `stream`. 0 bytes are the null address. `align`: 0, or a power of two that the
/// memory offers: up to 256 on a device.
///
/// # Safety
///
/// `pool` is null or alive, the stream is alive, `at` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bp_alloc(
    pool: *const Handle,
    bytes: usize,
    align: usize,
    stream: Stream,
    at: *mut *mut c_void,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { lend(pool, bytes, at, |pool| pool.allocate(bytes, align, stream.addr())) }
}

/// Gives the address of a new block, null for 0 bytes. Tells of a refusal as the last step, which may throw.
///
/// # Safety
///
/// `pool` is null or alive, `at` is null or a place for an address.
#[inline]
unsafe fn lend(
    pool: *const Handle,
    bytes: usize,
    at: *mut *mut c_void,
    ask: impl FnOnce(&dyn AnyPool) -> Result<usize, Failure>,
) -> Status {
    let said = told(|| {
        if at.is_null() {
            return Err(Failure::invalid(
                "a null pointer for the address; expected a place for it",
            ));
        }
        // SAFETY: as the caller promises.
        let pool = unsafe { known(pool) }?;
        let new = if bytes == 0 { 0 } else { ask(pool)? };
        // SAFETY: as the caller promises.
        unsafe { give(ptr::with_exposed_provenance_mut(new), at) }
    });
    if said == Status::BpOutOfMemory {
        // SAFETY: as the caller promises.
        unsafe { tell_oom(pool) };
    }
    said
}

/// Calls the hook of a refusal, which may throw.
///
/// # Safety
///
/// The pool is alive.
#[cold]
pub(crate) unsafe fn tell_oom(pool: *const Handle) {
    // SAFETY: as the caller promises.
    let hook = (unsafe { pool.as_ref() }).map(|pool| *pool.hooks().oom.lock());
    if let Some(Hook { call: Some(call), context }) = hook {
        // The hook may make calls that are refused, and the text is its own until it returns or throws.
        let kept = status::KeptError::take();
        // SAFETY: who set the hook promises that it may be called with its context; the text lives in `kept`.
        unsafe { call(context, kept.text()) }
    }
}

/// As `bp_alloc`, for work on every stream: all that used the memory before has passed when it returns. It waits on the
/// host, and is refused where that would break a capture.
///
/// # Safety
///
/// As for `bp_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bp_alloc_sync(
    pool: *const Handle,
    bytes: usize,
    align: usize,
    at: *mut *mut c_void,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { lend(pool, bytes, at, |pool| pool.allocate_sync(bytes, align)) }
}

/// Frees a block: it serves `stream` next, behind what that was given so far, and behind the streams that were recorded
/// for it. The caller has ordered `stream` behind the allocation and all other uses. A null address is none. Waits for
/// nothing, but on the host for a stream of another device, and for all work where `stream` is refused; what a capture
/// forbids to wait for now, a later call frees. The status says what was refused, and the block is gone all the same.
///
/// # Safety
///
/// `pool` is null or alive, or was dropped with this block alive; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_free(pool: *const Handle, at: *mut c_void, stream: Stream) -> Status {
    told(|| {
        if at.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { known(pool) }?.free(at.addr(), Some(stream.addr()))
    })
}

/// As `bp_free` on the stream of the block's allocation, which may have ended.
///
/// # Safety
///
/// As for `bp_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_free_here(pool: *const Handle, at: *mut c_void) -> Status {
    told(|| {
        if at.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { known(pool) }?.free(at.addr(), None)
    })
}

/// One more free must come before the block goes: for arrays that are shared.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_hold(pool: *const Handle, at: *mut c_void) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.hold(at.addr()))
}

/// Records that `stream`, which the caller has ordered behind the block's earlier uses, uses the block until its free.
/// For a stream of another device the free waits on the host.
///
/// # Safety
///
/// `pool` is null or alive, the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_record(pool: *const Handle, at: *mut c_void, stream: Stream) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.record(at.addr(), stream.addr()))
}

/// Orders `stream` behind the earlier uses that are known of the block, and records that it uses the block until its
/// free. `reads`: not 0 for a use that only reads, which waits for writes alone.
///
/// # Safety
///
/// As for `bp_record`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_use(
    pool: *const Handle,
    at: *mut c_void,
    stream: Stream,
    reads: c_int,
) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.order(at.addr(), stream.addr(), reads != 0))
}

/// Tells of the block that an address is the start of, or lies in. `found->size` is set by the caller.
///
/// # Safety
///
/// `pool` is null or alive; `found` is null or a struct of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_lookup(
    pool: *const Handle,
    at: *const c_void,
    found: *mut BlockDetails,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { known(pool) }?;
        // SAFETY: as the caller promises.
        let found = unsafe { found.as_mut() };
        let found = found.ok_or_else(|| Failure::invalid("a null pointer for the block"))?;
        report::check_size(found.size, size_of::<BlockDetails>())?;
        *found = BlockDetails::of(found.size, &pool.find(at.addr())?);
        Ok(())
    })
}

/// Ends what is known of a stream: before its owner destroys it, which costs an event, or after that, when the host
/// waits for all work of the device. A stream that nobody ends is noticed when its handle comes again.
///
/// # Safety
///
/// `pool` is null or alive; a pool of the device of the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_stream_end(pool: *const Handle, stream: Stream) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.end_stream(stream.addr()))
}

/// Says that a capture of another library is about to begin, whose graph keeps its memory by the id of two numbers.
/// Requests on its streams come from that memory until `bp_private_end`. `filter`: returns for a stream whether it is
/// in this capture, or null for each stream that the driver says is captured; it is called with `context` from threads
/// that allocate, until `done` is called with it once, and throws nothing. One capture at a time may be without a filter:
/// a second one is refused with `BP_NOT_SUBMITTED`.
///
/// # Safety
///
/// `pool` is null or alive. Captured work uses only memory of its capture, graphs of one id run one after the other, and
/// the id is released after them. The functions may be called from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_private_begin(
    pool: *const Handle,
    a: u64,
    b: u64,
    filter: FilterCall,
    context: *mut c_void,
    done: DoneCall,
) -> Status {
    told(|| {
        let filter = Filter { call: filter, context, done };
        // SAFETY: as the caller promises.
        unsafe { known(pool) }?.begin((a, b), filter)
    })
}

/// Ends a capture of an id, after the other library has ended it. `BP_NOT_SUBMITTED` while it goes on: call it again.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_private_end(pool: *const Handle, a: u64, b: u64) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.end((a, b), false))
}

/// Says that one graph of an id is gone. With the last one the memory goes to the pool, behind all work of the device:
/// the host waits for it. Beside another capture that waits until that has ended.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_private_release(pool: *const Handle, a: u64, b: u64) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }?.release((a, b), false))
}

/// Gives at least `bytes` bytes of cached memory back, the oldest first, or all there is. `given`: null, or a place for
/// the bytes.
///
/// # Safety
///
/// `pool` is null or alive; `given` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_trim(pool: *const Handle, bytes: u64, given: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { upkeep(pool, given, |pool| pool.trim(bytes)) }
}

/// Gives all cached memory back.
///
/// # Safety
///
/// As for `bp_trim`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_clear(pool: *const Handle, given: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { upkeep(pool, given, |pool| pool.clear()) }
}

/// Gives cached memory back until the device has `bytes` free bytes.
///
/// # Safety
///
/// As for `bp_trim`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_make_room(pool: *const Handle, bytes: u64, given: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { upkeep(pool, given, |pool| pool.make_room(bytes)) }
}

/// Sets the limit on reserved bytes, and gives back what is cached above it.
///
/// # Safety
///
/// As for `bp_trim`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_set_limit(pool: *const Handle, bytes: u64, given: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { upkeep(pool, given, |pool| pool.set_limit(bytes)) }
}

/// Sets the limit to a share of the bytes of the device, from 0 to 1, but not above the limit of the settings or of
/// `bp_set_limit`.
///
/// # Safety
///
/// As for `bp_trim`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_set_fraction(
    pool: *const Handle,
    share: f64,
    given: *mut u64,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { upkeep(pool, given, |pool| pool.set_fraction(share)) }
}

/// Runs a call that gives memory back, and tells how much.
///
/// # Safety
///
/// As for `bp_trim`.
unsafe fn upkeep(
    pool: *const Handle,
    given: *mut u64,
    call: impl FnOnce(&dyn AnyPool) -> Result<u64, Failure>,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let bytes = call(unsafe { known(pool) }?)?;
        if given.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { give(bytes, given) }
    })
}

/// Tells the figures of a pool. `figures->size` is set by the caller.
///
/// # Safety
///
/// `pool` is null or alive; `figures` is null or a struct of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_stats(pool: *const Handle, figures: *mut Figures) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { handle_of(pool) }?;
        // SAFETY: as the caller promises.
        let figures = unsafe { figures.as_mut() };
        let figures = figures.ok_or_else(|| Failure::invalid("a null pointer for the figures"))?;
        report::check_size(figures.size, size_of::<Figures>())?;
        *figures = Figures::of(figures.size, pool);
        Ok(())
    })
}

/// Tells all figures as JSON: `pool`, and `torch` by the names of PyTorch's `memory_stats`. `bp_text_free` frees the text.
///
/// # Safety
///
/// `pool` is null or alive; `json` is null or a place for a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_stats_json(pool: *const Handle, json: *mut *mut c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { written(pool, json, report::stats_json) }
}

/// Tells where the memory is as JSON: segments and their ranges. `bp_text_free` frees the text.
///
/// # Safety
///
/// As for `bp_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_map_json(pool: *const Handle, json: *mut *mut c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { written(pool, json, report::map_json) }
}

/// Writes the figures and a picture of the memory to a file, as a text.
///
/// # Safety
///
/// `pool` is null or alive; `path` is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_report(pool: *const Handle, path: *const c_char) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { handle_of(pool) }?;
        // SAFETY: as the caller promises.
        let path = unsafe { text(path) }?;
        report::write(pool, path)
    })
}

/// Writes a text about a pool to where C wants it.
///
/// # Safety
///
/// `pool` is null or alive; `to` is null or a place for a text.
unsafe fn written(
    pool: *const Handle,
    to: *mut *mut c_char,
    write: impl FnOnce(&Handle) -> Result<String, Failure>,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let text = write(unsafe { handle_of(pool) }?)?;
        if to.is_null() {
            return Err(Failure::invalid("a null pointer for the text; expected a place for it"));
        }
        let text = CString::new(text).map_err(|_| Failure::invalid("a text with a zero byte"))?;
        // SAFETY: as the caller promises.
        unsafe { give(text.into_raw(), to) }
    })
}

/// Frees a text of this library. Null is none.
///
/// # Safety
///
/// `text` is null, or a text of `bp_stats_json` or `bp_map_json` that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: `give_text` made it, and nobody has freed it, as the caller promises.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The peaks begin anew from the present figures.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_reset_peaks(pool: *const Handle) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }.map(|pool| pool.reset(true)))
}

/// The counts begin anew from 0.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_reset_counts(pool: *const Handle) -> Status {
    // SAFETY: as the caller promises.
    told(|| unsafe { known(pool) }.map(|pool| pool.reset(false)))
}

/// Sets the function that a request asks before it is refused, with the bytes that are missing; it returns not 0 if it
/// has freed any, from this pool or elsewhere. It runs on the thread that asks, without a lock of the pool. Null ends it.
///
/// # Safety
///
/// `pool` is null or alive; the function may be called with `context` from any thread until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_on_shortage(
    pool: *const Handle,
    call: ShortageCall,
    context: *mut c_void,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { handle_of(pool) }?;
        *pool.hooks().shortage.lock() = Hook { call, context };
        Ok(())
    })
}

/// Sets the function that is told of a refusal, with its text, as the last step of the call. It may throw an exception of
/// C++ through `bp_alloc`. Null ends it.
///
/// # Safety
///
/// As for `bp_on_shortage`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_on_oom(
    pool: *const Handle,
    call: OomCall,
    context: *mut c_void,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { handle_of(pool) }?;
        *pool.hooks().oom.lock() = Hook { call, context };
        Ok(())
    })
}
