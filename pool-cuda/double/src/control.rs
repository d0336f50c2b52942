//! What tests ask of the double, beside the driver's own interface.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::cost::SETS;
use crate::pointer::Name;
use crate::script::Fault;
use crate::state::{DEVICES, State, call, state};

/// A new machine: nothing handed out, nothing counted, no script. Streams and events of before are
/// gone.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_reset() {
    *state() = State::new();
}

/// From here on queued work runs now and then between calls: the same work for the same seed.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_seed(seed: u64) {
    state().engine.seed(seed);
}

/// Queues a kernel that uses these bytes and does nothing to them. Where its device may not use
/// them, the context is lost when the kernel runs.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_kernel(stream: usize, at: u64, bytes: usize) -> Code {
    call("a kernel", |state| {
        let on = state.stream(stream)?;
        let range = at..at.saturating_add(bytes as u64);
        if state.may_use(&range, on.device) {
            state.engine.kernel(on.number, range);
            return Ok(());
        }
        let (lost, uses) = (state.lost.clone(), [(0..0, "stray kernel"), (0..0, "stray kernel")]);
        state.engine.later(on.number, uses, move |_| lost.lose(on.device, code::ILLEGAL_ADDRESS));
        Ok(())
    })
}

/// Lets the calls of which the documentation leaves it open wait for the device, or not.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_calls_wait(they_do: bool) {
    state().calls_wait = they_do;
}

/// The CPU uses these bytes of page-locked memory now.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_touch(at: u64, bytes: usize) {
    state().engine.touch(at..at + bytes as u64);
}

/// Runs everything that is queued.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_run() {
    state().engine.run();
}

/// Uses that were not ordered after the use before them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_hazards() -> usize {
    state().engine.hazards().len()
}

/// Tells the first few of them on stderr.
#[unsafe(no_mangle)]
#[expect(clippy::print_stderr, reason = "asked for by a test that fails")]
pub extern "C" fn cuda_double_tell_hazards() {
    for hazard in state().engine.hazards().iter().take(3) {
        eprintln!("{hazard}");
    }
}

/// Bytes of device memory that are handed out, or mapped.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_held() -> u64 {
    let state = state();
    (0..DEVICES).map(|device| state.held(device)).sum()
}

/// Bytes of device memory that are taken: handed out, mapped, or kept by memory pools.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_taken() -> u64 {
    let state = state();
    (0..DEVICES).map(|device| state.taken(device)).sum()
}

/// Pieces of memory that were made so that RDMA can reach them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_for_rdma() -> usize {
    state().pages.for_rdma()
}

/// Bytes of host memory that are page-locked.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pinned() -> u64 {
    state().hosts.held()
}

/// Reserved addresses, memory without addresses, memory pools and graphs that nobody has given
/// back.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_leftovers() -> usize {
    let state = &mut *state();
    state.forget_destroyed();
    state.pages.leftovers() + state.stores.len() + state.graphs.len()
}

/// Calls of a name, refused ones among them; of all for an empty name.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_count(name: Name) -> u64 {
    state().script.count(&name.get())
}

/// Nanoseconds of the calls of virtual memory so far, by one of two sets of published costs.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_cost(set: usize) -> u64 {
    let state = state();
    SETS.get(set).map_or(0, |costs| costs.total(|name| state.script.count(name)))
}

/// Lets calls of a name, of any for an empty one, fail: after `skip` more, `times` times, with
/// `code`, or with what suits the call for 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_fail(name: Name, skip: u64, times: u64, code: Code) {
    state().script.fail(Fault { name: name.get(), skip, times, code });
}

/// The devices are gone: each call says `code` from here on.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_lose(code: Code) {
    let state = state();
    (0..DEVICES).for_each(|device| state.lost.lose(device, code));
}

/// Events that exist.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_events() -> usize {
    state().events.len()
}

/// Nothing fails any more, and the devices are there again.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_mend() {
    let state = &mut *state();
    state.script.mend();
    state.lost.mend();
}

/// A call of a name says that it was done and does nothing: the one after `skip` more. A query says
/// that its event has passed.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pretend(name: Name, skip: u64) {
    state().script.pretend(name.get(), skip);
}
