//! Page-locked host memory: real memory of this process, which the CPU touches as it likes.
#![expect(unsafe_code, reason = "symbols are exported by name, and memory comes from the system")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{State, call, current};
use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::ops::Range;

/// Bytes that page-locked memory is aligned to.
const PAGE: usize = 4096;

/// Page-locked memory, by address.
#[derive(Default)]
pub(crate) struct Hosts(BTreeMap<u64, Locked>);

struct Locked {
    bytes: usize,
    /// Whether it is the driver's own, and not registered memory of the program.
    owned: bool,
    /// The device whose context was current when it was locked.
    device: usize,
}

impl Hosts {
    /// Returns whether all of a range is page-locked.
    pub(crate) fn holds(&self, bytes: &Range<u64>) -> bool {
        let locked = self.0.range(..=bytes.start).next_back();
        locked.is_some_and(|(at, locked)| bytes.end <= at + locked.bytes as u64)
    }

    /// Returns the page-locked range around an address, and the device that it was locked for.
    pub(crate) fn around(&self, at: u64) -> Option<(Range<u64>, usize)> {
        let (start, locked) = self.0.range(..=at).next_back()?;
        let range = *start..start + locked.bytes as u64;
        range.contains(&at).then_some((range, locked.device))
    }

    pub(crate) fn held(&self) -> u64 {
        self.0.values().map(|locked| locked.bytes as u64).sum()
    }
}

fn layout(bytes: usize) -> Result<Layout, Code> {
    Layout::from_size_align(bytes, PAGE).map_err(|_| code::OUT_OF_MEMORY)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(at: Out<Host>, bytes: usize, _flags: c_uint) -> Code {
    call("cuMemHostAlloc", |state| {
        state.unsafe_call()?;
        let device = current()?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc::alloc(layout(bytes)?) };
        if memory.is_null() {
            return Err(code::OUT_OF_MEMORY);
        }
        let address = memory.expose_provenance() as u64;
        state.hosts.0.insert(address, Locked { bytes, owned: true, device });
        at.put(Host::at(address));
        Ok(())
    })
}

/// Takes page-locked memory away: at once, or when the device is idle, as `CUDA_DOUBLE` says. The
/// driver's documentation leaves it open.
fn unlock(state: &mut State, at: u64, bytes: usize) -> Result<(), Code> {
    if state.calls_wait {
        state.engine.synchronize_all();
    }
    state.hosts.0.remove(&at);
    state.taking(current()?, |state| {
        state.engine.freed(&(at..at + bytes as u64));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: Host) -> Code {
    call("cuMemFreeHost", |state| {
        state.unsafe_call()?;
        let known = state.hosts.0.get(&at.address()).filter(|locked| locked.owned);
        let bytes = known.ok_or(code::INVALID_VALUE)?.bytes;
        unlock(state, at.address(), bytes)?;
        let memory = std::ptr::with_exposed_provenance_mut(
            usize::try_from(at.address()).unwrap_or_default(),
        );
        // SAFETY: it was allocated with this layout in `cuMemHostAlloc`, and is forgotten here.
        unsafe { alloc::dealloc(memory, layout(bytes)?) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(at: Host, bytes: usize, _flags: c_uint) -> Code {
    call("cuMemHostRegister_v2", |state| {
        state.unsafe_call()?;
        let device = current()?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let range = at.address()..at.address() + bytes as u64;
        let before = state.hosts.0.range(..range.end).next_back();
        if before.is_some_and(|(start, locked)| start + locked.bytes as u64 > range.start) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.hosts.0.insert(range.start, Locked { bytes, owned: false, device });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: Host) -> Code {
    call("cuMemHostUnregister", |state| {
        state.unsafe_call()?;
        let known = state.hosts.0.get(&at.address()).filter(|locked| !locked.owned);
        let bytes = known.ok_or(code::HOST_MEMORY_NOT_REGISTERED)?.bytes;
        unlock(state, at.address(), bytes)
    })
}
