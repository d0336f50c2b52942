//! Whether uploads in several submissions are faster on a device than uploads in one.

use crate::allocator::WgpuAllocator;
use crate::uploads::Uploads;
use crate::view::Unpooled;
use pool_core::{DeviceError, MIB, Why};
use std::time::{Duration, Instant};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, PollType};

/// Uploads of a turn, and bytes of each.
const UPLOADS: u64 = 64;
const EACH: u64 = MIB / 16;
/// Chunks of an eager turn.
const PARTS: u64 = 4;
/// Turns of each way; the first of each warms up and does not count.
const TURNS: usize = 16;
/// By how much the eager way must be faster, as a share.
const GAIN: f64 = 0.05;

impl WgpuAllocator {
    /// Measures whether [`Scope::upload_eagerly`](crate::Scope::upload_eagerly) is faster on this
    /// device by at least 5 %: 4 MiB in 64 uploads, in one submission and in four, in turns, 16
    /// times each, medians of the time until the device is done. Takes some tens of milliseconds.
    /// Call it while nothing else uses the device.
    ///
    /// # Errors
    ///
    /// The error of the device; [`Why::Unsupported`] in a browser, where a program must not block.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::Why;
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let device = WgpuAllocator::new(device, queue);
    /// let eager = device.eager_uploads_pay()?; // once, at the start of the program
    /// let mut scope = device.scope();
    /// if eager {
    ///     scope.upload_eagerly();
    /// }
    /// # scope.submit()?;
    ///
    /// device.mark_lost(); // as the program's own callback for the loss does
    /// assert_eq!(device.eager_uploads_pay().unwrap_err().why, Why::Lost);
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn eager_uploads_pay(&self) -> Result<bool, DeviceError> {
        if cfg!(target_family = "wasm") {
            let call = "measure uploads in a browser, where a program must not block";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let target = self.shared().create(&BufferDescriptor {
            label: Some("bucketpool measurement"),
            size: UPLOADS * EACH,
            usage: BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })?;
        let bytes = UPLOADS * EACH;
        let (whole, parts) = (self.uploads(bytes, bytes), self.uploads(bytes / PARTS, bytes));
        let (mut once, mut eager) = (Vec::new(), Vec::new());
        for _ in 0..=TURNS {
            once.push(self.turn(&target, &whole, false)?);
            eager.push(self.turn(&target, &parts, true)?);
        }
        let median = |mut times: Vec<Duration>| {
            times.remove(0);
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        Ok(median(eager) < median(once) * (1.0 - GAIN))
    }

    fn turn(
        &self,
        target: &Buffer,
        uploads: &Uploads,
        eager: bool,
    ) -> Result<Duration, DeviceError> {
        let data = vec![7; usize::try_from(EACH).unwrap_or(0)];
        let begin = Instant::now();
        let mut scope = self.uncounted_scope();
        if eager {
            scope.upload_eagerly();
        }
        for at in 0..UPLOADS {
            scope.upload(uploads, &Unpooled(target), at * EACH, &data)?;
        }
        scope.submit()?;
        let done = self.device().poll(PollType::wait_indefinitely());
        done.map_err(|_| crate::shared::lost())?;
        Ok(begin.elapsed())
    }
}
