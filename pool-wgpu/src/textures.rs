//! Textures that serve again.

use crate::clock::Scopes;
use crate::scope::Scope;
use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::{DeviceError, StreamClock, Why};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use wgpu::{
    ErrorFilter, Texture, TextureDescriptor, TextureFormat, TextureView, TextureViewDescriptor,
};

/// Textures of one device that serve again for the same descriptor: render targets, shadow maps, what a
/// filter needs for a frame. Clones are the same.
///
/// A texture goes back to wgpu when it served none of the last 64 scopes
/// ([`WgpuAllocator::forget_after`](crate::WgpuAllocator::forget_after)) and another one is taken or dropped.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod wgpu { pub use pool_wgpu::*; } }
/// use bucketpool::wgpu::{WgpuAllocator, wgpu};
///
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// let allocator = WgpuAllocator::new(device.clone(), queue);
/// let targets = allocator.textures();
/// let descriptor = wgpu::TextureDescriptor {
///     label: Some("target"),
///     size: wgpu::Extent3d { width: 64, height: 64, depth_or_array_layers: 1 },
///     mip_level_count: 1,
///     sample_count: 1,
///     dimension: wgpu::TextureDimension::D2,
///     format: wgpu::TextureFormat::Rgba8Unorm,
///     usage: wgpu::TextureUsages::RENDER_ATTACHMENT,
///     view_formats: &[],
/// };
/// for _frame in 0..3 {
///     let scope = allocator.scope();
///     let target = scope.take_texture(&targets, &descriptor)?;
///     let view = target.view(); // of all of it
///     let encoder = device.create_command_encoder(&Default::default());
///     // A pass that clears the target: it shows what its last owner drew.
///     scope.submit_with(encoder)?;
/// }
/// assert_eq!(targets.made(), 1);
/// # }
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[derive(Clone)]
pub struct Textures(Arc<TexturePool>);

struct TexturePool {
    clock: Scopes,
    textures: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The newest last.
    idle: Vec<IdleTexture>,
    made: u64,
}

struct IdleTexture {
    texture: Texture,
    view: TextureView,
    view_formats: Vec<TextureFormat>,
    /// The marks of the scopes whose commands may use it.
    after: Vec<u64>,
    /// The number of scopes that were opened when it became idle.
    since: u64,
}

/// A texture of a scope, which serves another one after its drop: [`Scope::take_texture`].
///
/// It is a [`wgpu::Texture`] by [`Deref`]. A clone or a view of it that is kept past its drop shows what
/// the next owner draws.
pub struct PooledTexture {
    texture: Texture,
    view: TextureView,
    view_formats: Vec<TextureFormat>,
    scope: u64,
    of: Arc<TexturePool>,
}

impl Textures {
    pub(crate) fn new(clock: Scopes) -> Self {
        Self(Arc::new(TexturePool { clock, textures: Mutex::default() }))
    }

    /// Returns how many textures were made so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.0.textures.lock().made
    }

    /// Returns how many textures wait for an owner.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.0.textures.lock().idle.len()
    }

    /// Gives all textures that wait for an owner back to wgpu.
    pub fn clear(&self) {
        let idle = std::mem::take(&mut self.0.textures.lock().idle);
        self.0.let_go(idle);
    }
}

impl Scope {
    /// Takes a texture for commands of this scope: an idle one that was made as `descriptor` says (but for
    /// the label), or a new one. It shows what its last owner drew, other than a new one: clear it, or
    /// draw all of it.
    ///
    /// See [`Textures`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for textures of another device, [`Why::Unsupported`] where wgpu refuses the
    /// descriptor, [`Why::OutOfMemory`] and [`Why::Lost`] as the device says.
    pub fn take_texture(
        &self,
        of: &Textures,
        descriptor: &TextureDescriptor<'_>,
    ) -> Result<PooledTexture, DeviceError> {
        let idle = &of.0;
        if !Arc::ptr_eq(idle.clock.shared(), self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "take a texture of another device"));
        }
        self.shared().living()?;
        let mut taken = idle.take(self, descriptor);
        while taken.as_ref().is_some_and(|(texture, _)| is_destroyed(self.shared(), texture)) {
            taken = idle.take(self, descriptor);
        }
        let (texture, view) = if let Some(taken) = taken {
            taken
        } else {
            let new = create(self.shared(), descriptor)?;
            idle.textures.lock().made += 1;
            new
        };
        let (view_formats, scope) = (descriptor.view_formats.to_vec(), self.stream().scope());
        self.table().lend(scope, &texture);
        Ok(PooledTexture { texture, view, view_formats, scope, of: idle.clone() })
    }
}

impl TexturePool {
    /// The newest idle texture that commands of the scope may use.
    fn take(
        &self,
        scope: &Scope,
        descriptor: &TextureDescriptor<'_>,
    ) -> Option<(Texture, TextureView)> {
        let (on, opened) = (scope.stream(), self.clock.open_scopes().opened());
        let reuses = !self.clock.reuses_ahead(&on);
        let is_ready = |mark: &u64| {
            self.clock.is_submitted(*mark) || reuses && self.clock.is_ordered(&on, *mark)
        };
        let (found, old) = {
            let mut kept = self.textures.lock();
            let serves =
                |idle: &IdleTexture| idle.is_as(descriptor) && idle.after.iter().all(is_ready);
            let at = kept.idle.iter().rposition(serves);
            let found = at.map(|at| kept.idle.remove(at));
            (found, kept.old(opened, self.clock.shared().age()))
        };
        self.let_go(old);
        found.map(|IdleTexture { texture, view, .. }| (texture, view))
    }

    /// Drops textures, and the bind groups that keep them.
    fn let_go(&self, textures: Vec<IdleTexture>) {
        for IdleTexture { texture, .. } in textures {
            self.clock.shared().groups.lock().forget_texture(&texture);
        }
    }
}

impl Kept {
    /// Removes what served none of the last scopes.
    fn old(&mut self, opened: u64, most: u64) -> Vec<IdleTexture> {
        self.idle.extract_if(.., |idle| idle.since.saturating_add(most) < opened).collect()
    }
}

impl IdleTexture {
    fn is_as(&self, descriptor: &TextureDescriptor<'_>) -> bool {
        let texture = &self.texture;
        texture.size() == descriptor.size
            && texture.mip_level_count() == descriptor.mip_level_count
            && texture.sample_count() == descriptor.sample_count
            && texture.dimension() == descriptor.dimension
            && texture.format() == descriptor.format
            && texture.usage() == descriptor.usage
            && self.view_formats == descriptor.view_formats
    }
}

/// Whether the program has destroyed a texture: wgpu makes no view of it.
fn is_destroyed(shared: &Shared, texture: &Texture) -> bool {
    let view = || texture.create_view(&TextureViewDescriptor::default());
    shared.refused(ErrorFilter::Validation, view).1
}

fn create(
    shared: &Shared,
    descriptor: &TextureDescriptor<'_>,
) -> Result<(Texture, TextureView), DeviceError> {
    let ((texture, invalid), out) = shared.refused(ErrorFilter::OutOfMemory, || {
        shared.refused(ErrorFilter::Validation, || shared.device.create_texture(descriptor))
    });
    match (invalid, out) {
        (false, false) => {
            let view = texture.create_view(&TextureViewDescriptor::default());
            Ok((texture, view))
        }
        (_, true) => Err(DeviceError::new(Why::OutOfMemory, "create_texture")),
        (true, false) => Err(DeviceError::new(Why::Unsupported, "create_texture")),
    }
}

impl PooledTexture {
    /// A view of all of it, the same each time that the texture serves: a bind group with it is cached.
    #[must_use]
    pub fn view(&self) -> &TextureView {
        &self.view
    }
}

impl Deref for PooledTexture {
    type Target = Texture;
    fn deref(&self) -> &Texture {
        &self.texture
    }
}

impl Drop for PooledTexture {
    fn drop(&mut self) {
        let open = self.of.clock.open_scopes();
        // One that was kept for longer than its scope may be in the commands of any that is open.
        let after = match open.is_closed(self.scope) {
            true => open.marks_since(self.scope),
            false => vec![open.mark(self.scope)],
        };
        let opened = open.opened();
        let idle = IdleTexture {
            texture: self.texture.clone(),
            view: self.view.clone(),
            view_formats: std::mem::take(&mut self.view_formats),
            after,
            since: opened,
        };
        let old = {
            let mut kept = self.of.textures.lock();
            kept.idle.push(idle);
            kept.old(opened, self.of.clock.shared().age())
        };
        self.of.let_go(old);
    }
}

impl fmt::Debug for Textures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Textures").field("idle", &self.idle()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PooledTexture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledTexture").field("texture", &self.texture).finish_non_exhaustive()
    }
}
