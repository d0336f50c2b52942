//! Question 2: what creating, mapping, setting access and unmapping cost by size, and whether they
//! wait for the device.

use super::{Inquiry, Refused, call, done};
use bucketpool::cuda::cudarc::driver::sys;
use serde_json::{Map, Value, json};
use std::mem::MaybeUninit;
use std::time::Instant;

const MIB: usize = 1 << 20;
/// Bytes of addresses whose reserving is timed: 1.1 TiB, eight times the memory of an H200.
const ADDRESSES: usize = 1126 << 30;

/// Physical memory of device 0.
fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    properties
}

fn location() -> sys::CUmemLocation {
    // SAFETY: as above.
    let mut location: sys::CUmemLocation = unsafe { MaybeUninit::zeroed().assume_init() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location
}

/// Addresses, and physical memory that may be mapped there.
pub(super) struct Page {
    at: u64,
    bytes: usize,
    handle: u64,
}

impl Page {
    pub(super) fn new(bytes: usize) -> Result<Self, Refused> {
        let (mut at, mut handle, properties) = (0, 0, properties());
        let code = call!(cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0));
        done(code, "cuMemAddressReserve")?;
        let code = call!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0));
        done(code, "cuMemCreate")?;
        Ok(Self { at, bytes, handle })
    }

    fn map(&self) -> u32 {
        call!(cuMemMap(self.at, self.bytes, 0, self.handle, 0))
    }

    fn set_access(&self) -> u32 {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: location(), flags };
        call!(cuMemSetAccess(self.at, self.bytes, &raw const access, 1))
    }

    fn unmap(&self) -> u32 {
        call!(cuMemUnmap(self.at, self.bytes))
    }

    /// Maps, sets access, unmaps and gives everything back: the first code that is none of success.
    pub(super) fn cycle(self) -> u32 {
        let codes = [self.map(), self.set_access(), self.unmap(), self.give_back()];
        codes.into_iter().find(|code| *code != 0).unwrap_or(0)
    }

    fn give_back(self) -> u32 {
        let code = call!(cuMemRelease(self.handle));
        code.max(call!(cuMemAddressFree(self.at, self.bytes)))
    }
}

pub(super) fn virtual_memory(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let sizes: &[usize] = if asked.process.smoke { &[2] } else { &[2, 20, 64, 512] };
    let mut answers = Map::new();
    for mib in sizes {
        answers.insert(format!("{mib} MiB"), of_size(asked, mib * MIB)?);
    }
    let (mut at, start) = (0, Instant::now());
    let code = call!(cuMemAddressReserve(&raw mut at, ADDRESSES, 0, 0, 0));
    let reserve_ns = start.elapsed().as_nanos() as f64;
    if code == 0 {
        done(call!(cuMemAddressFree(at, ADDRESSES)), "cuMemAddressFree")?;
    }
    answers.insert("reserve 1.1 TiB".into(), json!({ "ns": reserve_ns, "code": code }));
    Ok(answers.into())
}

/// Each call on its own; what it leaves is made good before the next.
fn of_size(asked: &Inquiry<'_>, bytes: usize) -> Result<Value, Refused> {
    let properties = properties();
    let mut created = Vec::new();
    let create = asked.idle_and_busy(
        || Ok(()),
        |()| {
            let mut handle = 0;
            let code = call!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0));
            if code == 0 {
                created.push(handle);
            }
            code
        },
    )?;
    let mut handles = created.into_iter();
    let release =
        asked.idle_and_busy(|| Ok(handles.next().unwrap_or(0)), |h| call!(cuMemRelease(h)))?;
    let page = Page::new(bytes)?;
    let unmapped = || {
        let _ = page.unmap(); // the first time nothing is mapped
        Ok(())
    };
    let map = asked.idle_and_busy(unmapped, |()| page.map())?;
    let mapped_anew = || {
        let _ = page.unmap();
        done(page.map(), "cuMemMap")
    };
    let access = asked.idle_and_busy(mapped_anew, |()| page.set_access())?;
    let mapped = || {
        let _ = page.map(); // the first time it is
        done(page.set_access(), "cuMemSetAccess")
    };
    let unmap = asked.idle_and_busy(mapped, |()| page.unmap())?;
    let _ = page.unmap(); // where the second run was left out
    done(page.give_back(), "cuMemRelease")?;
    Ok(json!({
        "create": create, "map": map, "access": access, "unmap": unmap, "release": release,
    }))
}
