//! A pool behind the C interface: its memory is known inside, and not outside.

use crate::graphs::{Filter, Graphs, Id};
use crate::live::{Block, Live};
use crate::memory::Memory;
use crate::status::{Failure, Status};
use parking_lot::Mutex;
use pool_core::observe::{DeviceStats, MemoryMap};
use pool_core::{BucketPool, DeviceError, PoolStats, PooledBuffer, StreamOf, Why};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    /// Whether a block begins at an address.
    fn is_start(&self, at: usize) -> bool;
    fn end_stream(&self, stream: usize) -> Result<(), Failure>;
    fn begin(&self, id: Id, filter: Filter) -> Result<(), Failure>;
    /// `or_later`: whether a later call of the pool tries again what is refused now.
    fn end(&self, id: Id, or_later: bool) -> Result<(), Failure>;
    /// As for [`AnyPool::end`].
    fn release(&self, id: Id, or_later: bool) -> Result<(), Failure>;
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
    /// Blocks that were freed, and whose work could not be waited for yet: beside a capture, say.
    unwaited: Mutex<Vec<Block<A>>>,
    /// The limit that the program has set, of which a share of the device is the most.
    limit: AtomicU64,
}

impl<A: Memory> Pool<A> {
    pub(crate) fn new(pool: BucketPool<A>) -> Self {
        let limit = pool.stats().reserved_limit_bytes.unwrap_or(u64::MAX);
        Self {
            memory: pool,
            live: Live::new(),
            graphs: A::Graphs::new(),
            unwaited: Mutex::new(Vec::new()),
            limit: AtomicU64::new(limit),
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
            // Memory of graphs that are gone may go back now, and what was freed late.
            Err(error) if is_short(error.why()) && self.close_rest() => ask()?,
            Err(error) => return Err(error.into()),
        };
        let at = A::address(&*buffer.on(on)?);
        Ok((at, buffer))
    }

    /// Frees what was freed late, as far as its work can be waited for now.
    fn free_unwaited(&self) -> Result<(), Failure> {
        let waiting = std::mem::take(&mut *self.unwaited.lock());
        let mut refused = Ok(());
        for block in waiting {
            refused = refused.and(self.free_late(block));
        }
        refused
    }

    /// Frees a block behind what the host must wait for. Where it cannot, a later call does.
    #[cold]
    fn free_late(&self, block: Block<A>) -> Result<(), Failure> {
        let late = block.late.as_deref();
        let (all, strangers) =
            late.map_or((false, [].as_slice()), |late| (late.behind_all, &late.strangers));
        let memory = self.memory.allocator();
        let all = if all { memory.wait_for_all() } else { Ok(()) };
        let waited = strangers
            .iter()
            .fold(all, |waited, stream| waited.and_then(|()| memory.wait_for(*stream)));
        match waited {
            Ok(()) => Ok(block.buffer.drop_on(&block.on)?),
            // Nothing runs there any more.
            Err(lost) if lost.why == Why::Lost => Ok(block.buffer.drop_on(&block.on)?),
            Err(refused) => {
                self.unwaited.lock().push(block);
                Err(refused.into())
            }
        }
    }

    /// Takes a block out and frees it, if this is the last free of it. `named`: the stream to which it goes next.
    #[inline]
    fn free_on(&self, at: usize, named: Option<&StreamOf<A>>) -> Result<(), Failure> {
        let held = |block: &Block<A>| Ok(block.buffer.record_stream(named.unwrap_or(&block.on))?);
        let Some(mut block) = self.live.take(at, held)? else { return Ok(()) };
        if block.late.is_some() {
            block.on = named.unwrap_or(&block.on).clone();
            return self.free_late(block);
        }
        // The block is gone in any case; the status says what the driver or the stream says.
        Ok(block.buffer.drop_on(named.unwrap_or(&block.on))?)
    }

    /// Frees a block whose stream was refused: behind what that stream was given, or behind all work of the device.
    #[cold]
    fn free_refused(&self, at: usize, stream: usize, refused: DeviceError) -> Result<(), Failure> {
        match refused.why {
            Why::Lost | Why::Forked => {}
            Why::Foreign => {
                self.live.note_late(at, |late| late.add_stranger(stream))?;
                return self.free_on(at, None);
            }
            _ => self.live.note_late(at, |late| late.behind_all = true)?,
        }
        self.free_on(at, None)?;
        Err(refused.into())
    }

    /// Frees what waits for other work to end: blocks, and the memory of graphs. Returns whether any may have gone.
    #[cold]
    fn close_rest(&self) -> bool {
        let waits = !self.unwaited.lock().is_empty();
        let freed = waits && self.free_unwaited().is_ok();
        self.graphs.close_rest() || freed
    }
}

/// Whether memory that goes back may help.
fn is_short(why: Why) -> bool {
    matches!(why, Why::OutOfMemory | Why::Limit(_))
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
        let Some(stream) = stream else { return self.free_on(at, None) };
        match self.memory.allocator().stream(stream) {
            Ok(on) => self.free_on(at, Some(&on)),
            Err(refused) => self.free_refused(at, stream, refused),
        }
    }

    fn free_behind_all(&self, at: usize) -> Result<(), Failure> {
        self.live.note_late(at, |late| late.behind_all = true)?;
        self.free_on(at, None)
    }

    fn hold(&self, at: usize) -> Result<(), Failure> {
        self.live.hold(at)
    }

    fn record(&self, at: usize, stream: usize) -> Result<(), Failure> {
        let on = match self.memory.allocator().stream(stream) {
            Ok(on) => on,
            Err(refused) if refused.why == Why::Foreign => {
                return self.live.note_late(at, |late| late.add_stranger(stream));
            }
            Err(refused) => return Err(refused.into()),
        };
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

    fn is_start(&self, at: usize) -> bool {
        self.live.has(at)
    }

    fn end_stream(&self, stream: usize) -> Result<(), Failure> {
        Ok(self.memory.allocator().end_stream(stream)?)
    }

    fn begin(&self, id: Id, filter: Filter) -> Result<(), Failure> {
        self.graphs.begin(&self.memory, id, filter)
    }

    fn end(&self, id: Id, or_later: bool) -> Result<(), Failure> {
        self.graphs.end(id, or_later)
    }

    fn release(&self, id: Id, or_later: bool) -> Result<(), Failure> {
        self.graphs.release(id, or_later)
    }

    fn trim(&self, bytes: u64) -> Result<u64, Failure> {
        self.close_rest();
        Ok(self.memory.trim(bytes)?)
    }

    fn clear(&self) -> Result<u64, Failure> {
        self.close_rest();
        Ok(self.memory.clear()?)
    }

    fn make_room(&self, bytes: u64) -> Result<u64, Failure> {
        self.close_rest();
        Ok(self.memory.make_room(bytes)?)
    }

    fn set_limit(&self, bytes: u64) -> Result<u64, Failure> {
        self.limit.store(bytes, Relaxed);
        Ok(self.memory.set_reserved_limit(bytes)?)
    }

    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a share of the bytes of a device"
    )]
    fn set_fraction(&self, share: f64) -> Result<u64, Failure> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Failure::invalid(format!("a share of {share}; expected 0 <= share <= 1")));
        }
        let unknown = || Failure::new(Status::BpUnsupported, "the device tells no number of bytes");
        let total = self.memory.device_total_bytes().ok_or_else(unknown)?;
        let most = self.limit.load(Relaxed);
        Ok(self.memory.set_reserved_limit(most.min((total as f64 * share) as u64))?)
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
        self.live.count() + self.unwaited.lock().len()
    }

    fn close(&self) {
        // What the device refuses now, it is offered with the last free.
        let _ = self.memory.set_cached_limit(0);
        let _ = self.clear();
    }
}
