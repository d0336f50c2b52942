//! Bytes of a frame on their way to the device: into a buffer each, and into one for a kernel.

use super::device::{Contender, Failed, FrameBench, contest, said};
use crate::rounds::Row;
use bucketpool::MIB;
use bucketpool::wgpu::wgpu::util::StagingBelt;
use bucketpool::wgpu::wgpu::{BindGroup, Buffer, BufferUsages, CommandEncoder, SubmissionIndex};
use bucketpool::wgpu::{FrameData, Scope, Unpooled, Uploads, Usage};
use std::num::NonZeroU64;

/// Uploads of a frame, and bytes of each.
const UPLOADS: (usize, u64) = (64, 64 << 10);
const ALL: u64 = UPLOADS.0 as u64 * UPLOADS.1;
/// Parts that a frame's uploads are handed over in, where the device begins early.
const PARTS: usize = 4;

/// The data of a frame's uploads, their targets, and the kernel that reads them.
struct Cargo {
    data: Vec<u8>,
    to: Vec<(Buffer, u64)>,
    read: Option<BindGroup>,
    /// Frames of a turn; two of them are in flight.
    frames: usize,
}

impl FrameBench {
    pub(super) fn uploads(&self) -> Result<Vec<Row>, Failed> {
        let buffer = |_| (self.buffer(UPLOADS.1, Usage::default().flags(), false), 0);
        let to = (0..UPLOADS.0).map(buffer).collect();
        let cargo = &mut Cargo { data: bytes(), to, read: None, frames: 1 };
        let mut rows = self.one_upload_frame(cargo)?;
        cargo.frames = 8;
        let contenders = self.stagers(cargo)?;
        rows.extend(contest("8 frames of such uploads, two in flight", self, contenders)?);
        Ok(rows)
    }

    fn one_upload_frame(&self, cargo: &Cargo) -> Result<Vec<Row>, Failed> {
        let mut contenders = self.stagers(cargo)?;
        contenders.push(("fresh, mapped at creation", Box::new(move || self.fresh_staging(cargo))));
        contest("64 uploads of 64 KiB", self, contenders)
    }

    /// Runs the frames of a turn, two in flight, and waits for the last.
    fn in_flight(
        &self,
        cargo: &Cargo,
        mut frame: impl FnMut() -> Result<SubmissionIndex, Failed>,
    ) -> Result<(), Failed> {
        let mut before = None;
        for _ in 0..cargo.frames {
            if let Some(before) = before.replace(frame()?) {
                self.wait_for(before)?;
            }
        }
        self.wait()
    }

    /// As many into one buffer, and a kernel that reads it: through staging memory, and where the
    /// CPU has put it.
    pub(super) fn read_by_a_kernel(&self) -> Result<Vec<Row>, Failed> {
        let target = self.buffer(ALL, Usage::default().flags(), false);
        let read = Some(self.group(&target, 0, ALL));
        let to = (0..UPLOADS.0 as u64).map(|at| (target.clone(), at * UPLOADS.1)).collect();
        let cargo = &Cargo { data: bytes(), to, read, frames: 1 };
        let mut contenders = self.stagers(cargo)?;
        if let Ok(place) = self.device.frame_data(BufferUsages::STORAGE, ALL, 64 * MIB) {
            contenders.push(("bucketpool, placed", Box::new(move || self.placed(cargo, &place))));
        }
        contest("64 uploads of 64 KiB into one buffer, and a kernel", self, contenders)
    }

    /// Those who copy from memory that they keep.
    fn stagers<'f>(&'f self, cargo: &'f Cargo) -> Result<Vec<Contender<'f>>, Failed> {
        let part = ALL / PARTS as u64;
        let eager = self.device.uploads(part, 64 * MIB);
        let [staged, own, handed] = [(); 3].map(|()| self.device.uploads(ALL, 64 * MIB));
        let size = NonZeroU64::new(UPLOADS.1).ok_or("no bytes")?;
        let belt = |parts: usize| {
            let mut belt = StagingBelt::new(self.gpu().0.clone(), ALL / parts as u64);
            move || self.in_flight(cargo, || self.belt(cargo, &mut belt, size, parts))
        };
        Ok(vec![
            (
                "bucketpool, in one submission",
                Box::new(move || self.in_flight(cargo, || self.staged(cargo, &staged, false))),
            ),
            (
                "bucketpool, with an own encoder",
                Box::new(move || self.in_flight(cargo, || self.handed(cargo, &handed))),
            ),
            (
                "bucketpool, prologue of an own submission",
                Box::new(move || self.in_flight(cargo, || self.ahead(cargo, &own))),
            ),
            (
                "bucketpool, eager",
                Box::new(move || self.in_flight(cargo, || self.staged(cargo, &eager, true))),
            ),
            ("StagingBelt", Box::new(belt(1))),
            ("StagingBelt, submitted in 4 parts", Box::new(belt(PARTS))),
            (
                "Queue::write_buffer",
                Box::new(move || self.in_flight(cargo, || Ok(self.written(cargo)))),
            ),
        ])
    }

    fn read(&self, cargo: &Cargo, encoder: &mut CommandEncoder) {
        if let Some(group) = &cargo.read {
            self.dispatch(encoder, group, 1);
        }
    }

    fn staged(
        &self,
        cargo: &Cargo,
        through: &Uploads,
        eager: bool,
    ) -> Result<SubmissionIndex, Failed> {
        let mut scope = self.device.scope();
        if eager {
            scope.upload_eagerly();
        }
        for (to, at) in &cargo.to {
            scope.upload(through, &Unpooled(to), *at, &cargo.data).map_err(said)?;
        }
        if cargo.read.is_some() {
            self.read(cargo, scope.encoder());
        }
        scope.submit().map_err(said)
    }

    /// The uploads ahead of an encoder of the program, which the scope submits.
    fn handed(&self, cargo: &Cargo, through: &Uploads) -> Result<SubmissionIndex, Failed> {
        let (scope, encoder) = self.own(cargo, through)?;
        scope.submit_with(encoder).map_err(said)
    }

    /// The uploads ahead of an encoder of the program, in its submission.
    fn ahead(&self, cargo: &Cargo, through: &Uploads) -> Result<SubmissionIndex, Failed> {
        let (scope, mut encoder) = self.own(cargo, through)?;
        let prologue = scope.prologue(&mut encoder).map_err(said)?;
        Ok(self.gpu().1.submit(prologue.into_iter().chain([encoder.finish()])))
    }

    /// A scope with the uploads, and an encoder of the program that reads them.
    fn own(&self, cargo: &Cargo, through: &Uploads) -> Result<(Scope, CommandEncoder), Failed> {
        let mut scope = self.device.scope();
        for (to, at) in &cargo.to {
            scope.upload(through, &Unpooled(to), *at, &cargo.data).map_err(said)?;
        }
        let mut encoder = self.encoder();
        self.read(cargo, &mut encoder);
        Ok((scope, encoder))
    }

    fn belt(
        &self,
        cargo: &Cargo,
        belt: &mut StagingBelt,
        size: NonZeroU64,
        parts: usize,
    ) -> Result<SubmissionIndex, Failed> {
        let mut submitted = None;
        for part in 1..=parts {
            let each = cargo.to.len() / parts;
            let mut encoder = self.encoder();
            for (to, at) in &cargo.to[(part - 1) * each..part * each] {
                belt.write_buffer(&mut encoder, to, *at, size).copy_from_slice(&cargo.data);
            }
            if part == parts {
                self.read(cargo, &mut encoder);
            }
            belt.finish();
            submitted = Some(self.gpu().1.submit([encoder.finish()]));
            belt.recall();
        }
        submitted.ok_or_else(|| "no part".into())
    }

    fn written(&self, cargo: &Cargo) -> SubmissionIndex {
        for (to, at) in &cargo.to {
            self.gpu().1.write_buffer(to, *at, &cargo.data);
        }
        let mut encoder = self.encoder();
        self.read(cargo, &mut encoder);
        self.gpu().1.submit([encoder.finish()])
    }

    fn fresh_staging(&self, cargo: &Cargo) -> Result<(), Failed> {
        let mut encoder = self.encoder();
        for (to, at) in &cargo.to {
            let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
            let staging = self.buffer(UPLOADS.1, usage, true);
            let mapped = staging.get_mapped_range_mut(..);
            mapped.map_err(|error| error.to_string())?.copy_from_slice(&cargo.data);
            staging.unmap();
            encoder.copy_buffer_to_buffer(&staging, 0, to, *at, UPLOADS.1);
        }
        self.submit(encoder)
    }

    /// Bound where it was put, since the kernel reads one range.
    fn placed(&self, cargo: &Cargo, into: &FrameData) -> Result<(), Failed> {
        let mut scope = self.device.scope();
        let mut first = None;
        for _ in &cargo.to {
            let placed = scope.place(into, &cargo.data).map_err(said)?;
            first.get_or_insert(placed);
        }
        let first = first.ok_or("nothing was placed")?;
        let group = self.group(first.buffer(), first.offset(), ALL);
        self.dispatch(scope.encoder(), &group, 1);
        scope.submit().map_err(said)?;
        self.wait()
    }
}

/// The data of an upload.
fn bytes() -> Vec<u8> {
    (0..UPLOADS.1).map(|at| at.to_le_bytes()[0]).collect()
}
