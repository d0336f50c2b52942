//! A program that makes every kind of call, for devices with a hook at each call.

use pool_core::stream::Timeline;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PooledBuffer};
use pool_sim::{Call, Hooked, Hooks, SimDevice, SimDriver};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs code before each call that moves memory, or after it.
struct At<F> {
    hook: F,
    late: bool,
}

impl<F: Fn() + Send + Sync + 'static> Hooks<SimDevice> for At<F> {
    fn before(&self, _: &SimDevice, _: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        if !self.late {
            (self.hook)();
        }
        Ok(())
    }

    fn after(&self, _: &SimDevice) {
        if self.late {
            (self.hook)();
        }
    }
}

/// A device that runs `hook` at each call. `late`: when the call has happened.
pub(crate) fn hooked(
    device: &SimDevice,
    hook: impl Fn() + Send + Sync + 'static,
    late: bool,
) -> Hooked<SimDevice> {
    Hooked::with(device.clone(), At { hook, late })
}

/// Whole blocks, and every kind of arena.
pub(crate) fn configs() -> [(&'static str, Option<ArenaConfig>); 5] {
    [
        ("blocks", None),
        ("grow", Some(ArenaConfig::grow())),
        ("pages", Some(ArenaConfig::pages(64 * KIB, 0.0))),
        ("segments", Some(ArenaConfig::segments(MIB))),
        ("torch", Some(ArenaConfig::torch())),
    ]
}

/// Returns what a call returned, or `None` after a panic.
pub(crate) fn outcome<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// A program on two streams that allocates zeroed and other buffers, hands them on, trims, and asks
/// for more than there is. Returns the panics that reached it.
pub(crate) fn program<A: DeviceAllocator<Clock = Timeline<SimDriver>>>(
    pool: &BucketPool<A>,
    device: &SimDevice,
) -> u64 {
    let streams = [device.stream(), device.stream()];
    let mut live: Vec<PooledBuffer<A>> = Vec::new();
    let mut panics = 0;
    let mut seen = |happened: bool| panics += u64::from(!happened);
    for turn in 0..48_u64 {
        let at = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let bytes = match turn % 16 {
            7 => 15 * MIB,
            turn if turn % 3 == 0 => (at % 16 + 1) * 64 * KIB,
            _ => (at % 16 + 1) * 700,
        };
        let stream = &streams[(at % 2) as usize];
        let allocate = || match turn % 2 {
            0 => pool.allocate_zeroed_on(stream, bytes),
            _ => pool.allocate_on(stream, bytes),
        };
        let got = outcome(allocate);
        seen(got.is_some());
        live.extend(got.and_then(Result::ok));
        if let Some(buffer) = live.last() {
            seen(outcome(|| drop(buffer.on(&streams[(at / 2 % 2) as usize]))).is_some());
        }
        if live.len() > 5 || turn % 16 == 7 && !live.is_empty() {
            let buffer = live.remove((at % live.len() as u64) as usize);
            seen(outcome(|| drop(buffer)).is_some());
        }
        let upkeep = || match turn % 16 {
            3 => drop(pool.tick(Duration::from_secs(turn))),
            5 => device.advance(stream, 3),
            9 => drop(pool.trim(MIB)),
            12 => drop(pool.shrink_to(2 * MIB)),
            15 => drop(pool.clear()),
            _ => {}
        };
        seen(outcome(upkeep).is_some());
        let stats = pool.stats();
        let held: u64 = live.iter().map(PooledBuffer::allocated_size).sum();
        assert_eq!(stats.allocated_bytes, held, "turn {turn}: {stats}");
        let parts = held + stats.cached_bytes + stats.lost_bytes;
        assert_eq!(stats.reserved_bytes, parts, "turn {turn}: {stats}");
    }
    for buffer in live {
        seen(outcome(|| drop(buffer)).is_some());
    }
    panics
}
