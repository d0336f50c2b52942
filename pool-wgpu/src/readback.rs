//! One read-back: bytes on their way to the CPU.

use crate::arrival::Outcome;
use crate::readbacks::ReadChunk;
use crate::shared::lost;
use crate::texels::Rows;
use pool_core::{DeviceError, Why};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wgpu::{COPY_BUFFER_ALIGNMENT, PollType};

/// Bytes on their way back. Its drop lets its memory serve again.
///
/// It is a future: ready once the bytes are there, which [`ReadBack::lend`] then lends. Each poll
/// of it polls the device, so an executor that polls often needs nothing else. One that sleeps
/// until it is woken needs a thread or a frame loop that submits or polls meanwhile, since wgpu
/// tells from inside of those.
#[must_use = "the bytes are lost if nobody reads them"]
pub struct ReadBack {
    /// Its number, which no other has.
    pub(crate) number: u64,
    pub(crate) chunk: Arc<ReadChunk>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// How texels lie in the bytes.
    pub(crate) rows: Option<Rows>,
    /// Where commands of the program copy the nonce to when they copy the bytes.
    pub(crate) word: Option<u64>,
}

impl ReadBack {
    /// Blocks until the bytes are there, and lends them. Waits for its own submission and earlier
    /// ones, not for later ones, if a scope submitted it; else for all that is submitted.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the commands were dropped, refused by wgpu or are not submitted
    /// yet; also, after a second, inside of a callback of wgpu that runs before the read-back's own, which
    /// comes behind it. [`Why::Lost`] if the device is lost, [`Why::Unsupported`] in a browser, or what wgpu
    /// said. The read-back stays as it is and can be waited for again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// # let device = pool.allocator();
    /// # let backs = device.read_backs(KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// let back = scope.read_back(&backs, &buffer.on(&on)?, 0, KIB)?;
    /// let refused = back.wait(|_bytes| ()).unwrap_err();
    /// assert_eq!(refused.why, Why::NotSubmitted);
    /// scope.submit()?;
    /// assert_eq!(back.wait(<[u8]>::len)?, 1024);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DeviceError> {
        if !self.is_here()? {
            self.wait_for_arrival()?;
        }
        self.lend(read)
    }

    fn wait_for_arrival(&self) -> Result<(), DeviceError> {
        let (shared, arrival) = (self.chunk.shared(), &self.chunk.arrival);
        shared.living()?;
        if cfg!(target_family = "wasm") {
            let call = "wait in a browser, where a program must not block: await it";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        if arrival.wait_for_device(shared, true)?.is_some() {
            return Ok(());
        }
        let call =
            "wait for commands that are not submitted, or inside of a callback before theirs";
        Err(DeviceError::new(Why::NotSubmitted, call))
    }

    /// Whether the bytes are there. Makes no device call; a submit or a poll makes it true.
    ///
    /// See [`ReadBack::lend`] for an example.
    ///
    /// # Errors
    ///
    /// As for [`ReadBack::wait`] where the outcome is known. Until then it is false, also while the
    /// commands are not submitted and on a lost device.
    pub fn is_here(&self) -> Result<bool, DeviceError> {
        let shared = self.chunk.shared();
        let refused = |why, call| Err(shared.lost_or(DeviceError::new(why, call)));
        match self.chunk.arrival.outcome() {
            None => Ok(false),
            Some(_) if shared.is_lost() => Err(lost()),
            Some(Outcome::Mapped) if self.chunk.brought() && self.was_copied() => Ok(true),
            Some(Outcome::Mapped | Outcome::NotSubmitted) => {
                refused(Why::NotSubmitted, "read back by commands that were dropped or refused")
            }
            Some(Outcome::Refused) => refused(Why::Other, "Buffer::map_async"),
        }
    }

    /// Whether commands of the program have copied the bytes. The chunk is mapped.
    fn was_copied(&self) -> bool {
        self.word.is_none_or(|at| self.chunk.has_word(at))
    }

    /// Lends the bytes, if they are there.
    ///
    /// # Errors
    ///
    /// As for [`ReadBack::wait`], and [`Why::NotSubmitted`] if they are not there.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// # let device = pool.allocator();
    /// # let backs = device.read_backs(KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// let back = scope.read_back(&backs, &buffer.on(&on)?, 0, KIB)?;
    /// assert!(!back.is_here()?);
    /// assert_eq!(back.lend(|_bytes| ()).unwrap_err().why, Why::NotSubmitted);
    /// scope.submit()?;
    /// device.device().poll(wgpu::PollType::wait_indefinitely())?; // or each frame's own poll
    /// assert!(back.is_here()?);
    /// assert_eq!(back.lend(<[u8]>::len)?, 1024);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lend<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DeviceError> {
        if !self.is_here()? {
            return Err(DeviceError::new(Why::NotSubmitted, "read before the work is done"));
        }
        self.chunk.shared().living()?;
        if self.bytes == 0 {
            return Ok(read(&[]));
        }
        let refused = DeviceError::new(Why::Other, "Buffer::get_mapped_range");
        let buffer = self.chunk.buffer().ok_or(refused)?;
        let words = self.bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        let mapped = buffer.get_mapped_range(self.at..self.at + words);
        let mapped = mapped.map_err(|_| self.chunk.shared().lost_or(refused))?;
        let bytes = &mapped[..usize::try_from(self.bytes).unwrap_or(0)];
        Ok(match self.rows.filter(|rows| !rows.are_dense()) {
            Some(rows) => read(&rows.gather(bytes)),
            None => read(bytes),
        })
    }
}

impl Future for ReadBack {
    type Output = Result<(), DeviceError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // First the waker, so that no callback is missed in between.
        self.chunk.arrival.wake_later(self.number, context.waker());
        if self.chunk.arrival.outcome().is_none() {
            // A lost device is told by `is_here`.
            let _ = self.chunk.shared().device.poll(PollType::Poll);
        }
        match self.is_here() {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => match self.chunk.shared().living() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for ReadBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBack").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
