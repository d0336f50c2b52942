//! Functions for tests: they set the double up and read its counts.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::cost::SETS;
use crate::pointer::Name;
use crate::script::Fault;
use crate::state::{DEVICES, State, call, state};
use pool_sim::engine::Access;

/// Starts a new machine: no memory handed out, no calls counted, no script. Earlier streams and
/// events are invalid.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_reset() {
    *state() = State::new();
}

/// Lets queued work run now and then between calls from now on: the same work for the same seed.
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
        let stray = Access::writing("stray kernel");
        let (lost, uses) = (state.lost.clone(), [(0..0, stray), (0..0, stray)]);
        state.engine.later(on.number, uses, move |_| lost.lose(on.device, code::ILLEGAL_ADDRESS));
        Ok(())
    })
}

/// Sets whether the calls wait for the device of which the documentation leaves that open.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_calls_wait(they_do: bool) {
    state().calls_wait = they_do;
}

/// Notes that the CPU uses these bytes of page-locked memory now.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_touch(at: u64, bytes: usize) {
    state().engine.touch(at..at + bytes as u64);
}

/// Runs everything that is queued.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_run() {
    state().engine.run();
}

/// Returns the number of uses that were not ordered after the use before them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_hazards() -> usize {
    state().engine.hazards().len()
}

/// Prints the first three of these uses on stderr.
#[unsafe(no_mangle)]
#[expect(clippy::print_stderr, reason = "asked for by a test that fails")]
pub extern "C" fn cuda_double_tell_hazards() {
    for hazard in state().engine.hazards().iter().take(3) {
        eprintln!("{hazard}");
    }
}

/// Returns the bytes of device memory that are handed out, or mapped.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_held() -> u64 {
    let state = state();
    (0..DEVICES).map(|device| state.held(device)).sum()
}

/// Returns the bytes of device memory that are taken: handed out, mapped, or kept by memory pools.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_taken() -> u64 {
    let state = state();
    (0..DEVICES).map(|device| state.taken(device)).sum()
}

/// Returns the number of pieces of memory that RDMA can reach.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_for_rdma() -> usize {
    state().pages.for_rdma()
}

/// Returns the bytes of page-locked host memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pinned() -> u64 {
    state().hosts.held()
}

/// Returns the number of reservations, pieces of memory, memory pools and graphs that the program
/// has not given back.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_leftovers() -> usize {
    let state = &mut *state();
    state.forget_destroyed();
    state.pages.leftovers() + state.stores.len() + state.graphs.len()
}

/// Returns the number of calls of a name, refused calls included; all calls for an empty name.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_count(name: Name) -> u64 {
    state().script.count(&name.get())
}

/// Returns the nanoseconds of the calls of virtual memory so far, by one of three sets of
/// costs.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_cost(set: usize) -> u64 {
    let state = state();
    SETS.get(set).map_or(0, |costs| costs.total(|name| state.script.count(name)))
}

/// Lets calls of a name fail, or all calls for an empty name: after `skip` more, `times` times,
/// with `code`, or with the code that suits the call for 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_fail(name: Name, skip: u64, times: u64, code: Code) {
    state().script.fail(Fault { name: name.get(), skip, times, code });
}

/// Loses both contexts: each later call returns `code`.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_lose(code: Code) {
    let state = state();
    (0..DEVICES).for_each(|device| state.lost.lose(device, code));
}

/// Returns the number of events.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_events() -> usize {
    state().events.len()
}

/// Ends all failures, and restores both contexts.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_mend() {
    let state = &mut *state();
    state.script.mend();
    state.lost.mend();
}

/// Lets one call of a name do nothing and report success: the one after `skip` more. A query
/// reports that its event has passed.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pretend(name: Name, skip: u64) {
    state().script.pretend(name.get(), skip);
}
