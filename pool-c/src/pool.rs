//! A pool behind the C interface: its memory is known inside, and not outside.

use crate::graphs::{Filter, Graphs, Id};
use crate::live::{Block, Live};
use crate::memory::Memory;
use crate::status::{Failure, Status};
use parking_lot::Mutex;
use pool_core::observe::{DeviceStats, MemoryMap};
use pool_core::{BucketPool, PoolStats, PooledBuffer, StreamOf, Why};

/// What C is told of a block.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) base: usize,
    pub(crate) bytes: u64,
    pub(crate) rounded: u64,
    pub(crate) device: i32,
    pub(crate) stream: usize,
    pub(crate) is_private: bool,
}

/// The calls of a pool of any memory. `stream`: a handle.
pub(crate) trait AnyPool: Send + Sync {
    fn allocate(&self, bytes: usize, align: usize, stream: usize) -> Result<usize, Failure>;
    fn allocate_sync(&self, bytes: usize, align: usize) -> Result<usize, Failure>;
    /// `stream`: that to which the block goes next; `None` for the stream of its allocation.
    fn free(&self, at: usize, stream: Option<usize>) -> Result<(), Failure>;
    /// Frees a block behind all work of the device, for which the host waits.
    fn free_behind_all(&self, at: usize) -> Result<(), Failure>;
    fn hold(&self, at: usize) -> Result<(), Failure>;
    fn record(&self, at: usize, stream: usize) -> Result<(), Failure>;
    fn order(&self, at: usize, stream: usize, reads: bool) -> Result<(), Failure>;
    fn find(&self, at: usize) -> Result<Found, Failure>;
    fn end_stream(&self, stream: usize) -> Result<(), Failure>;
    fn begin(&self, id: Id, filter: Filter) -> Result<(), Failure>;
    fn end(&self, id: Id) -> Result<(), Failure>;
    fn release(&self, id: Id) -> Result<(), Failure>;
    fn trim(&self, bytes: u64) -> Result<u64, Failure>;
    fn clear(&self) -> Result<u64, Failure>;
    fn make_room(&self, bytes: u64) -> Result<u64, Failure>;
    fn set_limit(&self, bytes: u64) -> Result<u64, Failure>;
    fn set_fraction(&self, share: f64) -> Result<u64, Failure>;
    fn stats(&self) -> PoolStats;
    fn device_stats(&self) -> Option<DeviceStats>;
    fn map(&self) -> MemoryMap;
    fn reset(&self, peaks: bool);
    fn dl_device(&self) -> (i32, i32);
    fn staging_bytes(&self) -> u64;
    fn live(&self) -> usize;
    /// Gives all back that no block has, and from here on each block that is freed.
    fn close(&self);
}

/// A `BucketPool`, its blocks that C has, and the memory of its graphs.
pub(crate) struct Pool<A: Memory> {
    memory: BucketPool<A>,
    live: Live<A>,
    graphs: A::Graphs,
    /// Blocks that go behind all work of the device, which could not be waited for beside a capture.
    unwaited: Mutex<Vec<usize>>,
}

impl<A: Memory> Pool<A> {
    pub(crate) fn new(pool: BucketPool<A>) -> Self {
        Self {
            memory: pool,
            live: Live::new(),
            graphs: A::Graphs::new(),
            unwaited: Mutex::default(),
        }
    }

    /// Returns a buffer on a stream, from the memory of the capture that the stream is in, if any.
    #[inline]
    fn buffer_on(
        &self,
        on: &StreamOf<A>,
        bytes: usize,
        align: usize,
        stream: usize,
    ) -> Result<Lent<A>, Failure> {
        if align & align.wrapping_sub(1) != 0 {
            let text = format!("an alignment of {align} B; expected 0 or a power of two");
            return Err(Failure::invalid(text));
        }
        if self.graphs.is_any_begun() {
            self.graphs.take_in(on, stream)?;
        }
        let ask = || self.memory.allocate_for(on, bytes as u64, align.max(1) as u64, false);
        let buffer = match ask() {
            Ok(buffer) => buffer,
            // Memory of graphs that are gone may go back now.
            Err(error) if error.why() == Why::OutOfMemory && self.graphs.close_rest() => ask()?,
            Err(error) => return Err(error.into()),
        };
        let at = A::address(&*buffer.on(on)?);
        Ok((at, buffer))
    }

    /// Frees what goes behind all work of the device, once that was waited for.
    fn free_unwaited(&self) -> Result<(), Failure> {
        let waiting = std::mem::take(&mut *self.unwaited.lock());
        if waiting.is_empty() {
            return Ok(());
        }
        if let Err(refused) = self.memory.allocator().wait_for_all() {
            self.unwaited.lock().extend(waiting);
            return Err(refused.into());
        }
        waiting.into_iter().try_for_each(|at| self.free(at, None))
    }
}

/// A buffer and its address.
type Lent<A> = (usize, PooledBuffer<A>);

impl<A: Memory> AnyPool for Pool<A> {
    #[inline]
    fn allocate(&self, bytes: usize, align: usize, stream: usize) -> Result<usize, Failure> {
        let on = self.memory.allocator().stream(stream)?;
        let (at, buffer) = self.buffer_on(&on, bytes, align, stream)?;
        self.live.insert(at, buffer, on, stream)?;
        Ok(at)
    }

    fn allocate_sync(&self, bytes: usize, align: usize) -> Result<usize, Failure> {
        // Beside a capture the next call tries again.
        let _ = self.free_unwaited();
        let on = self.memory.default_stream().clone();
        let (at, mut buffer) = self.buffer_on(&on, bytes, align, 0)?;
        buffer.on_cpu()?; // all that used it has passed
        self.live.insert(at, buffer, on, 0)?;
        Ok(at)
    }

    #[inline]
    fn free(&self, at: usize, stream: Option<usize>) -> Result<(), Failure> {
        let given = match stream {
            Some(stream) => self.memory.allocator().stream(stream).map(Some),
            None => Ok(None),
        };
        let named = given.as_ref().ok().and_then(Option::as_ref);
        let held = |block: &Block<A>| Ok(block.buffer.record_stream(named.unwrap_or(&block.on))?);
        if let Some(Block { buffer, on, .. }) = self.live.take(at, held)? {
            // The block is gone in any case; the status says what the driver or the stream says.
            buffer.drop_on(named.unwrap_or(&on))?;
        }
        given?;
        Ok(())
    }

    fn free_behind_all(&self, at: usize) -> Result<(), Failure> {
        self.unwaited.lock().push(at);
        self.free_unwaited()
    }

    fn hold(&self, at: usize) -> Result<(), Failure> {
        self.live.hold(at)
    }

    fn record(&self, at: usize, stream: usize) -> Result<(), Failure> {
        let on = self.memory.allocator().stream(stream)?;
        self.live.with(at, |block| Ok(block.buffer.record_stream(&on)?))
    }

    fn order(&self, at: usize, stream: usize, reads: bool) -> Result<(), Failure> {
        let on = self.memory.allocator().stream(stream)?;
        self.live.with(at, |block| {
            if reads {
                // A use that is never told to end lasts until the drop.
                std::mem::forget(block.buffer.read_on(&on)?);
                return Ok(());
            }
            Ok(block.buffer.use_until_drop(&on)?)
        })
    }

    fn find(&self, at: usize) -> Result<Found, Failure> {
        let base = self.live.base_of(at).ok_or_else(|| Failure::unknown(at))?;
        let (_, device) = self.memory.allocator().dl_device();
        self.live.with(base, |block| {
            let buffer = &block.buffer;
            Ok(Found {
                base,
                bytes: buffer.size(),
                rounded: buffer.allocated_size(),
                device,
                stream: block.handle,
                is_private: buffer.is_private(),
            })
        })
    }

    fn end_stream(&self, stream: usize) -> Result<(), Failure> {
        Ok(self.memory.allocator().end_stream(stream)?)
    }

    fn begin(&self, id: Id, filter: Filter) -> Result<(), Failure> {
        self.graphs.begin(&self.memory, id, filter)
    }

    fn end(&self, id: Id) -> Result<(), Failure> {
        self.graphs.end(id)
    }

    fn release(&self, id: Id) -> Result<(), Failure> {
        self.graphs.release(id)
    }

    fn trim(&self, bytes: u64) -> Result<u64, Failure> {
        self.graphs.close_rest();
        Ok(self.memory.trim(bytes)?)
    }

    fn clear(&self) -> Result<u64, Failure> {
        let _ = self.free_unwaited();
        self.graphs.close_rest();
        Ok(self.memory.clear()?)
    }

    fn make_room(&self, bytes: u64) -> Result<u64, Failure> {
        self.graphs.close_rest();
        Ok(self.memory.make_room(bytes)?)
    }

    fn set_limit(&self, bytes: u64) -> Result<u64, Failure> {
        Ok(self.memory.set_reserved_limit(bytes)?)
    }

    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a share of the bytes of a device"
    )]
    fn set_fraction(&self, share: f64) -> Result<u64, Failure> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(Failure::invalid(format!("a share of {share}; expected 0 < share <= 1")));
        }
        let unknown = || Failure::new(Status::BpUnsupported, "the device tells no number of bytes");
        let total = self.memory.device_total_bytes().ok_or_else(unknown)?;
        self.set_limit((total as f64 * share) as u64)
    }

    fn stats(&self) -> PoolStats {
        self.memory.stats()
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        self.memory.device_stats()
    }

    fn map(&self) -> MemoryMap {
        self.memory.map()
    }

    fn reset(&self, peaks: bool) {
        if peaks {
            self.memory.reset_peaks();
        } else {
            self.memory.reset_counts();
        }
    }

    fn dl_device(&self) -> (i32, i32) {
        self.memory.allocator().dl_device()
    }

    fn staging_bytes(&self) -> u64 {
        self.memory.allocator().staging_bytes()
    }

    fn live(&self) -> usize {
        self.live.count()
    }

    fn close(&self) {
        // What the device refuses now, it is offered with the last free.
        let _ = self.memory.set_cached_limit(0);
        let _ = self.clear();
    }
}
