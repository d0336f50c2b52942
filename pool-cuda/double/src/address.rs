//! What the driver knows of an address: which memory it is in, and whose that is.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, InOut, Out};
use crate::state::{Origin, State, call, context_of, current};
use std::ffi::{c_int, c_uint};
use std::ops::Range;

/// `CUpointer_attribute`, as far as it is told. The others up to `LAST` are not supported.
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const DEVICE_POINTER: c_uint = 3;
const HOST_POINTER: c_uint = 4;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_BYTES: c_uint = 12;
const LAST: c_uint = 21;

/// `CUmemorytype`.
const ON_HOST: c_uint = 1;
const ON_DEVICE: c_uint = 2;

/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;

/// The allocation, the page-locked memory or the mapping around an address.
struct Known {
    range: Range<u64>,
    device: usize,
    is_on_host: bool,
    /// Memory of the driver's pools and mapped memory belong to no context.
    has_context: bool,
}

impl State {
    fn known(&self, at: u64) -> Option<Known> {
        if let Some((range, device)) = self.hosts.around(at) {
            return Some(Known { range, device, is_on_host: true, has_context: true });
        }
        let owned = self.memory.range(..=at).next_back();
        if let Some((start, owned)) = owned.filter(|(start, owned)| at < *start + owned.bytes) {
            return Some(Known {
                range: *start..start + owned.bytes,
                device: owned.device,
                is_on_host: false,
                has_context: owned.origin == Origin::Device,
            });
        }
        let (range, device) = self.pages.around(at)?;
        Some(Known { range, device, is_on_host: false, has_context: false })
    }

    /// Returns whether an address is one of device memory.
    pub(crate) fn is_on_device(&self, at: u64) -> bool {
        self.known(at).is_some_and(|known| !known.is_on_host)
    }
}

/// Returns the value of an attribute, as the bytes that the driver writes.
fn value(attribute: c_uint, known: &Known, at: u64) -> Result<Vec<u8>, Code> {
    let context = if known.has_context { context_of(known.device) } else { 0 };
    Ok(match attribute {
        CONTEXT => context.to_ne_bytes().to_vec(),
        MEMORY_TYPE if known.is_on_host => ON_HOST.to_ne_bytes().to_vec(),
        MEMORY_TYPE => ON_DEVICE.to_ne_bytes().to_vec(),
        DEVICE_POINTER => at.to_ne_bytes().to_vec(),
        HOST_POINTER if known.is_on_host => at.to_ne_bytes().to_vec(),
        HOST_POINTER => return Err(code::INVALID_VALUE), // the host cannot reach it
        DEVICE_ORDINAL => c_int::try_from(known.device).unwrap_or(0).to_ne_bytes().to_vec(),
        RANGE_START => known.range.start.to_ne_bytes().to_vec(),
        RANGE_BYTES => (known.range.end - known.range.start).to_ne_bytes().to_vec(),
        _ => return Err(unknown(attribute)),
    })
}

/// Returns the value of an attribute that an address does not have.
fn null(attribute: c_uint) -> Result<Vec<u8>, Code> {
    Ok(match attribute {
        CONTEXT | DEVICE_POINTER | HOST_POINTER | RANGE_START | RANGE_BYTES => vec![0; 8],
        MEMORY_TYPE => vec![0; 4],
        DEVICE_ORDINAL => NO_DEVICE.to_ne_bytes().to_vec(),
        _ => return Err(unknown(attribute)),
    })
}

fn unknown(attribute: c_uint) -> Code {
    match attribute {
        CONTEXT..=LAST => code::NOT_SUPPORTED,
        _ => code::INVALID_VALUE,
    }
}

/// An address of which the driver knows nothing is refused.
#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttribute(data: Host, attribute: c_uint, at: u64) -> Code {
    call("cuPointerGetAttribute", |state| {
        current()?;
        if data.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let known = state.known(at).ok_or(code::INVALID_VALUE)?;
        data.write(&value(attribute, &known, at)?);
        Ok(())
    })
}

/// An address of which the driver knows nothing has null values, unlike in the call for one
/// attribute.
#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: InOut<c_uint>,
    data: InOut<Host>,
    at: u64,
) -> Code {
    call("cuPointerGetAttributes", |state| {
        current()?;
        let count = usize::try_from(count).unwrap_or(0);
        let known = state.known(at);
        for (attribute, data) in attributes.all(count).into_iter().zip(data.all(count)) {
            let told = known.as_ref().map(|known| value(attribute, known, at));
            let told = match told {
                None | Some(Err(code::INVALID_VALUE)) => null(attribute)?,
                Some(told) => told?,
            };
            data.write(&told);
        }
        Ok(())
    })
}

/// The range of a mapping is that of one call of `cuMemMap`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, at: u64) -> Code {
    call("cuMemGetAddressRange_v2", |state| {
        current()?;
        let known = state.known(at).ok_or(code::NOT_FOUND)?;
        start.put_if_wanted(known.range.start);
        let length = known.range.end - known.range.start;
        bytes.put_if_wanted(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    })
}
