//! Buffers that a frame computes in or copies to: pooled, fresh, and one that the program keeps by
//! hand, which no pool can be ahead of.

use super::device::{Contender, Failed, FrameBench, contest, said};
use crate::rounds::Row;
use bucketpool::wgpu::wgpu::{Buffer, SubmissionIndex};
use bucketpool::wgpu::{Unpooled, Usage, WgpuAllocator};
use bucketpool::{BucketPool, ZeroPolicy};

/// The work that is measured: `frames` frames one after the other, two of them in flight if there
/// are several; in each `kernels` kernels of `groups` groups of 64 vectors, each on its own buffer.
/// Whether wgpu, which takes memory in blocks of 64 MiB and more, has room for a fresh one or must
/// ask the driver depends on what else the application holds.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) bytes: u64,
    pub(super) groups: u32,
    pub(super) kernels: usize,
    pub(super) frames: usize,
    pub(super) room: bool,
}

impl FrameBench {
    fn pool(&self, zero: ZeroPolicy) -> BucketPool<WgpuAllocator> {
        BucketPool::builder(self.device.clone()).zero(zero).build()
    }

    /// Runs frames, and waits for each when the next is submitted; at the end for all.
    fn frames(
        &self,
        work: Work,
        frame: impl Fn() -> Result<SubmissionIndex, Failed>,
    ) -> Result<(), Failed> {
        let mut before = None;
        for _ in 0..work.frames {
            let submitted = frame()?;
            if let Some(before) = before.replace(submitted) {
                self.wait_for(before)?;
            }
        }
        self.wait()
    }

    /// Pooled buffers, their kept bind groups, and a kernel on each.
    fn pooled(
        &self,
        pool: &BucketPool<WgpuAllocator>,
        work: Work,
    ) -> Result<SubmissionIndex, Failed> {
        let mut scope = self.device.scope();
        let on = scope.stream();
        let buffers: Result<Vec<_>, _> =
            (0..work.kernels).map(|_| pool.allocate_on(&on, work.bytes)).collect();
        for buffer in &buffers.map_err(|error| error.to_string())? {
            let view = buffer.on(&on).map_err(said)?;
            let group = pool.allocator().bind_group(&self.layout, &[(0, &view)]).map_err(said)?;
            self.dispatch(scope.encoder(), &group, work.groups);
        }
        scope.submit().map_err(said)
    }

    fn fresh(&self, work: Work) -> SubmissionIndex {
        let mut encoder = self.encoder();
        for _ in 0..work.kernels {
            let buffer = self.buffer(work.bytes, Usage::default().flags(), false);
            let group = self.group(&buffer, 0, work.bytes);
            self.dispatch(&mut encoder, &group, work.groups);
        }
        self.gpu().1.submit([encoder.finish()])
    }

    /// The application's own buffers: as many as it takes until wgpu has begun another block of
    /// memory, which has room, or one less; none where wgpu tells of no blocks.
    fn others(&self, work: Work, fresh: impl Fn() -> Buffer) -> Vec<Buffer> {
        let device = self.gpu().0;
        let taken = || device.generate_allocator_report().map(|report| report.total_reserved_bytes);
        let (before, mut held) = (taken(), Vec::new());
        while before.is_some() && taken() == before && held.len() < 64 {
            held.push(fresh());
        }
        if !work.room {
            held.pop();
        }
        held
    }

    pub(super) fn kernels(&self, case: &str, work: Work) -> Result<Vec<Row>, Failed> {
        let (never, cleared) = (self.pool(ZeroPolicy::Never), self.pool(ZeroPolicy::OnAllocate));
        let fresh = || self.buffer(work.bytes, Usage::default().flags(), false);
        for pool in [&never, &cleared] {
            self.frames(work, || self.pooled(pool, work))?;
        }
        let kept: Vec<_> = (0..work.kernels).map(|_| self.group(&fresh(), 0, work.bytes)).collect();
        let _held = self.others(work, fresh);
        let by_hand = move || {
            let mut encoder = self.encoder();
            for group in &kept {
                self.dispatch(&mut encoder, group, work.groups);
            }
            Ok(self.gpu().1.submit([encoder.finish()]))
        };
        let contenders: Vec<Contender<'_>> = vec![
            ("pooled, Never", Box::new(move || self.frames(work, || self.pooled(&never, work)))),
            (
                "pooled, cleared",
                Box::new(move || self.frames(work, || self.pooled(&cleared, work))),
            ),
            ("fresh", Box::new(move || self.frames(work, || Ok(self.fresh(work))))),
            ("kept by hand", Box::new(move || self.frames(work, &by_hand))),
        ];
        contest(case, self, contenders)
    }

    /// A copy that fills a buffer.
    pub(super) fn copies(&self, case: &str, bytes: u64) -> Result<Vec<Row>, Failed> {
        let source = self.buffer(bytes, Usage::default().flags(), false);
        let source = &source;
        let never = self.pool(ZeroPolicy::Never);
        let pooled = move || {
            let mut scope = self.device.scope();
            let on = scope.stream();
            let buffer = never.allocate_on(&on, bytes).map_err(|error| error.to_string())?;
            let view = buffer.on(&on).map_err(said)?;
            scope.copy((&Unpooled(source), 0), (&view, 0), bytes).map_err(said)?;
            scope.submit().map_err(said)?;
            self.wait()
        };
        let fresh = move || {
            let target = self.buffer(bytes, Usage::default().flags(), false);
            let mut encoder = self.encoder();
            encoder.copy_buffer_to_buffer(source, 0, &target, 0, bytes);
            self.submit(encoder)
        };
        let contenders: Vec<Contender<'_>> =
            vec![("pooled, Never", Box::new(pooled)), ("fresh", Box::new(fresh))];
        contest(case, self, contenders)
    }
}
