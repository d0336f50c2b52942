//! Bytes of buffers on their way back to the CPU.

use super::Scope;
use crate::nonces::Nonce;
use crate::readback::ReadBack;
use crate::readbacks::{Filling, ReadBacks};
use crate::view::{Access, BufferPart, Place};
use pool_core::{DeviceError, Why};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, CommandEncoder};

impl Scope {
    /// Copies bytes of a buffer back to the CPU, by the scope's own encoder.
    ///
    /// # Errors
    ///
    /// [`Why::Unaligned`] where the offset is no multiple of 4 bytes, [`Why::OutOfRange`] where the
    /// buffer is too short, [`Why::Unsupported`] for a buffer without `COPY_SRC`, [`Why::Foreign`]
    /// for read-backs of another device or a view of another stream, [`Why::OutOfMemory`] where
    /// staging memory cannot be had, [`Why::Lost`] where the device is lost; [`Why::Unsupported`] too for
    /// a buffer that was lent while the scope's encoder was not asked for: the scope's own commands run
    /// ahead of the program's ([`Scope::read_back_in`]). Commands that wgpu
    /// refuses bring nothing back, which the read-back tells.
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
    /// let view = buffer.on(&on)?;
    /// let back = scope.read_back(&backs, &view, 0, 7)?; // any length
    /// let refused = scope.read_back(&backs, &view, KIB, 4).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange);
    /// scope.submit()?;
    /// assert_eq!(back.wait(<[u8]>::len)?, 7);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_back(
        &mut self,
        through: &ReadBacks,
        from: &dyn BufferPart,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadBack, DeviceError> {
        self.may_read_through(through)?;
        let on = self.stream();
        let place = from.place(&on, Access::Read)?;
        self.may_record_with(&place)?;
        let back = self.begin_read(through, &place, offset, bytes, false)?;
        if let Some((to, words)) = target(&back) {
            let from = (place.buffer, place.offset + offset);
            self.recording.read(from, (to, back.at), words);
        }
        Ok(back)
    }

    /// Copies bytes of a buffer back by commands of the program, which are submitted behind the
    /// scope's prologue and no later than the encoder that the prologue is for.
    ///
    /// # Errors
    ///
    /// As for [`Scope::read_back`].
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
    /// # let backs = device.read_backs(KIB);
    /// scope.upload(&uploads, &view, 0, &[7; 64])?; // in the prologue
    /// let mut encoder = device.device().create_command_encoder(&Default::default());
    /// let back = scope.read_back_in(&mut encoder, &backs, &view, 0, 64)?;
    /// let refused = scope.read_back_in(&mut encoder, &backs, &view, KIB, 4).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange);
    /// let prologue = scope.prologue(&mut encoder)?;
    /// device.queue().submit(prologue.into_iter().chain([encoder.finish()]));
    /// assert!(back.wait(|bytes| bytes == [7; 64])?);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_back_in(
        &mut self,
        commands: &mut CommandEncoder,
        through: &ReadBacks,
        from: &dyn BufferPart,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadBack, DeviceError> {
        self.may_read_through(through)?;
        let on = self.stream();
        let place = from.place(&on, Access::Read)?;
        let back = self.begin_read(through, &place, offset, bytes, true)?;
        // The program's commands have the buffer from now on.
        self.table().lend(self.id, place.buffer, &place.bytes_of_buffer());
        copy_back(commands, &place, offset, &back);
        self.sign_read(commands, &back);
        Ok(back)
    }

    /// Lends a buffer of its own that commands of the program copy a result to, by whatever copies they have, and
    /// the read-back that brings its first `bytes` bytes. The copies are recorded in `commands`, or in an
    /// encoder that is submitted before it; `commands` is submitted as for [`Scope::read_back_in`].
    ///
    /// The pool maps the buffer behind them, and it serves again once the read-back is dropped: a clone that is
    /// kept is of no use past the submission. Bytes that no copy writes show earlier results, so all of
    /// them do where an encoder with the copies was dropped and `commands` was not. The buffer has
    /// `MAP_READ | COPY_DST`; it is larger than `bytes`, and a copy beyond them in `commands` makes the read-back
    /// [`Why::NotSubmitted`].
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for read-backs of another device, [`Why::TooLarge`] or [`Why::OutOfMemory`] where the
    /// memory cannot be had, [`Why::Lost`] where the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// # let backs = pool.allocator().read_backs(KIB);
    /// let mut scope = pool.allocator().scope();
    /// let result = scope.take(&pool, 64)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// encoder.clear_buffer(&scope.lend(&result)?, 0, None); // a dispatch
    /// let (back, download) = scope.read_back_target(&mut encoder, &backs, 64)?;
    /// encoder.copy_buffer_to_buffer(&scope.lend(&result)?, 0, &download, 0, 64);
    /// scope.submit_with(encoder)?;
    /// assert!(back.wait(|bytes| bytes == [0; 64])?);
    ///
    /// let mut scope = pool.allocator().scope();
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let (back, download) = scope.read_back_target(&mut encoder, &backs, 64)?;
    /// drop(encoder); // the copies never run
    /// drop(scope);
    /// assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
    /// # }
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn read_back_target(
        &mut self,
        commands: &mut CommandEncoder,
        through: &ReadBacks,
        bytes: u64,
    ) -> Result<(ReadBack, Buffer), DeviceError> {
        self.may_read_through(through)?;
        let too_large = DeviceError::new(Why::TooLarge, "a read-back buffer");
        let word = bytes.checked_next_multiple_of(COPY_BUFFER_ALIGNMENT).ok_or(too_large)?;
        let needed = word.checked_add(Nonce::BYTES).ok_or(too_large)?;
        let mut filling = through.fill(needed, 0, true)?;
        let none = DeviceError::new(Why::OutOfMemory, "room in a read-back buffer");
        let buffer = filling.chunk.buffer().ok_or(none)?.clone();
        filling.close();
        // Ahead of the program's copies, so that one which is too long shows.
        filling.set_word(commands, word);
        filling.add_word(commands, word);
        let (chunk, word) = (filling.chunk.clone(), Some(word));
        let back = ReadBack { number: number(), chunk, at: 0, bytes, rows: None, word };
        // The last is the one that others share.
        let shared = self.reads_elsewhere.pop();
        self.reads_elsewhere.push(filling);
        self.reads_elsewhere.extend(shared);
        Ok((back, buffer))
    }

    /// Commands of the program tell that they have copied a read-back, the newest.
    pub(super) fn sign_read(&mut self, commands: &mut CommandEncoder, back: &ReadBack) {
        if let (Some(word), Some(last)) = (back.word, self.reads_elsewhere.last_mut()) {
            last.set_word(commands, word);
            last.add_word(commands, word);
        }
    }

    fn begin_read(
        &mut self,
        through: &ReadBacks,
        place: &Place<'_>,
        offset: u64,
        bytes: u64,
        elsewhere: bool,
    ) -> Result<ReadBack, DeviceError> {
        let words = bytes.checked_next_multiple_of(COPY_BUFFER_ALIGNMENT).unwrap_or(u64::MAX);
        place.range(BufferUsages::COPY_SRC, offset, words, "read back")?;
        self.room_to_read(through, bytes, elsewhere)
    }

    pub(super) fn may_read_through(&self, through: &ReadBacks) -> Result<(), DeviceError> {
        if !through.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "read back through another device's"));
        }
        self.shared().living()
    }

    /// Room for so many bytes in the memory that read-backs go to.
    pub(super) fn room_to_read(
        &mut self,
        through: &ReadBacks,
        bytes: u64,
        elsewhere: bool,
    ) -> Result<ReadBack, DeviceError> {
        let words = bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        // Commands of the program copy the nonce behind the bytes.
        let needed = if elsewhere { words + Nonce::BYTES } else { words };
        let reads = if elsewhere { &mut self.reads_elsewhere } else { &mut self.reads };
        let back = |filling: &Filling, at| ReadBack {
            number: number(),
            chunk: filling.chunk.clone(),
            at,
            bytes,
            rows: None,
            word: elsewhere.then_some(at + words),
        };
        let mut before = 0;
        // Only the last, so that the one that is filled is known.
        if let Some(last) = reads.last_mut().filter(|last| last.is_of(through)) {
            if let Some(at) = last.room(needed) {
                return Ok(back(last, at));
            }
            before = last.size();
        }
        let mut filling = through.fill(needed, before, elsewhere)?;
        let none = DeviceError::new(Why::OutOfMemory, "room in a read-back buffer");
        let at = filling.room(needed).ok_or(none)?;
        let back = back(&filling, at);
        reads.push(filling);
        Ok(back)
    }

    /// Ends the chunks that the present step fills.
    pub(super) fn end_reads(&mut self) {
        for filling in std::mem::take(&mut self.reads) {
            filling.end(self.own_encoder());
            self.reads_before.push(filling);
        }
    }
}

/// The number of a read-back, which no other has.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

fn copy_back(commands: &mut CommandEncoder, from: &Place<'_>, offset: u64, back: &ReadBack) {
    if let Some((to, words)) = target(back) {
        commands.copy_buffer_to_buffer(from.buffer, from.offset + offset, to, back.at, words);
    }
}

/// Where the bytes go, and how many, in whole words; `None` if there are none.
fn target(back: &ReadBack) -> Option<(&Buffer, u64)> {
    let words = back.bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
    back.chunk.buffer().filter(|_| words > 0).map(|to| (to, words))
}
