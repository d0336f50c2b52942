//! Pooled buffers and textures as they are in the calls of a scope.

use crate::present::{devices, noop, uncleared};
use crate::{Pooled, encoder, own};
use pool_core::{AllocError, ArenaConfig, BucketPool, DeviceError, KIB, MIB, Why};
use pool_wgpu::{
    Bindable, Frame, GrowingBuffer, ReadWrite, Scope, Uniform, Unpooled, Uploads, WgpuAllocator,
    WgpuSlabs,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use wgpu::{
    BindGroupLayout, BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, BufferUsages,
    ShaderStages,
};

fn layout_of(device: &WgpuAllocator, kinds: &[BindingType]) -> BindGroupLayout {
    let entries: Vec<_> = (0..)
        .zip(kinds)
        .map(|(binding, ty)| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: *ty,
            count: None,
        })
        .collect();
    let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
    device.device().create_bind_group_layout(&descriptor)
}

const STORAGE: BindingType = BindingType::Buffer {
    ty: BufferBindingType::Storage { read_only: false },
    has_dynamic_offset: false,
    min_binding_size: None,
};

#[test]
fn a_scope_copies_pooled_buffers_as_they_are() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
        let pool = uncleared(&device);
        let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
        let pieces = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
        let mut scope = device.scope();
        let (a, b) = (scope.take(&pool, KIB).unwrap(), scope.take(&pool, KIB).unwrap());
        let piece = pieces.allocate_on(&scope.stream(), 256).unwrap();
        scope.upload(&uploads, &a, 0, &[7; 1024]).unwrap();
        scope.upload(&uploads, &piece, 0, &[9; 256]).unwrap();
        scope.copy((&piece, 0), (&a, 256), 256).unwrap();
        scope.copy((&a, 0), (&b, 0), KIB).unwrap();
        let back = scope.read_back(&backs, &b, 0, KIB).unwrap();
        scope.submit().unwrap();
        let shown = back.wait(|bytes| [bytes[0], bytes[256], bytes[511], bytes[512]]).unwrap();
        assert_eq!(shown, [7, 9, 9, 7]);

        let mut scope = device.scope();
        let mut commands = encoder(&device);
        scope.upload_in(&mut commands, &uploads, &a, 0, &[8; 1024]).unwrap();
        let back = scope.read_back_in(&mut commands, &backs, &a, 0, KIB).unwrap();
        scope.submit_with(commands).unwrap();
        assert!(back.wait(|bytes| bytes == [8; 1024]).unwrap());
    }
}

#[test]
fn pooled_buffers_of_others_are_refused_and_shared_to_read() {
    let (device, other) = (noop(), noop());
    let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
    let (pool, foreign) = (uncleared(&device), uncleared(&other));
    let (mut first, mut second) = (device.scope(), device.scope());
    let foreign = foreign.allocate(KIB).unwrap();
    let refused = first.upload(&uploads, &foreign, 0, &[1; 4]).unwrap_err();
    assert_eq!(refused.why, Why::Foreign);
    let of_first = first.take(&pool, KIB).unwrap();
    let refused = second.upload(&uploads, &of_first, 0, &[1; 4]).unwrap_err();
    assert_eq!(refused.why, Why::NotSubmitted);
    first.upload(&uploads, &of_first, 0, &[1; 4]).unwrap();
    let refused = second.read_back(&backs, &of_first, 0, 4).unwrap_err();
    assert_eq!(refused.why, Why::NotSubmitted);

    let mesh = pool.allocate(KIB).unwrap();
    let _left = first.read_back(&backs, &mesh, 0, 4).unwrap();
    let _right = second.read_back(&backs, &mesh, 0, 4).unwrap(); // both only read it
    let refused = second.upload(&uploads, &mesh, 0, &[1; 4]).unwrap_err();
    assert_eq!(refused.why, Why::NotSubmitted);
    let refused = first.upload(&uploads, &of_first, KIB, &[1; 4]).unwrap_err();
    assert_eq!(refused.why, Why::OutOfRange);
    first.submit().unwrap();
    second.submit().unwrap();
}

#[test]
fn a_scope_binds_pooled_buffers_as_they_are_and_caches_the_group() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let layout = layout_of(&device, &[STORAGE, STORAGE]);
        let hits = device.bind_group_stats().hits;
        for _ in 0..3 {
            let scope = device.scope();
            let (a, b) = (scope.take(&pool, KIB).unwrap(), scope.take(&pool, KIB).unwrap());
            let mut both = [&a, &b];
            both.sort_by_key(|buffer| scope.lend(buffer).unwrap());
            let resources: Vec<(u32, &dyn Bindable)> =
                (0..).zip(both.map(|one| one as &dyn Bindable)).collect();
            scope.bind_group(&layout, &resources).unwrap();
            scope.submit_with(encoder(&device)).unwrap();
        }
        assert_eq!(device.bind_group_stats().hits - hits, 2);
    }
}

#[test]
fn a_bound_buffer_counts_as_lent() {
    let device = noop();
    let pool = uncleared(&device);
    let layout = layout_of(&device, &[STORAGE]);
    let scope = device.scope();
    let buffer = scope.take(&pool, KIB).unwrap();
    let group = scope.bind_group(&layout, &[(0, &buffer)]).unwrap();
    drop(buffer);
    let other = scope.take(&pool, KIB).unwrap();
    let bound = scope.bind_group(&layout, &[(0, &other)]).unwrap();
    assert_ne!(group, bound, "the block of a buffer that the program's encoder may use");
    assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
}

#[test]
fn bind_groups_refuse_what_is_not_of_their_scope() {
    let (device, other) = (noop(), noop());
    let pool = uncleared(&device);
    let layout = layout_of(&device, &[STORAGE]);
    let (scope, second) = (device.scope(), device.scope());
    let on = second.stream();
    let buffer = second.take(&pool, KIB).unwrap();
    let why = |resource: &dyn Bindable| {
        scope.bind_group(&layout, &[(0, resource)]).map(drop).unwrap_err().why
    };
    assert_eq!(why(&buffer), Why::NotSubmitted);
    assert_eq!(why(&buffer.on(&on).unwrap()), Why::Foreign);
    assert_eq!(why(&uncleared(&other).allocate(KIB).unwrap()), Why::Foreign);
    let mine = scope.take(&pool, KIB).unwrap();
    assert_eq!(why(&mine.part(0..2 * KIB)), Why::OutOfRange);
    assert!(scope.bind_group(&layout, &[(0, &mine.part(0..256))]).is_ok());
    let refused = device.bind_group(&layout, &[(0, &mine)]).unwrap_err();
    assert_eq!(refused.why, Why::Unsupported, "its scope is not known");
    assert!(refused.to_string().contains("Scope::bind_group"), "{refused}");
    assert!(scope.bind_group(&layout, &[(0, &Unpooled(&own(&device, KIB)))]).is_ok());
    let uniforms = WgpuSlabs::<Uniform>::new(device.clone());
    let uniforms = BucketPool::builder(uniforms).arena(ArenaConfig::segments(MIB)).build();
    let piece = uniforms.allocate_on(&scope.stream(), 256).unwrap();
    let uniform = BindingType::Buffer {
        ty: BufferBindingType::Uniform,
        has_dynamic_offset: false,
        min_binding_size: None,
    };
    assert!(scope.bind_group(&layout_of(&device, &[uniform]), &[(0, &piece)]).is_ok());
    drop((mine, buffer, piece));
    scope.submit_with(encoder(&device)).unwrap();
    second.submit().unwrap();
}

#[test]
fn one_error_type_serves_a_frame() {
    fn frame(pool: &BucketPool<WgpuAllocator>, bytes: u64, end: u64) -> Result<(), AllocError> {
        let uploads = pool.allocator().uploads(KIB, KIB);
        let mut scope = pool.allocator().scope();
        let buffer = scope.take(pool, bytes)?; // `AllocError`
        scope.upload(&uploads, &buffer, end, &[0; 4])?; // `DeviceError`
        scope.submit()?;
        Ok(())
    }
    let pool = uncleared(&noop());
    frame(&pool, KIB, 0).unwrap();
    let refused = frame(&pool, u64::MAX, 0).unwrap_err();
    assert_eq!((refused.why(), refused.figures().requested_bytes), (Why::TooLarge, u64::MAX));
    let refused = frame(&pool, KIB, KIB).unwrap_err();
    assert_eq!(refused.why(), Why::OutOfRange);
    assert_eq!(refused.to_string(), "upload: beyond the end, at byte 1028");
}

/// A part of an engine that has its buffer for as long as it likes, and no scope in its calls.
struct Particles {
    frame: Frame,
    uploads: Uploads,
    now: Arc<Pooled>,
}

impl Particles {
    fn step(&mut self, pool: &BucketPool<WgpuAllocator>, add: u8) -> Result<Buffer, AllocError> {
        let next = self.frame.with(|scope| scope.take(pool, KIB))?;
        self.frame.with(|scope| scope.upload(&self.uploads, &next, 0, &[add; 1024]))?;
        self.now = Arc::new(next);
        Ok(self.frame.with(|scope| scope.lend(&self.now))?)
    }
}

#[test]
fn parts_of_an_engine_hold_buffers_over_frames_and_pass_no_scope() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (frame, backs) = (device.frame(), device.read_backs(64 * KIB));
        let uploads = device.uploads(64 * KIB, 64 * KIB);
        let now = Arc::new(pool.allocate(KIB).unwrap());
        let mut particles = Particles { frame: frame.clone(), uploads, now };
        for number in 1..20 {
            let held = particles.now.clone(); // as a render graph does, past the next step
            let lent = particles.step(&pool, number).unwrap();
            let mut commands = encoder(&device);
            let record = |scope: &mut Scope| {
                let (back, target) = scope.read_back_target(&mut commands, &backs, KIB)?;
                commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
                let before = scope.read_back_in(&mut commands, &backs, &*held, 0, KIB)?;
                Ok::<_, DeviceError>((back, before))
            };
            let (back, before) = frame.with(record).unwrap();
            frame.end().unwrap().submit_with(commands).unwrap();
            assert!(back.wait(|bytes| bytes == [number; 1024]).unwrap());
            assert!(before.wait(|bytes| bytes == [number - 1; 1024]).unwrap());
        }
        assert_eq!(device.faults(), []);
        assert!(pool.stats().misses <= 3, "{}", pool.stats());
    }
}

#[test]
fn a_frame_has_one_scope_until_its_end_and_survives_a_panic() {
    let device = noop();
    let frame = device.frame();
    let stream = || frame.with(|scope| Ok::<_, DeviceError>(scope.stream())).unwrap();
    let first = stream();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = frame.with(|_| -> Result<(), DeviceError> { panic!("in a node of the graph") });
    }));
    assert!(panicked.is_err());
    assert_eq!(thread::scope(|threads| threads.spawn(stream).join().unwrap()), first);
    let inside = frame.with(|_| frame.end().map(drop)).unwrap_err();
    assert_eq!(inside.why, Why::Unsupported);
    assert_eq!(frame.end().unwrap().stream(), first);
    assert_ne!(stream(), first);
    let refused = frame.with(|scope| scope.take(&uncleared(&device), u64::MAX)).unwrap_err();
    assert_eq!(refused.why(), Why::TooLarge);
}

/// An error between two calls of a frame, which `?` passes on.
#[test]
fn a_frame_that_failed_half_way_says_how_it_is_given_up() {
    for device in devices() {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(64 * KIB, MIB));
        let (frame, camera) = (device.frame(), pool.allocate(64).unwrap());
        let backs = device.read_backs(KIB);
        let mut list = GrowingBuffer::new(&pool, 64, BufferUsages::VERTEX).unwrap();
        let draw = |number: u8, fails: bool| -> Result<(), AllocError> {
            frame.with(|scope| scope.upload(&uploads, &camera, 0, &[number; 64]))?;
            let mut commands = encoder(&device);
            commands.clear_buffer(&frame.with(|scope| scope.lend(&camera))?, 0, Some(4));
            if fails {
                frame.with(|scope| scope.take(&pool, u64::MAX))?;
            }
            Ok(frame.end()?.submit_with(commands).map(drop)?)
        };
        draw(1, false).unwrap();
        assert_eq!(draw(2, true).unwrap_err().why(), Why::TooLarge);
        frame.with(|scope| scope.lend(list.buffer())).unwrap();
        for refused in [
            draw(3, false).unwrap_err(),
            frame
                .with(|scope| scope.read_back(&backs, &camera, 0, 4))
                .map(drop)
                .unwrap_err()
                .into(),
            frame.with(|scope| list.reserve(scope, KIB)).unwrap_err(),
        ] {
            assert_eq!(refused.why(), Why::Unsupported);
            assert!(refused.to_string().contains("`Frame::abandon`"), "{refused}");
        }
        frame.abandon().unwrap();
        frame.abandon().unwrap(); // there is none
        draw(4, false).unwrap();
        assert_eq!(device.faults(), [], "its commands were dropped, too");
        let back = frame.with(|scope| scope.read_back(&backs, &camera, 0, 64)).unwrap();
        frame.end().unwrap().submit().unwrap();
        assert!(back.wait(|bytes| bytes[..4] == [0; 4] && bytes[4..] == [4; 60]).unwrap());
    }
}
