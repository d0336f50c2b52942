//! Device memory, copies and fills.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{Origin, State, Stream, call, current, device_of, said};
use pool_sim::engine::Access;
use std::ops::Range;

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) -> Code {
    call("cuMemAlloc_v2", |state| {
        state.unsafe_call()?;
        at.put(state.allocate(bytes, current()?, Origin::Device)?);
        Ok(())
    })
}

/// Waits for the device, or does not, as `CUDA_DOUBLE` says: the driver's documentation leaves it
/// open.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> Code {
    call("cuMemFree_v2", |state| {
        state.unsafe_call()?;
        let device = current()?;
        let known = state.memory.get(&at).ok_or(code::INVALID_VALUE)?;
        if known.device != device {
            return Err(code::INVALID_VALUE);
        }
        if let Origin::Pool(pool) = known.origin {
            // Allowed of a pool's memory too: it waits for the device then.
            state.engine.synchronize_all();
            let owned = state.memory.remove(&at).ok_or(code::INVALID_VALUE)?;
            return state.free_to_store(pool, at..at + owned.bytes, device);
        }
        if state.calls_wait {
            state.engine.synchronize_all();
        }
        state.taking(device, |state| {
            said(state.engine.free(at))?;
            state.memory.remove(&at);
            Ok(())
        })
    })
}

impl State {
    /// Returns whether host memory is used when the work's turn comes. Page-locked memory is; other
    /// memory in a capture only, which records its address.
    fn is_used_late(&self, host: &Range<u64>, on: Stream) -> bool {
        self.hosts.holds(host) || self.engine.is_capturing(on.number)
    }
}

/// What a copy does with its source, and with its target.
const FROM: Access = Access::reading("copy from");
const TO: Access = Access::writing("copy to");

/// The range of host memory that a copy uses, as the shadow of uses knows it. Nothing is known of
/// memory that is not page-locked.
fn known(state: &State, host: Range<u64>) -> Range<u64> {
    if state.hosts.holds(&host) { host } else { 0..0 }
}

impl State {
    /// Reads page-locked memory when the copy's turn comes, other memory before the call returns.
    /// In a capture the address is recorded, and is read in each launch.
    fn copy_to_device(
        &mut self,
        to: u64,
        from: Host,
        bytes: usize,
        on: Stream,
    ) -> Result<(), Code> {
        let range = self.copied(to, bytes, on.device)?;
        let source = from.address()..from.address() + bytes as u64;
        if self.is_used_late(&source, on) {
            let uses = [(known(self, source), FROM), (range, TO)];
            let copy = move |memory: &mut pool_sim::engine::Contents<'_>| {
                memory.write(to, &from.read(bytes));
            };
            self.engine.later(on.number, uses, copy);
        } else {
            self.engine.write(on.number, to, from.read(bytes));
        }
        Ok(())
    }

    /// Writes page-locked memory when the copy's turn comes. Into other memory it waits for the
    /// stream; in a capture the address is recorded, and is written in each launch.
    fn copy_to_host(&mut self, to: Host, from: u64, bytes: usize, on: Stream) -> Result<(), Code> {
        let range = self.copied(from, bytes, on.device)?;
        let target = to.address()..to.address() + bytes as u64;
        if self.is_used_late(&target, on) {
            let uses = [(range.clone(), FROM), (known(self, target), TO)];
            self.engine.later(on.number, uses, move |memory| to.write(&memory.read(&range)));
        } else {
            to.write(&self.engine.read(on.number, range));
        }
        Ok(())
    }

    fn copy_on_device(&mut self, to: u64, from: u64, bytes: usize, on: Stream) -> Result<(), Code> {
        let source = self.copied(from, bytes, on.device)?;
        let target = self.copied(to, bytes, on.device)?;
        self.copy_later(to, source, target, on);
        Ok(())
    }

    fn copy_later(&mut self, to: u64, source: Range<u64>, target: Range<u64>, on: Stream) {
        let uses = [(source.clone(), FROM), (target, TO)];
        self.engine.later(on.number, uses, move |memory| {
            let bytes = memory.read(&source);
            memory.write(to, &bytes);
        });
    }

    /// Copies between addresses of which the driver finds out where they are. An address that it
    /// does not know is one of host memory.
    fn copy_anywhere(&mut self, to: u64, from: u64, bytes: usize, on: Stream) -> Result<(), Code> {
        match (self.is_on_device(to), self.is_on_device(from)) {
            (true, true) => self.copy_on_device(to, from, bytes, on),
            (true, false) => self.copy_to_device(to, Host::at(from), bytes, on),
            (false, true) => self.copy_to_host(Host::at(to), from, bytes, on),
            (false, false) => {
                let none = Access::reading("copy on the host");
                let copy = move |_: &mut pool_sim::engine::Contents<'_>| {
                    Host::at(to).write(&Host::at(from).read(bytes));
                };
                self.engine.later(on.number, [(0..0, none), (0..0, none)], copy);
                Ok(())
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyHtoDAsync_v2", |state| {
        let on = state.stream(stream)?;
        state.copy_to_device(to, from, bytes, on)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyDtoHAsync_v2", |state| {
        let on = state.stream(stream)?;
        state.copy_to_host(to, from, bytes, on)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyDtoDAsync_v2", |state| {
        let on = state.stream(stream)?;
        state.copy_on_device(to, from, bytes, on)
    })
}

/// Between two places of host memory it is for page-locked memory, but the double takes any.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyAsync", |state| {
        let on = state.stream(stream)?;
        state.copy_anywhere(to, from, bytes, on)
    })
}

/// Runs work on the legacy stream of the current context, and waits for it.
fn and_wait(name: &'static str, work: impl FnOnce(&mut State, Stream) -> Result<(), Code>) -> Code {
    call(name, |state| {
        state.unsafe_call()?;
        let on = state.stream(0)?;
        work(state, on)?;
        state.engine.synchronize_stream(on.number);
        state.lost.check(on.device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> Code {
    and_wait("cuMemcpy", |state, on| state.copy_anywhere(to, from, bytes, on))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: Host, bytes: usize) -> Code {
    and_wait("cuMemcpyHtoD_v2", |state, on| state.copy_to_device(to, from, bytes, on))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: Host, from: u64, bytes: usize) -> Code {
    and_wait("cuMemcpyDtoH_v2", |state, on| state.copy_to_host(to, from, bytes, on))
}

/// It is in the order of the legacy stream, and does not wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    call("cuMemcpyDtoD_v2", |state| {
        state.unsafe_call()?;
        let on = state.stream(0)?;
        state.copy_on_device(to, from, bytes, on)
    })
}

/// It is in the order of the legacy stream, and does not wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(at: u64, byte: u8, bytes: usize) -> Code {
    call("cuMemsetD8_v2", |state| {
        state.unsafe_call()?;
        let on = state.stream(0)?;
        let range = state.copied(at, bytes, on.device)?;
        state.engine.fill(on.number, range, byte);
        Ok(())
    })
}

/// The devices need not reach each other.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: usize,
    from: u64,
    from_context: usize,
    bytes: usize,
    stream: usize,
) -> Code {
    call("cuMemcpyPeerAsync", |state| {
        let on = state.stream(stream)?;
        let source = state.copied(from, bytes, device_of(from_context)?)?;
        let target = state.copied(to, bytes, device_of(to_context)?)?;
        state.copy_later(to, source, target, on);
        Ok(())
    })
}

/// `count` words of 2 or 4 bytes, as programs of others fill memory.
fn fill_words(name: &'static str, at: u64, word: Vec<u8>, count: usize, stream: usize) -> Code {
    call(name, |state| {
        let on = state.stream(stream)?;
        let bytes = count.checked_mul(word.len()).ok_or(code::INVALID_VALUE)?;
        let range = state.copied(at, bytes, on.device)?;
        let uses = [(0..0, FROM), (range, TO)];
        state.engine.later(on.number, uses, move |memory| memory.write(at, &word.repeat(count)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(at: u64, word: u16, count: usize, stream: usize) -> Code {
    fill_words("cuMemsetD16Async", at, word.to_ne_bytes().to_vec(), count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(at: u64, word: u32, count: usize, stream: usize) -> Code {
    fill_words("cuMemsetD32Async", at, word.to_ne_bytes().to_vec(), count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(at: u64, byte: u8, bytes: usize, stream: usize) -> Code {
    call("cuMemsetD8Async", |state| {
        let on = state.stream(stream)?;
        let range = state.copied(at, bytes, on.device)?;
        state.engine.fill(on.number, range, byte);
        Ok(())
    })
}
