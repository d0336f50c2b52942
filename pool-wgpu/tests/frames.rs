//! Slabs, kept bind groups, clears with the frame, and the end of a device: on the noop backend,
//! and on a Vulkan device where there is one.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PooledBuffer, Why, ZeroPolicy};
use pool_wgpu::{ReadWrite, Uniform, Unpooled, Usage, WgpuAllocator, WgpuSlabs};
use present::{devices, of_the_queue, uncleared};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use wgpu::{BufferUsages, CommandEncoderDescriptor, PollType};

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
                let _ = scope.encoder(); // where the raw buffer is used
                let raw = Unpooled(view.buffer().unwrap());
                backs_of_turn.push(scope.read_back(&backs, &raw, 0, whole).unwrap());
                let all = usize::try_from(whole).unwrap();
                scope.upload(&uploads, &raw, 0, &canary[..all]).unwrap();
            }
            scope.submit().unwrap();
            for back in backs_of_turn {
                let dirty = back.wait(|shown| shown.iter().filter(|b| **b != 0).count()).unwrap();
                assert_eq!(dirty, 0, "turn {turn}");
            }
        }
        assert!(pool.stats().hits >= 16, "{:?}", pool.stats());
    }
}

#[test]
fn threads_serve_each_other_what_their_scopes_freed() {
    for device in devices() {
        // Scopes have no number of their own: a request begins in the shard of its thread.
        let pool = BucketPool::builder(device.clone()).shards(8).zero(ZeroPolicy::Never).build();
        for _ in 0..16 {
            let frame = || {
                let scope = device.scope();
                let on = scope.stream();
                let buffers =
                    [KIB, 2 * KIB, MIB].map(|bytes| pool.allocate_on(&on, bytes).unwrap());
                drop(buffers);
                scope.submit().unwrap();
            };
            thread::scope(|threads| threads.spawn(frame).join().unwrap());
        }
        assert_eq!(pool.stats().misses, 3, "{}", pool.stats());
    }
}

#[test]
fn a_buffer_that_cannot_be_cleared_takes_no_other_with_it() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(MIB, MIB);
        let mut scope = device.scope();
        let on = scope.stream();
        let dirty = [KIB, 2 * KIB].map(|bytes| pool.allocate_on(&on, bytes).unwrap());
        let raw = dirty.each_ref().map(|buffer| buffer.on(&on).unwrap().buffer().unwrap().clone());
        for buffer in &raw {
            scope.upload(&uploads, &Unpooled(buffer), 0, &[0xAB; 1024]).unwrap();
        }
        drop(dirty);
        let _ = scope.encoder(); // where the raw buffers are used
        scope.submit().unwrap();
        let scope = device.scope();
        let again = [KIB, 2 * KIB].map(|bytes| pool.allocate_on(&scope.stream(), bytes).unwrap());
        assert_eq!(pool.stats().hits, 2);
        raw[1].destroy();
        scope.submit().unwrap();
        assert_eq!(shown(&device, &again[0]), [0; 1024], "another's data");
    }
}

/// A block that another had written to, and the pool cleared for its next owner.
fn handed_on(
    device: &WgpuAllocator,
    pool: &BucketPool<WgpuAllocator>,
) -> (pool_wgpu::Scope, PooledBuffer<WgpuAllocator>) {
    let uploads = device.uploads(MIB, MIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let dirty = pool.allocate_on(&on, KIB).unwrap();
    scope.upload(&uploads, &dirty.on(&on).unwrap(), 0, &[0xAB; 1024]).unwrap();
    drop(dirty);
    scope.submit().unwrap();
    let scope = device.scope();
    let again = pool.allocate_on(&scope.stream(), KIB).unwrap();
    assert_eq!(pool.stats().hits, 1);
    (scope, again)
}

fn shown(device: &WgpuAllocator, buffer: &PooledBuffer<WgpuAllocator>) -> Vec<u8> {
    let backs = device.read_backs(MIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let view = buffer.on(&on).unwrap();
    let back = scope.read_back(&backs, &view, 0, KIB).unwrap();
    scope.submit().unwrap();
    back.wait(<[u8]>::to_vec).unwrap()
}

#[test]
fn a_clear_of_an_abandoned_scope_is_not_left_out() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, again) = handed_on(&device, &pool);
        drop(scope);
        assert_eq!(shown(&device, &again), [0; 1024], "another's data");
    }
}

#[test]
fn a_clear_of_an_abandoned_scope_does_not_come_later() {
    for device in devices() {
        let backs = device.read_backs(MIB);
        let pool = uncleared(&device);
        drop(pool.allocate(KIB).unwrap());
        let abandoned = device.scope();
        drop(pool.allocate_zeroed_on(&abandoned.stream(), KIB).unwrap());
        drop(abandoned);
        let buffer = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().misses, 1);
        let queue = of_the_queue(&device);
        let view = buffer.on(&queue).unwrap();
        view.write(0, &[5; 1024]).unwrap();
        drop(view);
        let mut scope = device.scope();
        let on = scope.stream();
        let used = buffer.on(&on).unwrap();
        let back = scope.read_back(&backs, &used, 0, KIB).unwrap();
        drop(used);
        scope.submit().unwrap();
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
                scope.encoder().clear_buffer(view.buffer().unwrap(), 0, None);
            }
            scope.submit().unwrap();
            let stats = pool.stats();
            assert!(stats.cached_bytes <= 4 * MIB, "frame {frame}: {stats}");
        }
        // The noop device gives no report.
        if let (Some(before), Some(after)) = (before, taken()) {
            // wgpu comes and goes with a few hundred bytes itself.
            let ours = pool.stats().reserved_bytes;
            assert!((after - before).abs_diff(ours) < 4 * KIB, "{after} - {before}, {ours}");
        }
    }
}

#[test]
fn slabs_are_cut_at_the_devices_alignment() {
    for device in devices() {
        let limits = device.device().limits();
        let uniform = WgpuSlabs::<Uniform>::new(device.clone());
        let uniform = BucketPool::builder(uniform).arena(ArenaConfig::segments(MIB)).build();
        let storage = WgpuSlabs::<ReadWrite>::new(device.clone());
        let storage = BucketPool::builder(storage).arena(ArenaConfig::segments(MIB)).build();
        let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
        let mut scope = device.scope();
        let _ = scope.encoder(); // so that no other encoder is thought to use the pieces
        let on = scope.stream();
        let mut shown = Vec::new();
        for turn in 0..50_u8 {
            let (u, s) = (uniform.allocate_on(&on, 100).unwrap(), storage.allocate_on(&on, 300));
            let s = s.unwrap();
            let (u, s) = (u.on(&on).unwrap(), s.on(&on).unwrap());
            assert!(u.offset().is_multiple_of(limits.min_uniform_buffer_offset_alignment.into()));
            assert!(s.offset().is_multiple_of(limits.min_storage_buffer_offset_alignment.into()));
            assert!(u.binding().is_ok() && s.binding().is_ok());
            scope.upload(&uploads, &u, 0, &[turn; 100]).unwrap();
            scope.copy((&u, 0), (&s, 0), 100).unwrap();
            shown.push((turn, scope.read_back(&backs, &s, 0, 300).unwrap()));
        }
        scope.submit().unwrap();
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
fn a_piece_that_an_open_scope_used_serves_no_other_scope() {
    for device in devices() {
        let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
        let pool = BucketPool::builder(slabs)
            .arena(ArenaConfig::segments(MIB))
            .zero(ZeroPolicy::Never)
            .cached_limit(0)
            .build();
        let place = |on: &_| {
            let piece = pool.allocate_on(on, 300).unwrap();
            let view = piece.on(on).unwrap();
            (view.buffer().unwrap().clone(), view.offset())
        };
        let (mut first, mut second) = (device.scope(), device.scope());
        for scope in [&mut first, &mut second] {
            let _ = scope.encoder(); // so that no other encoder is thought to use the pieces
        }
        let used = place(&first.stream());
        let _ = first.encoder(); // anew, so that no pass of it is open
        assert_eq!(place(&first.stream()), used, "its own scope has it again");
        assert_ne!(place(&second.stream()), used, "the first scope may be submitted later");
        first.submit().unwrap();
        let mut third = device.scope();
        let _ = third.encoder();
        assert_eq!(place(&third.stream()), used);
        // What an open scope used does not take the untouched rest of the slab with it.
        assert_eq!(pool.stats().reserved_bytes, MIB);
        second.submit().unwrap();
        third.submit().unwrap();
        // Once all work is submitted, all of the slab serves one request.
        let last = device.scope();
        let _whole = pool.allocate_on(&last.stream(), MIB).unwrap();
        assert_eq!(pool.stats().reserved_bytes, MIB);
    }
}

fn storage_layout(device: &WgpuAllocator) -> wgpu::BindGroupLayout {
    device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
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
    })
}

#[test]
fn m4_bind_groups_are_cached_until_a_buffer_goes() {
    for device in devices() {
        let layout = storage_layout(&device);
        let pool = BucketPool::new(device.clone());
        let bind = |bytes: u64| {
            let scope = device.scope();
            let on = scope.stream();
            let buffer = pool.allocate_on(&on, bytes).unwrap();
            let view = buffer.on(&on).unwrap();
            device.bind_group(&layout, &[(0, &view)])
        };
        let (first, again) = (bind(KIB).unwrap(), bind(KIB).unwrap());
        assert_eq!((first == again, device.bind_group_stats().cached), (true, 1));
        assert_ne!(bind(2 * KIB).unwrap(), first);
        assert_eq!(device.bind_group_stats().cached, 2);
        pool.clear().unwrap();
        assert_eq!(device.bind_group_stats().cached, 0, "the buffers went");
        for elements in 1..=300 {
            bind(elements * 256).unwrap(); // other sizes of few buffers
        }
        assert_eq!(device.bind_group_stats().cached, 65);
        let empty = bind(0).unwrap_err();
        assert_eq!((empty.why, empty.call), (Why::Unsupported, "bind a buffer of 0 bytes"));
        let uniform = Usage::new(BufferUsages::UNIFORM);
        let scope = device.scope();
        let on = scope.stream();
        let wrong = pool.allocate_kind(&on, KIB, uniform).unwrap();
        let wrong = device.bind_group(&layout, &[(0, &wrong.on(&on).unwrap())]).unwrap_err();
        let call = "create_bind_group (`WgpuAllocator::on_refused` is told why)";
        assert_eq!((wrong.why, wrong.call), (Why::Unsupported, call));
    }
}

#[test]
fn after_the_device_is_lost_every_call_says_so() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let buffer = pool.allocate(KIB).unwrap();
        drop(pool.allocate(2 * KIB).unwrap());
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let data = device.frame_data(BufferUsages::COPY_SRC, KIB, MIB).unwrap();
        let mut scope = device.scope();
        let _ = scope.encoder(); // there is no other
        let raw = {
            let on = scope.stream();
            buffer.on(&on).unwrap().buffer().unwrap().clone()
        };
        scope.place(&data, &[1; 64]).unwrap();
        let on_its_way = scope.read_back(&backs, &Unpooled(&raw), 0, 64).unwrap();
        scope.flush().unwrap();
        scope.place(&data, &[1; 64]).unwrap();
        scope.upload(&uploads, &Unpooled(&raw), 0, &[1; 64]).unwrap();
        let back = scope.read_back(&backs, &Unpooled(&raw), 0, 64).unwrap();
        let layout = storage_layout(&device);
        let other = device.scope();
        let on = other.stream();
        let held = pool.allocate_on(&on, KIB).unwrap();
        let view = held.on(&on).unwrap();
        device.device().destroy();
        // wgpu tells once what was submitted has ended.
        let _ = device.device().poll(PollType::wait_indefinitely());
        assert_eq!(pool.allocate(3 * MIB).unwrap_err().why(), Why::Lost, "a miss");
        assert_eq!(
            scope.upload(&uploads, &Unpooled(&raw), 0, &[1; 64]).unwrap_err().why,
            Why::Lost
        );
        assert_eq!(scope.read_back(&backs, &Unpooled(&raw), 0, 64).unwrap_err().why, Why::Lost);
        assert_eq!(scope.place(&data, &[1; 64]).unwrap_err().why, Why::Lost);
        assert_eq!(device.bind_group(&layout, &[(0, &view)]).unwrap_err().why, Why::Lost);
        drop(view);
        drop(held);
        drop(scope);
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::Lost);
        assert_eq!(on_its_way.wait(|_| ()).unwrap_err().why, Why::Lost);
        drop((back, on_its_way));
        assert_eq!((uploads.reserved_bytes(), data.reserved_bytes()), (0, 0));
        assert_eq!(backs.reserved_bytes(), 0);
        assert_eq!(pool.allocate(2 * KIB).unwrap_err().why(), Why::Lost, "what would be a hit");
        assert_eq!(buffer.on(&on).unwrap_err().why, Why::Lost);
        assert_eq!(pool.clear().unwrap_err().why(), Why::Lost);
        drop(buffer);
        let stats = pool.stats();
        assert_eq!((stats.requested_bytes, stats.lost_bytes), (0, 0));
    }
}

#[test]
fn a_refused_submission_does_not_take_the_clears_with_it() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mut scope, again) = handed_on(&device, &pool);
        let said = Arc::new(AtomicBool::new(false));
        let says = said.clone();
        device.on_refused(move |text| says.store(text.contains("destroyed"), Relaxed));
        let destroyed = pool.allocate_on(&scope.stream(), 2 * KIB).unwrap().detach();
        let destroyed = destroyed.into_raw().unwrap().0.into_buffer();
        scope.encoder().clear_buffer(&destroyed, 0, None);
        let backs = device.read_backs(MIB);
        let on = scope.stream();
        let back = scope.read_back(&backs, &again.on(&on).unwrap(), 0, KIB).unwrap();
        destroyed.destroy();
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted, "nothing came back");
        assert!(said.load(Relaxed), "the application is told what wgpu says");
        assert_eq!(shown(&device, &again), [0; 1024], "another's data");
    }
}

#[test]
fn pieces_of_slabs_keep_their_bind_groups_too() {
    for device in devices() {
        let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
        let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
        let layout = storage_layout(&device);
        let bind = |bytes: u64| {
            let scope = device.scope();
            let on = scope.stream();
            let piece = pool.allocate_on(&on, bytes).unwrap();
            let view = piece.on(&on).unwrap();
            device.bind_group(&layout, &[(0, &view)]).unwrap()
        };
        let (first, again) = (bind(KIB), bind(KIB));
        assert_eq!((first == again, device.bind_group_stats().cached), (true, 1));
        let held = pool.allocate(KIB).unwrap(); // the same place, so that the next is another
        assert_ne!(bind(KIB), first);
        drop(held);
        pool.clear().unwrap();
        assert_eq!(device.bind_group_stats().cached, 0, "the slab went");
    }
}

/// Uses a buffer in many scopes, each of which is submitted. Returns the number of its marks.
fn marks_after_frames(device: &WgpuAllocator, frames: u32) -> usize {
    let pool = BucketPool::new(device.clone());
    let mesh = pool.allocate(KIB).unwrap();
    for _ in 0..frames {
        let mut scope = device.scope();
        let on = scope.stream();
        scope.encoder().clear_buffer(mesh.on(&on).unwrap().buffer().unwrap(), 0, Some(4));
        scope.submit().unwrap();
    }
    mesh.detach().into_raw().unwrap().1.len()
}

#[test]
fn a_buffer_that_is_used_in_many_scopes_keeps_few_marks() {
    for device in devices() {
        let marks = marks_after_frames(&device, 10_000);
        assert!(marks <= 2, "{marks} marks: one of its own stream, one of the last scope");
    }
}

#[test]
fn a_scope_that_stays_open_keeps_no_marks_of_others() {
    for device in devices() {
        let loading = device.scope(); // older than all others
        let marks = marks_after_frames(&device, 100);
        assert!(marks <= 2, "{marks} marks: one of its own stream, one of the last scope");
        drop(loading);
    }
}

#[test]
fn a_use_in_an_open_scope_stays_among_the_marks() {
    for device in devices() {
        let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
        let mesh = pool.allocate(KIB).unwrap();
        let open = device.scope();
        drop(mesh.on(&open.stream()).unwrap());
        // Uses that nothing is known of: they are not ordered behind the open scope.
        for _ in 0..10 {
            let other = device.scope();
            mesh.record_stream(&other.stream()).unwrap();
            drop(other);
        }
        drop(mesh);
        let other = device.scope();
        drop(pool.allocate_on(&other.stream(), KIB).unwrap());
        assert_eq!(pool.stats().hits, 0, "the open scope may use the block");
        drop(open);
        drop(pool.allocate_on(&other.stream(), KIB).unwrap());
        assert_eq!(pool.stats().hits, 1);
    }
}

/// A thread that polls takes the word of a submission from wgpu, and passes it on a little later: a
/// buffer of the frame before is not refused meanwhile.
#[test]
fn a_buffer_is_lent_beside_threads_that_poll() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let mesh = pool.allocate_on(pool.default_stream(), 256).unwrap();
        let is_over = AtomicBool::new(false);
        let poll = || {
            while !is_over.load(Relaxed) {
                let _ = device.device().poll(PollType::Poll);
            }
        };
        thread::scope(|threads| {
            threads.spawn(poll);
            threads.spawn(poll);
            let refused = (0..2000).find_map(|frame| {
                let scope = device.scope();
                let lent = scope.lend(&mesh).map(drop).err();
                let mut encoder =
                    device.device().create_command_encoder(&CommandEncoderDescriptor::default());
                let prologue = scope.prologue(&mut encoder).unwrap();
                device.queue().submit(prologue.into_iter().chain([encoder.finish()]));
                lent.map(|refused| (frame, refused))
            });
            is_over.store(true, Relaxed);
            assert_eq!(refused, None, "the frame before was submitted");
        });
    }
}

/// Three indices of 16 bits are 6 bytes.
#[test]
fn data_that_ends_with_its_buffer_is_filled_up_to_a_word() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (uploads, backs) = (device.uploads(MIB, MIB), device.read_backs(MIB));
        let mut scope = device.scope();
        let on = scope.stream();
        let indices = [1, 0, 2, 0, 3, 0];
        let written = pool.allocate_on(pool.default_stream(), 6).unwrap();
        written.on(pool.default_stream()).unwrap().write(0, &indices).unwrap();
        let uploaded = pool.allocate_on(&on, 10).unwrap();
        let view = uploaded.on(&on).unwrap();
        scope.upload(&uploads, &view, 4, &indices).unwrap();
        let inside = scope.upload(&uploads, &view, 0, &indices).unwrap_err();
        assert_eq!(
            (inside.why, inside.code),
            (Why::Unaligned, 6),
            "it does not end with the buffer"
        );
        let shown = [(&written, 0), (&uploaded, 4)]
            .map(|(buffer, at)| scope.read_back(&backs, &buffer.on(&on).unwrap(), at, 6).unwrap());
        drop(view);
        scope.submit().unwrap();
        for shown in shown {
            assert!(shown.wait(|shown| shown == indices).unwrap());
        }
    }
}
