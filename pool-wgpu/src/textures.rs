//! Textures that serve again.

use crate::binding::{Binding, bytes_of};
use crate::clock::Scopes;
use crate::idle::{Aged, Spare};
use crate::looks::look;
use crate::scope::Scope;
use crate::view::sealed::Bound;
use crate::view::{Bindable, Group};
use crate::viewed::{Kind, ViewedTexture, kind_of};
use crate::written::hash_of;
use parking_lot::Mutex;
use pool_core::{DeviceError, MIB, StreamClock, Why};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use wgpu::{Texture, TextureDescriptor, TextureView, TextureViewDescriptor};

/// Scopes that are opened after a texture became idle until it goes, unless the program says otherwise: a
/// few frames.
const AGE: u64 = 8;
/// Bytes of idle textures that are kept, unless the program says otherwise.
const KEPT: u64 = 128 * MIB;

/// Textures of one device that serve again for the same descriptor: render targets, shadow maps, what a
/// filter needs for a frame. Clones are the same.
///
/// A texture goes back to wgpu when it served none of the last 8 scopes ([`Textures::forget_after`]), and the
/// oldest that are idle where these have more than 128 MiB ([`Textures::keep`]). All that are idle go before a
/// buffer or a texture of the device is refused because memory is short.
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
    age: AtomicU64,
    kept_bytes: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// By the numbers of their kinds.
    idle: Aged<IdleTexture>,
    /// Bytes of those.
    bytes: u64,
    made: u64,
}

struct IdleTexture {
    viewed: Arc<ViewedTexture>,
    /// The marks of the scopes whose commands may use it.
    after: Vec<u64>,
    /// The number of scopes that were opened when it became idle.
    since: u64,
}

/// A texture of a scope, which serves another one after its drop: [`Scope::take_texture`].
///
/// It is a [`wgpu::Texture`] by [`Deref`]. Its clones are the same texture, for the nodes of a render graph: it
/// serves another owner after the drop of the last. A clone of the [`wgpu::Texture`] or a view of it that is kept past its drop shows what
/// the next owner draws. Where another scope than its own uses it before its own was submitted, that scope
/// says so ([`Scope::use_texture`]). Afterwards its drop waits for the open scopes that began after its own.
#[derive(Clone)]
pub struct PooledTexture(Arc<LentTexture>);

/// What all clones have.
struct LentTexture {
    viewed: Arc<ViewedTexture>,
    scope: u64,
    of: Arc<TexturePool>,
}

impl Textures {
    pub(crate) fn new(clock: Scopes) -> Self {
        let (age, kept_bytes) = (AtomicU64::new(AGE), AtomicU64::new(KEPT));
        let pool = Arc::new(TexturePool { clock, textures: Mutex::default(), age, kept_bytes });
        let of_all: Weak<TexturePool> = Arc::downgrade(&pool);
        pool.clock.shared().idle.add(of_all);
        Self(pool)
    }

    /// From now on keeps at most `bytes` bytes of textures that wait for an owner, as their formats say; what a
    /// driver adds is not known. The oldest go with the next texture that is dropped. 128 MiB unless it is called.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::MIB;
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// let targets = WgpuAllocator::new(device, queue).textures();
    /// targets.keep(512 * MIB); // three targets of 8K, and what goes with them
    /// assert_eq!(targets.idle_bytes(), 0);
    /// # }
    /// ```
    pub fn keep(&self, bytes: u64) {
        self.0.kept_bytes.store(bytes, Relaxed);
    }

    /// From now on gives textures back to wgpu that none of the last `scopes` scopes has used; 8 unless it is
    /// called. For programs with several scopes in a frame: a few times as many.
    pub fn forget_after(&self, scopes: u64) {
        self.0.age.store(scopes, Relaxed);
    }

    /// Returns the bytes of the textures that wait for an owner.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        self.0.textures.lock().bytes
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
        self.0.clear();
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
        let kind = kind_of(descriptor);
        let mut taken = idle.take(self, &kind);
        while taken.as_ref().is_some_and(|taken| self.shared().is_texture_destroyed(&taken.texture))
        {
            taken = idle.take(self, &kind);
        }
        let viewed = if let Some(taken) = taken {
            taken
        } else {
            let new = self.shared().make(|| ViewedTexture::new(self.shared(), descriptor))?;
            idle.textures.lock().made += 1;
            Arc::new(new)
        };
        let scope = self.stream().scope();
        self.table().lend_texture(scope, &viewed.texture);
        let lent = LentTexture { viewed, scope, of: idle.clone() };
        Ok(PooledTexture(Arc::new(lent)))
    }
}

impl Scope {
    /// Counts a pooled texture as used by commands of this scope, for one that another scope has taken: a
    /// history that the frame after reads, or a view of it in a bind group. It serves nobody else before
    /// this scope is submitted, also once it is dropped. Calls of the scope that name the texture, such as
    /// [`Scope::read_back_texture_in`], count it by themselves.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a texture of another device, or once the scope's prologue was made, and
    /// [`Why::Lost`] if the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::Why;
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let descriptor = wgpu::TextureDescriptor {
    /// #     label: None,
    /// #     size: wgpu::Extent3d { width: 64, height: 64, depth_or_array_layers: 1 },
    /// #     mip_level_count: 1,
    /// #     sample_count: 1,
    /// #     dimension: wgpu::TextureDimension::D2,
    /// #     format: wgpu::TextureFormat::Rgba8Unorm,
    /// #     usage: wgpu::TextureUsages::RENDER_ATTACHMENT,
    /// #     view_formats: &[],
    /// # };
    /// # let encoder = || device.create_command_encoder(&Default::default());
    /// # let commands = encoder();
    /// # let allocator = WgpuAllocator::new(device.clone(), queue);
    /// # let targets = allocator.textures();
    /// let first = allocator.scope();
    /// let history = first.take_texture(&targets, &descriptor)?;
    /// let second = allocator.scope(); // is recorded while the first is
    /// second.use_texture(&history)?;
    /// drop(history);
    /// first.submit_with(commands)?;
    /// let third = allocator.scope();
    /// let other = third.take_texture(&targets, &descriptor)?;
    /// assert_eq!(targets.made(), 2); // the second frame has the first texture still
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let another = WgpuAllocator::new(device, queue);
    /// assert_eq!(another.scope().use_texture(&other).unwrap_err().why, Why::Foreign);
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn use_texture(&self, texture: &PooledTexture) -> Result<(), DeviceError> {
        self.shared().living()?;
        let on = self.stream();
        if !texture.0.of.clock.owns(&on) {
            return Err(DeviceError::new(Why::Foreign, "use a texture of another device"));
        }
        self.table().lend_texture(on.scope(), &texture.0.viewed.texture);
        Ok(())
    }
}

impl TexturePool {
    /// The newest idle texture of a kind that commands of the scope may use.
    fn take(&self, scope: &Scope, kind: &Kind) -> Option<Arc<ViewedTexture>> {
        let on = scope.stream();
        let on = self.clock.reuse_of(&on).unwrap_or(on);
        let is_ready = |mark: &u64| self.clock.is_ordered(&on, *mark);
        let serves = |idle: &IdleTexture| {
            look();
            idle.viewed.kind == *kind && idle.after.iter().all(is_ready)
        };
        let number = hash_of(kind);
        let mut kept = self.textures.lock();
        let (place, _) = kept.idle.of(number..=number).rev().find(|(_, idle)| serves(idle))?;
        let IdleTexture { viewed, .. } = kept.idle.remove(place)?;
        kept.bytes -= bytes_of(&viewed.texture);
        Some(viewed)
    }

    /// Drops textures, and the bind groups that keep them.
    fn let_go(&self, textures: Vec<IdleTexture>) {
        for IdleTexture { viewed, .. } in textures {
            self.clock.shared().groups.lock().forget_texture(&viewed.texture);
        }
    }
}

impl Spare for TexturePool {
    fn clear(&self) -> bool {
        let idle = {
            let mut kept = self.textures.lock();
            kept.bytes = 0;
            kept.idle.take_all()
        };
        let idle: Vec<_> = idle.collect();
        let were_any = !idle.is_empty();
        self.let_go(idle);
        were_any
    }

    fn age(&self, opened: u64) {
        let old = self.textures.lock().old(opened, self);
        self.let_go(old);
    }
}

impl Kept {
    /// Removes what served none of the last scopes, and the oldest beyond what is kept.
    fn old(&mut self, opened: u64, of: &TexturePool) -> Vec<IdleTexture> {
        let (age, kept) = (of.age.load(Relaxed), of.kept_bytes.load(Relaxed));
        let mut old = Vec::new();
        while let Some((place, idle)) = self.idle.oldest()
            && (idle.since.saturating_add(age) < opened || self.bytes > kept)
            && let Some(idle) = self.idle.remove(place)
        {
            look();
            self.bytes -= bytes_of(&idle.viewed.texture);
            old.push(idle);
        }
        old
    }
}

impl PooledTexture {
    /// A view of all of it, the same each time that the texture serves: a bind group with it is cached.
    #[must_use]
    pub fn view(&self) -> &TextureView {
        &self.0.viewed.whole
    }

    /// A view as `descriptor` says but for the label, as of one mip or layer: the same each time that the texture
    /// serves, as [`PooledTexture::view`]. Views of `Texture::create_view` are others each time, with bind
    /// groups of their own.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] where wgpu refuses the descriptor, and [`Why::Lost`] if the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::Why;
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let allocator = WgpuAllocator::new(device, queue);
    /// # let targets = allocator.textures();
    /// # let descriptor = wgpu::TextureDescriptor {
    /// #     label: None,
    /// #     size: wgpu::Extent3d { width: 64, height: 64, depth_or_array_layers: 1 },
    /// #     mip_level_count: 3,
    /// #     sample_count: 1,
    /// #     dimension: wgpu::TextureDimension::D2,
    /// #     format: wgpu::TextureFormat::Rgba8Unorm,
    /// #     usage: wgpu::TextureUsages::RENDER_ATTACHMENT,
    /// #     view_formats: &[],
    /// # };
    /// let scope = allocator.scope();
    /// let bloom = scope.take_texture(&targets, &descriptor)?; // three mips
    /// let mip = |base_mip_level| wgpu::TextureViewDescriptor {
    ///     base_mip_level,
    ///     mip_level_count: Some(1),
    ///     ..Default::default()
    /// };
    /// let half = bloom.view_of(&mip(1))?; // to draw to
    /// assert_eq!(half, bloom.view_of(&mip(1))?);
    /// assert_eq!(bloom.view_of(&mip(3)).unwrap_err().why, Why::Unsupported);
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn view_of(
        &self,
        descriptor: &TextureViewDescriptor<'_>,
    ) -> Result<TextureView, DeviceError> {
        let shared = self.0.of.clock.shared();
        shared.living()?;
        self.0.viewed.view(shared, descriptor)
    }
}

impl Bound for PooledTexture {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        of.is_of(&self.0.of.clock)?;
        let view = self.0.viewed.whole.bound(of, part)?;
        if let Some(on) = of.on {
            self.0.of.clock.open_scopes().lend_texture(on.scope(), self);
        }
        Ok(view)
    }
}

impl Bindable for PooledTexture {}

impl Deref for PooledTexture {
    type Target = Texture;
    fn deref(&self) -> &Texture {
        &self.0.viewed.texture
    }
}

impl Drop for LentTexture {
    fn drop(&mut self) {
        let open = self.of.clock.open_scopes();
        let after = open.marks_of_texture(self.scope, &self.viewed.texture);
        let (viewed, since) = (self.viewed.clone(), open.opened());
        let old = {
            let mut kept = self.of.textures.lock();
            kept.bytes += bytes_of(&viewed.texture);
            kept.idle.push(hash_of(&viewed.kind), IdleTexture { viewed, after, since });
            kept.old(since, &self.of)
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
        f.debug_struct("PooledTexture")
            .field("texture", &self.0.viewed.texture)
            .finish_non_exhaustive()
    }
}
