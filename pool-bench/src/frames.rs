//! Pooled wgpu buffers beside fresh ones, frame by frame on one device, in turns: uploads, a kernel
//! that touches little, a copy that fills a large buffer, dense work.

use crate::beside::Row;
use crate::machine::page_faults;
use bucketpool::wgpu::wgpu::util::StagingBelt;
use bucketpool::wgpu::wgpu::{
    self, BindGroup, BindGroupLayout, Buffer, BufferDescriptor, BufferUsages, CommandEncoder,
    ComputePipeline, Device, PollType, Queue,
};
use bucketpool::wgpu::{Uploads, Usage, WgpuAllocator};
use bucketpool::{BucketPool, ZeroPolicy};
use std::num::NonZeroU64;
use std::time::Instant;

const MIB: u64 = 1 << 20;
/// Uploads of a frame, and bytes of each.
const UPLOADS: (usize, u64) = (64, 64 << 10);
/// Frames that count, and those of a smoke test.
const ROUNDS: (usize, usize) = (31, 2);
/// Frames before that: pools fill.
const COLD: usize = 3;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read_write> numbers: array<vec4<f32>>;
@compute @workgroup_size(64)
fn add_one(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&numbers) {
        numbers[id.x] = numbers[id.x] + vec4<f32>(1.0);
    }
}";

type Failed = String;
/// One frame of a contender.
type Frame<'f> = Box<dyn FnMut() -> Result<(), Failed> + 'f>;

/// Runs all cases.
///
/// # Errors
///
/// What the device, or a pool, said.
pub fn run(smoke: bool, tell: impl Fn(&str)) -> Result<Vec<Row>, Failed> {
    let device = WgpuAllocator::on_default_adapter().map_err(|error| error.to_string())?;
    let bench = Bench::new(device, smoke);
    let mut rows = Vec::new();
    let small = |bytes: u64| if smoke { MIB } else { bytes };
    tell("uploads");
    rows.extend(bench.uploads()?);
    tell("uploads that a kernel reads");
    rows.extend(bench.read_by_a_kernel()?);
    for (name, bytes, groups, kernels) in [
        ("a kernel that touches little of 16 MiB", small(16 * MIB), 1, 1),
        ("8 kernels that touch little of 16 MiB each", small(16 * MIB), 1, 8),
        ("dense work on 16 MiB", small(16 * MIB), small(16 * MIB) / 16 / 64, 1),
    ] {
        tell(name);
        let groups = u32::try_from(groups).unwrap_or(1);
        rows.extend(bench.kernels(name, Work { bytes, groups, kernels })?);
    }
    tell("copy");
    rows.extend(bench.copies(small(64 * MIB))?);
    Ok(rows)
}

struct Bench {
    device: WgpuAllocator,
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
    rounds: usize,
}

/// What a frame computes: so many kernels, each of so many groups of 64 vectors, on a buffer of its
/// own.
#[derive(Clone, Copy)]
struct Work {
    bytes: u64,
    groups: u32,
    kernels: usize,
}

/// A contender: its name and its frames.
type Contender<'f> = (&'static str, Frame<'f>);

/// Lets contenders take turns; the first is what the others are compared with.
fn contest(case: &str, rounds: usize, contenders: Vec<Contender<'_>>) -> Result<Vec<Row>, Failed> {
    let mut contenders = contenders;
    let mut ns = vec![Vec::new(); contenders.len()];
    let mut faults = vec![0; contenders.len()];
    for round in 0..COLD + rounds {
        for (at, (_, frame)) in contenders.iter_mut().enumerate() {
            let (before, start) = (page_faults(), Instant::now());
            frame()?;
            let took = start.elapsed().as_nanos() as f64;
            if round >= COLD {
                faults[at] = page_faults().saturating_sub(before).max(faults[at]);
                ns[at].push(Some(took));
            }
        }
    }
    let row = |(at, (name, _)): (usize, &Contender<'_>)| Row {
        page_faults: Some(faults[at]),
        ..Row::new(case, name, &ns[at], &ns[0])
    };
    Ok(contenders.iter().enumerate().map(row).collect())
}

impl Bench {
    fn new(device: WgpuAllocator, smoke: bool) -> Self {
        let module = device.device().create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.device().create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("add_one"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let layout = pipeline.get_bind_group_layout(0);
        Self { device, pipeline, layout, rounds: if smoke { ROUNDS.1 } else { ROUNDS.0 } }
    }

    fn gpu(&self) -> (&Device, &Queue) {
        (self.device.device(), self.device.queue())
    }

    fn buffer(&self, bytes: u64, usage: BufferUsages, mapped_at_creation: bool) -> Buffer {
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        self.gpu().0.create_buffer(&descriptor)
    }

    fn wait(&self) -> Result<(), Failed> {
        let polled = self.gpu().0.poll(PollType::wait_indefinitely());
        polled.map(|_| ()).map_err(|error| error.to_string())
    }

    fn encoder(&self) -> CommandEncoder {
        self.gpu().0.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn submit(&self, encoder: CommandEncoder) -> Result<(), Failed> {
        self.gpu().1.submit([encoder.finish()]);
        self.wait()
    }

    fn uploads(&self) -> Result<Vec<Row>, Failed> {
        let (count, bytes) = UPLOADS;
        let data: Vec<u8> = (0..bytes).map(|at| at.to_le_bytes()[0]).collect();
        let usage = Usage::default().flags();
        let targets: Vec<Buffer> = (0..count).map(|_| self.buffer(bytes, usage, false)).collect();
        let (targets, data) = (&targets, &data);
        let ours = self.device.uploads(count as u64 * bytes, 64 * MIB);
        let mut belt = StagingBelt::new(self.gpu().0.clone(), count as u64 * bytes);
        let size = NonZeroU64::new(bytes).ok_or("no bytes")?;
        let belt = move || {
            let mut encoder = self.encoder();
            for to in targets {
                belt.write_buffer(&mut encoder, to, 0, size).copy_from_slice(data);
            }
            belt.finish();
            self.gpu().1.submit([encoder.finish()]);
            belt.recall();
            self.wait()
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
            ("bucketpool, staged", Box::new(move || self.upload(&ours, targets, data))),
            ("StagingBelt", Box::new(belt)),
            ("Queue::write_buffer", Box::new(queue)),
            ("fresh, mapped at creation", Box::new(fresh)),
        ];
        contest("64 uploads of 64 KiB", self.rounds, contenders)
    }

    fn group(&self, buffer: &Buffer, offset: u64, bytes: u64) -> BindGroup {
        let size = NonZeroU64::new(bytes);
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
        self.gpu().0.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource }],
        })
    }

    /// As many into one buffer, and a kernel that reads it: through staging memory, and where the
    /// CPU has put it.
    fn read_by_a_kernel(&self) -> Result<Vec<Row>, Failed> {
        let (count, bytes) = UPLOADS;
        let all = count as u64 * bytes;
        let failed = |error: bucketpool::DeviceError| error.to_string();
        let data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let target = self.buffer(all, Usage::default().flags(), false);
        let group = self.group(&target, 0, all);
        let (target, group, data) = (&target, &group, &data);
        let at = move || (0..count as u64).map(move |number| number * bytes);
        let staging = self.device.uploads(all, 64 * MIB);
        let mut belt = StagingBelt::new(self.gpu().0.clone(), all);
        let size = NonZeroU64::new(bytes).ok_or("no bytes")?;
        let staged = move || {
            let mut scope = self.device.scope();
            for at in at() {
                scope.upload(&staging, target, at, data).map_err(failed)?;
            }
            self.dispatch(scope.encoder(), group, 1);
            scope.submit();
            self.wait()
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
            ("bucketpool, staged", Box::new(staged)),
            ("StagingBelt", Box::new(belt)),
            ("Queue::write_buffer", Box::new(queue)),
        ];
        if let Ok(placed) = self.device.frame_data(BufferUsages::STORAGE, all, 64 * MIB) {
            let place = move || {
                let mut scope = self.device.scope();
                let mut first = None;
                for _ in at() {
                    let placed = scope.place(&placed, data).map_err(failed)?;
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

    fn upload(&self, ours: &Uploads, targets: &[Buffer], data: &[u8]) -> Result<(), Failed> {
        let mut scope = self.device.scope();
        for to in targets {
            scope.upload(ours, to, 0, data).map_err(|error| error.to_string())?;
        }
        scope.submit();
        self.wait()
    }

    fn pool(&self, zero: ZeroPolicy) -> BucketPool<WgpuAllocator> {
        BucketPool::builder(self.device.clone()).zero(zero).build()
    }

    /// Pooled buffers, their kept bind groups, and a kernel on each.
    fn pooled_kernels(&self, pool: &BucketPool<WgpuAllocator>, work: Work) -> Result<(), Failed> {
        let failed = |error: bucketpool::DeviceError| error.to_string();
        let mut scope = self.device.scope();
        let on = scope.stream();
        let buffers: Result<Vec<_>, _> =
            (0..work.kernels).map(|_| pool.allocate_on(&on, work.bytes)).collect();
        for buffer in &buffers.map_err(|error| error.to_string())? {
            let view = buffer.on(&on).map_err(failed)?;
            let group = pool.allocator().bind_group(&self.layout, &[(0, &view)]).map_err(failed)?;
            self.dispatch(scope.encoder(), &group, work.groups);
        }
        scope.submit();
        self.wait()
    }

    fn fresh_kernels(&self, work: Work) -> Result<(), Failed> {
        let mut encoder = self.encoder();
        for _ in 0..work.kernels {
            let buffer = self.buffer(work.bytes, Usage::default().flags(), false);
            let group = self.group(&buffer, 0, work.bytes);
            self.dispatch(&mut encoder, &group, work.groups);
        }
        self.submit(encoder)
    }

    fn dispatch(&self, encoder: &mut CommandEncoder, group: &BindGroup, groups: u32) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(groups.min(65_535), 1, 1);
    }

    fn kernels(&self, case: &str, work: Work) -> Result<Vec<Row>, Failed> {
        let (never, cleared) = (self.pool(ZeroPolicy::Never), self.pool(ZeroPolicy::OnAllocate));
        let contenders: Vec<Contender<'_>> = vec![
            ("pooled, Never", Box::new(move || self.pooled_kernels(&never, work))),
            ("pooled, cleared", Box::new(move || self.pooled_kernels(&cleared, work))),
            ("fresh", Box::new(move || self.fresh_kernels(work))),
        ];
        contest(case, self.rounds, contenders)
    }

    fn copies(&self, bytes: u64) -> Result<Vec<Row>, Failed> {
        let source = self.buffer(bytes, Usage::default().flags(), false);
        let source = &source;
        let never = self.pool(ZeroPolicy::Never);
        let pooled = move || {
            let mut scope = self.device.scope();
            let on = scope.stream();
            let buffer = never.allocate_on(&on, bytes).map_err(|error| error.to_string())?;
            let view = buffer.on(&on).map_err(|error| error.to_string())?;
            let (from, to) = ((source, 0), (view.buffer(), view.offset()));
            scope.copy(from, to, bytes).map_err(|error| error.to_string())?;
            scope.submit();
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
        contest("a copy that fills 64 MiB", self.rounds, contenders)
    }
}
