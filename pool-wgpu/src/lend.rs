//! Pooled buffers of a scope as wgpu's own, for programs that pass those on.

use crate::allocator::WgpuAllocator;
use crate::clock::{Scopes, WgpuStream};
use crate::scope::Scope;
use crate::view::sealed::Part as _;
use crate::view::{Access, BufferPart, Usage};
use pool_core::{AllocError, BucketPool, DeviceAllocator, DeviceError, PooledBuffer};
use wgpu::Buffer;

impl Scope {
    /// Takes a buffer of a pool for work of this scope, or a piece of a slab.
    ///
    /// See [`Scope::lend`] for an example, and [`Role`](crate::Role) for one with slabs.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    pub fn take<A: DeviceAllocator<Clock = Scopes>>(
        &self,
        pool: &BucketPool<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        pool.allocate_on(&self.stream(), bytes)
    }

    /// Takes a buffer of a pool for these uses, as [`Scope::take`] does for storage. They are `BufferUsages`, or a
    /// [`Usage`], which may name the buffer ([`Usage::labelled`]).
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let scope = pool.allocator().scope();
    /// let vertices = scope.take_kind(&pool, KIB, wgpu::BufferUsages::VERTEX)?;
    /// let mapped = scope.take_kind(&pool, KIB, wgpu::BufferUsages::MAP_READ).unwrap_err();
    /// assert_eq!(mapped.why(), Why::Unsupported);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_kind(
        &self,
        pool: &BucketPool<WgpuAllocator>,
        bytes: u64,
        usages: impl Into<Usage>,
    ) -> Result<PooledBuffer<WgpuAllocator>, AllocError> {
        pool.allocate_kind(&self.stream(), bytes, usages.into())
    }

    /// Takes a buffer, or a piece of a slab, that the commands of this scope fill before they read it. It is not
    /// zeroed ahead of them: until they have filled it, its bytes are those of its last owner.
    ///
    /// No other byte of another owner shows: the rest of a buffer that is larger than the request is zeroed, and
    /// so is all of it where the scope is dropped or wgpu refuses its commands, since they have not filled it
    /// then. A part that [`Scope::upload`] or [`Scope::copy`] has filled counts as filled. A [`Scope::flush`]
    /// zeroes it, too, where no commands of the scope were recorded since.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let scope = pool.allocator().scope();
    /// let tile = scope.take_to_fill(&pool, KIB)?; // a dispatch writes all of it
    /// assert!(scope.take_to_fill(&pool, u64::MAX).is_err());
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_to_fill<A>(
        &self,
        pool: &BucketPool<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError>
    where
        A: DeviceAllocator<Clock = Scopes>,
        for<'b> A::View<'b>: BufferPart,
    {
        self.promise(|on| pool.allocate_on(on, bytes))
    }

    /// Takes a buffer for these uses that the commands of this scope fill, as [`Scope::take_to_fill`] does.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// use wgpu::BufferUsages;
    ///
    /// let scope = pool.allocator().scope();
    /// let usages = BufferUsages::STORAGE | BufferUsages::INDIRECT;
    /// let counts = scope.take_kind_to_fill(&pool, 16, usages)?; // a dispatch writes them
    /// let mapped = scope.take_kind_to_fill(&pool, 16, BufferUsages::MAP_READ).unwrap_err();
    /// assert_eq!(mapped.why(), Why::Unsupported);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_kind_to_fill(
        &self,
        pool: &BucketPool<WgpuAllocator>,
        bytes: u64,
        usages: impl Into<Usage>,
    ) -> Result<PooledBuffer<WgpuAllocator>, AllocError> {
        self.promise(|on| pool.allocate_kind(on, bytes, usages.into()))
    }

    /// Takes what the program's commands fill.
    fn promise<A>(
        &self,
        take: impl FnOnce(&WgpuStream) -> Result<PooledBuffer<A>, AllocError>,
    ) -> Result<PooledBuffer<A>, AllocError>
    where
        A: DeviceAllocator<Clock = Scopes>,
        for<'b> A::View<'b>: BufferPart,
    {
        let on = self.stream();
        let count = self.table().count_zeroing(on.scope());
        let taken = take(&on)?;
        if let Ok(used) = taken.on(&on)
            && let Ok(place) = used.place(&on, Access::Write)
        {
            self.table().promise(on.scope(), count, place.buffer, &place.bytes_of_buffer());
        }
        Ok(taken)
    }

    /// Returns the buffer behind a pooled one, for commands of this scope or of the encoder that
    /// its prologue is for. The pooled buffer counts as used by this scope until it is dropped;
    /// kept past that, the buffer shows its next owner's data ([`WgpuAllocator::kept_clones`]).
    /// What the queue writes by itself (`Queue::write_buffer`) runs ahead of the prologue, which
    /// would zero it: upload in the scope, or take the buffer by [`BucketPool::allocate`], which zeroes
    /// it at once.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`](pool_core::Why::Foreign) for a buffer of another device,
    /// [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) for one that another open scope uses
    /// ([`Scope::lend_to_read`] shares it), and [`Why::Lost`](pool_core::Why::Lost) if the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue.clone()));
    /// let scope = pool.allocator().scope();
    /// let buffer = scope.take(&pool, KIB)?;
    /// let lent = scope.lend(&buffer)?; // for a library that takes wgpu's own buffers
    /// let other = pool.allocator().scope();
    /// assert_eq!(other.lend(&buffer).unwrap_err().why, Why::NotSubmitted);
    ///
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// encoder.clear_buffer(&lent, 0, None);
    /// scope.submit_with(encoder)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lend(&self, buffer: &PooledBuffer<WgpuAllocator>) -> Result<Buffer, DeviceError> {
        let on = self.stream();
        let used = buffer.on(&on)?;
        Ok(used.buffer()?.clone())
    }

    /// Returns the buffer behind a pooled one, for commands of this scope that only read it: a mesh, a
    /// material, a table. Any number of open scopes, on whatever threads, may have it so.
    /// Otherwise it is as [`Scope::lend`]; [`PooledBuffer::read_on`] lends a view in this way.
    ///
    /// Once is enough for a buffer that all later frames only read: if it was used in a scope that was
    /// submitted, or whose prologue was made, its drop waits for the open scopes that began after that of its
    /// allocation (all, if [`BucketPool::allocate`] made it). Before that, and in an older scope, each scope that
    /// uses it lends it.
    ///
    /// # Errors
    ///
    /// As for [`Scope::lend`], but [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) only while
    /// another open scope may write the buffer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mesh = pool.allocate(KIB)?;
    /// mesh.on(pool.default_stream())?.write(0, &[1; 1024])?;
    /// let (left, right) = (pool.allocator().scope(), pool.allocator().scope());
    /// let vertices = left.lend_to_read(&mesh)?;
    /// assert_eq!(right.lend_to_read(&mesh)?, vertices); // the same buffer in both views
    /// assert_eq!(right.lend(&mesh).unwrap_err().why, Why::NotSubmitted); // to write it
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lend_to_read(
        &self,
        buffer: &PooledBuffer<WgpuAllocator>,
    ) -> Result<Buffer, DeviceError> {
        let on = self.stream();
        let used = buffer.read_on(&on)?;
        Ok(used.buffer()?.clone())
    }
}
