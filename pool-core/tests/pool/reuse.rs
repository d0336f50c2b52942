//! A clock whose streams get back only what is ready for a stream before them, as the frames of a
//! renderer do ([`StreamClock::reuse_of`]).

use pool_core::port::{Memory, Order, Request};
use pool_core::{BucketPool, DeviceAllocator, DeviceError, KIB, PooledBuffer, StreamClock, Why};

/// Streams that are numbers. Stream 0 runs before all others, which are not ordered among themselves.
#[derive(Clone, Default)]
struct Frames;

const FIRST: u64 = 0;

impl StreamClock for Frames {
    type Stream = u64;
    type Mark = u64;
    const HAS_STREAMS: bool = false;

    fn default_stream(&self) -> &u64 {
        &FIRST
    }
    fn owns(&self, _: &u64) -> bool {
        true
    }
    fn mark(&self, on: &u64) -> u64 {
        *on
    }
    fn latest(&self, mark: u64) -> u64 {
        mark
    }
    fn same_stream(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn later(&self, a: u64, _: u64) -> u64 {
        a
    }
    fn is_later(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn reuse_of(&self, _: &u64) -> Option<u64> {
        Some(FIRST)
    }
    fn stream_id(&self, _: u64) -> u64 {
        0
    }
    fn is_ordered(&self, on: &u64, after: u64) -> bool {
        after == FIRST || *on == after
    }
    fn order(&self, _: &u64, _: &[u64]) -> Result<Order, DeviceError> {
        Ok(Order::NotYet)
    }
    fn is_submitted(&self, mark: u64) -> bool {
        mark == FIRST
    }
    fn is_seen_done(&self, _: u64) -> bool {
        false
    }
    fn is_done(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
    fn synchronize(&self, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::NotSubmitted, "wait for a frame"))
    }
}

impl DeviceAllocator for Frames {
    type Block = u64;
    type View<'b> = u64;
    type Kind = ();
    type Clock = Self;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Self {
        self
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, request: Request<()>, _: &u64) -> Result<u64, DeviceError> {
        Ok(request.bytes)
    }
    fn free(&self, _: u64, _: &[u64]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, block: &'b u64, _: u64, _: u64, _: &u64) -> u64 {
        *block
    }
    fn zero(&self, _: &mut u64, _: u64, _: &u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn a_block_that_a_frame_has_had_serves_no_later_frame() {
    let pool = BucketPool::new(Frames);
    let on = |frame: u64| pool.allocate_on(&frame, KIB).unwrap();
    let served = |buffer: PooledBuffer<Frames>| {
        drop(buffer);
        pool.stats().misses
    };
    assert_eq!(served(on(FIRST)), 1);
    assert_eq!(served(on(1)), 1, "the block of the first stream is ready for all");
    assert_eq!(served(on(2)), 2, "that of a frame is not");
    // Two blocks: the one on top is of frame 2, the one below it ready.
    let (ready, held) = (on(FIRST), on(3));
    assert_eq!(pool.stats().misses, 4);
    drop(ready);
    drop(held);
    assert_eq!(served(on(4)), 4, "the block below the top serves");
    assert_eq!(served(on(5)), 5, "and belongs to that frame then");
    pool.check();
}
