//! Zeroing is work on a stream, and another stream may query or wait for it at any moment.

use pool_core::port::{Memory, Request};
use pool_core::stream::{Mark, Timeline};
use pool_core::{BucketPool, DeviceAllocator, DeviceError, StreamClock, ZeroPolicy};
use pool_sim::{SimBlock, SimDevice, SimDriver, SimStream, SimView};

/// A device that orders another stream after the zeroing stream just before it zeroes.
struct Nosy {
    device: SimDevice,
    other: SimStream,
}

impl DeviceAllocator for Nosy {
    type Block = SimBlock;
    type View<'b> = SimView<'b>;
    type Kind = ();
    type Clock = Timeline<SimDriver>;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Self::Clock {
        self.device.clock()
    }
    fn aligned(&self, kind: (), alignment: u64) -> Result<(), DeviceError> {
        self.device.aligned(kind, alignment)
    }
    fn allocate(&self, request: Request<()>, on: &SimStream) -> Result<SimBlock, DeviceError> {
        self.device.allocate(request, on)
    }
    fn free(&self, block: SimBlock, after: &[Mark]) -> Result<(), DeviceError> {
        self.device.free(block, after)
    }
    fn view<'b>(&'b self, b: &'b SimBlock, at: u64, bytes: u64, on: &SimStream) -> SimView<'b> {
        self.device.view(b, at, bytes, on)
    }
    fn zero(&self, block: &mut SimBlock, bytes: u64, on: &SimStream) -> Result<(), DeviceError> {
        self.clock().order(&self.other, &[self.clock().mark(on)])?;
        self.device.zero(block, bytes, on)
    }
}

#[test]
fn the_clearing_is_waited_for_though_the_allocation_was() {
    for zero in [ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn, ZeroPolicy::Never] {
        let device = SimDevice::new();
        let (s, t) = (device.stream(), device.stream());
        let nosy = Nosy { device: device.clone(), other: t.clone() };
        let pool = BucketPool::builder(nosy).zero(zero).build();
        let allocate = || match zero {
            ZeroPolicy::Never => pool.allocate_zeroed_on(&s, 512),
            _ => pool.allocate_on(&s, 512),
        };
        let used = allocate().unwrap();
        device.kernel(&t, &used.on(&t).unwrap());
        drop(used);
        assert_eq!(device.hazards(), 0, "{zero:?}: {:?}", device.hazard_report());
        drop(allocate().unwrap()); // dropped without a use
        let again = pool.allocate_on(&t, 512).unwrap();
        device.kernel(&t, &again.on(&t).unwrap());
        assert_eq!(device.hazards(), 0, "{zero:?}: {:?}", device.hazard_report());
    }
}
