//! Virtual memory: addresses, memory, and which memory is behind which addresses.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::device::device;
use crate::pointer::{Host, InOut, Out};
use crate::state::{CAPACITY, State, call, current, said};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ops::Range;

/// Memory comes in multiples of this many bytes, as on today's devices.
const GRANULE: u64 = 2 << 20;

/// More addresses at once an H100 refuses.
const ADDRESSES: u64 = (1 << 50) - 1;

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE: c_uint = 1;

/// `CUmemAllocationProp`, but for what only Windows reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    allocation: c_uint,
    handles: c_uint,
    location: c_uint,
    device: c_int,
    windows: usize,
    compression: u8,
    rdma: u8,
    rest: [u8; 6],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    location: c_uint,
    device: c_int,
    flags: c_uint,
}

impl Access {
    /// The device that may read and write; nothing else is modelled.
    pub(crate) fn device(self) -> Result<usize, Code> {
        if (self.location, self.flags) == (1, 3) {
            return device(self.device);
        }
        Err(code::INVALID_VALUE)
    }
}

#[derive(Default)]
pub(crate) struct Pages {
    /// Reserved addresses.
    reserved: HashMap<u64, u64>,
    memory: HashMap<u64, Memory>,
    next: u64,
    /// Handles of memory that is gone. The newest serves again first.
    spare: Vec<u64>,
    /// By address: the memory behind it.
    mapped: BTreeMap<u64, Mapped>,
}

/// A piece of memory. It is freed when the program holds no handle of it and it is mapped nowhere.
struct Memory {
    bytes: u64,
    device: usize,
    /// How many times the program holds its handle.
    held: usize,
    mappings: usize,
    handles: c_uint,
    rdma: bool,
}

struct Mapped {
    bytes: u64,
    memory: u64,
    may_use: HashSet<usize>,
}

impl Pages {
    pub(crate) fn held(&self, device: usize) -> u64 {
        let of_device = self.memory.values().filter(|memory| memory.device == device);
        of_device.map(|memory| memory.bytes).sum()
    }

    pub(crate) fn leftovers(&self) -> usize {
        self.reserved.len() + self.memory.len()
    }

    /// Whether a device was given access to all of a range.
    pub(crate) fn may_use(&self, range: &Range<u64>, device: usize) -> bool {
        let first = self.mapped.range(..=range.start).next_back().map_or(0, |(at, _)| *at);
        let mut until = range.start;
        for (at, mapped) in self.mapped.range(first..range.end) {
            if *at <= until && mapped.may_use.contains(&device) {
                until = until.max(at + mapped.bytes);
            }
        }
        until >= range.end
    }

    /// Returns the mapping around an address, and the device of the memory behind it.
    pub(crate) fn around(&self, at: u64) -> Option<(Range<u64>, usize)> {
        let (start, mapped) = self.mapped.range(..=at).next_back()?;
        let range = *start..start + mapped.bytes;
        let device = self.memory.get(&mapped.memory)?.device;
        range.contains(&at).then_some((range, device))
    }

    /// Returns how many pieces of memory were made so that RDMA can reach them.
    pub(crate) fn for_rdma(&self) -> usize {
        self.memory.values().filter(|memory| memory.rdma).count()
    }

    /// Returns the mappings that a range is made of, whole.
    fn whole(&self, range: &Range<u64>) -> Result<Vec<u64>, Code> {
        let inside: Vec<_> = self.mapped.range(range.clone()).collect();
        let bytes: u64 = inside.iter().map(|(_, mapped)| mapped.bytes).sum();
        if inside.is_empty() || bytes != range.end - range.start {
            return Err(code::INVALID_VALUE);
        }
        Ok(inside.into_iter().map(|(at, _)| *at).collect())
    }

    fn forget_unused(&mut self, memory: u64) {
        if self.memory.get(&memory).is_some_and(|m| m.held == 0 && m.mappings == 0) {
            self.memory.remove(&memory);
            self.spare.push(memory);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAllocationGranularity(
    granule: Out<usize>,
    properties: InOut<Properties>,
    _option: c_uint,
) -> Code {
    call("cuMemGetAllocationGranularity", |_| {
        device(properties.get().device)?;
        granule.put(usize::try_from(GRANULE).unwrap_or(0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(
    at: Out<u64>,
    bytes: usize,
    alignment: usize,
    _wish: u64,
    _flags: c_ulonglong,
) -> Code {
    call("cuMemAddressReserve", |state| {
        let bytes = whole_granules(bytes)?;
        if alignment > 0 && !alignment.is_power_of_two() {
            return Err(code::INVALID_VALUE);
        }
        if bytes > ADDRESSES {
            return Err(code::OUT_OF_MEMORY);
        }
        let address = said(state.engine.reserve_aligned(bytes, GRANULE))?;
        state.pages.reserved.insert(address, bytes);
        at.put(address);
        Ok(())
    })
}

fn whole_granules(bytes: usize) -> Result<u64, Code> {
    let bytes = bytes as u64;
    if bytes > 0 && bytes.is_multiple_of(GRANULE) { Ok(bytes) } else { Err(code::INVALID_VALUE) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(at: u64, bytes: usize) -> Code {
    call("cuMemAddressFree", |state| {
        let end = at + bytes as u64;
        let mapped = state.pages.mapped.range(at..end).next().is_some();
        if mapped || state.pages.reserved.get(&at) != Some(&(bytes as u64)) {
            return Err(code::INVALID_VALUE);
        }
        said(state.engine.free(at))?;
        state.pages.reserved.remove(&at);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    handle: Out<u64>,
    bytes: usize,
    properties: InOut<Properties>,
    _flags: c_ulonglong,
) -> Code {
    call("cuMemCreate", |state| {
        state.unsafe_call()?;
        let properties = properties.get();
        if (properties.allocation, properties.location) != (PINNED, ON_DEVICE) {
            return Err(code::INVALID_VALUE);
        }
        let (bytes, of) = (whole_granules(bytes)?, device(properties.device)?);
        if properties.handles & !FILE != 0 {
            return Err(code::NOT_SUPPORTED); // the attribute of fabric handles says so
        }
        if state.taken(of).saturating_add(bytes) > *CAPACITY {
            return Err(code::OUT_OF_MEMORY);
        }
        let (handles, rdma) = (properties.handles, properties.rdma > 0);
        let pages = &mut state.pages;
        let number = pages.spare.pop().unwrap_or_else(|| {
            pages.next += 1;
            pages.next
        });
        let memory = Memory { bytes, device: of, held: 1, mappings: 0, handles, rdma };
        pages.memory.insert(number, memory);
        handle.put(number);
        state.script.add("MiB: created", bytes >> 20);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Code {
    call("cuMemRelease", |state| {
        state.unsafe_call()?;
        let memory = state.pages.memory.get_mut(&handle).filter(|memory| memory.held > 0);
        let memory = memory.ok_or(code::INVALID_VALUE)?;
        memory.held -= 1;
        state.script.add("MiB: released", memory.bytes >> 20);
        state.pages.forget_unused(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    at: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    _flags: c_ulonglong,
) -> Code {
    call("cuMemMap", |state| {
        state.unsafe_call()?;
        if offset != 0 {
            return Err(code::INVALID_VALUE);
        }
        let bytes = whole_granules(bytes)?;
        let memory = state.pages.memory.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        if memory.held == 0 || memory.bytes != bytes {
            return Err(code::INVALID_VALUE);
        }
        said(state.engine.commit(&(at..at + bytes)))?;
        memory.mappings += 1;
        let mapped = Mapped { bytes, memory: handle, may_use: HashSet::new() };
        state.pages.mapped.insert(at, mapped);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(
    at: u64,
    bytes: usize,
    access: InOut<Access>,
    count: usize,
) -> Code {
    call("cuMemSetAccess", |state| {
        state.unsafe_call()?;
        let who = access.all(count).into_iter().map(Access::device);
        let who: Vec<usize> = who.collect::<Result<_, _>>()?;
        let parts = state.pages.whole(&(at..at + bytes as u64))?;
        state.waits_for_device();
        state.script.add("handles: access", (parts.len() * count) as u64);
        for part in parts {
            if let Some(mapped) = state.pages.mapped.get_mut(&part) {
                mapped.may_use.extend(&who);
            }
        }
        Ok(())
    })
}

/// Mappings go whole.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(at: u64, bytes: usize) -> Code {
    let unmapped = call("cuMemUnmap", |state| {
        state.unsafe_call()?;
        let range = at..at + bytes as u64;
        let parts = state.pages.whole(&range)?;
        state.waits_for_device();
        state.script.add("handles: unmap", parts.len() as u64);
        state.taking(current()?, |state| said(state.engine.decommit(&range)))?;
        for part in parts {
            let Some(mapped) = state.pages.mapped.remove(&part) else { continue };
            if let Some(memory) = state.pages.memory.get_mut(&mapped.memory) {
                memory.mappings -= 1;
            }
            state.pages.forget_unused(mapped.memory);
        }
        Ok(())
    });
    // Other threads may map the addresses before the caller sees the answer.
    std::thread::yield_now();
    unmapped
}

/// Returns one more hold on the memory behind an address.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemRetainAllocationHandle(handle: Out<u64>, at: Host) -> Code {
    call("cuMemRetainAllocationHandle", |state| {
        let pages = &mut state.pages;
        let (start, mapped) =
            pages.mapped.range(..=at.address()).next_back().ok_or(code::INVALID_VALUE)?;
        let inside = at.address() < start + mapped.bytes;
        let number = Some(mapped.memory).filter(|_| inside).ok_or(code::INVALID_VALUE)?;
        pages.memory.get_mut(&number).ok_or(code::INVALID_VALUE)?.held += 1;
        handle.put(number);
        Ok(())
    })
}

/// Refuses memory that was not made for this type of handle. What is exported is a number that no
/// other process knows.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemExportToShareableHandle(
    exported: Out<c_int>,
    handle: u64,
    kind: c_uint,
    _flags: c_ulonglong,
) -> Code {
    call("cuMemExportToShareableHandle", |state| {
        let memory = state.pages.memory.get(&handle).ok_or(code::INVALID_VALUE)?;
        if kind == 0 || memory.handles & kind != kind {
            return Err(code::INVALID_VALUE);
        }
        exported.put(c_int::try_from(handle).unwrap_or(-1));
        Ok(())
    })
}

impl State {
    /// Waits for the device, or does not, as `CUDA_DOUBLE` says. The documentation marks the calls
    /// that change mappings as synchronous, and does not say for what they wait.
    fn waits_for_device(&mut self) {
        if self.calls_wait {
            self.engine.synchronize_all();
        }
    }
}
