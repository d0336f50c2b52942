//! Buffers that grow and keep their bytes.

use crate::allocator::WgpuAllocator;
use crate::moved::Move;
use crate::scope::{Scope, offset_of};
use crate::uploads::Uploads;
use crate::view::sealed::Part as _;
use crate::view::{Access, Usage, value_of};
use bytemuck::NoUninit;
use pool_core::{AllocError, BucketPool, DeviceError, PooledBuffer, Why};
use std::fmt;
use std::mem::replace;
use wgpu::{BufferUsages, COPY_BUFFER_ALIGNMENT};

/// A buffer of a pool that grows: vertices, indices or instances of which there are more in some frames.
///
/// ```
/// # use pool_core::{BucketPool, KIB, MIB};
/// # use pool_wgpu::{GrowingBuffer, WgpuAllocator, wgpu};
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
/// # let uploads = pool.allocator().uploads(64 * KIB, MIB);
/// # let backs = pool.allocator().read_backs(KIB);
/// let mut vertices = GrowingBuffer::new(&pool, 64, wgpu::BufferUsages::VERTEX)?;
/// for count in [1, 4, 100_u64] {
///     let mut scope = pool.allocator().scope();
///     vertices.reserve(&mut scope, count * 16)?; // before this frame's commands use it
///     scope.upload(&uploads, vertices.buffer(), (count - 1) * 16, &[count as u8; 16])?;
///     let mut encoder = device.create_command_encoder(&Default::default());
///     let lent = scope.lend(vertices.buffer())?;
///     encoder.clear_buffer(&lent, 16, Some(16)); // draws
///     scope.submit_with(encoder)?;
/// }
/// let mut scope = pool.allocator().scope();
/// let back = scope.read_back(&backs, vertices.buffer(), 0, 16)?;
/// scope.submit()?;
/// assert!(back.wait(|bytes| bytes == [1; 16])?); // kept from the first frame
/// # }
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub struct GrowingBuffer {
    pool: BucketPool<WgpuAllocator>,
    buffer: PooledBuffer<WgpuAllocator>,
    /// Where the list ends that was uploaded, in bytes.
    end: u64,
}

impl GrowingBuffer {
    /// Takes a buffer for these uses, to which both directions of copies are added. It begins as zeroes if the
    /// pool zeroes.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_kind`].
    pub fn new(
        pool: &BucketPool<WgpuAllocator>,
        bytes: u64,
        usages: impl Into<Usage>,
    ) -> Result<Self, AllocError> {
        let usage = usages.into().and(BufferUsages::COPY_SRC);
        let on = pool.default_stream();
        let buffer = pool.allocate_kind(on, bytes, usage)?;
        Ok(Self { pool: pool.clone(), buffer, end: 0 })
    }

    /// Makes sure that it has at least so many bytes. Where it has fewer, it takes a block of twice its size, or
    /// of `bytes` if that is more or twice the size cannot be had, and its bytes are copied in the order of
    /// the scope. What is beyond them begins as zeroes if the pool zeroes. Returns whether it took another block:
    /// bind groups and views of the old one show old bytes.
    ///
    /// The old block serves others when the frame is through, as if it were dropped in this scope. Its bytes are
    /// kept if the scope is dropped or wgpu refuses its commands: the copy is made by itself then. They are lost
    /// with a [`Scope::prologue`] that wgpu refuses.
    ///
    /// # Errors
    ///
    /// Nothing has changed then. [`Why::Unsupported`] if the program's commands of this frame may use the
    /// buffer already, since the copy would run ahead of them: reserve before it is lent or bound. With
    /// [`Scope::encoder`] that is no error. [`Why::NotSubmitted`] while another open scope may write it, and as
    /// for [`Scope::take_kind`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{GrowingBuffer, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// let mut indices = GrowingBuffer::new(&pool, KIB, wgpu::BufferUsages::INDEX)?;
    /// let mut scope = pool.allocator().scope();
    /// assert!(!indices.reserve(&mut scope, 100)?); // it has them
    /// assert!(indices.reserve(&mut scope, 1100)?);
    /// assert_eq!(indices.capacity(), 2 * KIB);
    ///
    /// let lent = scope.lend(indices.buffer())?; // for an encoder of the program's own
    /// let refused = indices.reserve(&mut scope, 4 * KIB).unwrap_err();
    /// assert_eq!(refused.why(), Why::Unsupported);
    /// # scope.submit_with(device.create_command_encoder(&Default::default()))?;
    /// # }
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn reserve(&mut self, scope: &mut Scope, bytes: u64) -> Result<bool, AllocError> {
        let size = self.buffer.size();
        if bytes <= size {
            return Ok(false);
        }
        scope.may_move(&self.buffer)?;
        let (pool, usage) = (&self.pool, self.buffer.kind());
        let take = |bytes| scope.take_kind(pool, bytes, usage);
        let larger = match size.checked_mul(2).filter(|twice| *twice > bytes) {
            Some(twice) => take(twice).or_else(|_| take(bytes))?,
            None => take(bytes)?,
        };
        let words = size.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        scope.copy((&self.buffer, 0), (&larger, 0), words)?;
        let old = replace(&mut self.buffer, larger);
        scope.move_later(old, &self.buffer, words)?;
        Ok(true)
    }

    /// Writes `elements` into it, from the one with the number `first` on, as [`Scope::upload_slice`] does. Room for
    /// them is made before, as by [`GrowingBuffer::reserve`]; the program knows how many are valid. Returns
    /// whether it took another block.
    ///
    /// wgpu copies words of 4 bytes. Where the elements end inside of one, as three indices of `u16` do, zeroes
    /// fill it, so they must be the end of the list: they end no earlier than all that was uploaded since
    /// [`GrowingBuffer::clear`], or are all of the list (`first` is 0).
    ///
    /// # Errors
    ///
    /// As for [`GrowingBuffer::reserve`] and [`Scope::upload`]. [`Why::Unaligned`] where the elements begin inside
    /// of a word, or end in one that has elements behind them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, MIB};
    /// # use pool_wgpu::{GrowingBuffer, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// # let uploads = pool.allocator().uploads(64 * KIB, MIB);
    /// let mut vertices = GrowingBuffer::new(&pool, KIB, wgpu::BufferUsages::VERTEX)?;
    /// for count in [10, 500] {
    ///     let mut scope = pool.allocator().scope();
    ///     vertices.upload_slice(&mut scope, &uploads, 0, &vec![[0.0_f32; 4]; count])?;
    ///     let lent = scope.lend(vertices.buffer())?; // for a pass that draws `count` vertices
    ///     scope.submit_with(device.create_command_encoder(&Default::default()))?;
    /// }
    /// assert_eq!(vertices.capacity(), 500 * 16);
    /// # }
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn upload_slice<T: NoUninit>(
        &mut self,
        scope: &mut Scope,
        through: &Uploads,
        first: u64,
        elements: &[T],
    ) -> Result<bool, AllocError> {
        let data: &[u8] = bytemuck::cast_slice(elements);
        let offset = offset_of::<T>(first);
        let end = offset.saturating_add(data.len() as u64);
        let has_part = !(data.len() as u64).is_multiple_of(COPY_BUFFER_ALIGNMENT);
        if has_part && first > 0 && end < self.end {
            let call =
                "change a part of a word inside of a list (`GrowingBuffer::clear` begins it anew)";
            return Err(DeviceError::new(Why::Unaligned, call).code(value_of(end)).into());
        }
        let grew = self.reserve(scope, end)?;
        scope.upload_filled_up(through, &self.buffer, offset, data)?;
        self.end = if has_part { end } else { self.end.max(end) };
        Ok(grew)
    }

    /// The list is empty from now on: the next upload may end before the one that was there. Its block stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, MIB, Why};
    /// # use pool_wgpu::{GrowingBuffer, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// # let uploads = pool.allocator().uploads(64 * KIB, MIB);
    /// # let mut scope = pool.allocator().scope();
    /// let mut indices = GrowingBuffer::new(&pool, KIB, wgpu::BufferUsages::INDEX)?;
    /// indices.upload_slice(&mut scope, &uploads, 0, &[0_u16; 30])?;
    /// let inside = indices.upload_slice(&mut scope, &uploads, 6, &[1_u16; 3]).unwrap_err();
    /// assert_eq!(inside.why(), Why::Unaligned); // zeroes would overwrite the tenth
    ///
    /// indices.clear();
    /// indices.upload_slice(&mut scope, &uploads, 0, &[0_u16; 6])?;
    /// indices.upload_slice(&mut scope, &uploads, 6, &[1_u16; 3])?;
    /// scope.submit()?;
    /// # }
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn clear(&mut self) {
        self.end = 0;
    }

    /// How many bytes it has.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.buffer.size()
    }

    /// The present buffer, for the calls of a scope.
    #[must_use]
    pub fn buffer(&self) -> &PooledBuffer<WgpuAllocator> {
        &self.buffer
    }
}

impl Scope {
    /// Whether a copy of the scope sees all bytes of a buffer.
    fn may_move(&self, from: &PooledBuffer<WgpuAllocator>) -> Result<(), DeviceError> {
        let on = self.stream();
        let place = from.place(&on, Access::Read)?;
        let bytes = place.bytes_of_buffer();
        match self.table().is_recorded_elsewhere(on.scope(), place.buffer, &bytes) {
            true => {
                let call = "grow a buffer that commands of this frame may use: reserve before; \
                            if a frame before failed half way, `Frame::abandon`";
                Err(DeviceError::new(Why::Unsupported, call))
            }
            false => Ok(()),
        }
    }

    /// Notes a copy that is made in any case, and holds the old block, which the scope itself could have again.
    fn move_later(
        &mut self,
        old: PooledBuffer<WgpuAllocator>,
        new: &PooledBuffer<WgpuAllocator>,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let on = self.stream();
        let from = old.place(&on, Access::Read)?.buffer.clone();
        let to = new.place(&on, Access::Write)?.buffer.clone();
        let is_ahead = self.is_ahead();
        self.table().add_move(on.scope(), Move { from, to, bytes, is_ahead });
        self.hold(Box::new(old));
        Ok(())
    }
}

impl fmt::Debug for GrowingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowingBuffer").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
