//! The end of steps and of scopes: the commands and the zeroing ahead of them go to the device.

use super::{End, Scope};
use crate::readbacks::Filling;
use crate::recording::Submitted;
use crate::shared::lost;
use crate::staging::{Chunk, Unmapped};
use crate::zeroing::ToZero;
use pool_core::{DeviceError, Why};
use wgpu::{CommandBuffer, CommandEncoder, SubmissionIndex};

impl Scope {
    /// Ends a step: buffers that were dropped so far can serve this scope again, zeroed in between
    /// where the pool zeroes. It costs a command buffer or two. It does nothing if the step has no commands in
    /// the scope's own encoder, and while the program has taken a buffer and not that encoder, or has dropped
    /// one in this scope that it had before: its own commands come later.
    ///
    /// Without steps a pool that zeroes takes a fresh block for each request of a scope, since it
    /// zeroes ahead of the scope's commands.
    pub fn end_step(&mut self) {
        if !self.recording.has_step() {
            return;
        }
        let Some(owed) = self.table().end_step(self.id) else { return };
        self.end_reads();
        let Self { recording, clock, .. } = self;
        recording.end_step(owed, clock.shared());
    }

    /// Hands what was recorded so far to the device, behind the zeroing that it needs: the
    /// device begins while the CPU goes on. The scope stays open; blocks that were dropped before
    /// serve all other requests, unless the program's own encoder may use buffers of the scope:
    /// then they serve after its submission. Chunks that it wrote to are not written to again
    /// before they were mapped again, those of [`FrameData`](crate::FrameData) not before the scope
    /// ends.
    ///
    /// A program with its own encoder must not flush behind its own submit: zeroing would come
    /// after its commands, and no later call could tell. One without asks for [`Scope::encoder`] first:
    /// otherwise a buffer that another thread drops may be in an encoder that the pool does not know, and
    /// what was dropped before a flush serves after the end of the scope alone.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] where wgpu refuses the commands: the uploads ahead of the first of them came all
    /// the same. [`Why::Lost`] if the device is lost.
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
    /// # let uploads = device.uploads(64 * KIB, 64 * KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// # let view = buffer.on(&on)?;
    /// scope.upload(&uploads, &view, 0, &[1; 64])?;
    /// scope.flush()?; // the device begins with the first copy
    /// scope.upload(&uploads, &view, 64, &[2; 64])?;
    /// scope.submit()?;
    ///
    /// let mut scope = device.scope();
    /// device.mark_lost(); // as the program's own callback for the loss does
    /// assert_eq!(scope.flush().unwrap_err().why, Why::Lost);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&mut self) -> Result<SubmissionIndex, DeviceError> {
        self.end_commands();
        let submitted = self.hand_over();
        if !self.table().is_used_elsewhere(self.id) {
            self.recording.forget_uploads();
        }
        submitted
    }

    /// Ends what the scope itself has recorded, behind the zeroing that it needs.
    fn end_commands(&mut self) {
        self.end_reads();
        let owed = self.table().take_zeroing(self.id);
        let Self { recording, clock, .. } = self;
        recording.end_step(owed, clock.shared());
    }

    /// Hands all steps to the device.
    fn hand_over(&mut self) -> Result<SubmissionIndex, DeviceError> {
        let Self { recording, clock, .. } = self;
        let shared = clock.shared();
        let chunks = recording.take_chunks().into_iter().map(Chunk::unmap);
        let (staging, bound): (Vec<_>, Vec<_>) = chunks.partition(Unmapped::is_staging);
        self.placed.extend(bound);
        let Submitted { index, accepted } = recording.submit(shared);
        self.refused |= !accepted;
        self.held.clear();
        self.table().flushed(self.id);
        // A lost device maps nothing, either. Where there is nothing to map, it is asked by itself.
        let mut is_alive = false;
        for chunk in staging {
            is_alive |= chunk.map_again(Some(&index));
        }
        for filling in self.reads_before.drain(..) {
            is_alive |= filling.submitted(&index, accepted);
        }
        if !is_alive {
            self.shared().notice_loss();
        }
        self.shared().living()?;
        if accepted { Ok(index) } else { Err(refused_frame()) }
    }

    /// Submits the commands, behind the zeroing that they need.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the scope's buffers must be in another encoder: the program has
    /// taken a buffer ([`WgpuView::buffer`](crate::WgpuView::buffer), [`Scope::lend`]) or a texture
    /// ([`Scope::take_texture`]) and never the scope's encoder; or it has called [`Scope::read_back_in`] or [`Scope::upload_in`]. Buffers
    /// that were dropped may serve other scopes before that encoder is submitted, and zeroing comes after
    /// it if it is submitted already. Use [`Scope::submit_with`] or [`Scope::prologue`]; where there is no
    /// such encoder, as where bind groups are made for later frames, ask for [`Scope::encoder`].
    /// [`Why::NotSubmitted`] too where wgpu refuses commands, as for [`Scope::flush`].
    /// [`Why::Lost`] if the device is lost. The scope has ended all the same.
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
    /// let buffer = scope.take(&pool, KIB)?;
    /// let lent = scope.lend(&buffer)?;
    /// scope.encoder().clear_buffer(&lent, 0, None);
    /// scope.submit()?;
    /// drop(buffer);
    ///
    /// let scope = pool.allocator().scope();
    /// let buffer = scope.take(&pool, KIB)?;
    /// let lent = scope.lend(&buffer)?; // for an encoder that is not the scope's
    /// assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted); // `submit_with` is for this
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit(mut self) -> Result<SubmissionIndex, DeviceError> {
        let late = self.has_work_elsewhere() || self.table().is_used_elsewhere(self.id);
        let submitted = self.flush();
        self.end = End::Submitted;
        let refused = self.refused; // an eager flush may have been
        // Closed after that: a thread that looks in between finds it open, which is only cautious.
        drop(self);
        if late && !matches!(submitted, Err(DeviceError { why: Why::Lost, .. })) {
            let call =
                "submit a scope that lent buffers and not its encoder: `submit_with` takes yours";
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        submitted.and_then(|index| if refused { Err(refused_frame()) } else { Ok(index) })
    }

    /// Submits the commands of the program behind what they need: zeroing, the copies of the scope's
    /// uploads, and its [`Scope::copy`] and [`Scope::read_back`]. The usual end of a frame.
    ///
    /// It is one submission. wgpu refuses it as a whole for one wrong draw: zeroing and uploads are submitted
    /// again then, by themselves. The pool knows at once that the buffers serve other scopes, and needs none
    /// of the signals of [`Scope::prologue`].
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] where wgpu refuses the commands, or an upload to a buffer that was destroyed: no
    /// command ran, and zeroing and all other uploads did. What wgpu said is told to
    /// [`WgpuAllocator::on_refused`](crate::WgpuAllocator::on_refused), and not to the device's own handler.
    /// [`Why::Unsupported`] if the scope's own encoder was asked for ([`Scope::encoder`]), and
    /// [`Why::Lost`] if the device is lost: nothing ran then. The scope has ended all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// let scope = pool.allocator().scope();
    /// let buffer = scope.take(&pool, KIB)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// encoder.clear_buffer(&scope.lend(&buffer)?, 0, None);
    /// scope.submit_with(encoder)?;
    ///
    /// let scope = pool.allocator().scope();
    /// pool.allocator().mark_lost(); // as the program's own callback for the loss does
    /// let encoder = device.create_command_encoder(&Default::default());
    /// assert_eq!(scope.submit_with(encoder).unwrap_err().why, Why::Lost);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_with(self, commands: CommandEncoder) -> Result<SubmissionIndex, DeviceError> {
        self.submit_all([], commands)
    }

    /// Submits several encoders of the program behind what they need, as [`Scope::submit_with`] does:
    /// `first` in their order, and `last` behind them. `read_back_in` is for the last, or one before it.
    ///
    /// # Errors
    ///
    /// As for [`Scope::submit_with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// let scope = pool.allocator().scope();
    /// let lent = scope.lend(&scope.take(&pool, KIB)?)?;
    /// let mut encoders = [(); 3].map(|()| device.create_command_encoder(&Default::default()));
    /// for encoder in &mut encoders {
    ///     encoder.clear_buffer(&lent, 0, None); // on a thread for each
    /// }
    /// let [shadows, scene, last] = encoders;
    /// scope.submit_all([shadows.finish(), scene.finish()], last)?;
    ///
    /// let scope = pool.allocator().scope();
    /// pool.allocator().mark_lost(); // as the program's own callback for the loss does
    /// let encoder = device.create_command_encoder(&Default::default());
    /// assert_eq!(scope.submit_all([], encoder).unwrap_err().why, Why::Lost);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_all(
        mut self,
        first: impl IntoIterator<Item = CommandBuffer>,
        last: CommandEncoder,
    ) -> Result<SubmissionIndex, DeviceError> {
        self.shared().living()?;
        if self.table().has_recorded(self.id) {
            // Blocks that it has dropped may have served it again, for the order of one encoder.
            let call =
                "submit another encoder with a scope whose own was asked for: use one of them";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        // All of them first: making them may take buffers of this scope.
        let first: Vec<CommandBuffer> = first.into_iter().collect();
        // The program's encoder is the scope's from now on.
        self.table().record(self.id);
        for filling in std::mem::take(&mut self.reads_elsewhere) {
            if !filling.needs_no_stamp(&last) {
                filling.begin_elsewhere(self.own_encoder());
            }
            self.reads_before.push(filling);
        }
        self.end_commands();
        let last = self.shared().finish(last);
        let first = first.into_iter().map(|commands| (commands, false));
        first.chain([last]).for_each(|commands| self.recording.follow(commands));
        self.uploads_elsewhere = false;
        let submitted = self.hand_over();
        self.end = End::Submitted;
        submitted.and_then(|index| if self.refused { Err(refused_frame()) } else { Ok(index) })
    }

    /// Ends the scope and returns what must run ahead of the program's own commands: zeroing, and
    /// the copies of its uploads; `None` if there is nothing of it. The program submits it ahead of them,
    /// in the same call or before; `commands` is the last of its encoders that use the scope's buffers,
    /// and is submitted no earlier than the others. If both are dropped, the scope never ran.
    ///
    /// It is for programs whose commands something else submits; [`Scope::submit_with`] is simpler.
    ///
    /// The buffers serve other scopes once `commands` was submitted, which the pool learns at the
    /// next poll or submission, or by
    /// [`WgpuAllocator::submitted`](crate::WgpuAllocator::submitted). A prologue that was left out,
    /// refused or submitted too late is told by
    /// [`WgpuAllocator::faults`](crate::WgpuAllocator::faults). While the prologue is neither
    /// submitted nor dropped, the buffers stay the scope's.
    ///
    /// See [`Scope`] for an example that submits one.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the scope has commands in its own encoder ([`Scope::encoder`],
    /// [`Scope::read_back`]), which [`Scope::submit`] and [`Scope::submit_with`] submit;
    /// [`Why::OutOfMemory`] and [`Why::Lost`] as the device says. The scope has ended, unsubmitted.
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
    /// scope.encoder().insert_debug_marker("a command of the scope");
    /// let mut encoder = pool.allocator().device().create_command_encoder(&Default::default());
    /// let refused = scope.prologue(&mut encoder).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported); // `submit` is for this
    ///
    /// let scope = pool.allocator().scope();
    /// assert!(scope.prologue(&mut encoder)?.is_none()); // nothing must run ahead
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prologue(
        mut self,
        commands: &mut CommandEncoder,
    ) -> Result<Option<CommandBuffer>, DeviceError> {
        if self.shared().notice_loss() {
            return Err(lost()); // the program itself submits, and would not be told
        }
        if self.table().has_recorded(self.id) || self.recording.has_commands() || self.reads_back()
        {
            let call = "a prologue of a scope that has its own commands: submit it";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let to_zero = self.table().yield_zeroing(self.id);
        let is_empty =
            to_zero.is_empty() && !self.recording.has_copies() && self.reads_elsewhere.is_empty();
        let prologue = match is_empty {
            true => {
                self.clock.close_after(self.id, (None, commands))?;
                None
            }
            false => Some(self.record_prologue(&to_zero, commands)?),
        };
        self.end = End::Yielded;
        for chunk in self.recording.take_chunks().into_iter().map(Chunk::unmap) {
            let after = prologue.as_ref().filter(|_| chunk.is_staging()).unwrap_or(commands);
            chunk.map_after(after);
        }
        self.placed.drain(..).for_each(|chunk| chunk.map_after(commands));
        Ok(prologue.map(CommandEncoder::finish))
    }

    fn record_prologue(
        &mut self,
        to_zero: &[ToZero],
        commands: &mut CommandEncoder,
    ) -> Result<CommandEncoder, DeviceError> {
        let mut receipt = self.clock.receipts().new_receipt()?;
        let mut prologue = self.shared().encoder("bucketpool prologue");
        self.clock.close_after(self.id, (Some(&prologue), commands))?;
        for zero in to_zero {
            zero.record(&mut prologue);
        }
        self.recording.copies_into(&mut prologue);
        self.clock.receipts().issue(&mut receipt, (&mut prologue, commands));
        for filling in self.reads_elsewhere.drain(..) {
            filling.begin_elsewhere(&mut prologue);
            filling.map_after(commands);
        }
        Ok(prologue)
    }

    /// Drops it. The program's own commands with its buffers are dropped, too.
    pub(crate) fn abandon(mut self) {
        self.end = End::Abandoned;
    }

    /// Whether the scope itself reads something back.
    fn reads_back(&self) -> bool {
        !self.reads.is_empty() || !self.reads_before.is_empty()
    }

    /// Whether commands of the program read or write memory that the scope staged.
    fn has_work_elsewhere(&self) -> bool {
        self.uploads_elsewhere || !self.reads_elsewhere.is_empty()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let reads = [&mut self.reads, &mut self.reads_before, &mut self.reads_elsewhere];
        reads.into_iter().flat_map(std::mem::take).for_each(Filling::abandon);
        if self.end == End::Yielded {
            return;
        }
        // Commands that were recorded and not handed over are dropped before their buffers serve
        // others. The zeroing that they needed is done all the same.
        let (owed, chunks) = self.recording.forget();
        for step in &owed {
            self.shared().settle(step);
        }
        let may_be_used = self.end == End::Dropped && self.table().is_used_elsewhere(self.id);
        chunks.into_iter().for_each(Chunk::give_back);
        // What commands of the program read is not used again, unless they were submitted here.
        let uses_elsewhere = self.uploads_elsewhere;
        let serves = |chunk: &Unmapped| !(uses_elsewhere && chunk.is_elsewhere());
        self.placed.drain(..).filter(serves).for_each(|chunk| {
            chunk.map_again(None);
        });
        self.clock.close(self.id);
        // Last, since the closure of the program may panic.
        if cfg!(debug_assertions) && may_be_used && !self.shared().is_lost() {
            let call = "drop a scope whose buffers may be in another encoder: use its prologue";
            self.shared().note(DeviceError::new(Why::NotSubmitted, call));
        }
    }
}

fn refused_frame() -> DeviceError {
    let call = "submit commands that wgpu refuses (`WgpuAllocator::on_refused` is told why)";
    DeviceError::new(Why::NotSubmitted, call)
}
