//! A wait that ends when the work has ended, whatever the driver refuses meanwhile.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::device::CudaDevice;
use crate::events::PoolStream;
use cudarc::driver::result;
use pool_core::{DeviceError, StreamClock, Why};
use std::thread;
use std::time::Duration;

/// How long the host rests after a refused wait before it tries again.
const REST: Duration = Duration::from_micros(100);

/// Blocks the host until a stream has run all that it was given so far: for memory that belongs to the caller
/// again afterwards, and that queued work would still read or write.
///
/// A refused wait does not end it. Without memory for an event the host waits for the stream, and behind a
/// capture that another thread has begun on it meanwhile, until that has ended.
///
/// # Errors
///
/// The device is lost, or the process is a fork: nothing queued runs any more.
pub(crate) fn outlast(device: &CudaDevice, on: &PoolStream) -> Result<(), DeviceError> {
    let clock = device.clock();
    loop {
        match clock.synchronize(clock.mark(on)).or_else(|_| wait_without_event(device, on)) {
            Err(refused) if !ends(refused.why) => thread::sleep(REST),
            ended => return ended,
        }
    }
}

/// Whether nothing that is queued runs any more, or this thread has queued nothing: the stream is another's.
fn ends(why: Why) -> bool {
    matches!(why, Why::Lost | Why::Forked | Why::Foreign)
}

/// Waits for a stream under no capture: a wait for a captured one would break its capture.
fn wait_without_event(device: &CudaDevice, on: &PoolStream) -> Result<(), DeviceError> {
    let stream = on.raw().handle()?;
    device.events().spare(on.raw(), "cuStreamSynchronize beside a capture")?;
    // SAFETY: the stream is kept alive by its `Arc`.
    let wait = || unsafe { result::stream::synchronize(stream) };
    device.driver().relaxed("cuStreamSynchronize", wait)
}
