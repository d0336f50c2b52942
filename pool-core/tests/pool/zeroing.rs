//! Zeroing is work on a stream, and another stream may query or wait for it at any moment.

use pool_core::{BucketPool, DeviceAllocator, StreamClock, ZeroPolicy};
use pool_sim::{Call, Hooked, SimDevice};

#[test]
fn the_clearing_is_waited_for_though_the_allocation_was() {
    for zero in [ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn, ZeroPolicy::Never] {
        let device = SimDevice::new();
        let (s, t) = (device.stream(), device.stream());
        // Another stream is ordered after the zeroing stream just before it zeroes.
        let other = t.clone();
        let nosy = move |device: &SimDevice, call: &Call<'_, SimDevice>| {
            let Call::Zero { on } = call else { return Ok(()) };
            device.clock().order(&other, &[device.clock().mark(on)]).map(drop)
        };
        let nosy = Hooked::with(device.clone(), nosy);
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
