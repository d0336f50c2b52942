//! Pooled buffers as they are in the calls of a scope, which uses them on its stream.

use crate::allocator::WgpuAllocator;
use crate::binding::Binding;
use crate::clock::{Scopes, WgpuStream};
use crate::slabs::{Role, WgpuSlabs};
use crate::view::sealed::{Bound, Part};
use crate::view::{Access, Bindable, BufferPart, Group, Place};
use pool_core::buffer::Use;
use pool_core::{DeviceAllocator, DeviceError, PooledBuffer, Why};
use std::ops::Range;

/// Their scope is not known without one.
fn scope_of(of: Group<'_>) -> Result<&WgpuStream, DeviceError> {
    let call = "bind a pooled buffer without its scope: `Scope::bind_group`, or a view (`on`)";
    of.on.ok_or(DeviceError::new(Why::Unsupported, call))
}

fn used<'b, A: DeviceAllocator<Clock = Scopes>>(
    buffer: &'b PooledBuffer<A>,
    on: &'b WgpuStream,
    access: Access,
) -> Result<Use<'b, A>, DeviceError> {
    if access == Access::Read { buffer.read_on(on) } else { buffer.on(on) }
}

impl Bound for PooledBuffer<WgpuAllocator> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        used(self, scope_of(of)?, of.access)?.bound(of, part)
    }
}

impl Part for PooledBuffer<WgpuAllocator> {
    fn place<'b>(&'b self, on: &'b WgpuStream, access: Access) -> Result<Place<'b>, DeviceError> {
        Ok(used(self, on, access)?.whole())
    }
}

impl<R: Role> Bound for PooledBuffer<WgpuSlabs<R>> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        used(self, scope_of(of)?, of.access)?.bound(of, part)
    }
}

impl<R: Role> Part for PooledBuffer<WgpuSlabs<R>> {
    fn place<'b>(&'b self, on: &'b WgpuStream, access: Access) -> Result<Place<'b>, DeviceError> {
        Ok(used(self, on, access)?.view().whole())
    }
}

impl Bindable for PooledBuffer<WgpuAllocator> {}
impl BufferPart for PooledBuffer<WgpuAllocator> {}
impl<R: Role> Bindable for PooledBuffer<WgpuSlabs<R>> {}
impl<R: Role> BufferPart for PooledBuffer<WgpuSlabs<R>> {}
