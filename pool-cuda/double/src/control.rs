//! What tests ask of the double, beside the driver's own interface.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::Code;
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

/// Queues a kernel that uses these bytes and does nothing to them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_kernel(stream: usize, at: u64, bytes: usize) -> Code {
    call("a kernel", |state| {
        let (on, device) = state.stream(stream)?;
        let range = state.check(at, bytes, device)?;
        state.engine.kernel(on, range);
        Ok(())
    })
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

/// Bytes of host memory that are page-locked.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pinned() -> u64 {
    state().hosts.held()
}

/// Reserved addresses, memory without addresses, memory pools and graphs that nobody has given
/// back.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_leftovers() -> usize {
    let state = state();
    state.pages.leftovers() + state.pools.len() + state.graphs.len()
}

/// Calls of a name, refused ones among them; of all for an empty name.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_count(name: Name) -> u64 {
    state().script.count(&name.get())
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
    state().script.lose(code);
}

/// Events that exist.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_events() -> usize {
    state().events.len()
}

/// Nothing fails any more, and the devices are there again.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_mend() {
    state().script.mend();
}

/// A call of a name says that it was done and does nothing: the one after `skip` more. A query says
/// that its event has passed.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_pretend(name: Name, skip: u64) {
    state().script.pretend(name.get(), skip);
}
