//! Bytes of a frame on their way to the device: into a buffer each, and into one for a kernel.

use super::device::{Bench, Contender, Failed, contest};
use crate::beside::Row;
use bucketpool::wgpu::wgpu::util::StagingBelt;
use bucketpool::wgpu::wgpu::{Buffer, BufferUsages};
use bucketpool::wgpu::{Uploads, Usage};
use bucketpool::{DeviceError, MIB};
use std::num::NonZeroU64;

/// Uploads of a frame, and bytes of each.
const UPLOADS: (usize, u64) = (64, 64 << 10);

/// Uploads from one chunk to the next where a frame's are handed over in parts.
const PARTS: usize = 4;

fn said(error: DeviceError) -> Failed {
    error.to_string()
}

impl Bench {
    pub(super) fn uploads(&self) -> Result<Vec<Row>, Failed> {
        let (count, bytes) = UPLOADS;
        let all = count as u64 * bytes;
        let data: Vec<u8> = (0..bytes).map(|at| at.to_le_bytes()[0]).collect();
        let usage = Usage::default().flags();
        let targets: Vec<Buffer> = (0..count).map(|_| self.buffer(bytes, usage, false)).collect();
        let (targets, data) = (&targets, &data);
        let eager = self.device.uploads(all / PARTS as u64, 64 * MIB);
        let staged = self.device.uploads(all, 64 * MIB);
        let belt = |parts: usize| {
            let mut belt = StagingBelt::new(self.gpu().0.clone(), all / parts as u64);
            move || {
                let mut in_parts = targets.chunks(count / parts);
                in_parts.try_for_each(|part| self.belt(&mut belt, part, data))?;
                self.wait()
            }
        };
        let queue = move || {
            for to in targets {
                self.gpu().1.write_buffer(to, 0, data);
            }
            self.gpu().1.submit([]);
            self.wait()
        };
        let fresh = move || {
            let mut encoder = self.encoder();
            for to in targets {
                let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
                let staging = self.buffer(bytes, usage, true);
                let mapped = staging.get_mapped_range_mut(..);
                mapped.map_err(|error| error.to_string())?.copy_from_slice(data);
                staging.unmap();
                encoder.copy_buffer_to_buffer(&staging, 0, to, 0, bytes);
            }
            self.submit(encoder)
        };
        let contenders: Vec<Contender<'_>> = vec![
            ("bucketpool, eager", Box::new(move || self.upload(&eager, true, targets, data))),
            ("bucketpool, staged", Box::new(move || self.upload(&staged, false, targets, data))),
            ("StagingBelt", Box::new(belt(1))),
            ("StagingBelt, submitted in 4 parts", Box::new(belt(PARTS))),
            ("Queue::write_buffer", Box::new(queue)),
            ("fresh, mapped at creation", Box::new(fresh)),
        ];
        contest("64 uploads of 64 KiB", self.rounds, contenders)
    }

    /// A submission of uploads as wgpu's own belt makes it.
    fn belt(&self, belt: &mut StagingBelt, to: &[Buffer], data: &[u8]) -> Result<(), Failed> {
        let size = NonZeroU64::new(data.len() as u64).ok_or("no bytes")?;
        let mut encoder = self.encoder();
        for to in to {
            belt.write_buffer(&mut encoder, to, 0, size).copy_from_slice(data);
        }
        belt.finish();
        self.gpu().1.submit([encoder.finish()]);
        belt.recall();
        Ok(())
    }

    /// A frame of uploads.
    fn upload(
        &self,
        through: &Uploads,
        eager: bool,
        targets: &[Buffer],
        data: &[u8],
    ) -> Result<(), Failed> {
        let mut scope = self.device.scope();
        if eager {
            scope.upload_eagerly();
        }
        for to in targets {
            scope.upload(through, to, 0, data).map_err(said)?;
        }
        scope.submit();
        self.wait()
    }

    /// As many into one buffer, and a kernel that reads it: through staging memory, and where the
    /// CPU has put it.
    pub(super) fn read_by_a_kernel(&self) -> Result<Vec<Row>, Failed> {
        let (count, bytes) = UPLOADS;
        let all = count as u64 * bytes;
        let data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let target = self.buffer(all, Usage::default().flags(), false);
        let group = self.group(&target, 0, all);
        let (target, group, data) = (&target, &group, &data);
        let at = move || (0..count as u64).map(move |number| number * bytes);
        let staging = self.device.uploads(all, 64 * MIB);
        let mut belt = StagingBelt::new(self.gpu().0.clone(), all);
        let size = NonZeroU64::new(bytes).ok_or("no bytes")?;
        let chunks = self.device.uploads(all / PARTS as u64, 64 * MIB);
        let ours = |eager: bool, through: Uploads| {
            move || {
                let mut scope = self.device.scope();
                if eager {
                    scope.upload_eagerly();
                }
                for at in at() {
                    scope.upload(&through, target, at, data).map_err(said)?;
                }
                self.dispatch(scope.encoder(), group, 1);
                scope.submit();
                self.wait()
            }
        };
        let belt = move || {
            let mut encoder = self.encoder();
            for at in at() {
                belt.write_buffer(&mut encoder, target, at, size).copy_from_slice(data);
            }
            self.dispatch(&mut encoder, group, 1);
            belt.finish();
            self.gpu().1.submit([encoder.finish()]);
            belt.recall();
            self.wait()
        };
        let queue = move || {
            for at in at() {
                self.gpu().1.write_buffer(target, at, data);
            }
            let mut encoder = self.encoder();
            self.dispatch(&mut encoder, group, 1);
            self.submit(encoder)
        };
        let mut contenders: Vec<Contender<'_>> = vec![
            ("bucketpool, staged", Box::new(ours(false, staging))),
            ("bucketpool, eager", Box::new(ours(true, chunks))),
            ("StagingBelt", Box::new(belt)),
            ("Queue::write_buffer", Box::new(queue)),
        ];
        if let Ok(placed) = self.device.frame_data(BufferUsages::STORAGE, all, 64 * MIB) {
            let place = move || {
                let mut scope = self.device.scope();
                let mut first = None;
                for _ in at() {
                    let placed = scope.place(&placed, data).map_err(said)?;
                    first.get_or_insert(placed);
                }
                let (buffer, at) = first.ok_or("nothing was placed")?;
                self.dispatch(scope.encoder(), &self.group(&buffer, at, all), 1);
                scope.submit();
                self.wait()
            };
            contenders.push(("bucketpool, placed", Box::new(place)));
        }
        contest("64 uploads of 64 KiB into one buffer, and a kernel", self.rounds, contenders)
    }
}
