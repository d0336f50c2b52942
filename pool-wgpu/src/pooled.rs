//! Pooled buffers as they are in the calls of a scope, which uses them on its stream.

use crate::allocator::WgpuAllocator;
use crate::binding::Binding;
use crate::clock::WgpuStream;
use crate::slabs::{Role, WgpuSlabs};
use crate::view::sealed::{Bound, Part};
use crate::view::{Access, Bindable, BufferPart, Group, Place};
use pool_core::{DeviceError, PooledBuffer, Why};
use std::ops::Range;

/// Their scope is not known without one.
fn scope_of(of: Group<'_>) -> Result<&WgpuStream, DeviceError> {
    let call = "bind a pooled buffer without its scope: `Scope::bind_group`, or a view (`on`)";
    of.on.ok_or(DeviceError::new(Why::Unsupported, call))
}

impl Bound for PooledBuffer<WgpuAllocator> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        self.on(scope_of(of)?)?.bound(of, part)
    }
}

impl Part for PooledBuffer<WgpuAllocator> {
    fn place<'b>(&'b self, on: &'b WgpuStream, access: Access) -> Result<Place<'b>, DeviceError> {
        let used = if access == Access::Read { self.read_on(on)? } else { self.on(on)? };
        Ok(used.whole())
    }
}

impl<R: Role> Bound for PooledBuffer<WgpuSlabs<R>> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        self.on(scope_of(of)?)?.bound(of, part)
    }
}

impl<R: Role> Part for PooledBuffer<WgpuSlabs<R>> {
    fn place<'b>(&'b self, on: &'b WgpuStream, access: Access) -> Result<Place<'b>, DeviceError> {
        let used = if access == Access::Read { self.read_on(on)? } else { self.on(on)? };
        Ok(used.view().whole())
    }
}

impl Bindable for PooledBuffer<WgpuAllocator> {}
impl BufferPart for PooledBuffer<WgpuAllocator> {}
impl<R: Role> Bindable for PooledBuffer<WgpuSlabs<R>> {}
impl<R: Role> BufferPart for PooledBuffer<WgpuSlabs<R>> {}
