//! Pooled buffers of a scope as wgpu's own, for programs that pass those on.

use crate::allocator::WgpuAllocator;
use crate::scope::Scope;
use pool_core::{AllocError, BucketPool, DeviceError, PooledBuffer};
use wgpu::Buffer;

impl Scope {
    /// Takes a buffer of a pool for work of this scope.
    ///
    /// See [`Scope::lend`] for an example.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    pub fn take(
        &self,
        pool: &BucketPool<WgpuAllocator>,
        bytes: u64,
    ) -> Result<PooledBuffer<WgpuAllocator>, AllocError> {
        pool.allocate_on(&self.stream(), bytes)
    }

    /// Returns the buffer behind a pooled one, for commands of this scope or of the encoder that
    /// its prologue is for. The pooled buffer counts as used by this scope until it is dropped;
    /// kept past that, the buffer shows its next owner's data ([`WgpuAllocator::kept_clones`]).
    /// What the queue writes by itself (`Queue::write_buffer`) runs ahead of the prologue, which
    /// would zero it: upload in the scope.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`](pool_core::Why::Foreign) for a buffer of another device,
    /// [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) for one that another open scope uses,
    /// and [`Why::Lost`](pool_core::Why::Lost) if the device is lost.
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
    /// let prologue = scope.prologue(&mut encoder)?;
    /// queue.submit([prologue, encoder.finish()]);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lend(&self, buffer: &PooledBuffer<WgpuAllocator>) -> Result<Buffer, DeviceError> {
        let on = self.stream();
        let used = buffer.on(&on)?;
        Ok(used.buffer()?.clone())
    }
}
