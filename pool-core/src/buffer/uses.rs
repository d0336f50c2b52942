//! Uses of a buffer on streams and by the CPU: the order before a use, and the mark after it.

use crate::block::PrivateId;
use crate::block::flags::{ELSEWHERE, PRIVATE};
use crate::buffer::PooledBuffer;
use crate::port::{DeviceAllocator, DeviceError, Lent, MarkOf, Order, StreamClock, StreamOf, Why};
use crate::store::captures::Launching;
use crate::stream::Access;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Returns the memory, for work that reads and writes it and that is given to `stream` while the
    /// [`Use`] lives. For work that only reads there is [`PooledBuffer::read_on`].
    ///
    /// The call orders the stream after the buffer's allocation and after the uses of the buffer
    /// that have ended on other streams, if necessary with waits on the device. When the `Use` is
    /// dropped, the buffer records a mark of the stream, and the block serves no other request
    /// before that mark is done.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if the stream belongs to another device or has ended, [`Why::NotSubmitted`]
    /// if the buffer was allocated for, or used in, work that has not reached the device (the
    /// error tells whether that work only reads it), or the error of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (load, compute) = (pool.allocator().stream(), pool.allocator().stream());
    /// let tile = pool.allocate_on(&load, 4096)?;
    /// pool.allocator().kernel(&load, &*tile.on(&load)?);
    /// pool.allocator().kernel(&compute, &*tile.on(&compute)?); // waits on the device, not here
    /// assert_eq!(pool.allocator().hazards(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::inline_always, reason = "a plain use is one function: no calls and no spills")]
    #[inline(always)]
    pub fn on<'b>(&'b self, stream: &'b StreamOf<A>) -> Result<Use<'b, A>, DeviceError> {
        self.begin(stream, Access::Write)?; // the drop of the `Use` ends it
        Ok(Use { view: self.view(stream), stream, buffer: self, access: Access::Write })
    }

    /// Returns the memory, for work that only reads it and that is given to `stream` while the
    /// [`Use`] lives.
    ///
    /// The call orders the stream after the work of earlier buffers with the memory and after the
    /// writes that have ended on other streams, but not after reads: streams that share weights do
    /// not wait for each other. A later write waits for all of them. Work that writes through this
    /// use is ordered with nothing. Beyond 32 other streams that read and are not known to be done,
    /// the first read of a further stream waits for the oldest of them.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on`]. Work that only reads and has not reached the device, such as
    /// that of a capture, refuses no read elsewhere.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, DeviceAllocator, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// let (first, second) = (device.stream(), device.stream());
    /// let weights = pool.allocate(4096)?;
    /// for stream in [&first, &second, &first, &second] {
    ///     device.reading_kernel(stream, &*weights.read_on(stream)?);
    /// }
    /// assert_eq!(device.calls().waits, 0); // the memory is fresh, and no reader waits for another
    /// device.kernel(&first, &*weights.on(&first)?); // behind all of them
    /// assert_eq!((device.calls().waits > 0, device.hazards()), (true, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn read_on<'b>(&'b self, stream: &'b StreamOf<A>) -> Result<Use<'b, A>, DeviceError> {
        self.begin(stream, Access::Read)?;
        let view = A::lend(self.view(stream), Lent::ToRead);
        Ok(Use { view, stream, buffer: self, access: Access::Read })
    }

    /// Records that `stream` uses the buffer, and may write it, until it is dropped. Makes no device
    /// call.
    ///
    /// It is for code that orders its streams itself, as `torch.Tensor.record_stream` is: the
    /// caller orders `stream` after the buffer's allocation and after its earlier uses.
    /// [`PooledBuffer::on`] and [`PooledBuffer::use_until_drop`] do both. When another stream
    /// requests the block after the drop, it waits for `stream` too. In a capture, use
    /// [`PooledBuffer::on`], because only then a launch waits for the buffer's earlier uses.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if the stream belongs to another device or has ended,
    /// [`Why::NotSubmitted`] for a page-locked buffer on a stream under capture, and the reason if
    /// the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, DeviceAllocator, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (load, compute) = (pool.allocator().stream(), pool.allocator().stream());
    /// let tile = pool.allocate_on(&load, 4096)?;
    /// pool.allocator().kernel(&load, &*tile.on(&load)?);
    /// let address = tile.on(&compute)?; // orders `compute` after `load`
    /// tile.record_stream(&compute)?;
    /// drop(address);
    /// // A library keeps the address, and gives work to `compute` until the tile is dropped.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_stream(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        self.may_use_on(stream)?;
        let clock = self.allocator().clock();
        self.record.uses().begin(clock, clock.mark(stream), Access::Write);
        Ok(())
    }

    /// Orders `stream` as [`PooledBuffer::on`] does, and records that it uses the buffer until the
    /// drop. It is for code that cannot tell when a use ends.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let compute = pool.allocator().stream();
    /// let tile = pool.allocate(4096)?;
    /// tile.use_until_drop(&compute)?; // work that `compute` is given from here on may use it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn use_until_drop(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        self.begin(stream, Access::Write)
    }

    /// Orders `stream` for a new use, and begins it.
    #[expect(clippy::inline_always, reason = "a plain use is one function: no calls and no spills")]
    #[inline(always)]
    fn begin(&self, stream: &StreamOf<A>, access: Access) -> Result<(), DeviceError> {
        if self.begin_plain(stream, access) {
            return Ok(());
        }
        self.begin_not_plain(stream, access)
    }

    /// Begins a use on the stream that alone used the buffer, if nothing is to be waited for. Returns
    /// false, and does nothing, if that is not so.
    #[expect(clippy::inline_always, reason = "a plain use is one function: no calls and no spills")]
    #[inline(always)]
    fn begin_plain(&self, stream: &StreamOf<A>, access: Access) -> bool {
        !self.record.flags.any(PRIVATE | ELSEWHERE)
            && self.store().is_plain_on(stream)
            && self.record.begin_alone(self.allocator().clock(), stream, access)
    }

    #[inline(never)]
    fn begin_not_plain(&self, stream: &StreamOf<A>, access: Access) -> Result<(), DeviceError> {
        self.may_use_on(stream)?;
        if self.record.private().is_some() {
            return self.begin_in_order(stream, access);
        }
        let clock = self.allocator().clock();
        {
            let mut marks = self.record.uses();
            let behind = marks.unordered_marks(clock, stream, access, A::MEMORY.cpu_touches);
            if behind.is_empty() && marks.too_many(clock, stream, access).is_empty() {
                marks.begin(clock, clock.mark(stream), access);
                if access == Access::Write {
                    marks.join(clock, stream, None);
                }
                return Ok(());
            }
        }
        self.begin_in_order(stream, access)
    }

    #[inline(never)]
    fn end_not_plain(&self, stream: &StreamOf<A>, access: Access) {
        if !self.store().is_unusable() {
            let clock = self.allocator().clock();
            self.record.uses().end(clock, clock.mark(stream), access);
        }
    }

    #[cold]
    fn begin_in_order(&self, stream: &StreamOf<A>, access: Access) -> Result<(), DeviceError> {
        let joined = self.order(stream, access)?;
        let clock = self.allocator().clock();
        let mut marks = self.record.uses();
        marks.begin(clock, clock.mark(stream), access);
        if access == Access::Write {
            marks.join(clock, stream, None);
        } else if !joined.is_empty() {
            marks.join(clock, stream, Some(&joined));
        }
        Ok(())
    }

    /// Returns the memory for the CPU, to read and to write. Blocks the host until all work with the
    /// buffer is done: its recorded uses, and the launches of a graph that the buffer was allocated
    /// for. For a use that is still open it waits for all work that the stream was given so far.
    ///
    /// A use that lasts until the drop stays open: give its stream no work with the buffer while
    /// the CPU uses the buffer.
    ///
    /// # Errors
    ///
    /// The error of the device; [`Why::NotSubmitted`] if the wait would never end.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::{MappedSim, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(MappedSim::new(device.clone()));
    /// let stream = device.stream();
    /// let mut buffer = pool.allocate_on(&stream, 4096)?;
    /// device.kernel(&stream, &*buffer.on(&stream)?);
    /// device.touch(&buffer.on_cpu()?); // the kernel has run
    /// assert_eq!(device.hazards(), 0);
    /// device.lose_after(0);
    /// device.kernel(&stream, &*buffer.on(&stream)?);
    /// assert_eq!(buffer.on_cpu().unwrap_err().why, Why::Lost);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_cpu(&mut self) -> Result<A::View<'_>, DeviceError> {
        self.wait_for_uses(Access::Write)?;
        Ok(self.cpu_view())
    }

    /// Returns the memory for the CPU, to read. Blocks the host until all work that writes the buffer
    /// is done, launches of its graph included, and not for uses by [`PooledBuffer::read_on`].
    /// Otherwise it is as [`PooledBuffer::on_cpu`]. The buffer is borrowed exclusively, so that no
    /// stream is given work that writes it meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on_cpu`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::{MappedSim, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(MappedSim::new(device.clone()));
    /// let stream = device.stream();
    /// let mut buffer = pool.allocate_on(&stream, 4096)?;
    /// device.reading_kernel(&stream, &*buffer.read_on(&stream)?);
    /// buffer.read_on_cpu()?; // beside the kernel
    /// assert_eq!(device.calls().records, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_on_cpu(&mut self) -> Result<A::View<'_>, DeviceError> {
        self.wait_for_uses(Access::Read)?;
        Ok(self.cpu_view())
    }

    fn cpu_view(&self) -> A::View<'_> {
        A::lend(self.view(self.allocator().clock().default_stream()), Lent::ToCpu)
    }

    fn wait_for_uses(&mut self, access: Access) -> Result<(), DeviceError> {
        if let Some(fault) = self.allocator().clock().fault() {
            return Err(fault);
        }
        let private = self.record.private();
        let launches = match private {
            Some(id) => {
                let launching = self.launching(id)?;
                let _launching = launching.lock(); // one that is under way has its mark then
                self.launches(id)?
            }
            None => Vec::new(),
        };
        let (store, _, marks) = self.parts();
        let _watch = store.watch();
        let clock = store.allocator.clock();
        let uses = marks.current_marks(clock, access, A::MEMORY.cpu_touches);
        uses.iter().chain(&launches).try_for_each(|mark| clock.synchronize(*mark))
    }

    /// Returns on how many streams, besides the one of its allocation, the buffer has last uses.
    #[cfg(feature = "check")]
    #[must_use]
    pub fn uses_on_other_streams(&self) -> usize {
        self.record.marks.lock().count_others()
    }

    /// Returns the memory, for work on `stream`. Records no use.
    #[inline]
    pub(crate) fn view<'b>(&'b self, stream: &StreamOf<A>) -> A::View<'b> {
        self.record.view(self.allocator(), self.record.requested, stream)
    }

    pub(super) fn may_use_on(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let clock = self.allocator().clock();
        if let Some(fault) = clock.fault() {
            return Err(fault);
        }
        if !clock.owns(stream) {
            return Err(DeviceError::new(
                Why::Foreign,
                "use on a stream that this device does not have",
            ));
        }
        if A::MEMORY.cpu_touches && !clock.takes_work(stream) {
            // A graph launch could access the memory at any later time, and the CPU could not know.
            let call = "use memory that the CPU can touch in a capture";
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        Ok(())
    }

    /// Orders `stream` after the uses that a new one must be after. Returns the uses that it was
    /// ordered after because there were too many.
    fn order(&self, stream: &StreamOf<A>, access: Access) -> Result<Vec<MarkOf<A>>, DeviceError> {
        self.may_use_on(stream)?;
        let clock = self.allocator().clock();
        // No graph is launched until the stream is ordered.
        let launching = match self.record.private() {
            Some(id) => Some(self.launching(id)?),
            None => None,
        };
        let _launching = launching.as_ref().map(|launching| launching.lock());
        let cpu_touches = A::MEMORY.cpu_touches;
        let (mut behind, mut joined) = {
            let mut marks = self.record.uses();
            let behind = marks.unordered_marks(clock, stream, access, cpu_touches);
            (behind, marks.too_many(clock, stream, access))
        };
        if let Some(id) = self.record.private() {
            behind.extend(self.launches(id)?);
        }
        if behind.is_empty() && joined.is_empty() {
            return Ok(joined);
        }
        let _watch = self.store().watch();
        if clock.order(stream, &behind)? == Order::NotYet {
            let are_reads = || self.record.marks.lock().are_unsubmitted_reads(clock, cpu_touches);
            let call = match access == Access::Write && are_reads() {
                true => "write memory that a capture or an open encoder reads",
                false => "use on another stream",
            };
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        // No read needs them, so none is refused for them.
        joined.retain(|mark| {
            clock.takes_work(stream)
                && (clock.is_ordered(stream, *mark)
                    || clock.is_done(*mark) == Ok(true)
                    || clock.order(stream, &[*mark]) == Ok(Order::Ordered))
        });
        Ok(joined)
    }

    /// Returns the lock of the launches of the graph that the buffer is kept for.
    #[cold]
    fn launching(&self, id: PrivateId) -> Result<Arc<Launching>, DeviceError> {
        // In a forked child a thread that does not exist may hold the lock.
        if let Some(fault) = self.store().fault() {
            return Err(fault);
        }
        Ok(self.store().privates.launching(id))
    }

    /// Returns the marks of the launches that may use the buffer, which is kept for a graph.
    #[cold]
    fn launches(&self, id: PrivateId) -> Result<Vec<MarkOf<A>>, DeviceError> {
        // In a forked child a thread that does not exist may hold the lock.
        if let Some(fault) = self.store().fault() {
            return Err(fault);
        }
        Ok(self.store().privates.behind(id))
    }
}

/// A use of a buffer on a stream; derefs to the device's view of the buffer. It gives out shared
/// references only: a view that was swapped with that of another use would outlive its own use.
///
/// Its drop records the mark of the last use: the pool reuses the block only after all work that
/// the stream was given until then. If a `Use` is leaked (`mem::forget`), the use lasts until the
/// buffer is dropped.
pub struct Use<'b, A: DeviceAllocator> {
    view: A::View<'b>,
    stream: &'b StreamOf<A>,
    buffer: &'b PooledBuffer<A>,
    access: Access,
}

impl<'b, A: DeviceAllocator> Deref for Use<'b, A> {
    type Target = A::View<'b>;
    #[inline]
    fn deref(&self) -> &A::View<'b> {
        &self.view
    }
}

impl<A: DeviceAllocator> Drop for Use<'_, A> {
    #[expect(clippy::inline_always, reason = "a plain use is one function: no calls and no spills")]
    #[inline(always)]
    fn drop(&mut self) {
        let (record, clock) = (&self.buffer.record, self.buffer.allocator().clock());
        let is_plain = self.buffer.store().is_plain_here();
        if !is_plain || !record.end_alone(clock, clock.mark(self.stream), self.access) {
            self.buffer.end_not_plain(self.stream, self.access);
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for Use<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Use").field("buffer", self.buffer).finish_non_exhaustive()
    }
}
