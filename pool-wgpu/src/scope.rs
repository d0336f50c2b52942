//! Scopes: the streams of wgpu, each the commands of one frame.

mod ending;
mod reading;
mod texturing;
mod uploading;

use crate::clock::{Scopes, WgpuStream};
use crate::open::OpenScopes;
use crate::readbacks::Filling;
use crate::recording::Recording;
use crate::shared::Shared;
use crate::staging::Unmapped;
use crate::view::{Access, BufferPart, Place};
use pool_core::{DeviceError, Why};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
pub(crate) use uploading::offset_of;
use wgpu::{BufferUsages, CommandEncoder};

/// A stream of wgpu: commands that are submitted together, unless [`Scope::flush`] hands over a
/// part before. It ends in one of three ways.
///
/// - [`Scope::submit`] submits the scope's own encoder ([`Scope::encoder`]).
/// - [`Scope::prologue`] returns a command buffer that zeroes buffers and copies uploads, for a
///   program that has its own encoder and its own `submit`. The program submits it ahead of its
///   commands, in the same call or before.
/// - A drop: commands that were not handed over do not run. The blocks that they used are then free
///   for other requests.
///
/// # Your own encoder and your own submit
///
/// ```
/// # #[cfg(feature = "noop")] {
/// # use pool_core::{BucketPool, KIB, MIB};
/// # use pool_wgpu::{WgpuAllocator, wgpu};
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// # let allocator = WgpuAllocator::new(device.clone(), queue.clone());
/// # let uploads = allocator.uploads(64 * KIB, MIB);
/// # let pool = BucketPool::new(allocator);
/// let mut scope = pool.allocator().scope();
/// let on = scope.stream();
/// let buffer = pool.allocate_on(&on, 4096)?;
/// scope.upload(&uploads, &buffer.on(&on)?, 0, &[1; 64])?;
/// let mut encoder = device.create_command_encoder(&Default::default()); // your own
/// encoder.clear_buffer(buffer.on(&on)?.buffer()?, 64, Some(64));
/// let prologue = scope.prologue(&mut encoder)?;
/// queue.submit(prologue.into_iter().chain([encoder.finish()])); // your own
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The pool learns of the submission at the next poll or submission after it, or at once by
/// [`WgpuAllocator::submitted`](crate::WgpuAllocator::submitted). Buffers of the scope can be
/// dropped before the submission: they serve no other scope until then.
pub struct Scope {
    id: u64,
    clock: Scopes,
    recording: Recording,
    /// Placed data that the device knows and later commands may still read.
    placed: Vec<Unmapped>,
    /// Memory that read-backs of the present step go to.
    reads: Vec<Filling>,
    /// Memory that read-backs of earlier steps go to, which are not submitted yet.
    reads_before: Vec<Filling>,
    /// Memory that read-backs by commands of the program go to.
    reads_elsewhere: Vec<Filling>,
    /// Old blocks of buffers that have grown since the last submission.
    held: Vec<Box<dyn Any + Send + Sync>>,
    eager: bool,
    /// Commands of the program bring bytes that the scope staged.
    uploads_elsewhere: bool,
    /// wgpu has refused commands of it.
    refused: bool,
    end: End,
}

/// How a scope ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its commands do not run.
    Dropped,
    /// Nor do those of the program.
    Abandoned,
    /// It was handed over as a prologue.
    Yielded,
    /// Its commands were submitted.
    Submitted,
}

impl Scope {
    pub(crate) fn open(clock: &Scopes) -> Self {
        clock.learn_of_submissions();
        // The closure of the program may panic, and no scope is open then.
        clock.receipts().look();
        let id = clock.open_scopes().open();
        let shared = clock.shared();
        let old = shared.groups.lock().age(clock.open_scopes().opened(), shared.age());
        drop(old); // without the lock
        shared.idle.age(clock.open_scopes().opened());
        Self {
            id,
            clock: clock.clone(),
            recording: Recording::default(),
            placed: Vec::new(),
            reads: Vec::new(),
            reads_before: Vec::new(),
            reads_elsewhere: Vec::new(),
            held: Vec::new(),
            eager: false,
            uploads_elsewhere: false,
            refused: false,
            end: End::Dropped,
        }
    }

    /// From now on the scope is flushed ([`Scope::flush`]) each time an upload finds its chunk
    /// full: the device copies while the CPU writes the next one. Each chunk costs a submission
    /// then, and what is left of chunks that data was placed in. Faster on some machines and slower
    /// on others: [`WgpuAllocator::eager_uploads_pay`](crate::WgpuAllocator::eager_uploads_pay)
    /// measures it.
    pub fn upload_eagerly(&mut self) {
        self.eager = true;
    }

    /// The stream to allocate on, and to use buffers on, for the commands of this scope.
    #[must_use]
    pub fn stream(&self) -> WgpuStream {
        self.clock.stream(self.id)
    }

    pub(crate) fn clock(&self) -> &Scopes {
        &self.clock
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.clock.shared()
    }

    pub(crate) fn table(&self) -> &Arc<OpenScopes> {
        self.clock.open_scopes()
    }

    /// The encoder of this scope, made when it is first asked for, and anew after a flush or a
    /// step. It is lent: a program that swaps it for another one takes the commands out of their
    /// scope's order.
    ///
    /// Ask for it before the scope's first buffers are taken out of their views. Until then the
    /// scope's buffers may be in another encoder, so that blocks which it has dropped do not serve
    /// it again. And ask for it anew for each pass: what was dropped before the call serves the scope from
    /// then on, because no pass of the encoder is open during it.
    #[must_use]
    pub fn encoder(&mut self) -> &mut CommandEncoder {
        self.table().record(self.id);
        self.own_encoder()
    }

    /// Keeps a block from this scope until its commands are handed over.
    pub(crate) fn hold(&mut self, block: Box<dyn Any + Send + Sync>) {
        self.held.push(block);
    }

    /// Whether a copy that is recorded now is ahead of the commands of the present step.
    pub(crate) fn is_ahead(&self) -> bool {
        self.recording.is_ahead()
    }

    fn own_encoder(&mut self) -> &mut CommandEncoder {
        self.recording.encoder(self.clock.shared())
    }

    /// What the scope records itself runs ahead of the program's commands, and would not see what these
    /// write.
    fn may_record_with(&self, place: &Place<'_>) -> Result<(), DeviceError> {
        let bytes = place.bytes_of_buffer();
        match self.table().is_recorded_elsewhere(self.id, place.buffer, &bytes) {
            true => Err(too_early()),
            false => Ok(()),
        }
    }

    /// Copies from one buffer to another, in the order of this scope: ahead of the commands of an encoder of
    /// the program's own.
    ///
    /// # Errors
    ///
    /// Where wgpu would refuse the whole submission: [`Why::Unsupported`] if both are the same
    /// buffer, as two pieces of one slab are, a usage is missing, or the program has the first buffer and
    /// not the scope's encoder, [`Why::Unaligned`] if an
    /// offset or the length is no multiple of 4 bytes, [`Why::OutOfRange`] if they do not fit.
    /// [`Why::Foreign`] for a view of another stream, [`Why::Lost`] where the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let (a, b) = (pool.allocate_on(&on, KIB)?, pool.allocate_on(&on, KIB)?);
    /// let (a, b) = (a.on(&on)?, b.on(&on)?);
    /// scope.copy((&a, 0), (&b, 256), 512)?;
    /// let refused = scope.copy((&a, 0), (&a, 512), 256).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported); // both are the same buffer
    /// scope.submit()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy(
        &mut self,
        (from, start): (&dyn BufferPart, u64),
        (to, at): (&dyn BufferPart, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.shared().living()?;
        let on = self.stream();
        let (from, to) = (from.place(&on, Access::Read)?, to.place(&on, Access::Write)?);
        // Of one device: buffers of two may be equal for wgpu.
        if from.buffer == to.buffer {
            let call = "copy inside of one wgpu buffer: take blocks of two pools";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let (start, _) =
            from.range(BufferUsages::COPY_SRC, start, bytes, "copy out of a buffer")?;
        let (at, _) = to.range(BufferUsages::COPY_DST, at, bytes, "copy into a buffer")?;
        self.may_record_with(&from)?;
        self.may_write_ahead(to.buffer, &(at..at + bytes))?;
        if bytes == 0 {
            return Ok(());
        }
        self.recording.copy((from.buffer, start), (to.buffer, at), bytes);
        self.fill_ahead(to.buffer, &(at..at + bytes));
        Ok(())
    }
}

fn too_early() -> DeviceError {
    let call = "copy by the scope out of what the program has: by its own encoder (`.._in`); \
                if a frame before failed half way, `Frame::abandon`";
    DeviceError::new(Why::Unsupported, call)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish_non_exhaustive()
    }
}
