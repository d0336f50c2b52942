//! Bind groups: found in the cache, or made and cached.

use crate::groups::Key;
use crate::scope::Scope;
use crate::view::{Access, Bindable, Group};
use pool_core::{DeviceError, Why};
use wgpu::{BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, ErrorFilter};

impl Scope {
    /// A bind group for commands of this scope, of resources by their binding numbers: pooled buffers and
    /// textures as they are, views of them on this scope, and all else that is [`Bindable`]. Pooled ones
    /// count as used by the scope, as [`Scope::lend`] and [`Scope::use_texture`] count them. The group is cached
    /// as that of [`WgpuAllocator::bind_group`](crate::WgpuAllocator::bind_group).
    ///
    /// # Errors
    ///
    /// As for [`WgpuAllocator::bind_group`](crate::WgpuAllocator::bind_group) and for [`Scope::lend`];
    /// [`Why::Foreign`] too for a view of another scope.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{Bindable, Unpooled, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
    /// #     binding,
    /// #     visibility: wgpu::ShaderStages::COMPUTE,
    /// #     ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
    /// #     count: None,
    /// # };
    /// # let storage = wgpu::BufferBindingType::Storage { read_only: false };
    /// # let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
    /// #     label: None,
    /// #     entries: &[entry(0, wgpu::BufferBindingType::Uniform), entry(1, storage), entry(2, storage)],
    /// # });
    /// # let camera = device.create_buffer(&wgpu::BufferDescriptor {
    /// #     label: None,
    /// #     size: 64,
    /// #     usage: wgpu::BufferUsages::UNIFORM,
    /// #     mapped_at_creation: false,
    /// # });
    /// let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// let scope = pool.allocator().scope();
    /// let (from, to) = (scope.take(&pool, KIB)?, scope.take(&pool, KIB)?);
    /// let group = scope.bind_group(&layout, &[(0, &Unpooled(&camera)), (1, &from), (2, &to)])?;
    ///
    /// // An engine that knows their number when it runs, and has them in a list:
    /// let bound = [&from, &to];
    /// let views: Vec<(u32, &dyn Bindable)> = (1..).zip(bound.map(|one| one as &dyn Bindable)).collect();
    /// # let refused = scope.bind_group(&layout, &views).unwrap_err();
    /// # assert_eq!(refused.why, Why::Unsupported);
    ///
    /// let other = pool.allocator().scope();
    /// let refused = other.bind_group(&layout, &[(1, &from)]).unwrap_err();
    /// assert_eq!(refused.why, Why::NotSubmitted); // the first scope may write it
    /// # }
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn bind_group(
        &self,
        layout: &BindGroupLayout,
        resources: &[(u32, &dyn Bindable)],
    ) -> Result<BindGroup, DeviceError> {
        let on = self.stream();
        let of = Group { device: self.clock(), on: Some(&on), access: Access::Write };
        group(of, "bucketpool", layout, resources)
    }
}

/// Finds a group, or makes one.
pub(crate) fn group(
    of: Group<'_>,
    label: &str,
    layout: &BindGroupLayout,
    resources: &[(u32, &dyn Bindable)],
) -> Result<BindGroup, DeviceError> {
    let shared = of.device.shared();
    shared.living()?; // or the group would be invalid, and cached
    let mut bound = Vec::with_capacity(resources.len());
    for (number, resource) in resources {
        bound.push((*number, resource.bound(of, None)?));
    }
    let key = Key::new(layout, bound);
    let scopes = of.device.open_scopes().opened();
    if let Some(group) = shared.groups.lock().find(&key, scopes) {
        return Ok(group);
    }
    let elements = key.bound().iter().map(|(_, bound)| bound.elements());
    let elements: Vec<_> = elements.collect::<Result<_, _>>()?;
    // Without the feature, wgpu panics.
    let has = shared.device.features();
    if !elements.iter().flatten().all(|elements| has.contains(elements.feature())) {
        let call = "bind an array on a device without the feature for it";
        return Err(DeviceError::new(Why::Unsupported, call));
    }
    let entries = key.bound().iter().zip(&elements).map(|((binding, bound), elements)| {
        BindGroupEntry { binding: *binding, resource: bound.resource(elements.as_ref()) }
    });
    let entries: Vec<_> = entries.collect();
    let label = Some(label);
    let descriptor = BindGroupDescriptor { label, layout, entries: &entries };
    let (group, refused) =
        shared.refused(ErrorFilter::Validation, || shared.device.create_bind_group(&descriptor));
    if refused {
        let call = "create_bind_group (`WgpuAllocator::on_refused` is told why)";
        return Err(DeviceError::new(Why::Unsupported, call));
    }
    let old = shared.groups.lock().insert(&key, group.clone(), scopes);
    drop(old); // without the lock
    Ok(group)
}
