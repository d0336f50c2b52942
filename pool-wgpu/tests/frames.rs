//! Uploads, read-back, slabs, kept bind groups, clears with the frame, and the end of a device: on
//! the noop backend, and on a Vulkan device where there is one.
#![expect(clippy::print_stderr, reason = "tests; what did not run says so")]

use pool_core::{Arena, ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, Why, ZeroPolicy};
use pool_wgpu::{ReadWrite, Uniform, Usage, WgpuAllocator, WgpuSlabs};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use wgpu::{BufferUsages, Device, PollType};

fn noop_with(required_features: wgpu::Features) -> WgpuAllocator {
    let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
    let (device, queue) = Device::noop(&descriptor);
    WgpuAllocator::new(device, queue)
}

fn noop() -> WgpuAllocator {
    noop_with(wgpu::Features::empty())
}

/// The noop device, which runs copies and clears, and a real one.
fn devices() -> impl Iterator<Item = WgpuAllocator> {
    let vulkan = WgpuAllocator::on_default_adapter();
    if let Err(error) = &vulkan {
        eprintln!("not run: {error}; install mesa-vulkan-drivers and libvulkan1");
    }
    let noop = noop_with(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
    [Some(noop), vulkan.ok()].into_iter().flatten()
}

fn pattern(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| seed.wrapping_add(at.to_le_bytes()[0])).collect()
}

#[test]
fn what_is_uploaded_is_read_back() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(256 * KIB, 4 * MIB), device.read_backs(4 * MIB));
        let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
        for frame in 0..10_u8 {
            let mut scope = device.scope();
            let on = scope.stream();
            let mut expected = Vec::new();
            for part in 0..16_u8 {
                let data = pattern(frame.wrapping_mul(16).wrapping_add(part), 64 * KIB);
                let buffer = pool.allocate_on(&on, 64 * KIB).unwrap();
                let view = buffer.on(&on).unwrap();
                scope.upload(&uploads, view.buffer(), 0, &data).unwrap();
                let back = scope.read_back(&backs, view.buffer(), 4, 64 * KIB - 7).unwrap();
                expected.push((data, back));
            }
            scope.submit();
            for (data, back) in expected {
                let same = back.wait(|shown| shown == &data[4..data.len() - 3]).unwrap();
                assert!(same, "frame {frame}");
            }
        }
        assert_eq!(pool.stats().misses, 1, "one buffer, in the order of each scope");
        assert!(uploads.reserved_bytes() <= 4 * MIB, "{uploads:?}");
        assert_eq!(backs.reserved_bytes(), 16 * 64 * KIB);
    }
}

#[test]
fn uploads_of_neighbours_keep_their_order_among_other_commands() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
        let mut scope = device.scope();
        let on = scope.stream();
        let (a, b) = (pool.allocate_on(&on, KIB).unwrap(), pool.allocate_on(&on, KIB).unwrap());
        let (a, b) = (a.on(&on).unwrap(), b.on(&on).unwrap());
        for part in 0..4_u8 {
            let at = u64::from(part) * 256;
            scope.upload(&uploads, a.buffer(), at, &[part; 256]).unwrap(); // one copy
        }
        scope.copy((a.buffer(), 0), (b.buffer(), 0), KIB).unwrap(); // behind it
        scope.upload(&uploads, a.buffer(), 0, &[9; 256]).unwrap(); // and this behind that
        scope.upload(&uploads, b.buffer(), 256, &[7; 256]).unwrap();
        let in_a = scope.read_back(&backs, a.buffer(), 0, KIB).unwrap();
        let in_b = scope.read_back(&backs, b.buffer(), 0, KIB).unwrap();
        scope.submit();
        let quarters = |shown: &[u8]| -> Vec<u8> { shown.chunks(256).map(|c| c[255]).collect() };
        assert_eq!(in_a.wait(quarters).unwrap(), [9, 1, 2, 3]);
        assert_eq!(in_b.wait(quarters).unwrap(), [0, 7, 2, 3]);
    }
}

#[test]
fn placed_data_is_read_where_it_lies() {
    let plain = noop().frame_data(BufferUsages::COPY_SRC, KIB, MIB);
    assert_eq!(plain.unwrap_err().why, Why::Unsupported, "requested without the feature");
    for device in devices() {
        let Ok(data) = device.frame_data(BufferUsages::COPY_SRC, 4 * KIB, MIB) else { continue };
        let backs = device.read_backs(MIB);
        for frame in 0..5_u8 {
            let mut scope = device.scope();
            let mut placed = Vec::new();
            for part in 0..40_u64 {
                // Odd lengths too, and one that is larger than a chunk.
                let bytes = pattern(frame, if part == 20 { 4 * KIB + 1 } else { part * 7 });
                let (buffer, at) = scope.place(&data, &bytes).unwrap();
                let back = scope.read_back(&backs, &buffer, at, bytes.len() as u64).unwrap();
                placed.push((bytes, back));
            }
            scope.submit();
            for (bytes, back) in placed {
                assert!(back.wait(|shown| shown == bytes).unwrap(), "frame {frame}");
            }
        }
    }
}

#[test]
fn staging_memory_stays_within_what_is_kept() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::builder(device.clone()).cached_limit(MIB).build();
        for frame in 0..30_u64 {
            let bytes = (frame * 7 % 11 + 1) * 128 * KIB;
            let mut scope = device.scope();
            let on = scope.stream();
            let buffer = pool.allocate_on(&on, bytes).unwrap();
            let view = buffer.on(&on).unwrap();
            scope.upload(&uploads, view.buffer(), 0, &pattern(1, bytes)).unwrap();
            let back = scope.read_back(&backs, view.buffer(), 0, bytes).unwrap();
            scope.submit();
            assert!(back.wait(|shown| shown == pattern(1, bytes)).unwrap());
            assert!(pool.stats().cached_bytes <= MIB);
        }
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(uploads.reserved_bytes() <= MIB + 11 * 128 * KIB, "{uploads:?}");
        assert!(backs.reserved_bytes() <= MIB + 2 * MIB, "{backs:?}");
    }
}

/// Counts its wakes.
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_read_back_can_be_awaited() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::new(device.clone());
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let view = buffer.on(&on).unwrap();
        scope.upload(&uploads, view.buffer(), 0, &[9; 1024]).unwrap();
        let back = scope.read_back(&backs, view.buffer(), 0, KIB).unwrap();
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut back = pin!(back);
        assert!(back.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        scope.submit();
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert_eq!(woken.0.load(Relaxed), 1);
        assert!(matches!(
            back.as_mut().poll(&mut Context::from_waker(&waker)),
            Poll::Ready(Ok(()))
        ));
    }
}

#[test]
fn bad_uploads_and_read_backs_say_what_is_wrong() {
    let (device, other) = (noop(), noop());
    let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
    let pool = BucketPool::new(device.clone());
    let mut scope = device.scope();
    let on = scope.stream();
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    let view = buffer.on(&on).unwrap();
    let to = view.buffer();
    for (offset, data) in [(2, 4), (0, 5), (1000, 100), (u64::MAX - 3, 4)] {
        let error = scope.upload(&uploads, to, offset, &vec![0; data]).unwrap_err();
        assert_eq!(error.why, Why::Unsupported, "{offset} {data}");
        assert_eq!(error.call, "upload: offset and length in words, inside of the buffer");
    }
    assert!(scope.upload(&uploads, to, 0, &[]).is_ok());
    let foreign = scope.upload(&other.uploads(KIB, MIB), to, 0, &[0; 4]).unwrap_err();
    assert_eq!(foreign.why, Why::Foreign);
    assert_eq!(scope.read_back(&backs, to, 1000, 100).unwrap_err().why, Why::Unsupported);
    let same = scope.copy((to, 0), (to, 512), 16).unwrap_err();
    assert_eq!(
        (same.why, same.call),
        (Why::Unsupported, "copy inside of one wgpu buffer: take blocks of two pools",)
    );
    let early = scope.read_back(&backs, to, 0, 16).unwrap();
    assert_eq!(early.lend(|_| ()).unwrap_err().why, Why::NotSubmitted);
    let early = scope.read_back(&backs, to, 0, 16).unwrap();
    assert_eq!(early.wait(|_| ()).unwrap_err().why, Why::NotSubmitted, "an open scope");
    let dropped = scope.read_back(&backs, to, 0, 16).unwrap();
    let mut awaited = pin!(scope.read_back(&backs, to, 0, 16).unwrap());
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    assert!(awaited.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let read_only = pool.allocate_kind(&on, KIB, Usage::new(BufferUsages::UNIFORM)).unwrap();
    let read_only = read_only.on(&on).unwrap().buffer().clone();
    assert_eq!(scope.read_back(&backs, &read_only, 0, 16).unwrap_err().why, Why::Unsupported);
    drop(scope);
    let end = awaited.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(end, Poll::Ready(Err(error)) if error.why == Why::NotSubmitted));
    assert_eq!(woken.0.load(Relaxed), 1, "whoever waits is told");
    assert_eq!(dropped.wait(|_| ()).unwrap_err().why, Why::NotSubmitted, "a dropped scope");
    assert_eq!(backs.reserved_bytes(), 16, "what is not read is not kept; one is still awaited");
}

#[test]
fn clears_go_with_the_frame_and_ahead_of_its_work() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::new(device.clone()); // wgpu's promise: OnAllocate
        let canary = vec![0xAB; 1024];
        for turn in 0..5 {
            let mut scope = device.scope();
            let on = scope.stream();
            let mut backs_of_turn = Vec::new();
            for bytes in [1_u64, 61, 512, 1021] {
                let buffer = pool.allocate_on(&on, bytes).unwrap();
                let view = buffer.on(&on).unwrap();
                // The whole block, the rounding tail among it.
                let whole = buffer.allocated_size();
                backs_of_turn.push(scope.read_back(&backs, view.buffer(), 0, whole).unwrap());
                let all = usize::try_from(whole).unwrap();
                scope.upload(&uploads, view.buffer(), 0, &canary[..all]).unwrap();
            }
            scope.submit();
            for back in backs_of_turn {
                let dirty = back.wait(|shown| shown.iter().filter(|b| **b != 0).count()).unwrap();
                assert_eq!(dirty, 0, "turn {turn}");
            }
        }
        assert!(pool.stats().hits >= 16, "{:?}", pool.stats());
    }
}

#[test]
fn a_clear_of_an_abandoned_scope_does_not_come_later() {
    for device in devices() {
        let backs = device.read_backs(MIB);
        let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
        drop(pool.allocate(KIB).unwrap());
        let abandoned = device.scope();
        drop(pool.allocate_zeroed_on(&abandoned.stream(), KIB).unwrap());
        drop(abandoned);
        let buffer = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().misses, 1);
        let queue = *pool.allocator().clock_queue();
        let view = buffer.on(&queue).unwrap();
        device.queue().write_buffer(view.buffer(), 0, &[5; 1024]);
        let raw = view.buffer().clone();
        drop(view);
        let mut scope = device.scope();
        let on = scope.stream();
        let used = buffer.on(&on).unwrap();
        let back = scope.read_back(&backs, &raw, 0, KIB).unwrap();
        drop(used);
        scope.submit();
        assert!(back.wait(|shown| shown == [5; 1024]).unwrap(), "the clear came after the write");
    }
}

#[test]
fn frames_of_varying_sizes_stay_within_the_bound_and_agree_with_wgpus_report() {
    for device in devices() {
        let taken = || {
            let _ = device.device().poll(PollType::wait_indefinitely());
            device.device().generate_allocator_report().map(|report| report.total_allocated_bytes)
        };
        let before = taken();
        let pool = BucketPool::builder(device.clone()).cached_limit(4 * MIB).build();
        for frame in 0..200_u64 {
            let mut scope = device.scope();
            let on = scope.stream();
            for part in 0..4 {
                let bytes = (frame * 37 + part * 11) % 97 * 8 * KIB + 4;
                let buffer = pool.allocate_on(&on, bytes).unwrap();
                let view = buffer.on(&on).unwrap();
                scope.encoder().clear_buffer(view.buffer(), 0, None);
            }
            scope.submit();
            let stats = pool.stats();
            assert!(stats.cached_bytes <= 4 * MIB, "frame {frame}: {stats}");
        }
        // The noop device gives no report.
        if let (Some(before), Some(after)) = (before, taken()) {
            // wgpu comes and goes with a few hundred bytes of its own.
            let ours = pool.stats().reserved_bytes;
            assert!((after - before).abs_diff(ours) < 4 * KIB, "{after} - {before}, {ours}");
        }
    }
}

/// The queue's own stream.
trait ClockQueue {
    fn clock_queue(&self) -> &pool_wgpu::WgpuStream;
}

impl ClockQueue for WgpuAllocator {
    fn clock_queue(&self) -> &pool_wgpu::WgpuStream {
        pool_core::StreamClock::default_stream(self.clock())
    }
}

#[test]
fn slabs_are_cut_at_the_devices_alignment() {
    for device in devices() {
        let limits = device.device().limits();
        let uniform = WgpuSlabs::<Uniform>::new(device.clone());
        let uniform = BucketPool::new(Arena::new(uniform, ArenaConfig::segments(MIB)));
        let storage = WgpuSlabs::<ReadWrite>::new(device.clone());
        let storage = BucketPool::new(Arena::new(storage, ArenaConfig::segments(MIB)));
        let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
        let mut scope = device.scope();
        let on = scope.stream();
        let mut shown = Vec::new();
        for turn in 0..50_u8 {
            let (u, s) = (uniform.allocate_on(&on, 100).unwrap(), storage.allocate_on(&on, 300));
            let s = s.unwrap();
            let (u, s) = (u.on(&on).unwrap(), s.on(&on).unwrap());
            assert!(u.offset().is_multiple_of(limits.min_uniform_buffer_offset_alignment.into()));
            assert!(s.offset().is_multiple_of(limits.min_storage_buffer_offset_alignment.into()));
            assert!(u.uniform().is_ok() && s.read_write().is_ok());
            scope.upload(&uploads, u.buffer(), u.offset(), &[turn; 100]).unwrap();
            scope.copy((u.buffer(), u.offset()), (s.buffer(), s.offset()), 100).unwrap();
            shown.push((turn, scope.read_back(&backs, s.buffer(), s.offset(), 300).unwrap()));
        }
        scope.submit();
        for (turn, back) in shown {
            let right = |shown: &[u8]| {
                shown[..100].iter().all(|b| *b == turn) && shown[100..].iter().all(|b| *b == 0)
            };
            assert!(back.wait(right).unwrap(), "turn {turn}: cleared, and then its own data");
        }
        assert_eq!((uniform.stats().reserved_bytes, storage.stats().reserved_bytes), (MIB, MIB));
    }
}

#[test]
fn bind_groups_are_kept_until_a_buffer_goes() {
    for device in devices() {
        let layout = device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: false },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        let pool = BucketPool::new(device.clone());
        let bind = |bytes: u64| {
            let buffer = pool.allocate(bytes).unwrap();
            let on = *device.clock_queue();
            let view = buffer.on(&on).unwrap();
            device.bind_group(&layout, &[(0, &view)])
        };
        let (first, again) = (bind(KIB).unwrap(), bind(KIB).unwrap());
        assert_eq!((first == again, device.kept_bind_groups()), (true, 1));
        assert_ne!(bind(2 * KIB).unwrap(), first);
        assert_eq!(device.kept_bind_groups(), 2);
        pool.clear().unwrap();
        assert_eq!(device.kept_bind_groups(), 0, "the buffers went");
        for elements in 1..=300 {
            bind(elements * 256).unwrap(); // other sizes of few buffers
        }
        assert_eq!(device.kept_bind_groups(), 256);
        let empty = bind(0).unwrap_err();
        assert_eq!((empty.why, empty.call), (Why::Unsupported, "bind a buffer of 0 bytes"));
        let uniform = Usage::new(BufferUsages::UNIFORM);
        let on = *device.clock_queue();
        let wrong = pool.allocate_kind(&on, KIB, uniform).unwrap();
        let wrong = device.bind_group(&layout, &[(0, &wrong.on(&on).unwrap())]).unwrap_err();
        assert_eq!((wrong.why, wrong.call), (Why::Unsupported, "create_bind_group"));
    }
}

#[test]
fn after_the_device_is_lost_every_call_says_so() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let buffer = pool.allocate(KIB).unwrap();
        drop(pool.allocate(2 * KIB).unwrap());
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let mut scope = device.scope();
        let raw = {
            let on = scope.stream();
            buffer.on(&on).unwrap().buffer().clone()
        };
        scope.upload(&uploads, &raw, 0, &[1; 64]).unwrap();
        let back = scope.read_back(&backs, &raw, 0, 64).unwrap();
        device.device().destroy();
        assert_eq!(pool.allocate(3 * MIB).unwrap_err().why(), Why::Lost, "a miss finds out");
        assert_eq!(scope.upload(&uploads, &raw, 0, &[1; 64]).unwrap_err().why, Why::Lost);
        assert_eq!(scope.read_back(&backs, &raw, 0, 64).unwrap_err().why, Why::Lost);
        drop(scope);
        assert!(back.wait(|_| ()).is_err());
        assert_eq!((uploads.reserved_bytes(), backs.reserved_bytes()), (0, 0));
        assert_eq!(pool.allocate(2 * KIB).unwrap_err().why(), Why::Lost, "what would be a hit");
        let on = *device.clock_queue();
        assert_eq!(buffer.on(&on).unwrap_err().why, Why::Lost);
        assert_eq!(pool.clear().unwrap_err().why(), Why::Lost);
        drop(buffer);
        let stats = pool.stats();
        assert_eq!((stats.requested_bytes, stats.lost_bytes), (0, 0));
    }
}
