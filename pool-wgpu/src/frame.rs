//! The scope of the present frame, for programs that pass none along.

use crate::allocator::WgpuAllocator;
use crate::scope::Scope;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use pool_core::{DeviceError, Why};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for another thread that records.
const PATIENCE: Duration = Duration::from_secs(10);

/// The scope of the present frame, kept where all parts of an engine reach it, so that no function has a scope
/// in its signature. Clones are the same. A program with several windows has one for each.
///
/// ```
/// # use pool_core::{AllocError, BucketPool, KIB, PooledBuffer};
/// # use pool_wgpu::{Frame, Uploads, WgpuAllocator, wgpu};
/// struct Mesh {
///     frame: Frame,
///     uploads: Uploads,
///     vertices: PooledBuffer<WgpuAllocator>,
/// }
///
/// impl Mesh {
///     fn set(&self, data: &[u8]) -> Result<(), AllocError> {
///         self.frame.with(|scope| scope.upload(&self.uploads, &self.vertices, 0, data))?;
///         Ok(())
///     }
/// }
///
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
/// let (frame, uploads) = (pool.allocator().frame(), pool.allocator().uploads(64 * KIB, 64 * KIB));
/// let mesh = Mesh { frame: frame.clone(), uploads, vertices: pool.allocate(KIB)? };
/// for _ in 0..3 {
///     mesh.set(&[1; 1024])?; // opens the scope of this frame
///     let mut encoder = device.create_command_encoder(&Default::default());
///     let vertices = frame.with(|scope| scope.lend(&mesh.vertices))?;
///     encoder.clear_buffer(&vertices, 0, Some(4)); // a pass that uses it
///     frame.end()?.submit_with(encoder)?;
/// }
/// # }
/// # Ok::<(), AllocError>(())
/// ```
#[derive(Clone)]
pub struct Frame(Arc<Present>);

struct Present {
    of: WgpuAllocator,
    scope: ReentrantMutex<RefCell<Option<Scope>>>,
}

impl WgpuAllocator {
    /// A place for the scope of the present frame. See [`Frame`] for an example.
    #[must_use]
    pub fn frame(&self) -> Frame {
        Frame(Arc::new(Present { of: self.clone(), scope: ReentrantMutex::default() }))
    }
}

impl Frame {
    /// Calls `record` with the scope of the present frame, which the first call opens. Other threads wait
    /// meanwhile, 10 seconds at most.
    ///
    /// # Errors
    ///
    /// That of `record`. [`Why::Unsupported`] inside of another call for the same frame, also in a callback of
    /// wgpu that runs in one; [`Why::TimedOut`] where another thread records for more than 10 seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{DeviceError, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// let frame = WgpuAllocator::new(device, queue).frame();
    /// let refused = frame.with(|_| frame.with(|_| Ok::<_, DeviceError>(()))).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported); // it would have the scope twice
    /// # }
    /// ```
    pub fn with<R, E: From<DeviceError>>(
        &self,
        record: impl FnOnce(&mut Scope) -> Result<R, E>,
    ) -> Result<R, E> {
        let present = self.0.lock()?;
        let mut scope = present.try_borrow_mut().map_err(|_| nested())?;
        record(scope.get_or_insert_with(|| self.0.of.scope()))
    }

    /// Gives the present frame up, if there is one, as an engine does that fails half way: its commands and uploads
    /// do not run, and its blocks serve others. The program drops its own encoder of the frame, too. Until then
    /// calls of [`Frame::with`] go on with that frame, where an upload of the next one may be the second to the same
    /// bytes, which is refused.
    ///
    /// # Errors
    ///
    /// As for [`Frame::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{AllocError, BucketPool, KIB};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// # let (frame, uploads) = (pool.allocator().frame(), pool.allocator().uploads(64 * KIB, KIB));
    /// let camera = pool.allocate(64)?;
    /// let draw = |textures: u64| -> Result<(), AllocError> {
    ///     frame.with(|scope| scope.upload(&uploads, &camera, 0, &[1; 64]))?;
    ///     let mut encoder = device.create_command_encoder(&Default::default());
    ///     let camera = frame.with(|scope| scope.lend(&camera))?;
    ///     encoder.clear_buffer(&camera, 0, Some(4)); // a pass that uses it
    ///     frame.with(|scope| scope.take(&pool, textures))?;
    ///     frame.end()?.submit_with(encoder).map(drop).map_err(AllocError::from)
    /// };
    /// for textures in [KIB, u64::MAX, KIB] {
    ///     if let Err(error) = draw(textures) {
    ///         assert_eq!(textures, u64::MAX, "{error}");
    ///         frame.abandon()?;
    ///     }
    /// }
    /// # }
    /// # Ok::<(), AllocError>(())
    /// ```
    pub fn abandon(&self) -> Result<(), DeviceError> {
        let present = self.0.lock()?;
        let scope = present.try_borrow_mut().map_err(|_| nested())?.take();
        // Without the borrow: closures of the program may run.
        scope.into_iter().for_each(Scope::abandon);
        Ok(())
    }

    /// Ends the frame: returns its scope, to be submitted by [`Scope::submit_with`] or another end of a scope. The
    /// next call of [`Frame::with`] opens that of the next frame.
    ///
    /// # Errors
    ///
    /// As for [`Frame::with`].
    pub fn end(&self) -> Result<Scope, DeviceError> {
        let present = self.0.lock()?;
        let scope = present.try_borrow_mut().map_err(|_| nested())?.take();
        Ok(scope.unwrap_or_else(|| self.0.of.scope()))
    }
}

impl Present {
    fn lock(&self) -> Result<ReentrantMutexGuard<'_, RefCell<Option<Scope>>>, DeviceError> {
        let code = i64::try_from(PATIENCE.as_millis()).unwrap_or(i64::MAX);
        let call = "wait for another thread that records the frame";
        let late = DeviceError::new(Why::TimedOut, call).code(code);
        self.scope.try_lock_for(PATIENCE).ok_or(late)
    }
}

fn nested() -> DeviceError {
    let call = "record a frame inside of another call of it: use the scope that you have";
    DeviceError::new(Why::Unsupported, call)
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").finish_non_exhaustive()
    }
}
